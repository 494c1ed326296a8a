"""Encoding text by its words: each different one is encoded once, where a tokenizer cuts text at every space."""

from collections.abc import Callable

import numpy as np

ROOM = 4 << 20  # characters of different words that are kept: bounds memory


class _Numbers(dict):
    """Word -> its number, by the order in which words are met; `new`: those met since they were last taken."""

    def __init__(self):
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        self.new.append(word)
        return number


class WordCache:
    """What a tokenizer makes of words, the space before them included, kept for the next time that they are met."""

    def __init__(self, encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]):
        """encode: what tells of each token of some words one after another, i32[n,k], and their tokens, i64[words]."""
        self._encode = encode
        self._clear()

    def _clear(self) -> None:
        self._numbers = _Numbers()
        self._tokens: np.ndarray | None = None  # i32[n,k], of the words known so far
        self._words = np.zeros((3, 0), np.int64)  # of each word: first token, tokens, characters

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What tells of each token of texts one after another, i32[n,k], where in its text the word of each token
        begins, i64[n], and the tokens of each text, i64[texts].

        texts: cleaned, in which no two spaces stand together.
        """
        if self._words[2].sum() > ROOM:
            self._clear()
        # a newline is in no cleaned text
        words = "\n".join(texts).replace(" ", "\n ").split("\n") if texts else []
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._learn()
        first, tokens, size = self._words[:, numbers]
        ends = np.cumsum(tokens)
        index = np.repeat(first - (ends - tokens), tokens)
        index += np.arange(len(index))
        upto = np.cumsum([text.count(" ") + 1 for text in texts], dtype=np.int64)  # words, up to the end of each text
        lengths = np.diff(np.append(0, ends)[upto], prepend=0)
        begin = np.cumsum(size) - size
        begin -= np.repeat(np.cumsum([0, *map(len, texts)])[:-1], np.diff(upto, prepend=0))
        return self._tokens[index], np.repeat(begin, tokens), lengths

    def _learn(self) -> None:
        new, self._numbers.new = self._numbers.new, []
        if not new and self._tokens is not None:
            return
        values, tokens = self._encode(new)
        known = 0 if self._tokens is None else len(self._tokens)
        sizes = np.fromiter(map(len, new), np.int64, len(new))
        words = np.stack([known + np.cumsum(tokens) - tokens, tokens, sizes])
        self._words = np.concatenate([self._words, words], axis=1)
        self._tokens = np.concatenate([self._tokens, values]) if known else values
