"""Rows as bytes: the fixed-size record of one row, ArrayRecord shards of them, and the manifest beside the shards."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mlm_jax.config import ConfigError

FORMAT = 3
MANIFEST = "manifest.json"

# Bits of a token's flags byte. PHRASE_JOIN: a word start that continues the phrase before. SECOND_OF_PAIR: of a segment
# CLS A SEP B SEP, the tokens of B and the SEP behind it (the token types of BERT).
WORD_START, SENTENCE_START, PARAGRAPH_START, PHRASE_JOIN, SECOND_OF_PAIR = 1, 2, 4, 8, 16

FLAGS = {  # what the manifest counts -> its bit
    "word_starts": WORD_START,
    "sentence_starts": SENTENCE_START,
    "paragraph_starts": PARAGRAPH_START,
    "phrase_joins": PHRASE_JOIN,
}

NO_SEGMENT = 0xFFFF  # start of a segment that a row does not have

# Labels of a segment that is a pair. Where `pairs` of the manifest is "order", all pairs are stored IN_ORDER and may be
# swapped on the device: tokens and flags of B are then put before those of A, SECOND_OF_PAIR goes to what stands second
# and the SEP behind it, and the label is OUT_OF_ORDER. Pairs of "next" are never swapped.
NO_LABEL = -1
FOLLOWS = IN_ORDER = 0
RANDOM = OUT_OF_ORDER = 1


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes of a row record: t tokens, p segments, and the integer type of the ids.

    A record holds, in this order and little-endian: ids[t], flags u8[t], segment starts u16[p], pair labels i8[p],
    number of tokens u16. Ids after the number of tokens are the padding id.
    """

    row_length: int
    max_segments: int
    dtype: str  # uint16 | uint32

    @classmethod
    def for_vocabulary(cls, row_length: int, max_segments: int, vocab_size: int) -> "Layout":
        """The smallest integer type that holds the largest id, vocab_size - 1."""
        return cls(row_length, max_segments, "uint16" if vocab_size <= 1 << 16 else "uint32")

    @property
    def record(self) -> np.dtype:
        return np.dtype(
            [
                ("tokens", np.dtype(self.dtype).newbyteorder("<"), (self.row_length,)),
                ("flags", "u1", (self.row_length,)),
                ("firsts", "<u2", (self.max_segments,)),
                ("pair_labels", "i1", (self.max_segments,)),
                ("length", "<u2"),
            ]
        )


def encode_row(
    layout: Layout,
    tokens: Sequence[int] | np.ndarray,
    flags: Sequence[int] | np.ndarray,
    firsts: Sequence[int] | np.ndarray,
    pair_labels: Sequence[int] | np.ndarray,
    pad: int,
) -> bytes:
    """One row as bytes. tokens, flags: n <= t values; firsts, pair_labels: one per segment, at most p.

    Raises ValueError where a value does not fit the layout.
    """
    n, p = len(tokens), len(firsts)
    if n > layout.row_length or p > layout.max_segments or len(flags) != n or len(pair_labels) != p:
        raise ValueError(f"{n} tokens, {len(flags)} flags, {p} segments, {len(pair_labels)} labels do not fit {layout}")
    if n and int(np.max(tokens)) > np.iinfo(layout.dtype).max:
        raise ValueError(f"id {int(np.max(tokens))} does not fit {layout.dtype}")
    row = np.zeros((), layout.record)
    row["tokens"] = pad
    row["tokens"][:n] = tokens
    row["flags"][:n] = flags
    row["firsts"] = NO_SEGMENT
    row["firsts"][:p] = firsts
    row["pair_labels"] = NO_LABEL
    row["pair_labels"][:p] = pair_labels
    row["length"] = n
    return row.tobytes()


