"""Phrases: n-grams of words in encoded text, the file that lists some of them, and their marks in the flags.

Words and n-grams go by 64-bit hashes of their token ids: that a list of a million n-grams takes one of a billion others
for its own has a chance of 1e-4.

An n-gram stands within one sentence. A word with letters or digits may be part of it; so may an apostrophe or hyphen
that touches such words on both sides (`well-known`, `the king's`), though at neither end. Every other sign, and a word
with an unknown character, ends it: what reads as one phrase has no comma in it.
"""

import dataclasses
import itertools
import unicodedata
from pathlib import Path

import numpy as np

from mlm_jax.prepare.hashing import PHRASE_FACTOR, WORD_FACTOR, Lookup, extend, mix, powers
from mlm_jax.records import PHRASE_JOIN, SENTENCE_START, WORD_START
from mlm_jax.tokenizer import SPACE, Tokenizer

JOINERS = "'’-‐‑"  # apostrophes and hyphens
LETTERS, JOINER, OTHER = 1, 2, 4  # what a piece holds; white space or marks alone: 0
HEADER = "words\tcount\tscore\tphrase\tids"
BLOCK = 1 << 15  # words at a time
PIECE = 1 << 16  # tokens at a time, more where a sentence is longer: bounds memory


class Traits:
    """What phrases need to know of a tokenizer's ids: what each piece holds, and a hash of it."""

    def __init__(self, tokenizer: Tokenizer):
        self.holds = np.array([_holds(piece) for piece in tokenizer.shown], np.uint8)
        self.holds[tokenizer.special] = OTHER
        self.spaced = np.array([piece.startswith(SPACE) for piece in tokenizer.shown])
        self.bare = np.array([piece == SPACE for piece in tokenizer.shown])
        self.ideographs = tokenizer.ideographs
        self.hashes = mix(np.arange(1, tokenizer.size + 1, dtype=np.uint64))


def _holds(piece: str) -> int:
    body = piece.replace(SPACE, "")
    if any(map(str.isalnum, body)):
        return LETTERS
    if all(unicodedata.category(char).startswith("M") for char in body):
        return 0
    return JOINER if all(char in JOINERS for char in body) else OTHER


@dataclasses.dataclass(frozen=True)
class Words:
    """The w words of a text."""

    starts: np.ndarray  # i32[w], place of the first token
    hashes: np.ndarray  # u64[w]
    left: np.ndarray  # u8[w], words from here to the end of the run that an n-gram may stand in, 255 at most
    solid: np.ndarray  # bool[w], whether an n-gram may begin or end with it


def pieces(flags: np.ndarray) -> list[slice]:
    """A text cut at sentences, which no phrase crosses, into pieces of about `PIECE` tokens. flags: u8[n]."""
    sentences = np.flatnonzero(flags & SENTENCE_START)
    next_ones = np.searchsorted(sentences, np.arange(PIECE, len(flags), PIECE))
    cuts = np.unique(sentences[next_ones[next_ones < len(sentences)]]).tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise([0, *cuts, len(flags)])]


def words_of(ids: np.ndarray, flags: np.ndarray, traits: Traits) -> Words:
    """ids i32[n] and flags u8[n] of documents one after another; the first token begins a word."""
    starts = np.flatnonzero(flags & WORD_START)
    holds = np.bitwise_or.reduceat(traits.holds[ids], starts) if len(starts) else np.zeros(0, np.uint8)
    solid = (holds & (LETTERS | OTHER)) == LETTERS
    first = (flags[starts] & SENTENCE_START) > 0
    # glued: not the first of its sentence, and no white space before
    glued = ~(traits.spaced[ids[starts]] | first)
    inside = solid.copy()
    inside[1:-1] |= (holds[1:-1] == JOINER) & glued[1:-1] & glued[2:] & solid[:-2] & solid[2:]
    # the next word, or the end, that begins another run
    place = np.arange(len(starts) + 1, dtype=np.int32)
    begins = np.append(first | ~inside, True)
    begins[1:-1] |= ~inside[:-1]
    after = np.minimum.accumulate(np.where(begins, place, len(starts))[::-1])[::-1][1:]
    left = np.where(inside, np.minimum(after - place[:-1], 255), 0)
    return Words(starts.astype(np.int32), word_hashes(ids, starts, traits), left.astype(np.uint8), solid)


