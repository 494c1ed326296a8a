"""Pairs of texts within a segment: where it is cut in two, what stands second, and the label.

A pair is a segment of two or more whole sentences of one document, cut in two at one of its sentence starts, which is
drawn; or a segment within a sentence that is too long for a row, as of text without punctuation, cut at a word start.
All other segments stay single texts.

`order` (as in ALBERT, Lan et al. 2020): the parts stand as in the document; whoever trains on them swaps them. Neither
part may be the longer one more often than the other, or their lengths would tell whether they were swapped: as
segments are filled up by what fits, a long sentence is more likely to begin one than to end one. So the place to cut is
drawn again where the one that was drawn adds to what there is too much of, among segments of about the same length cut
in about the same proportion; what is still too much stays single texts.

`next` (as in BERT, Devlin et al. 2019): segments of different documents whose second parts have the same number of
tokens are coupled, both of whole sentences or both within long ones, and the couples of one half, which is drawn,
exchange their second parts. So every token stands in the rows once, no second part begins a document, and neither the
lengths nor the places in the rows tell anything of the label, since they were fixed before it was drawn. A segment that
finds no partner stays a single text. Segments whose first or second parts have the same tokens are no couple: in text
that stands twice, what is called random might follow.
"""

import dataclasses
import math
from collections import Counter

import numpy as np

from mlm_jax.prepare.hashing import mix
from mlm_jax.records import FOLLOWS, IN_ORDER, NO_LABEL, RANDOM, SENTENCE_START, WORD_START

NONE, NEXT, ORDER = "none", "next", "order"
MOST_CUTS = 16  # of a segment that are tried for a partner
MOST_TRIES = 8  # segments that are looked at for each of them


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The s segments of a plan as pairs: tokens [start, cut) of each, and as many as [cut, stop) has from `second` on.

    Single texts have cut = second = stop and label -1.
    """

    cuts: np.ndarray  # i64[s]
    seconds: np.ndarray  # i64[s]
    labels: np.ndarray  # i64[s]


def single_texts(stops: np.ndarray) -> Pairs:
    """No pairs at all. stops: i64[s]."""
    return Pairs(stops, stops, np.full(len(stops), NO_LABEL))


def pair(
    kind: str,
    starts: np.ndarray,
    stops: np.ndarray,
    ids: np.ndarray,
    flags: np.ndarray,
    lengths: np.ndarray,
    hashes: np.ndarray,
    row_length: int,
) -> Pairs:
    """Cuts segments in two. starts, stops i64[s]: places of each segment in ids i32[n] and flags u8[n].

    lengths i64[d], hashes u64[d]: of the documents that stand there one after another. kind: none | next | order.
    """
    if kind == NONE:
        return single_texts(stops)
    cuts, labels = stops.copy(), np.full(len(stops), NO_LABEL)
    ends = np.cumsum(lengths)
    document = np.searchsorted(ends, starts, side="right")
    keys = mix(hashes[document] + (starts - (ends - lengths)[document]).astype(np.uint64))
    order = np.argsort(keys, kind="stable").tolist()
    of_kinds = [
        [(i, _choices(between[i], keys[[i]])) for i in order if i in between]
        for between in _between(starts, stops, flags, row_length)
    ]
    if kind == ORDER:
        for i, cut in _balanced(starts, stops, [member for members in of_kinds for member in members]):
            cuts[i], labels[i] = cut, IN_ORDER
        return Pairs(cuts, cuts.copy(), labels)
    matching = _Matching(starts, stops, ids.astype("<i4").tobytes(), document)
    for members in of_kinds:
        for most in (1, MOST_CUTS):
            matching.couple([(i, choices[:most]) for i, choices in members])
    seconds = stops.copy()
    couples = np.array(matching.couples, np.int64).reshape(-1, 4)
    for (i, at_i, j, at_j), exchange in zip(couples.tolist(), _half(keys[couples[:, 0]] ^ keys[couples[:, 2]])):
        cuts[i], cuts[j] = at_i, at_j
        labels[[i, j]] = RANDOM if exchange else FOLLOWS
        seconds[i], seconds[j] = (at_j, at_i) if exchange else (at_i, at_j)
    return Pairs(cuts, seconds, labels)


def _half(keys: np.ndarray) -> np.ndarray:
    """Which half of n couples is drawn, bool[n]; of an odd number it may be one more or less. keys: u64[n]."""
    draws = mix(keys)
    order = np.argsort(draws, kind="stable")
    drawn = np.zeros(len(keys), bool)
    drawn[order[: (len(keys) + int(draws.sum() & np.uint64(1))) // 2]] = True
    return drawn


def in_long_sentences(flags: np.ndarray, row_length: int) -> np.ndarray:
    """Which tokens are of a sentence that no row holds, bool[n]. flags: u8[n], the first token begins a sentence."""
    sizes = np.diff(np.flatnonzero(flags & SENTENCE_START), append=len(flags))
    return np.repeat(sizes > row_length - 2, sizes)


def _between(
    starts: np.ndarray, stops: np.ndarray, flags: np.ndarray, row_length: int
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Segments that can be pairs -> places to cut them: those of whole sentences, and those within long ones."""
    sentences, words = (np.append(np.flatnonzero(flags & bit), len(flags)) for bit in (SENTENCE_START, WORD_START))
    first, last = np.searchsorted(sentences, starts), np.searchsorted(sentences, stops)
    begins, ends = sentences[first] == starts, sentences[last] == stops
    whole = begins & ends & (last - first > 1)
    within = in_long_sentences(flags, row_length)[starts] & ~begins & ~ends & (first == last)
    first_word, last_word = np.searchsorted(words, starts + 1), np.searchsorted(words, stops)
    within &= last_word > first_word
    return (
        {i: sentences[first[i] + 1 : last[i]] for i in np.flatnonzero(whole).tolist()},
        {i: words[first_word[i] : last_word[i]] for i in np.flatnonzero(within).tolist()},
    )


