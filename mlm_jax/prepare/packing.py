"""Documents to full rows: cut into segments, pack the segments best-fit, write them as records.

A row is opened by a piece of a long document and filled up from a window of waiting documents. What may be cut is cut
to fill: at a sentence end where one lies in the last quarter of the room and what it leaves free can be used, else at
a word start.

Where segments are to become pairs (see `pairs`), a segment that can be one takes a place more, for the SEP between its
parts, and more is tried for the sake of whole sentences: they may lie anywhere in the room, and are looked for in more
documents.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from mlm_jax.prepare.pairs import Pairs, in_long_sentences, single_texts
from mlm_jax.records import PHRASE_JOIN, SECOND_OF_PAIR, SENTENCE_START, WORD_START, Layout, encode_rows

WINDOW = 512  # documents that wait at a time
DONORS, DONORS_OF_PAIRS = 16, 64  # long documents that are looked at for a piece that ends with a sentence
SHORTEST = 8  # tokens; no shorter piece is cut off
FREE_SHARE = 0.02  # of all places may stay free so that pieces end with a sentence
ROWS_AT_A_TIME = 1024


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which tokens become which segment of which row: start, stop and row of each segment, i64[segments], by row."""

    starts: np.ndarray
    stops: np.ndarray
    rows: np.ndarray
    count: int  # rows