def word_hashes(ids: np.ndarray, starts: np.ndarray, traits: Traits) -> np.ndarray:
    """u64[w]: of a word with tokens of hashes h_0, h_1, ..., the sum of h_k f^k modulo 2^64 with f = WORD_FACTOR.

    starts: place of each word's first token. Taken from running sums of h f^place, divided by f^start.
    """
    ends = np.append(starts[1:], len(ids))
    starts = without_space(ids, starts, traits)
    sums = np.zeros(len(ids) + 1, np.uint64)
    np.cumsum(traits.hashes[ids] * powers(WORD_FACTOR, len(ids)), out=sums[1:])
    inverse = np.uint64(pow(int(WORD_FACTOR), -1, 1 << 64))
    return (sums[ends] - sums[starts]) * powers(inverse, len(ids) + 1)[starts]


def without_space(ids: np.ndarray, starts: np.ndarray, traits: Traits) -> np.ndarray:
    """`starts`, but for an ideograph that is put behind white space: it is the word that it is without."""
    after = np.minimum(starts + 1, len(ids) - 1)
    return starts + (traits.bare[ids[starts]] & traits.ideographs[ids[after]])


@dataclasses.dataclass(frozen=True)
class Phrase:
    """An n-gram of the list. ids: those of each word, as `without_space` leaves them."""

    count: int
    score: float
    text: str
    ids: tuple[tuple[int, ...], ...]


def write_phrases(path: Path, phrases: list[Phrase]) -> None:
    """Tab-separated lines under a header, as they are given: number of words, count, score, text, and ids.

    The words' ids are separated by spaces, those within a word by commas. The file appears when it is whole.
    """
    lines = [HEADER]
    for phrase in phrases:
        ids = " ".join(",".join(map(str, word)) for word in phrase.ids)
        lines.append(f"{len(phrase.ids)}\t{phrase.count}\t{phrase.score:.4f}\t{phrase.text}\t{ids}")
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.rename(path)


def read_phrases(path: Path) -> list[Phrase]:
    """What `write_phrases` wrote."""
    phrases = []
    for line in path.read_text(encoding="utf-8").split("\n")[1:-1]:
        _, count, score, text, ids = line.split("\t")
        words = tuple(tuple(map(int, word.split(","))) for word in ids.split(" "))
        phrases.append(Phrase(int(count), float(score), text, words))
    return phrases


class Marker:
    """Marks the phrases of a list in encoded text."""

    def __init__(self, phrases: list[Phrase], tokenizer: Tokenizer):
        self.traits = Traits(tokenizer)
        self.lookups = {}  # number of words -> the n-grams of so many
        for n in sorted({len(phrase.ids) for phrase in phrases}):
            words = [word for phrase in phrases if len(phrase.ids) == n for word in phrase.ids]
            lengths = np.array([len(word) for word in words])
            ids = np.array([id for word in words for id in word])
            hashes = word_hashes(ids, np.cumsum(lengths) - lengths, self.traits).reshape(-1, n)
            whole = hashes[:, 0]
            for place in range(1, n):
                whole = whole * PHRASE_FACTOR + hashes[:, place]
            self.lookups[n] = Lookup(np.unique(whole))

    def __call__(self, ids: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """flags u8[n] with PHRASE_JOIN at the start of every word of a phrase but its first. ids: i32[n].

        Left to right, the longest phrase that begins at a word is taken, and the search goes on behind it.
        """
        marked = flags.copy()
        for piece in pieces(flags):
            marked[piece][self._joins(ids[piece], flags[piece])] |= PHRASE_JOIN
        return marked

    def _joins(self, ids: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Where words start that continue a phrase, i64[joins]."""
        words = words_of(ids, flags, self.traits)
        longest = np.zeros(len(words.starts), np.int8)
        grams = words.hashes
        for n in range(2, max(self.lookups, default=1) + 1):
            grams = extend(grams, words.hashes, n)
            if n in self.lookups:
                places = np.flatnonzero(words.left[: len(grams)] >= n)
                longest[places[self.lookups[n](grams[places]) >= 0]] = n
        begins = np.flatnonzero(longest)
        lengths = longest[begins].astype(np.int64)
        taken = _greedy(begins, lengths)
        begins, more = begins[taken], lengths[taken] - 1
        within = np.arange(more.sum()) - np.repeat(np.cumsum(more) - more, more)
        return words.starts[np.repeat(begins, more) + 1 + within]


def _greedy(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which intervals stay when, from left to right, each is taken that overlaps none before; bool[n]."""
    taken, free = bytearray(len(begins)), 0
    for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist())):
        if begin >= free:
            taken[number] = 1
            free = begin + length
    return np.frombuffer(taken, bool)
