"""What rows hold, as counts that add up: lengths, ids, flags, units, pair labels."""

import dataclasses

import numpy as np

from mlm_jax.records import (
    FLAGS,
    NO_SEGMENT,
    PARAGRAPH_START,
    PHRASE_JOIN,
    SECOND_OF_PAIR,
    SENTENCE_START,
    WORD_START,
    Layout,
)

Counts = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Ids:
    """What has to be known of ids: their number and the special ones."""

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    unk: int

    @classmethod
    def of(cls, manifest: dict) -> "Ids":
        tokenizer = manifest["tokenizer"]
        return cls(tokenizer["vocab_size"], *(tokenizer[name] for name in ("pad", "cls", "sep", "mask", "unk")))


@dataclasses.dataclass(frozen=True)
class Block:
    """b rows as they are on disk, and what follows from their places. Arrays [b,t] but for `raw` and `present`.

    real: before the row's end; heads, tails: the first and the last token of a segment, where CLS and SEP belong;
    middles: the SEP between the parts of a pair; inner: what stands for text.
    """

    raw: np.ndarray  # [b] of the layout's records
    present: np.ndarray  # bool[b,p], segments that the row has
    real: np.ndarray
    heads: np.ndarray
    tails: np.ndarray
    middles: np.ndarray

    @property
    def inner(self) -> np.ndarray:
        return self.real & ~(self.heads | self.tails | self.middles)

    @classmethod
    def of(cls, layout: Layout, rows: list[bytes]) -> "Block":
        """Rows of the layout's size, which may hold anything: what lies outside the row is left out."""
        raw = np.frombuffer(b"".join(rows), layout.record)
        b, t = len(rows), layout.row_length
        present = raw["firsts"] != NO_SEGMENT
        real = np.arange(t) < raw["length"][:, None]
        heads = np.zeros((b, t), bool)
        row, column = np.nonzero(present & (raw["firsts"] < t))
        heads[row, raw["firsts"][row, column]] = True
        heads &= real
        tails = real & np.append(heads[:, 1:] | ~real[:, 1:], np.ones((b, 1), bool), axis=1)
        # the first token of a second part has the bit, and the one before it has not
        second = (raw["flags"] & SECOND_OF_PAIR) != 0
        begins = second[:, 1:] & ~second[:, :-1] & ~heads[:, 1:]
        middles = np.append(begins, np.zeros((b, 1), bool), axis=1) & real & ~heads & ~tails
        return cls(raw, present, real, heads, tails, middles)


def totals(block: Block, ids: Ids) -> Counts:
    """What the manifest counts too: rows, tokens, segments; ids of text i64[size], and how many bear each flag."""
    text = block.raw["tokens"][block.inner]
    flags, labels = block.raw["flags"][block.real], block.raw["pair_labels"][block.present]
    return {
        "rows": np.array([len(block.raw)]),
        "tokens": np.array([block.real.sum()]),
        "segments": np.array([block.present.sum()]),
        "labels": np.array([np.count_nonzero(labels == label) for label in (0, 1)]),
        "ids": np.bincount(text[text < ids.size], minlength=ids.size),
        "flags": np.array([np.count_nonzero(flags & bit) for bit in FLAGS.values()]),
    }


def distributions(block: Block) -> Counts:
    """Histograms: entry n of each is how many have n. A piece of a document's unit that a segment holds counts whole.

    Words, sentences, phrases: in tokens, words and words of text, without CLS and SEP.
    """
    inner, flags = block.inner, block.raw["flags"]
    lengths = block.raw["length"].astype(np.int64)
    place = np.flatnonzero(block.heads)
    segment_lengths = np.flatnonzero(block.tails) - place + 1 if len(place) else place
    # the text of all segments one after another; each of them begins a unit of every kind
    bits, begins = flags[inner], (np.roll(block.heads | block.middles, 1, axis=1) & inner)[inner]
    words = begins | (bits & WORD_START != 0)
    sentences, paragraphs = (begins | (bits & bit != 0) for bit in (SENTENCE_START, PARAGRAPH_START))
    phrases = begins | (words & (bits & PHRASE_JOIN == 0))
    return {
        "tokens a row": _histogram(lengths),
        "segments a row": _histogram(block.present.sum(1)),
        "tokens a segment": _histogram(segment_lengths),
        "tokens a word": _histogram(np.diff(np.flatnonzero(words), append=len(words))),
        "words a sentence": _histogram(_parts(sentences, words)),
        "tokens a sentence": _histogram(np.diff(np.flatnonzero(sentences), append=len(sentences))),
        "sentences a paragraph": _histogram(_parts(paragraphs, sentences)),
        "words a phrase": _histogram(_parts(phrases, words)),
    }


def _parts(wholes: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """How many parts begin within each whole. bool[n] each: where they begin."""
    place = np.flatnonzero(wholes)
    return np.add.reduceat(parts.astype(np.int64), place) if len(place) else place


def _histogram(values: np.ndarray) -> np.ndarray:
    return np.bincount(values, minlength=1)


def add(one: Counts, other: Counts) -> Counts:
    """The sum of two; a histogram that ends earlier has nothing there."""
    if not one or not other:
        return one or other
    return {key: _sum(value, other[key]) for key, value in one.items()}


def _sum(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if len(one) == len(other):
        return one + other
    longer, shorter = sorted((one, other), key=len, reverse=True)
    found = longer.copy()
    found[: len(shorter)] += shorter
    return found
