"""Examples in batches for training: several short ones share a row, and every example comes once an epoch."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float, Int, Num

from mlm_jax.batch import Array, Batch
from mlm_jax.config import ConfigError, round_up
from mlm_jax.inference.rows import Item, lay, pack


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Examples:
    """Rows with q places that have labels; leading axes (accumulation) may stand before b.

    Of a question two places follow one another, where its answer begins and where it ends; their labels mean nothing.
    Slots that are no place have weight 0.
    """

    batch: Batch
    at: Int[Array, "*b q"]
    labels: Num[Array, "*b q"]  # ids, or numbers of a regression
    weights: Float[Array, "*b q"]


def order(seed: int, epoch: int, count: int) -> Int[np.ndarray, " n"]:
    """The order of `count` examples in an epoch 0, 1, ...; of seed and epoch alone."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


class Batches:
    """The batches of all steps, each a function of seed and step alone, and all of one shape.

    items: with the places that have labels; labels: an array for each of them. batch_size: items of a step; the last
    step of an epoch may have less. Rows come in a multiple of `multiple`; [k,b,t] of them with accumulation k. Raises
    ConfigError where an item is longer than a row.
    """

    def __init__(
        self,
        items: Sequence[Item],
        labels: Sequence[np.ndarray],
        *,
        seed: int,
        epochs: int,
        batch_size: int,
        row_length: int,
        accumulation: int,
        multiple: int,
    ):
        self.items, self.labels, self.accumulation = items, labels, accumulation
        lengths = np.array([len(item.ids) for item in items])
        if lengths.max() > row_length:
            raise ConfigError("config.row_length", row_length, f"there is an example of {lengths.max()} tokens")
        self.members, self.packed, self.epoch_of = [], [], []
        for epoch in range(epochs):
            shuffled = order(seed, epoch, len(items))
            for first in range(0, len(items), batch_size):
                members = shuffled[first : first + batch_size]
                self.members.append(members)
                self.packed.append(pack(lengths[members].tolist(), row_length))
                self.epoch_of.append(epoch)
        places = np.array([len(item.at) for item in items])
        slots = max(int(places[members[row]].sum()) for members, rows in zip(self.members, self.packed) for row in rows)
        rows = round_up(max(map(len, self.packed)), accumulation * multiple)
        segments = max(len(row) for rows in self.packed for row in rows)
        self.shape = rows, row_length, round_up(slots, 2), segments

    def __len__(self) -> int:
        """Steps of all epochs."""
        return len(self.packed)

    @property
    def steps_per_epoch(self) -> int:
        return self.epoch_of.count(0)

    @property
    def fill(self) -> float:
        """Share of the places of all rows that hold tokens."""
        lengths = np.array([len(item.ids) for item in self.items])
        tokens = sum(int(lengths[members].sum()) for members in self.members)
        return tokens / (len(self) * self.shape[0] * self.shape[1])

    def __getitem__(self, step: int) -> Examples:
        """The batch of step 0, 1, ...; dropout is keyed by the first example of a row and the epoch."""
        members = self.members[step]
        rows, places = lay([self.items[i] for i in members], self.packed[step], self.shape)
        b, _, q, _ = self.shape
        labels, weights = np.zeros((b, q), self.labels[0].dtype), np.zeros((b, q), np.float32)
        for number, place in places:
            labels[place.row, place.slots] = self.labels[members[number]]
            weights[place.row, place.slots] = 1.0
        first = np.full(b, -1, np.int32)
        first[: len(self.packed[step])] = [members[row[0]] for row in self.packed[step]]
        batch = dataclasses.replace(rows.batch, row=first, visit=np.full(b, self.epoch_of[step], np.int32))
        cut = (self.accumulation, b // self.accumulation)
        return jax.tree.map(lambda x: x.reshape(*cut, *x.shape[1:]), Examples(batch, rows.at, labels, weights))
