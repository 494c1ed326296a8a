"""Examples as what a model reads, and its answers as what they say of the examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm_jax.config import Task
from mlm_jax.finetune.examples import Example
from mlm_jax.inference.rows import Item
from mlm_jax.tokenizer import Tokenizer


class Piece(NamedTuple):
    """One segment of an example, and the places in it that have labels.

    These are CLS (classification, regression), the first token of each of `words` (tagging), or where the answer begins
    and where it ends, which is CLS both times where there is none in it (questions).
    """

    example: int
    ids: np.ndarray  # i32[n], CLS and SEP among them
    second: int = 0  # place where the second part begins; 0: there is none
    at: np.ndarray = np.zeros(1, np.int32)  # i32[q]
    words: np.ndarray = np.zeros(0, np.int32)  # i32[q], numbers of the words, each looked at in one piece
    context: tuple[int, int] = (0, 0)  # kind=questions: places of the first token of the context, and after its last
    spans: np.ndarray = np.zeros((0, 2), np.int32)  # of each of these, where it begins and ends in the context's string

    @property
    def item(self) -> Item:
        """With the places that have labels."""
        return Item(self.ids, at=self.at, second=self.second)


def of_texts(examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> tuple[list[Piece], int]:
    """Single texts and pairs as CLS text SEP and CLS text SEP second SEP; and how many were cut to `limit` tokens.

    A text is cut at its end, of a pair one token at a time of the one that is longer, the second one if both are equal.
    """
    firsts = _ids(tokenizer, [example.text for example in examples])
    seconds = _ids(tokenizer, [example.second or "" for example in examples])
    pieces, cut = [], 0
    for number, (example, first, second) in enumerate(zip(examples, firsts, seconds)):
        pair = example.second is not None
        room = limit - (3 if pair else 2)
        a, b = longest_first(len(first), len(second) if pair else 0, room)
        cut += a + b < len(first) + (len(second) if pair else 0)
        parts = [[tokenizer.cls], first[:a], [tokenizer.sep]] + ([second[:b], [tokenizer.sep]] if pair else [])
        pieces.append(Piece(number, np.concatenate(parts).astype(np.int32), a + 2 if pair else 0))
    return pieces, cut


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens stay of two texts, where so many have room and the longer one gives way, the second of equals."""
    over = max(0, first + second - room)
    from_longer = min(over, abs(first - second))
    first, second = (first - from_longer, second) if first > second else (first, second - from_longer)
    over -= from_longer
    return first - over // 2, second - (over - over // 2)


def _ids(tokenizer: Tokenizer, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, i32[n]."""
    encoding, lengths = tokenizer.encode_batch(texts)
    return np.split(np.asarray(encoding.ids, np.int32), np.cumsum(lengths)[:-1]) if texts else []


def labels_of(pieces: Sequence[Piece], examples: Sequence[Example], task: Task) -> list[np.ndarray]:
    """The labels of each piece at its places; those of questions mean nothing."""
    if task.kind == "regression":
        return [np.array([examples[piece.example].label], np.float32) for piece in pieces]
    if task.kind == "questions":
        return [np.zeros(2, np.int32) for _ in pieces]
    ids = {name: i for i, name in enumerate(task.labels)}
    if task.kind == "classification":
        return [np.array([ids[examples[piece.example].label]], np.int32) for piece in pieces]
    return [np.array([ids[examples[piece.example].label[word]] for word in piece.words], np.int32) for piece in pieces]
