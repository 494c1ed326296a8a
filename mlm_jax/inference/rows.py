"""Texts of any lengths packed into rows of one, so that next to nothing is computed for padding.

As in training several share a row, and attention never crosses a segment: what a text gets does not depend on the
others.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlm_jax.batch import Array, Batch
from mlm_jax.config import round_up
from mlm_jax.records import SECOND_OF_PAIR

SHORTEST, FEWEST = 16, 8  # of the lengths of rows; of the places asked for in a row
PACKED = 128  # tokens of a row into which several short texts go: the products with weights cost more than attention


class Item(NamedTuple):
    """One segment to be read, and what is asked of it."""

    ids: np.ndarray  # i32[n], CLS and SEP among them
    at: np.ndarray = np.zeros(0, np.int32)  # i32[q], places in it
    targets: np.ndarray | None = None  # i32[q], an id for each of them
    counted: np.ndarray | None = None  # bool[n], the tokens that count; None: all
    uniforms: np.ndarray | None = None  # f32[q], a draw in [0, 1) for each place
    second: int = 0  # place where the second part of a pair begins; 0: it is a single text


class Rows(NamedTuple):
    """Items in rows, as a program reads them. Slots that are no place hold zeros."""

    batch: Batch
    at: Array  # i32[b,q]
    targets: Array  # i32[b,q]
    counted: Array  # bool[b,t]
    uniforms: Array  # f32[b,q]


class Place(NamedTuple):
    """Where an item stands in its batch of rows."""

    row: int
    segment: int  # its column of the p axis
    slots: slice  # of the q axis


def pack(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Which items share a row: best-fit, the longest first. Numbers of items, by row."""
    rows: list[list[int]] = []
    free: list[list[int]] = [[] for _ in range(row_length + 1)]  # rows by the places that are free in them
    sizes = 0  # bit n is set where free[n] holds something
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[item]
        fitting = sizes >> length
        room = row_length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = free[room].pop()
            if not free[room]:
                sizes ^= 1 << room
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(item)
        if room > length:
            free[room - length].append(row)
            sizes |= 1 << (room - length)
    return rows


def batches(items: Sequence[Item], tokens: int) -> Iterator[tuple[Rows, list[tuple[int, Place]]]]:
    """Rows of all items, at most `tokens` places at a time, with the number and the place of each item in them.

    Few shapes for any texts, since each is a program to compile: rows of 16, 32, 64 or a multiple of 128 tokens, as
    many as fit, of the last batch a power of two.
    """
    lengths = [len(item.ids) for item in items]
    if not lengths:
        return
    t = _row_length(max(lengths), sum(lengths))
    packed = pack(lengths, t)
    b = max(1, tokens // t)
    q = _power_of_two(max(FEWEST, *(sum(len(items[i].at) for i in row) for row in packed), 0))
    p = _power_of_two(max(map(len, packed)))
    for first in range(0, len(packed), b):
        rows = packed[first : first + b]
        yield lay(items, rows, (min(b, _power_of_two(len(rows))), t, q, p))


def _row_length(longest: int, total: int) -> int:
    if longest > PACKED // 2 or total > PACKED:
        return round_up(longest, PACKED)
    return max(SHORTEST, _power_of_two(longest))


def _power_of_two(number: int) -> int:
    """The first one that is no less."""
    return 1 << (number - 1).bit_length()


def lay(
    items: Sequence[Item], rows: list[list[int]], shape: tuple[int, int, int, int]
) -> tuple[Rows, list[tuple[int, Place]]]:
    """Items as rows of a shape (b, t, q, p), which holds them; rows: numbers of items, as `pack` gives them."""
    b, t, q, p = shape
    tokens, segments, positions = (np.zeros((b, t), np.int32) for _ in range(3))
    at, targets = (np.zeros((b, q), np.int32) for _ in range(2))
    flags = np.zeros((b, t), np.uint8)
    firsts, counted, uniforms = np.zeros((b, p), np.int32), np.zeros((b, t), bool), np.zeros((b, q), np.float32)
    places = []
    for row, members in enumerate(rows):
        begin = slot = 0
        for segment, number in enumerate(members):
            item = items[number]
            end, last = begin + len(item.ids), slot + len(item.at)
            tokens[row, begin:end] = item.ids
            segments[row, begin:end] = segment + 1
            if item.second:
                flags[row, begin + item.second : end] = SECOND_OF_PAIR
            positions[row, begin:end] = np.arange(len(item.ids))
            counted[row, begin:end] = True if item.counted is None else item.counted
            firsts[row, segment] = begin
            at[row, slot:last] = item.at + begin
            targets[row, slot:last] = 0 if item.targets is None else item.targets
            uniforms[row, slot:last] = 0 if item.uniforms is None else item.uniforms
            places.append((number, Place(row, segment, slice(slot, last))))
            begin, slot = end, last
    used = np.arange(b) < len(rows)
    batch = Batch(
        tokens=tokens,
        segments=segments,
        positions=positions,
        flags=flags,
        firsts=firsts,
        pair_labels=np.full((b, p), -1, np.int32),
        row=np.where(used, np.arange(b), -1).astype(np.int32),
        visit=np.zeros(b, np.int32),
        weight=used.astype(np.float32),
    )
    return Rows(batch, at, targets, counted, uniforms), places
