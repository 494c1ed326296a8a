"""Shards of rows to batches on the devices: the one folder that knows Grain.

The order of the rows is made of numbers first (`streams`); only then are the records of a whole step read and decoded
at once (`shards`). So it depends neither on the number of processes nor on the accumulation.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import grain
import jax
import numpy as np
from jax.experimental import multihost_utils

from mlm_jax.batch import Batch
from mlm_jax.config import Config
from mlm_jax.data.shards import Shards
from mlm_jax.data.streams import (
    FIRST,
    Mixture,
    Stream,
    mixture_shares,
    number_streams,
    order_of,
    rest_of,
    rows_at,
    training_order,
)

__all__ = [
    "FIRST",
    "WHOLE",
    "Mixture",
    "Shards",
    "Share",
    "Stream",
    "evaluation_batches",
    "first_rows",
    "host_batches",
    "host_evaluation_batches",
    "mixture_shares",
    "number_streams",
    "rows_at",
    "train_batches",
    "training_order",
]

# One thread reads and decodes while the step runs; a second one only gets in its way on two cores.
THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
READ_OPTIONS = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=THREADS + 1)


@dataclasses.dataclass(frozen=True)
class Share:
    """The rows of a batch that one process holds: the blocks `mine` of the `blocks` equal ones that it is cut into."""

    blocks: int
    mine: tuple[int, ...]  # increasing

    @classmethod
    def of(cls, sharding: jax.sharding.NamedSharding, shape: tuple[int, ...], axis: int) -> "Share":
        """This process's share of an array of `shape` whose `axis` is the rows.

        Processes that differ only along a mesh axis that does not cut the rows have the same share.
        """
        size = shape[axis]
        index_map = sharding.addressable_devices_indices_map(shape)
        return cls.holding({index[axis].indices(size)[:2] for index in index_map.values()}, size)

    @classmethod
    def holding(cls, spans: Iterable[tuple[int, int]], size: int) -> "Share":
        """The share that holds these spans [start, stop) of `size` rows, in blocks as large as can be."""
        runs: list[list[int]] = []
        for start, stop in sorted(set(spans)):
            if runs and start == runs[-1][1]:
                runs[-1][1] = stop
            else:
                runs.append([start, stop])
        block = math.gcd(size, *(edge for run in runs for edge in run))
        mine = (number for start, stop in runs for number in range(start // block, stop // block))
        return cls(size // block, tuple(mine))


WHOLE = Share(1, (0,))


def _evaluation_order(shards: Shards, corpus: int, most_rows: int, size: int) -> grain.MapDataset:
    offset, rows = sum(shards.rows[:corpus]), shards.rows[corpus]
    rows = min(rows, most_rows) if most_rows else rows
    padded = -(-rows // size) * size
    return grain.MapDataset.range(padded).map(lambda row: (offset + row if row < rows else -1, 0))


def _batches(shards: Shards, order: grain.MapDataset, size: int, accumulation: int | None, share: Share) -> Iterator:
    """Numpy batches [k, b/n, ...] from an order whose length is a multiple of the rows of all processes' batches."""
    blocks = order.batch(size // share.blocks, batch_fn=np.asarray)
    parts = [blocks[number :: share.blocks] for number in share.mine]
    if accumulation is not None:
        parts = [part.batch(accumulation, batch_fn=np.stack) for part in parts]
    numbers = grain.experimental.ZipMapDataset(parts)
    batches = numbers.map(lambda parts: shards.batch(np.concatenate(parts, axis=-2)))
    iterator = iter(batches.to_iter_dataset(READ_OPTIONS))
    try:
        yield from iterator
    finally:
        iterator.close()


def _place(batches: Iterator, sharding: jax.sharding.NamedSharding, axis: int, size: int) -> Iterator:
    """The global arrays of which `batches` holds this process's rows."""

    def place(leaf: np.ndarray) -> jax.Array:
        shape = (*leaf.shape[:axis], size, *leaf.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(sharding, leaf, shape)

    for batch in batches:
        yield jax.tree.map(place, batch)


def host_batches(
    folder: str | Path,
    manifest: dict,
    config: Config,
    rows_read: int = 0,
    share: Share = WHOLE,
    stream: Stream = FIRST,
) -> Iterator[Batch]:
    """Numpy batches [k, b/n, ...] of one process, from the place `rows_read` of the stream's order on.

    The holes of the stream are left out; `position.after` tells the place after a batch. k is `accumulation`, b
    `batch_size` / k. Microbatch j of all processes together holds rows j b .. (j+1) b - 1 of the step. Raises
    ConfigError at once where the shards are not what the manifest says.
    """
    shards = Shards(folder, manifest, "train", stream.first_row)
    order = rest_of(training_order(shards.rows, config, stream), rows_read, stream.holes)
    order = order[: len(order) // config.batch_size * config.batch_size]
    return _batches(shards, order, config.batch_size // config.accumulation, config.accumulation, share)


def first_rows(
    manifest: dict,
    config: Config,
    rows_read: int,
    sharding: jax.sharding.NamedSharding,
    stream: Stream = FIRST,
    count: int = 4,
) -> list[list[int]]:
    """The first rows that each process reads from a place on, by process; all processes call it together."""
    size = config.batch_size // config.accumulation
    share = Share.of(sharding, (config.accumulation, size), axis=1)
    order = rest_of(order_of(manifest, config, stream), rows_read, stream.holes)
    block = size // share.blocks
    starts = (micro * size + part * block for micro in itertools.count() for part in share.mine)
    places = itertools.islice((start + i for start in starts for i in range(block)), count)
    mine = np.array([order[place][0] for place in places], np.int32)
    return np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, count).tolist()


def train_batches(
    folder: str | Path,
    manifest: dict,
    config: Config,
    rows_read: int,
    sharding: jax.sharding.NamedSharding,
    stream: Stream = FIRST,
) -> Iterator[Batch]:
    """Batches of global arrays [k, b, ...] for the steps from the place `rows_read` of a stream's order on.

    sharding: of an array [k, b, ...] whose rows (axis 1) are cut over the mesh. Nothing is taken ahead of the caller
    but inside Grain, so the place after s batches is `position.after(rows_read, s batch_size, stream.holes)`. See
    `host_batches` for the rest.
    """
    size = config.batch_size // config.accumulation
    share = Share.of(sharding, (config.accumulation, size), axis=1)
    return _place(host_batches(folder, manifest, config, rows_read, share, stream), sharding, 1, size)


def host_evaluation_batches(
    folder: str | Path, manifest: dict, config: Config, corpus: int, share: Share = WHOLE, split: str = "eval"
) -> Iterator[Batch]:
    """Numpy batches [b/n, ...] of one corpus's rows of a split, each row once, in order, at most `evaluate.rows`.

    Rows are numbered over the sets of all corpora in the split, whatever `evaluate.rows` is. The last batch is filled
    up by rows of padding: segments 0, row -1, visit 0, weight 0.
    """
    shards = Shards(folder, manifest, split)
    size = config.batch_size // config.accumulation
    order = _evaluation_order(shards, corpus, config.evaluate.rows, size)
    return _batches(shards, order, size, None, share)


def evaluation_batches(
    folder: str | Path,
    manifest: dict,
    config: Config,
    corpus: int,
    sharding: jax.sharding.NamedSharding,
    split: str = "eval",
) -> Iterator[Batch]:
    """Batches of global arrays [b, ...]; see `host_evaluation_batches`. sharding: of an array [b, ...]."""
    size = config.batch_size // config.accumulation
    share = Share.of(sharding, (size,), axis=0)
    return _place(host_evaluation_batches(folder, manifest, config, corpus, share, split), sharding, 0, size)