class _Packer:
    """State of one group: documents not yet reached, pieces that wait, the plan so far.

    The size of a piece is what it takes in a row but for CLS and SEP around it: its tokens, one more for a pair.
    """

    def __init__(self, lengths: np.ndarray, flags: np.ndarray, layout: Layout, pairs: bool):
        self.pairs = pairs
        self.donors = DONORS_OF_PAIRS if pairs else DONORS
        self.room = layout.row_length - 2  # CLS and SEP stand around each segment
        self.most_segments = layout.max_segments
        self.slack = max(1, layout.row_length // 64)  # tokens that may stay free in any row
        self.spare = 0.0  # tokens that may stay free for the sake of a sentence end: what the rows so far have saved
        self.shortest = min(SHORTEST, max(1, self.room // 4))
        ends = np.cumsum(lengths)
        self.documents = iter(zip((ends - lengths).tolist(), ends.tolist()))
        # at each place: the last word start and the last sentence start up to it
        self.in_long = memoryview(in_long_sentences(flags, layout.row_length)) if pairs else b""
        place = np.arange(len(flags) + 1, dtype=np.int32)
        flags = np.append(flags, np.uint8(WORD_START | SENTENCE_START))
        self.word = memoryview(np.maximum.accumulate(np.where(flags & WORD_START, place, 0)))
        self.sentence = memoryview(np.maximum.accumulate(np.where(flags & SENTENCE_START, place, 0)))
        self.long: list[tuple[int, int]] = []  # (start, stop) of what does not fit a row; the first one is in use
        self.short: list[list[tuple[int, int]]] = [[] for _ in range(self.room + 1)]  # by size: what fits whole
        self.sizes = 0  # bit n is set where short[n] holds something
        self.waiting = 0  # in `short`
        self.plan: tuple[list[int], list[int], list[int]] = ([], [], [])

    def pack(self) -> Plan:
        row = 0
        while self._refill():
            self.spare += FREE_SHARE * (self.room + 2) - self._fill(row)
            row += 1
        starts, stops, rows = (np.array(values, np.int64) for values in self.plan)
        return Plan(starts, stops, rows, row)

    def _refill(self) -> bool:
        while self.waiting + len(self.long) < WINDOW:
            document = next(self.documents, None)
            if document is None:
                break
            self._wait(*document)
        return self.waiting + len(self.long) > 0

    def _wait(self, start: int, stop: int) -> None:
        size = self._size(start, stop)
        if size > self.room:
            self.long.append((start, stop))
        else:
            self.short[size].append((start, stop))
            self.sizes |= 1 << size
            self.waiting += 1

    def _size(self, start: int, stop: int) -> int:
        if not self.pairs:
            return stop - start
        if self.sentence[start] == start and self.sentence[stop] == stop:
            can_be_pair = self.sentence[stop - 1] > start
        else:  # within one sentence
            within = self.in_long[start] and start != self.sentence[start] == self.sentence[stop] != stop
            can_be_pair = within and self.word[stop - 1] > start
        return stop - start + can_be_pair

    def _fill(self, row: int) -> int:
        """Adds one row to the plan; returns how many of its places stay free."""
        room = self.room
        for place in range(self.most_segments):
            if place == 0:
                start, stop = self._first()
            else:
                last = place + 1 == self.most_segments
                piece = self._next_of_pairs(room, last) if self.pairs else self._next(room, last)
                if piece is None:
                    break
                start, stop = piece
            self.plan[0].append(start)
            self.plan[1].append(stop)
            self.plan[2].append(row)
            room -= self._size(start, stop) + 2
            if room < 1:
                break
        return room + 2

    def _first(self) -> tuple[int, int]:
        """A piece of a long document, unless too many short ones wait."""
        if not self.long or self.waiting > WINDOW // 2:
            return self._take(self.sizes.bit_length() - 1)
        alone = len(self.long) == 1 and not self.waiting
        return self._cut_off(0, self._cut(*self.long[0], self.room - self.pairs, whole_sentences=not alone))

    def _next(self, room: int, last: bool) -> tuple[int, int] | None:
        """What fills `room` best; None where nothing fits."""
        fits = self._longest(room)
        if fits > 0 and room - fits <= self.slack:
            return self._take(fits)
        sentence, least = self.sentence, max(self.shortest, room - self.slack)
        for donor, (start, _) in enumerate(self.long[1 : self.donors], 1):
            if sentence[start + room] - start >= least:
                return self._cut_off(donor, sentence[start + room])
        fits_twice = 0 if last else self._longest(room - 2 - self.shortest)  # what leaves room for another piece
        if fits_twice:
            return self._take(fits_twice)
        return self._filler(room) or (self._take(fits) if fits else None)

    def _next_of_pairs(self, room: int, last: bool) -> tuple[int, int] | None:
        """What fills `room` best: whole sentences, unless too many places would stay free."""
        may_stay = max(self.slack, self.spare)
        piece = self._whole(room, self.slack)
        if piece and room - self._size(*piece) <= may_stay:
            return self._take_out(piece)
        if not last and (several := self._whole(room - 2 - self.shortest, 0)):  # leaves room for another piece
            return self._take_out(several)
        if room + 2 <= self.spare:
            return None
        return self._filler(room) or (self._take_out(piece) if piece else None)

    def _whole(self, room: int, enough: int) -> tuple[int, int] | None:
        """The longest that fits `room`: what waits to be taken whole, or sentences that begin a long document.

        The first of them that leaves no more than `enough` free.
        """
        size = self._longest(room)
        best = self.short[size][-1] if size else None
        for donor in range(1, min(self.donors, len(self.long)) if room > self.shortest else 0):
            if size and room - size <= enough:
                break
            start, _ = self.long[donor]
            stop = self.sentence[start + room - 1]
            if stop - start >= max(self.shortest, size):
                best, size = (start, stop), stop - start + 1
        return best

    def _take_out(self, piece: tuple[int, int]) -> tuple[int, int]:
        """A piece that `_whole` found."""
        start, stop = piece
        for donor in range(1, min(self.donors, len(self.long))):
            if self.long[donor][0] == start:
                return self._cut_off(donor, stop)
        return self._take(self._size(start, stop))

    def _longest(self, room: int) -> int:
        """The largest size up to `room` of what fits whole, 0 where nothing does."""
        return max(0, (self.sizes & ((1 << (room + 1)) - 1)).bit_length() - 1) if room > 0 else 0

    def _filler(self, room: int) -> tuple[int, int] | None:
        """A piece that is cut off at a word start to fill `room`."""
        if room < self.shortest:
            return None
        for donor in [*range(1, min(4, len(self.long))), 0][: len(self.long)]:
            cut = self._cut(*self.long[donor], room - self.pairs)
            if cut - self.long[donor][0] >= self.shortest:
                return self._cut_off(donor, cut)
        longest = self.sizes.bit_length() - 1
        if longest >= room + self.shortest:
            start, stop = self._take(longest)
            cut = self._cut(start, stop, room - self.pairs)
            if self.shortest <= cut - start and self.shortest <= stop - cut:
                self._wait(cut, stop)
                return start, cut
            self._wait(start, stop)
        return None

    def _cut(self, start: int, stop: int, room: int, whole_sentences: bool = True) -> int:
        """Where to cut a piece of at most `room` tokens off something longer."""
        limit = start + room
        if stop - limit < self.shortest <= room - self.shortest:
            limit = stop - self.shortest
        sentence = self.sentence[limit]
        while sentence - start >= (self.shortest if self.pairs else room - room // 4):
            free = start + room - sentence
            if free <= max(self.slack, self.spare) or (whole_sentences and free >= self.shortest + 2):
                return sentence
            sentence = self.sentence[sentence - 1]
        word = self.word[limit]
        return word if word > start else limit  # a word longer than the room is cut

    def _cut_off(self, donor: int, cut: int) -> tuple[int, int]:
        start, stop = self.long[donor]
        if self._size(cut, stop) > self.room:
            self.long[donor] = (cut, stop)
        else:
            self.long.pop(donor)
            self._wait(cut, stop)
        return start, cut

    def _take(self, size: int) -> tuple[int, int]:
        pieces = self.short[size]
        piece = pieces.pop()
        if not pieces:
            self.sizes &= ~(1 << size)
        self.waiting -= 1
        return piece


def plan(lengths: np.ndarray, flags: np.ndarray, layout: Layout, pairs: bool = False) -> Plan:
    """Packs documents that stand one after another. lengths: tokens of each; flags u8[tokens]. All have tokens.

    pairs: leaves a place for the SEP within each segment that can be a pair.
    """
    return _Packer(lengths, flags, layout, pairs).pack()


def blocks(
    made: Plan,
    ids: np.ndarray,
    flags: np.ndarray,
    layout: Layout,
    pad: int,
    cls: int,
    sep: int,
    paired: Pairs | None = None,
) -> Iterator[tuple[list[bytes], np.ndarray]]:
    """The planned rows as records, many at a time, and their flags u8[rows,t].

    CLS, one text or two with a SEP between, SEP. A text's first token begins a word.
    """
    paired = paired or single_texts(made.stops)
    bounds = np.searchsorted(made.rows, np.arange(0, made.count + ROWS_AT_A_TIME, ROWS_AT_A_TIME))
    for block, (low, high) in enumerate(itertools.pairwise(bounds)):
        first = block * ROWS_AT_A_TIME
        number = made.rows[low:high] - first  # of the row, within the block
        count = min(ROWS_AT_A_TIME, made.count - first)
        starts, inner = made.starts[low:high], made.stops[low:high] - made.starts[low:high]
        cuts, seconds, labels = paired.cuts[low:high], paired.seconds[low:high], paired.labels[low:high]
        pair = cuts < made.stops[low:high]
        place = np.arange(len(number)) - np.searchsorted(number, number)  # of the segment, within its row
        size = inner + 2 + pair
        upto = np.cumsum(size) - size
        offset = upto - upto[np.searchsorted(number, number)]  # of the CLS, within its row
        tokens = np.full((count, layout.row_length), pad, np.int32)
        bits = np.zeros((count, layout.row_length), np.uint8)
        # one index per token: source place and place in the block
        within = np.arange(inner.sum()) - np.repeat(np.cumsum(inner) - inner, inner)
        second = within >= np.repeat(cuts - starts, inner)
        source = np.repeat(starts, inner) + within + np.where(second, np.repeat(seconds - cuts, inner), 0)
        target = np.repeat(number * layout.row_length + offset + 1, inner) + within + second
        tokens.reshape(-1)[target] = ids[source]
        bits.reshape(-1)[target] = flags[source] | np.where(second, SECOND_OF_PAIR, 0).astype(np.uint8)
        tokens[number, offset] = cls
        tokens[number, offset + size - 1] = sep
        bits[number[pair], (offset + size - 1)[pair]] = SECOND_OF_PAIR
        between = number[pair], (offset + 1 + cuts - starts)[pair]
        tokens[between] = sep
        # nothing that a phrase could continue stands before a text
        for row, first in ((number, offset + 1), (between[0], between[1] + 1)):
            bits[row, first] = (bits[row, first] | WORD_START) & ~np.uint8(PHRASE_JOIN)
        firsts, pair_labels = np.full((2, count, layout.max_segments), -1)
        firsts[number, place], pair_labels[number, place] = offset, labels
        lengths = np.bincount(number, weights=size, minlength=count).astype(np.int64)
        yield encode_rows(layout, tokens, bits, firsts, pair_labels, lengths), bits
