"""What a worker does with a unit of text, and with a pack group. Results on disk appear only when they are whole."""

import dataclasses
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlm_jax.prepare import packing, pairs
from mlm_jax.prepare.documents import encode_documents
from mlm_jax.prepare.phrases import Marker, read_phrases
from mlm_jax.prepare.sources import Document, Fields, Unit, document_hash, documents
from mlm_jax.records import FLAGS, Layout, write_json, write_shard
from mlm_jax.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every unit of one corpus shares."""

    source: str  # as the config names it: part of the documents' hashes
    fields: Fields
    holdout: float
    groups: tuple[int, int]  # pack groups of each split
    tokenizer: str  # folder

    def split(self, id: str) -> int:
        """Which split a document belongs to: its hash under a salt of its own decides."""
        return int(document_hash(self.source, id, b"holdout") < int(self.holdout * 2**64))


@dataclasses.dataclass(frozen=True)
class SampleTask:
    settings: Settings
    unit: Unit
    chunk: int  # characters of a document that are drawn together
    below: int  # only chunks whose hash is below are wanted


@dataclasses.dataclass(frozen=True)
class Sample:
    """Chunks of training text of one unit that may belong to the sample: their hash, bytes and text."""

    chunks: list[tuple[int, int, str]]
    documents: int
    size: int  # bytes of the unit
    stored: int  # bytes of its file that were read for it


def sample_unit(task: SampleTask) -> Sample:
    """The chunks of a unit's training documents with a small hash."""
    settings, chunks, count = task.settings, [], 0
    for document in documents(task.unit, settings.fields):
        count += 1
        if document.problem or settings.split(document.id):
            continue
        for start in range(0, len(document.text), task.chunk):
            value = document_hash(settings.source, f"{document.id}\0{start}", b"sample")
            if value < task.below:
                text = document.text[start : start + task.chunk]
                chunks.append((value, len(text.encode("utf-8", "replace")), text))
    return Sample(chunks, count, len(task.unit.data), task.unit.stored)


@dataclasses.dataclass(frozen=True)
class EncodeTask:
    settings: Settings
    unit: Unit
    path: str  # of the result, without suffix


@dataclasses.dataclass(frozen=True)
class Part:
    """The documents of one group in one unit's file: hashes u64, lengths i32, ids i32, flags u8, names as JSON."""

    path: str
    offset: int
    documents: int
    tokens: int
    name_bytes: int

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

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """hashes u64[documents], lengths i32[documents], ids i32[tokens], flags u8[tokens]."""
        with open(self.path, "rb") as handle:
            handle.seek(self.offset)
            return (
                np.frombuffer(handle.read(8 * self.documents), "<u8"),
                np.frombuffer(handle.read(4 * self.documents), "<i4"),
                np.frombuffer(handle.read(4 * self.tokens), "<i4"),
                np.frombuffer(handle.read(self.tokens), "u1"),
            )

    def names(self) -> list[tuple[str, str]]:
        """(id, file:line) of each document."""
        with open(self.path, "rb") as handle:
            handle.seek(self.offset + 12 * self.documents + 5 * self.tokens)
            return [tuple(name) for name in json.loads(handle.read(self.name_bytes))]


def encode_unit(task: EncodeTask) -> dict:
    """Encodes the documents of a unit into `path.bin`, ordered by split, group and hash; returns `path.json`.

    read, dropped {reason: n}, bytes, stored (of the file), tokens: counts; first_problem: place and reason, or none;
    parts: [split, group, offset, documents, tokens, bytes of names] of each group in the file.
    """
    settings, kept, dropped, first_problem = task.settings, [], Counter(), []
    read = 0
    for document in documents(task.unit, settings.fields):
        read += 1
        if document.problem:
            dropped[document.problem] += 1
            first_problem = first_problem or [document.place, document.problem]
        else:
            kept.append(document)
    ids, flags, lengths = encode_documents([document.text for document in kept], _tokenizer(settings.tokenizer))
    dropped["empty"] += int((lengths == 0).sum())
    ends = np.cumsum(lengths)
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (split, group) -> (hash, index of the document)
    for index, document in enumerate(kept):
        if lengths[index]:
            value = document_hash(settings.source, document.id)
            split = settings.split(document.id)
            groups.setdefault((split, value % settings.groups[split]), []).append((value, index))
    parts = []
    with _whole(f"{task.path}.bin") as partial, open(partial, "wb") as handle:
        for (split, group), members in sorted(groups.items()):
            offset = handle.tell()
            chosen = [index for _, index in sorted(members)]
            spans = [slice(ends[index] - lengths[index], ends[index]) for index in chosen]
            handle.write(np.array([value for value, _ in sorted(members)], "<u8").tobytes())
            handle.write(lengths[chosen].astype("<i4").tobytes())
            tokens = handle.write(np.concatenate([ids[span] for span in spans]).astype("<i4").tobytes()) // 4
            handle.write(np.concatenate([flags[span] for span in spans]).tobytes())
            names = handle.write(_names([kept[index] for index in chosen]))
            parts.append([split, group, offset, len(chosen), tokens, names])
    info = {
        "read": read,
        "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
        "first_problem": first_problem,
        "bytes": len(task.unit.data),
        "stored": task.unit.stored,
        "tokens": len(ids),
        "parts": parts,
    }
    write_json(Path(f"{task.path}.json"), info)
    return info


