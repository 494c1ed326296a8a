"""The order in which rows are read, made of numbers alone: (row, visit) pairs of a stream.

It is a function of the seed and the corpora; places of it may be left out. Any position is reached without reading what
stands before it.
"""

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import grain

from mlm_jax.config import Config, ConfigError

# Passes over a corpus that a stream can make: finite, since Grain cannot slice an endless dataset, and the largest
# for which a visit fits 32 bits; with less than 2**31 rows the length of the stream stays below 2**62.
VISITS = 2**31 - 1
MOST_ROWS = 2**31 - 1
SHARES = 10**6  # parts in which a mixture by an exponent is measured


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


def order_of(manifest: dict, config: Config, stream: Stream = FIRST) -> grain.MapDataset:
    """The training order of the rows of a manifest."""
    return training_order([corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"]], config, stream)


def rows_at(manifest: dict, config: Config, stream: Stream, places: Iterable[int]) -> list[tuple[int, int]]:
    """The (row, visit) pairs that stand at these places of a stream's order."""
    order = order_of(manifest, config, stream)
    return [order[place] for place in places]
