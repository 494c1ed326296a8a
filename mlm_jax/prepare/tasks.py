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
from mlm_jax.prepare.encoded import Part, equal_names, pieces
from mlm_jax.prepare.phrases import Marker, read_phrases
from mlm_jax.prepare.screening import Screening, screen
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
    screening: Screening = dataclasses.field(default_factory=Screening)
    segmenter: str = "none"

    def split(self, id: str) -> int:
        """Which split a document belongs to: its hash under a salt of its own decides."""
        return int(document_hash(self.source, id, b"holdout") < int(self.holdout * 2**64))


@dataclasses.dataclass(frozen=True)
class SampleTask:
    settings: Settings
    unit: Unit
    chunk: int  # characters of a document that are drawn together
    below: tuple[int, int]  # only chunks whose hash is below are wanted; of each split


@dataclasses.dataclass(frozen=True)
class Sample:
    """Chunks of one unit that may belong to the samples of training and of held-out text: hash, bytes and text."""

    chunks: tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]
    documents: int
    size: int  # bytes of the unit
    stored: int  # bytes of its file that were read for it
    first_problem: tuple[str, str] | None  # place and reason


def sample_unit(task: SampleTask) -> Sample:
    """The chunks of a unit's documents with a small hash."""
    settings, chunks, count, first_problem = task.settings, ([], []), 0, None
    for document in documents(task.unit, settings.fields):
        count += 1
        if document.problem:
            first_problem = first_problem or (document.place, document.problem)
            continue
        split = settings.split(document.id)
        for start in range(0, len(document.text), task.chunk):
            value = document_hash(settings.source, f"{document.id}\0{start}", b"sample")
            if value < task.below[split]:
                text = document.text[start : start + task.chunk]
                chunks[split].append((value, len(text.encode("utf-8", "replace")), text))
    return Sample(chunks, count, len(task.unit.data), task.unit.stored, first_problem)


@dataclasses.dataclass(frozen=True)
class EncodeTask:
    settings: Settings
    unit: Unit
    path: str  # of the result, without suffix
    tokenizer: str  # hash