def _names(members: list[Document]) -> bytes:
    return json.dumps([(document.id, document.place) for document in members]).encode()


class _whole:
    """Gives a partial path, and renames it to the wanted one when all went well."""

    def __init__(self, path: str):
        self.path, self.partial = path, f"{path}.partial"

    def __enter__(self) -> str:
        return self.partial

    def __exit__(self, kind: type | None, *error: object) -> None:
        if kind is None:
            os.replace(self.partial, self.path)


@functools.cache
def _tokenizer(folder: str) -> Tokenizer:
    return Tokenizer.load(folder)


@dataclasses.dataclass(frozen=True)
class PackTask:
    parts: tuple[Part, ...]
    shard: str  # path of the shard
    info: str  # path of what is said of it
    layout: Layout
    tokenizer: str  # folder
    phrases: str  # path of the list of phrases that are marked, or nothing
    pairs: str  # none | next | order


@functools.cache
def _marker(path: str, tokenizer: str) -> Marker:
    return Marker(read_phrases(Path(path)), _tokenizer(tokenizer))


def _read(part: Part, task: PackTask) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What `part.read` gives, with the phrases marked in the flags."""
    hashes, lengths, ids, flags = part.read()
    return hashes, lengths, ids, _marker(task.phrases, task.tokenizer)(ids, flags) if task.phrases else flags


def pack_group(task: PackTask) -> dict:
    """Packs the documents of one group into a shard; returns what it wrote beside it.

    rows, segments, tokens (CLS and SEP included), unknown: counts; labels: number of pairs with each, from 0; hash: of
    the rows' bytes; unigrams: count of each id without CLS, SEP and padding; flags: how many tokens carry each. Where
    two documents have one id nothing is written: {"equal": [name, name]}.
    """
    parts = zip(*(_read(part, task) for part in task.parts))
    hashes, lengths, ids, flags = (np.concatenate(arrays) for arrays in parts)
    order = np.argsort(hashes, kind="stable")
    if equal := _equal(task.parts, hashes, order):
        return {"equal": equal}
    ends = np.cumsum(lengths, dtype=np.int64)
    spans = [slice(ends[index] - lengths[index], ends[index]) for index in order]
    ids = np.concatenate([ids[span] for span in spans])
    flags = np.concatenate([flags[span] for span in spans])
    tokenizer = _tokenizer(task.tokenizer)
    hashes, lengths = hashes[order], lengths[order]
    plan = packing.plan(lengths, flags, task.layout, pairs=task.pairs != pairs.NONE)
    paired = pairs.pair(task.pairs, plan.starts, plan.stops, ids, flags, lengths, hashes)
    digest, bits = hashlib.blake2b(digest_size=16), bytearray()
    at = task.layout.record.fields["flags"][1]

    def rows() -> Iterator[bytes]:
        for row in packing.rows(plan, ids, flags, task.layout, tokenizer.pad, tokenizer.cls, tokenizer.sep, paired):
            digest.update(row)
            bits.extend(row[at : at + task.layout.row_length])
            yield row

    write_shard(Path(task.shard), rows())
    unigrams = np.bincount(ids, minlength=tokenizer.size)
    labels = [int(np.count_nonzero(paired.labels == label)) for label in (0, 1)]
    info = {
        "rows": plan.count,
        "segments": len(plan.rows),
        "labels": labels,
        "tokens": len(ids) + 2 * len(plan.rows) + sum(labels),
        "unknown": int(unigrams[tokenizer.unk]),
        "hash": digest.hexdigest(),
        "unigrams": unigrams.tolist(),
        "flags": {name: int(np.count_nonzero(np.frombuffer(bits, np.uint8) & bit)) for name, bit in FLAGS.items()},
    }
    write_json(Path(task.info), info)
    return info


def _equal(parts: tuple[Part, ...], hashes: np.ndarray, order: np.ndarray) -> list[tuple[str, str]]:
    """The names of two documents with one hash; empty where all differ."""
    found = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if not len(found):
        return []
    names = [name for part in parts for name in part.names()]
    return [names[order[found[0]]], names[order[found[0] + 1]]]
