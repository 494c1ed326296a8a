"""Shards of rows to batches on the devices: the one file that knows Grain.

The order of the rows is made of numbers first, (row, visit) pairs, and is a function of the seed and the corpora;
places of it may be left out. Only then are the records of a whole step read and decoded at once. So it depends neither
on the number of processes nor on the accumulation, and any position is reached without reading what stands before it.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import grain
import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Int

from mlm_jax import records
from mlm_jax.batch import Batch
from mlm_jax.config import Config, ConfigError

# Passes over a corpus that a stream can make: finite, since Grain cannot slice an endless dataset, and the largest
# for which a visit fits 32 bits; with less than 2**31 rows the length of the stream stays below 2**62.
VISITS = 2**31 - 1
MOST_ROWS = 2**31 - 1
SHARES = 10**6  # parts in which a mixture by an exponent is measured

# One thread reads and decodes while the step runs; a second one only gets in its way on two cores.
THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
READ_OPTIONS = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=THREADS + 1)

# Random access: what a reader fetches at once should be no more than a record or two.
READER_OPTIONS, READER_BUFFER_BYTES = "readahead_buffer_size:0", 4096


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


class Stream(NamedTuple):
    """One of the sequences of rows that a run reads; the rows of all have different numbers."""

    number: int = 0
    first_row: int = 0  # what its rows are numbered from
    holes: tuple[tuple[int, int], ...] = ()  # places of its order that are left out, see `spikes.holes_of`


FIRST = Stream()


def number_streams(manifests: Sequence[dict], holes: Sequence[tuple] | None = None) -> tuple[Stream, ...]:
    """The streams of a run by the manifests of their rows. Raises ConfigError where they hold more than have numbers.

    holes: of each stream what is left out of its order; None: nothing. Masks and dropout go by the numbers of rows, so
    that no draw is that of another stream.
    """
    found, first_row = [], 0
    for number, manifest in enumerate(manifests):
        found.append(Stream(number, first_row, tuple(holes[number]) if holes else ()))
        first_row += sum(corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"])
    if first_row > MOST_ROWS:
        fix = f"their rows are {first_row:,} in all, and row numbers go up to {MOST_ROWS:,}"
        raise ConfigError("config.phases", f"{len(found)} streams", fix)
    return tuple(found)


class Shards:
    """Random access to the rows of one split, the corpora one after another in the order of the manifest."""

    def __init__(self, folder: str | Path, manifest: dict, split: str, first_row: int = 0):
        """Opens every shard. Raises ConfigError where one is missing, broken, or holds another number of rows.

        first_row: what rows are numbered from.
        """
        self.first_row = first_row
        self.layout = records.layout_of(manifest)
        pad = manifest["tokenizer"]["pad"]
        self.padding = records.encode_row(self.layout, [], [], [], [], pad)
        shards = [corpus["splits"][split] for corpus in manifest["corpora"]]
        self.rows = [corpus["rows"] for corpus in shards]
        self.files = [(Path(folder) / shard["file"], shard["rows"]) for corpus in shards for shard in corpus["shards"]]
        for source, corpus in zip(manifest["corpora"], shards):
            found = sum(shard["rows"] for shard in corpus["shards"])
            if found != corpus["rows"]:
                fix = f"{source['source']} has {corpus['rows']} rows, its shards {found}; run prepare again"
                raise ConfigError("config.data.rows", str(folder), fix)
        if sum(self.rows) > MOST_ROWS:
            raise ConfigError("config.data.rows", str(folder), f"row numbers go up to {MOST_ROWS}")
        self.readers = [_open(path, rows) for path, rows in self.files]
        self.ends = np.cumsum([rows for _, rows in self.files], dtype=np.int64)

    def read(self, numbers: Int[np.ndarray, " n"]) -> list[bytes]:
        """The records of these rows, in this order; row -1 is all padding. Raises ValueError for a damaged record."""
        found = [self.padding] * len(numbers)
        rows = np.where(numbers < 0, -1, numbers - self.first_row)
        shard_of = np.where(rows < 0, -1, np.searchsorted(self.ends, rows, side="right"))
        for shard in np.unique(shard_of[rows >= 0]):
            places = np.flatnonzero(shard_of == shard)
            path, count = self.files[shard]
            try:
                rows_read = self.readers[shard].read((rows[places] - (self.ends[shard] - count)).tolist())
            except RuntimeError as error:
                raise ValueError(f"{path}: {error}") from error
            for place, record in zip(places.tolist(), rows_read):
                found[place] = record
        return found

    def batch(self, numbers: Int[np.ndarray, "*b 2"]) -> Batch:
        """A numpy batch from (row, visit) pairs of any leading shape."""
        rows, visits = numbers[..., 0], numbers[..., 1]
        arrays = records.decode_rows(self.layout, self.read(rows.reshape(-1)))
        return Batch(
            **{name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in arrays.items()},
            row=rows.astype(np.int32),
            visit=visits.astype(np.int32),
            weight=(rows >= 0).astype(np.float32),
        )


def _open(path: Path, rows: int) -> object:
    from array_record.python.array_record_module import ArrayRecordReader

    if not path.is_file():
        raise ConfigError("config.data.rows", str(path), "this shard of the manifest is missing; run prepare again")
    reader = ArrayRecordReader(str(path), options=READER_OPTIONS, file_reader_buffer_size=READER_BUFFER_BYTES)
    if not reader.ok():  # it does not raise, and says that it has no rows
        raise ConfigError("config.data.rows", str(path), "this shard is damaged; run prepare again")
    if reader.num_records() != rows:
        fix = f"holds {reader.num_records()} rows, the manifest says {rows}; run prepare again"
        raise ConfigError("config.data.rows", str(path), fix)
    return reader


class Mixture(grain.transforms.DatasetSelectionMap):
    """Interleaves streams so that each run of sum(shares) rows takes exactly shares[i] of stream i, evenly spread.

    (Grain's own `mix` rounds its weights to about a hundredth of the smallest.)
    """

    def __init__(self, shares: Sequence[int], lengths: Sequence[int]):
        self.shares = tuple(shares)
        total = sum(shares)
        self.length = min(2**62, *(length * total // share for length, share in zip(lengths, shares, strict=True)))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        """(stream, place in it) of the row at this place of the mixture.

        The first stream's row count goes up where ceil(k share / total) does; the others share what it leaves.
        """
        before, after, total = index, index + 1, sum(self.shares)
        for stream, share in enumerate(self.shares):
            left_before = before * (total - share) // total
            left_after = after * (total - share) // total
            if left_before == left_after:
                return stream, before - left_before
            before, after, total = left_before, left_after, total - share
        raise AssertionError("the last stream takes all that is left")


def order_seed(seed: int, corpus: int, stream: int = 0) -> int:
    """The 32-bit seed of a corpus's order in a stream.

    Hashed, because Grain shuffles epoch e by seed + e: seed 1 would repeat the epochs of seed 0, one epoch earlier.
    """
    name = f"order {seed} {corpus} {stream}" if stream else f"order {seed} {corpus}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def _number(rows: int, offset: int, index: int, row: int) -> tuple[int, int]:
    return offset + row, index // rows


def training_order(rows: Sequence[int], config: Config, stream: Stream = FIRST) -> grain.MapDataset:
    """The (row, visit) pairs of a stream over corpora of so many rows, mixed by `data.weights` or `data.exponent`.

    Each corpus gives a new permutation of its rows in each of its epochs.
    """
    orders, offset = [], stream.first_row
    for corpus, count in enumerate(rows):
        seed = order_seed(config.seed, corpus, stream.number)
        order = grain.MapDataset.range(count).shuffle(seed=seed).repeat(VISITS)
        orders.append(order.map_with_index(functools.partial(_number, count, offset)))
        offset += count
    if len(orders) == 1:
        return orders[0]
    mixture = Mixture(mixture_shares(rows, config), [len(order) for order in orders])
    return grain.MapDataset.select_from_datasets(orders, mixture)


def rest_of(order: grain.MapDataset, place: int, holes: Sequence[tuple[int, int]]) -> grain.MapDataset:
    """What stands in an order from a place on, without the holes."""
    parts = []
    for first, end in holes:
        if place < first:
            parts.append(order[place:first])
        place = max(place, end)
    last = order[place:]
    return grain.MapDataset.concatenate([*parts, last]) if parts else last


def mixture_shares(rows: Sequence[int], config: Config) -> list[int]:
    """In which proportion corpora of so many rows are read, as whole numbers.

    With an exponent a, rows_i ** a / sum of rows_j ** a (Lample and Conneau 2019, section 3.1, with sentences for
    rows), to a part in a million.
    """
    if config.data.weights:
        return _integers(config.data.weights)
    if config.data.exponent == 1:
        return list(rows)
    powers = [count**config.data.exponent for count in rows]
    return [max(1, round(power / sum(powers) * SHARES)) for power in powers]


def _integers(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the same proportion: 0.7, 0.3 -> 7, 3."""
    fractions = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * scale) for fraction in fractions]


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
    order = training_order([corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"]], config, stream)
    order = rest_of(order, rows_read, stream.holes)
    block = size // share.blocks
    starts = (micro * size + part * block for micro in itertools.count() for part in share.mine)
    places = itertools.islice((start + i for start in starts for i in range(block)), count)
    mine = np.array([order[place][0] for place in places], np.int32)
    return np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, count).tolist()


def rows_at(manifest: dict, config: Config, stream: Stream, places: Iterable[int]) -> list[tuple[int, int]]:
    """The (row, visit) pairs that stand at these places of a stream's order."""
    order = training_order([corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"]], config, stream)
    return [order[place] for place in places]


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