def encode_unit(task: EncodeTask) -> dict:
    """Encodes the documents of a unit into `path.bin`, ordered by split, group and hash; returns `path.json`.

    If duplicates are looked for, `path.npy` holds what the texts are recognised by, in the same order.
    read, dropped {reason: n}, bytes, stored (of the file), tokens, contaminated: counts; first_problem: place and
    reason, or none; examples: the first contaminated documents; tokenizer: hash;
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
    screened = screen(kept, settings.screening)
    kept, dropped = screened.documents, dropped + screened.dropped
    texts = [document.text for document in kept]
    ids, flags, lengths = encode_documents(texts, _tokenizer(settings.tokenizer), settings.segmenter)
    dropped["empty"] += int((lengths == 0).sum())
    groups = _groups(kept, lengths, settings)
    if screened.signatures is not None:
        chosen = [index for members in groups.values() for _, index in members]
        with _whole(f"{task.path}.npy") as partial, open(partial, "wb") as handle:
            np.save(handle, screened.signatures[chosen])
    info = {
        "read": read,
        "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
        "first_problem": first_problem,
        "bytes": len(task.unit.data),
        "stored": task.unit.stored,
        "tokens": len(ids),
        "tokenizer": task.tokenizer,
        "contaminated": screened.contaminated,
        "examples": screened.examples,
        "parts": _write_parts(f"{task.path}.bin", groups, kept, ids, flags, lengths),
    }
    write_json(Path(f"{task.path}.json"), info, indent=None)
    return info


Groups = dict[tuple[int, int], list[tuple[int, int]]]  # (split, group) -> (hash, index) of its documents


def _groups(kept: list[Document], lengths: np.ndarray, settings: Settings) -> Groups:
    """Which documents with tokens belong to which group; all in order."""
    groups: Groups = {}
    for index, document in enumerate(kept):
        if lengths[index]:
            value = document_hash(settings.source, document.id)
            split = settings.split(document.id)
            groups.setdefault((split, value % settings.groups[split]), []).append((value, index))
    return {key: sorted(members) for key, members in sorted(groups.items())}


def _write_parts(
    path: str, groups: Groups, kept: list[Document], ids: np.ndarray, flags: np.ndarray, lengths: np.ndarray
) -> list[list[int]]:
    """Writes the documents group by group, as `encoded.Part` reads them; `parts` of `encode_unit`."""
    ends, parts = np.cumsum(lengths), []
    with _whole(path) as partial, open(partial, "wb") as handle:
        for (split, group), members in groups.items():
            offset = handle.tell()
            hashes, chosen = zip(*members)
            spans = [slice(ends[index] - lengths[index], ends[index]) for index in chosen]
            handle.write(np.array(hashes, "<u8").tobytes())
            handle.write(lengths[list(chosen)].astype("<i4").tobytes())
            tokens = handle.write(np.concatenate([ids[span] for span in spans]).astype("<i4").tobytes()) // 4
            handle.write(np.concatenate([flags[span] for span in spans]).tobytes())
            names = handle.write(_names([kept[index] for index in chosen]))
            parts.append([split, group, offset, len(chosen), tokens, names])
    return parts


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


def forget() -> None:
    """What this process has read: another call may find another tokenizer in the same place."""
    _tokenizer.cache_clear()
    _marker.cache_clear()


def pack_group(task: PackTask) -> dict:
    """Packs the documents of one group into a shard; returns what it wrote beside it.

    rows, segments, tokens (CLS and SEP included), unknown: counts; labels: number of pairs with each, from 0; hash: of
    the rows' bytes; unigrams: count of each id without CLS, SEP and padding; flags: how many tokens carry each. Where
    two documents have one id nothing is written: {"equal": [name, name]}.
    """
    if equal := equal_names(task.parts):
        return {"equal": equal}
    tokenizer = _tokenizer(task.tokenizer)
    counts, labels, digest = Counter(rows=0, segments=0, tokens=0), [0, 0], hashlib.blake2b(digest_size=16)
    unigrams, flag_bytes = np.zeros(tokenizer.size, np.int64), np.zeros(256, np.int64)

    def rows() -> Iterator[bytes]:
        for piece in pieces(task.parts):
            ids, flags = piece.ids, piece.flags
            if task.phrases:
                flags = _marker(task.phrases, task.tokenizer)(ids, flags)
            plan = packing.plan(piece.lengths, flags, task.layout, pairs=task.pairs != pairs.NONE)
            paired = pairs.pair(
                task.pairs, plan.starts, plan.stops, ids, flags, piece.lengths, piece.hashes, task.layout.row_length
            )
            for label in (0, 1):
                labels[label] += int(np.count_nonzero(paired.labels == label))
            counts.update(rows=plan.count, segments=len(plan.rows), tokens=len(ids) + 2 * len(plan.rows))
            unigrams[:] += np.bincount(ids, minlength=tokenizer.size)
            specials = tokenizer.pad, tokenizer.cls, tokenizer.sep
            for block, bits in packing.blocks(plan, ids, flags, task.layout, *specials, paired):
                digest.update(b"".join(block))
                flag_bytes[:] += np.bincount(bits.reshape(-1), minlength=256)
                yield from block

    write_shard(Path(task.shard), rows())
    info = {
        **counts,
        "tokens": counts["tokens"] + sum(labels),
        "labels": labels,
        "unknown": int(unigrams[tokenizer.unk]),
        "hash": digest.hexdigest(),
        "unigrams": unigrams.tolist(),
        "flags": {name: int(flag_bytes[np.arange(256) & bit > 0].sum()) for name, bit in FLAGS.items()},
    }
    write_json(Path(task.info), info, indent=None)
    return info
