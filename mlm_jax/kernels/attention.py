"""Attention within segments: several documents share a row, and none of them sees another."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from mlm_jax.kernels.dropout import dropout
from mlm_jax.kernels.product import product

# Score of a key that a query does not see. Finite: the softmax of a row of them is uniform, that of -inf would be NaN.
UNSEEN = -1e30


def probabilities(
    query: Float[Array, "b q h k"],
    key: Float[Array, "b s h k"],
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b s"],
    query_positions: Int[Array, "b q"] | None = None,
    key_positions: Int[Array, "b s"] | None = None,
    window: int = 0,
) -> Float[Array, "b h q s"]:
    """Softmax over the keys that a query sees, in float32: those of its own segment, and never padding (segment 0).

    window: a query sees only keys whose position in the segment is at most window / 2 from its own; 0: all of them.
    A query of the padding sees nothing; its probabilities are uniform, so that what follows stays finite.
    """
    scores = product("bqhk,bshk->bhqs", query, key) / math.sqrt(query.shape[-1])
    seen = (query_segments[:, :, None] == key_segments[:, None, :]) & (key_segments > 0)[:, None, :]
    if window:
        seen &= jnp.abs(query_positions[:, :, None] - key_positions[:, None, :]) <= window // 2
    return jax.nn.softmax(jnp.where(seen[:, None], scores, UNSEEN), axis=-1)


def attend(
    query: Float[Array, "b q h k"],
    key: Float[Array, "b s h k"],
    value: Float[Array, "b s h k"],
    *,
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b s"],
    query_positions: Int[Array, "b q"] | None = None,
    key_positions: Int[Array, "b s"] | None = None,
    window: int = 0,
    dropout_keys: Key[Array, "b"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[Array, "b q h k"]:
    """Scaled dot-product attention in which a query sees the keys of its own segment, and of a window.

    Positions, which a window needs, are those within the segment. Dropout falls on the probabilities. Attention Is All
    You Need (2017), section 3.2.1; the window is that of Longformer (2020), section 3.1.
    """
    seen = probabilities(query, key, query_segments, key_segments, query_positions, key_positions, window)
    seen = dropout(dropout_keys, seen, dropout_rate).astype(value.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", seen, value)
