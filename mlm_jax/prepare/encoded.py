"""Encoded documents on disk, between encoding and packing: a file for each unit of text, in it a part for each group.

A group is read again by pieces of about `PIECE_TOKENS`, in the order of the documents' hashes, so that packing takes
the same memory however large the group is: about 40 bytes a token of a piece, and 20 a document of the group.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np

PIECE_TOKENS = 1 << 23


@dataclasses.dataclass(frozen=True)
class Part:
    """A group's documents in one unit's file, by hash: hashes u64, lengths i32, ids i32, flags u8, names as JSON."""

    path: str
    offset: int
    documents: int
    tokens: int
    name_bytes: int
    dropped: str = ""  # path of the hashes, u64, of those documents that are left out after all; or nothing

    @property
    def size(self) -> int:
        """Bytes."""
        return 12 * self.documents + 5 * self.tokens + self.name_bytes

    def stays(self) -> np.ndarray:
        """Which documents are not left out, bool[documents]. The others stand in all that the part gives."""
        hashes, _ = self.index()
        return ~np.isin(hashes, np.load(self.dropped)) if self.dropped else np.ones(len(hashes), bool)

    def index(self) -> tuple[np.ndarray, np.ndarray]:
        """hashes u64[documents], lengths i32[documents]."""
        with open(self.path, "rb") as handle:
            handle.seek(self.offset)
            hashes, lengths = handle.read(8 * self.documents), handle.read(4 * self.documents)
            return np.frombuffer(hashes, "<u8"), np.frombuffer(lengths, "<i4")

    def texts(self) -> tuple[np.ndarray, np.ndarray]:
        """ids i32[tokens], flags u8[tokens], of which only what is used is read."""
        ids = self.offset + 12 * self.documents
        return (
            np.memmap(self.path, "<i4", "r", ids, (self.tokens,)),
            np.memmap(self.path, "u1", "r", ids + 4 * self.tokens, (self.tokens,)),
        )

    def run(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """ids i32[n], flags u8[n] of the tokens from `start` to `stop`."""
        at = self.offset + 12 * self.documents
        with open(self.path, "rb", buffering=0) as handle:
            handle.seek(at + 4 * start)
            ids = handle.read(4 * (stop - start))
            handle.seek(at + 4 * self.tokens + start)
            return np.frombuffer(ids, "<i4"), np.frombuffer(handle.read(stop - start), "u1")

    def names(self) -> list[tuple[str, str]]:
        """(id, file:line) of each document."""
        with open(self.path, "rb") as handle:
            handle.seek(self.offset + 12 * self.documents + 5 * self.tokens)
            return [tuple(name) for name in json.loads(handle.read(self.name_bytes))]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Documents one after another: hashes u64[documents], lengths i64[documents], ids i32[tokens], flags u8[tokens]."""

    hashes: np.ndarray
    lengths: np.ndarray
    ids: np.ndarray
    flags: np.ndarray


def equal_names(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """The names of two documents of a group with one hash; empty where all differ."""
    hashes = np.concatenate([part.index()[0] for part in parts])
    order = np.argsort(hashes, kind="stable")
    found = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if not len(found):
        return []
    pair = order[found[0] : found[0] + 2]
    counts = np.cumsum([part.documents for part in parts])
    owners = np.searchsorted(counts, pair, side="right")
    return [parts[owner].names()[index - counts[owner]] for owner, index in zip(owners, pair)]


def pieces(parts: Sequence[Part]) -> Iterator[Piece]:
    """The documents of a group that stay, by hash; where a piece ends depends on these documents alone."""
    indices, stays = [part.index() for part in parts], [part.stays() for part in parts]
    hashes = np.concatenate([hashes[stay] for (hashes, _), stay in zip(indices, stays)])
    lengths = np.concatenate([lengths[stay] for (_, lengths), stay in zip(indices, stays)])
    order = np.argsort(hashes, kind="stable")
    before = np.cumsum(lengths[order], dtype=np.int64) - lengths[order]
    firsts = np.flatnonzero(np.diff(before // PIECE_TOKENS, prepend=-1))  # the first document of each piece
    limits = hashes[order[firsts[1:]]]
    # a part is sorted as the group is, so each piece takes a run of it
    cuts = [np.concatenate([[0], np.searchsorted(of_part, limits), [len(of_part)]]) for of_part, _ in indices]
    ends = [np.concatenate([[0], np.cumsum(of_part, dtype=np.int64)]) for _, of_part in indices]
    del hashes, lengths, order, before
    for number in range(len(firsts)):
        runs = []
        for part, (of_hashes, of_lengths), stay, cut, end in zip(parts, indices, stays, cuts, ends):
            run = slice(cut[number], cut[number + 1])
            if stay[run].any():
                ids, flags = part.run(int(end[run.start]), int(end[run.stop]))
                runs.append(_staying(of_hashes[run], of_lengths[run], ids, flags, stay[run]))
        yield _sorted(*(np.concatenate(arrays) for arrays in zip(*runs)))


def _staying(
    hashes: np.ndarray, lengths: np.ndarray, ids: np.ndarray, flags: np.ndarray, stays: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same without the documents that are left out."""
    if stays.all():
        return hashes, lengths, ids, flags
    tokens = np.repeat(stays, lengths)
    return hashes[stays], lengths[stays], ids[tokens], flags[tokens]


def _sorted(hashes: np.ndarray, lengths: np.ndarray, ids: np.ndarray, flags: np.ndarray) -> Piece:
    order = np.argsort(hashes, kind="stable")
    ends = np.cumsum(lengths, dtype=np.int64)
    spans = [slice(ends[index] - lengths[index], ends[index]) for index in order]
    return Piece(
        hashes[order],
        lengths[order].astype(np.int64),
        np.concatenate([ids[span] for span in spans]),
        np.concatenate([flags[span] for span in spans]),
    )
