"""Reads shards: all of their rows, or some of them evenly spread; counts, and what is wrong with them."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlm_jax.inspection.counts import Block, Counts, Ids, add, distributions, totals
from mlm_jax.inspection.rules import broken
from mlm_jax.records import Layout

ROWS_AT_A_TIME = 2048
MOST_EXAMPLES = 3  # rows that are named where a rule is broken


@dataclasses.dataclass(frozen=True)
class Task:
    """One shard. name: as the manifest has it; hash: of its rows; wanted: their numbers, or None for all."""

    path: str
    name: str
    rows: int
    hash: str
    layout: Layout
    ids: Ids
    wanted: tuple[int, ...] | None


@dataclasses.dataclass
class Look:
    """What a shard holds. problems: (what is wrong, details), none for a good one; bytes: of the file."""

    rows: int = 0  # read
    bytes: int = 0
    totals: Counts = dataclasses.field(default_factory=dict)
    distributions: Counts = dataclasses.field(default_factory=dict)
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def look(task: Task) -> Look:
    """Reads a shard; whatever is wrong with it is in the result."""
    found = Look()
    try:
        reader = open_shard(task.path)
        found.bytes = Path(task.path).stat().st_size
        count = reader.num_records()
        if count != task.rows:
            found.problems.append(("number of rows", f"holds {count:,} rows, the manifest says {task.rows:,}"))
            return found
        _read(reader, task, found)
    except (OSError, RuntimeError, ValueError) as error:
        found.problems.append(("readable", str(error).splitlines()[0]))
    return found


def open_shard(path: str) -> object:
    """A reader of an ArrayRecord file. Raises OSError where it is missing, ValueError where it is damaged."""
    from array_record.python.array_record_module import ArrayRecordReader

    with open(path, "rb"):  # says why it cannot be read
        pass
    reader = ArrayRecordReader(path)
    if not reader.ok():  # it does not raise, and says that it has no rows
        raise ValueError("is no whole ArrayRecord file")
    return reader


def _read(reader: object, task: Task, found: Look) -> None:
    digest, size = hashlib.blake2b(digest_size=16), task.layout.record.itemsize
    rules: dict[str, list[int]] = {}
    for numbers, rows in _blocks(reader, task):
        for row in rows:
            digest.update(row)
        if any(len(row) != size for row in rows):
            found.problems.append(("size of the rows", f"a row has not the {size} bytes of {task.layout}"))
            return
        block = Block.of(task.layout, rows)
        found.rows += len(rows)
        found.totals = add(found.totals, totals(block, task.ids))
        found.distributions = add(found.distributions, distributions(block))
        for rule, places in broken(block, task.layout, task.ids).items():
            rules.setdefault(rule, []).extend(numbers[places].tolist())
    for rule, places in rules.items():
        some = ", ".join(f"{row:,}" for row in places[:MOST_EXAMPLES])
        found.problems.append((rule, f"not so in {len(places):,} of {found.rows:,} rows, such as {some}"))
    if task.wanted is None and digest.hexdigest() != task.hash:
        found.problems.append(("hash of the rows", f"is {digest.hexdigest()}, the manifest says {task.hash}"))


def _blocks(reader: object, task: Task) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """(row numbers i64[n], rows) of what is to be read."""
    if task.wanted is None:
        for start in range(0, task.rows, ROWS_AT_A_TIME):
            stop = min(start + ROWS_AT_A_TIME, task.rows)
            yield np.arange(start, stop), reader.read(start, stop)
        return
    for start in range(0, len(task.wanted), ROWS_AT_A_TIME):
        numbers = task.wanted[start : start + ROWS_AT_A_TIME]
        yield np.array(numbers), reader.read(list(numbers))