def _choices(places: np.ndarray, key: np.ndarray) -> list[int]:
    """The first places to cut a segment in the order in which they are drawn. key: u64[1]."""
    draws = mix(key + np.arange(1, len(places) + 1, dtype=np.uint64))
    return places[np.argsort(draws, kind="stable")[:MOST_CUTS]].tolist()


def _balanced(starts: np.ndarray, stops: np.ndarray, members: list[tuple[int, list[int]]]) -> list[tuple[int, int]]:
    """(segment, where it is cut): of those that are alike, the first text is as often the longer one as the second."""
    surplus, alike = Counter(), {}  # more first texts that are longer; segments, by kind and which text is longer
    for i, cuts in members:
        options = [(cut, *_shape(cut - int(starts[i]), int(stops[i]) - cut)) for cut in cuts]
        fits = (option for option in options if option[2] * surplus[option[1]] < 0)
        cut, shape, longer = options[0]
        if longer * surplus[shape] > 0:
            cut, shape, longer = next(fits, options[0])
        surplus[shape] += longer
        alike.setdefault((shape, longer), []).append((i, cut))
    found = []
    for (shape, longer), segments in alike.items():
        found += segments[: len(alike.get((shape, -longer), []))]
    return found


def _shape(first: int, second: int) -> tuple[tuple[int, int], int]:
    """What pairs that are alike have in common: the length, by half octaves, and the shorter text's share, by 16ths.

    And which text is longer: 1, the first; -1, the second; 0, none.
    """
    length = first + second
    alike = int(2 * math.log2(length)), 16 * min(first, second) // length
    return alike, (first > second) - (first < second)


class _Matching:
    """Couples of segments: of different documents and different texts, with second parts of the same length."""

    def __init__(self, starts: np.ndarray, stops: np.ndarray, ids: bytes, document: np.ndarray):
        self.starts, self.stops, self.document = starts.tolist(), stops.tolist(), document.tolist()
        self.ids = ids
        self.couples: list[tuple[int, int, int, int]] = []  # segment, its cut, another, its cut
        self.matched: set[int] = set()

    def couple(self, members: list[tuple[int, list[int]]]) -> None:
        """Takes the segments one by one: the first place to cut with which a partner waits, else it waits, too."""
        waiting: dict[int, list[tuple[int, int]]] = {}  # length of the second part -> (segment, cut)
        for i, cuts in members:
            if i in self.matched:
                continue
            found = next((match for cut in cuts if (match := self._partner(i, cut, waiting))), None)
            if found:
                self.couples.append(found)
                self.matched.update((found[0], found[2]))
            else:
                for cut in cuts:
                    waiting.setdefault(self.stops[i] - cut, []).append((i, cut))

    def _partner(self, i: int, cut: int, waiting: dict) -> tuple[int, int, int, int] | None:
        candidates = waiting.get(self.stops[i] - cut, [])
        tried = 0
        for place in range(len(candidates) - 1, -1, -1):
            j, other = candidates[place]
            if j in self.matched:
                del candidates[place]
                continue
            if self._may_meet(i, cut, j, other):
                return i, cut, j, other
            tried += 1
            if tried == MOST_TRIES:
                break
        return None

    def _may_meet(self, i: int, cut: int, j: int, other: int) -> bool:
        return (
            self.document[i] != self.document[j]
            and self._text(self.starts[i], cut) != self._text(self.starts[j], other)
            and self._text(cut, self.stops[i]) != self._text(other, self.stops[j])
        )

    def _text(self, start: int, stop: int) -> bytes:
        return self.ids[4 * start : 4 * stop]
