"""Documents to full rows: cut into segments, pack the segments best-fit, write them as records.

A row is opened by a piece of a long document and filled up from a window of waiting documents. What may be cut is cut
to fill: at a sentence end where one lies in the last quarter of the room and what it leaves free can be used, else at
a word start.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from mlm_jax.records import PHRASE_JOIN, SENTENCE_START, WORD_START, Layout, encode_rows

WINDOW = 512  # documents that wait at a time
DONORS = 16  # long documents that are looked at for a piece that ends with a sentence
SHORTEST = 8  # tokens; no shorter piece is cut off
FREE_SHARE = 0.02  # of all places may stay free so that pieces end with a sentence
ROWS_AT_A_TIME = 4096


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which tokens become which segment of which row: start, stop and row of each segment, i64[segments], by row."""

    starts: np.ndarray
    stops: np.ndarray
    rows: np.ndarray
    count: int  # rows


class _Packer:
    """State of one group: documents not yet reached, pieces that wait, the plan so far."""

    def __init__(self, lengths: np.ndarray, flags: np.ndarray, layout: Layout):
        self.room = layout.row_length - 2  # CLS and SEP stand around each segment
        self.most_segments = layout.max_segments
        self.slack = max(1, layout.row_length // 64)  # tokens that may stay free in any row
        self.spare = 0.0  # tokens that may stay free for the sake of a sentence end: what the rows so far have saved
        self.shortest = min(SHORTEST, max(1, self.room // 4))
        ends = np.cumsum(lengths)
        self.documents = iter(zip((ends - lengths).tolist(), ends.tolist()))
        # at each place: the last word start and the last sentence start up to it
        place = np.arange(len(flags), dtype=np.int32)
        self.word = memoryview(np.maximum.accumulate(np.where(flags & WORD_START, place, 0)))
        self.sentence = memoryview(np.maximum.accumulate(np.where(flags & SENTENCE_START, place, 0)))
        self.long: list[tuple[int, int]] = []  # (start, stop) of what does not fit a row; the first one is in use
        self.short: list[list[int]] = [[] for _ in range(self.room + 1)]  # length -> starts of what fits whole
        self.lengths = 0  # bit n is set where short[n] holds something
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
        length = stop - start
        if length > self.room:
            self.long.append((start, stop))
        else:
            self.short[length].append(start)
            self.lengths |= 1 << length
            self.waiting += 1

    def _fill(self, row: int) -> int:
        """Adds one row to the plan; returns how many of its places stay free."""
        room = self.room
        for place in range(self.most_segments):
            if place == 0:
                start, stop = self._first()
            else:
                piece = self._next(room, last=place + 1 == self.most_segments)
                if piece is None:
                    break
                start, stop = piece
            self.plan[0].append(start)
            self.plan[1].append(stop)
            self.plan[2].append(row)
            room -= stop - start + 2
            if room < 1:
                break
        return room + 2

    def _first(self) -> tuple[int, int]:
        """A piece of a long document, unless too many short ones wait."""
        if not self.long or self.waiting > WINDOW // 2:
            return self._take(self.lengths.bit_length() - 1)
        alone = len(self.long) == 1 and not self.waiting
        return self._cut_off(0, self._cut(*self.long[0], self.room, whole_sentences=not alone))

    def _next(self, room: int, last: bool) -> tuple[int, int] | None:
        """What fills `room` tokens best; None where nothing fits."""
        fits = (self.lengths & ((1 << (room + 1)) - 1)).bit_length() - 1
        if fits > 0 and room - fits <= self.slack:
            return self._take(fits)
        for donor in range(1, min(DONORS, len(self.long))):
            start, _ = self.long[donor]
            sentence = self.sentence[start + room]
            if sentence - start >= max(self.shortest, room - self.slack):
                return self._cut_off(donor, sentence)
        leaves = room - 2 - self.shortest  # the longest that leaves room for another piece
        fits_twice = (self.lengths & ((1 << (leaves + 1)) - 1)).bit_length() - 1 if leaves > 0 and not last else 0
        if fits_twice > 0:
            return self._take(fits_twice)
        return self._filler(room) or (self._take(fits) if fits > 0 else None)

    def _filler(self, room: int) -> tuple[int, int] | None:
        """A piece that is cut off at a word start to fill `room`."""
        if room < self.shortest:
            return None
        for donor in [*range(1, min(4, len(self.long))), 0][: len(self.long)]:
            cut = self._cut(*self.long[donor], room)
            if cut - self.long[donor][0] >= self.shortest:
                return self._cut_off(donor, cut)
        longest = self.lengths.bit_length() - 1
        if longest >= room + self.shortest:
            start, stop = self._take(longest)
            cut = self._cut(start, stop, room)
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
        while sentence - start >= room - room // 4:
            free = start + room - sentence
            if free <= max(self.slack, self.spare) or (whole_sentences and free >= self.shortest + 2):
                return sentence
            sentence = self.sentence[sentence - 1]
        word = self.word[limit]
        return word if word > start else limit  # a word longer than the room is cut

    def _cut_off(self, donor: int, cut: int) -> tuple[int, int]:
        start, stop = self.long[donor]
        if stop - cut > self.room:
            self.long[donor] = (cut, stop)
        else:
            self.long.pop(donor)
            self._wait(cut, stop)
        return start, cut

    def _take(self, length: int) -> tuple[int, int]:
        starts = self.short[length]
        start = starts.pop()
        if not starts:
            self.lengths &= ~(1 << length)
        self.waiting -= 1
        return start, start + length


def plan(lengths: np.ndarray, flags: np.ndarray, layout: Layout) -> Plan:
    """Packs documents that stand one after another. lengths: tokens of each; flags u8[tokens]. All have tokens."""
    return _Packer(lengths, flags, layout).pack()


def rows(
    made: Plan, ids: np.ndarray, flags: np.ndarray, layout: Layout, pad: int, cls: int, sep: int
) -> Iterator[bytes]:
    """The planned rows as records: CLS and SEP around each segment, whose first token begins a word."""
    bounds = np.searchsorted(made.rows, np.arange(0, made.count + ROWS_AT_A_TIME, ROWS_AT_A_TIME))
    for block, (low, high) in enumerate(itertools.pairwise(bounds)):
        first = block * ROWS_AT_A_TIME
        number = made.rows[low:high] - first  # of the row, within the block
        size = min(ROWS_AT_A_TIME, made.count - first)
        starts, inner = made.starts[low:high], made.stops[low:high] - made.starts[low:high]
        place = np.arange(len(number)) - np.searchsorted(number, number)  # of the segment, within its row
        upto = np.cumsum(inner + 2) - (inner + 2)
        offset = upto - upto[np.searchsorted(number, number)]  # of the CLS, within its row
        tokens = np.full((size, layout.row_length), pad, np.int64)
        bits = np.zeros((size, layout.row_length), np.uint8)
        tokens[number, offset] = cls
        tokens[number, offset + 1 + inner] = sep
        # one index per token: source place and place in the block
        within = np.arange(inner.sum()) - np.repeat(np.cumsum(inner) - inner, inner)
        source = np.repeat(starts, inner) + within
        target = np.repeat(number * layout.row_length + offset + 1, inner) + within
        tokens.reshape(-1)[target] = ids[source]
        bits.reshape(-1)[target] = flags[source]
        # nothing that a phrase could continue stands before a segment
        bits[number, offset + 1] = (bits[number, offset + 1] | WORD_START) & ~np.uint8(PHRASE_JOIN)
        firsts = np.full((size, layout.max_segments), -1)
        firsts[number, place] = offset
        lengths = np.bincount(number, weights=inner + 2, minlength=size).astype(np.int64)
        yield from encode_rows(layout, tokens, bits, firsts, lengths)
