"""What is asked: a text with a gap as ids and words."""

import itertools
from typing import NamedTuple

import numpy as np

from mlm_jax.inference.fill import MASK, template
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.windows import around
from mlm_jax.tokenizer import Tokenizer
from mlm_jax.tokenizer.words import find_words

SPACE = "\u2581"  # how SentencePiece writes white space


class Word(NamedTuple):
    """Tokens first .. last-1 of a question."""

    text: str
    first: int
    last: int
    space: bool  # white space stands before it
    kind: str  # word, mask (a gap), cls or sep


class Question(NamedTuple):
    """A segment with a gap that is asked about."""

    ids: np.ndarray  # i32[n], CLS and SEP among them
    place: int  # of the gap
    words: list[Word]  # cut the segment without a gap
    start: int  # of the window, in tokens of the text
    whole: bool  # the window is all of the text


def questions(loaded: Loaded, text: str) -> list[Question]:
    """One for each MASK of a text, from left to right; the others stay masked.

    Of a text that is longer than the model reads, each looks at the window around its MASK. Raises ConfigError for a
    text without MASK.
    """
    tokenizer, found = loaded.tokenizer, []
    asked = template(tokenizer, text)
    ids = asked.ids
    for place in asked.places.tolist():
        window = around(place, len(ids), loaded.limit - 2)
        whole = loaded.surrounded(ids[window.start : window.stop])
        words, all_of_it = words_of(tokenizer, whole), len(whole) - 2 == len(ids)
        found.append(Question(whole, place - window.start + 1, words, window.start, all_of_it))
    return found


def words_of(tokenizer: Tokenizer, ids: np.ndarray) -> list[Word]:
    """The words of a segment i32[n]; CLS, SEP and each MASK are words of their own.

    They begin where the tokenizer's rule says, read off its pieces; what follows a MASK begins a word.
    """
    shown = [tokenizer.shown[i] for i in ids.tolist()]
    alone = {tokenizer.cls: "cls", tokenizer.sep: "sep", tokenizer.mask: "mask"}
    kinds = [alone.get(i, "word") for i in ids.tolist()]
    begins = np.array([kind != "word" for kind in kinds])
    first = 0
    while first < len(ids):
        last = first + 1
        if kinds[first] == "word":
            while last < len(ids) and kinds[last] == "word":
                last += 1
            begins[first:last] = _starts(shown[first:last])
        first = last
    borders = [*np.flatnonzero(begins).tolist(), len(ids)]
    return [_word(shown, kinds[a], a, b) for a, b in itertools.pairwise(borders)]


def _starts(shown: list[str]) -> np.ndarray:
    lengths = np.array([len(piece) for piece in shown])
    ends = np.cumsum(lengths)
    return find_words(["".join(shown).replace(SPACE, " ")], np.array([len(shown)]), ends - lengths, ends)[0]


def _word(shown: list[str], kind: str, first: int, last: int) -> Word:
    text = "".join(shown[first:last])
    names = {"mask": MASK, "cls": "[CLS]", "sep": "[SEP]"}
    plain = names.get(kind) or text.replace(SPACE, " ").strip() or SPACE
    return Word(plain, first, last, kind != "word" or text.startswith(SPACE), kind)
