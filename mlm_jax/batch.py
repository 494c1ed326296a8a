"""The types that pass between the stages on the device."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from mlm_jax import records

Array = jax.Array | np.ndarray  # a batch is numpy on its way to the device


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of t tokens with up to p segments each; leading axes (accumulation) may stand before b.

    Column j of the p axis is segment id j + 1; absent segments have firsts 0 and label -1.
    """

    tokens: Int[Array, "*b t"]
    segments: Int[Array, "*b t"]  # 0 padding, 1.. the segment that a token belongs to
    positions: Int[Array, "*b t"]  # restart in each segment
    flags: UInt8[Array, "*b t"]  # the bits of `records`
    firsts: Int[Array, "*b p"]  # where each segment starts
    pair_labels: Int[Array, "*b p"]  # -1 none; 0 follows or right order; 1 random or swapped
    row: Int[Array, "*b"]  # global row number, -1 for a row that only fills up an evaluation batch
    visit: Int[Array, "*b"]  # how often this row was seen before
    weight: Float[Array, "*b"]  # 0 for a row that only fills up

    @property
    def word_starts(self) -> Bool[Array, "*b t"]:
        return self.flags & records.WORD_START != 0

    @property
    def sentence_starts(self) -> Bool[Array, "*b t"]:
        return self.flags & records.SENTENCE_START != 0

    @property
    def paragraph_starts(self) -> Bool[Array, "*b t"]:
        return self.flags & records.PARAGRAPH_START != 0

    @property
    def phrase_joins(self) -> Bool[Array, "*b t"]:
        return self.flags & records.PHRASE_JOIN != 0

    @property
    def types(self) -> Int[Array, "*b t"]:
        """0 for the first part of a pair or a single text, 1 for the second part."""
        return (self.flags & records.SECOND_OF_PAIR != 0).astype(jnp.int32)

    @property
    def segment_weight(self) -> Float[Array, "*b p"]:
        """1 for a segment that exists, 0 for one that does not."""
        column = jax.lax.broadcasted_iota(jnp.int32, self.firsts.shape, self.firsts.ndim - 1)
        return (column < self.segments.max(-1, keepdims=True)).astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Masked:
    """What the masking stage gives: the corrupted input, and m slots for the selected tokens in order of position.

    Empty slots have index 0, target 0 and weight 0.
    """

    inputs: Int[Array, "*b t"]
    indices: Int[Array, "*b m"]
    targets: Int[Array, "*b m"]
    weights: Float[Array, "*b m"]
    selected: Bool[Array, "*b t"]
    dropped: Int[Array, "*b"]  # tokens of the row's budget that found no slot


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Encoded:
    """What the encoder gives: hidden states at the positions asked for (q), or at all (q = t); and what was wanted."""

    hidden: Float[Array, "*b q d"]
    out: dict[str, Array]


def by_row(function: Callable, batch: Batch) -> Callable:
    """`function` of the parts of one row, as a function of arrays with the leading axes of the batch."""
    for _ in batch.row.shape:
        function = jax.vmap(function)
    return function