def encode_rows(
    layout: Layout,
    tokens: np.ndarray,
    flags: np.ndarray,
    firsts: np.ndarray,
    pair_labels: np.ndarray,
    lengths: np.ndarray,
) -> list[bytes]:
    """Many rows as bytes: what `encode_row` gives for each, at a fraction of the time.

    tokens [b,t] with the padding id after each row's length; flags [b,t]; firsts, pair_labels [b,p], -1 for a segment
    that a row does not have; lengths [b]. Raises ValueError where a value does not fit the layout.
    """
    t, p = layout.row_length, layout.max_segments
    by_segment = {firsts.shape, pair_labels.shape}
    if tokens.shape[1:] != (t,) or flags.shape != tokens.shape or by_segment != {(len(tokens), p)}:
        shapes = f"tokens {tokens.shape}, flags {flags.shape}, firsts {firsts.shape}, labels {pair_labels.shape}"
        raise ValueError(f"{shapes} do not fit {layout}")
    if tokens.size and int(tokens.max()) > np.iinfo(layout.dtype).max:
        raise ValueError(f"id {int(tokens.max())} does not fit {layout.dtype}")
    block = np.zeros(len(tokens), layout.record)
    block["tokens"], block["flags"], block["length"] = tokens, flags, lengths
    block["firsts"] = np.where(firsts < 0, NO_SEGMENT, firsts)
    block["pair_labels"] = pair_labels
    data, size = block.tobytes(), layout.record.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]


def decode_rows(layout: Layout, rows: Sequence[bytes]) -> dict[str, np.ndarray]:
    """A list of b records as the arrays of a batch.

    Returns tokens i32[b,t], segments i32[b,t], positions i32[b,t], flags u8[b,t], firsts i32[b,p],
    pair_labels i32[b,p]. Segments count from 1, 0 is padding; positions restart in each segment;
    absent segments have firsts 0 and label -1.
    """
    size = layout.record.itemsize
    for row in rows:
        if len(row) != size:
            raise ValueError(f"a record has {len(row)} bytes, {layout} makes {size}")
    raw = np.frombuffer(b"".join(rows), layout.record)
    b, t = len(rows), layout.row_length
    starts = raw["firsts"].astype(np.int32)
    present = starts != NO_SEGMENT
    place = np.arange(t, dtype=np.int32)
    marks = np.zeros((b, t), np.int32)
    row_of, _ = np.nonzero(present)
    marks[row_of, starts[present]] = 1
    segments = np.cumsum(marks, axis=1, dtype=np.int32)
    latest = np.maximum.accumulate(np.where(marks == 1, place, 0), axis=1)
    real = place < raw["length"][:, None]
    return {
        "tokens": raw["tokens"].astype(np.int32),
        "segments": np.where(real, segments, 0),
        "positions": np.where(real, place - latest, 0),
        "flags": raw["flags"].copy(),
        "firsts": np.where(present, starts, 0),
        "pair_labels": raw["pair_labels"].astype(np.int32),
    }


def write_shard(path: Path, rows: Iterable[bytes]) -> int:
    """Writes rows to an ArrayRecord file, one record a group so that any row is read alone; returns their number.

    Records are compressed by Snappy: a quarter of the time that the library's default takes, and a tenth more bytes.
    The file appears under its name only when it is whole.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    writer = ArrayRecordWriter(str(partial), "group_size:1,snappy")
    count = 0
    for row in rows:
        writer.write(row)
        count += 1
    writer.close()
    partial.rename(path)
    return count


def write_json(path: Path, value: object, indent: int | None = 1) -> None:
    """Writes JSON under its name only when it is whole. indent: None for what nobody reads; ten times as fast."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.rename(path)


def read_manifest(folder: str | Path) -> dict:
    """The manifest of a folder of rows. Raises ConfigError where there is none of this format."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest["format"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError("config.data.rows", str(path), f"is no manifest of rows: {error}") from None
    if found != FORMAT:
        raise ConfigError("config.data.rows", str(path), f"has format {found!r}, not {FORMAT}: prepare again")
    return manifest


def layout_of(manifest: dict) -> Layout:
    return Layout(manifest["row_length"], manifest["max_segments"], manifest["dtype"])
