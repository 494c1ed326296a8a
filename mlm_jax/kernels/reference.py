"""Attention by the scores of all pairs: any window, any dropout, and what every other backend is tested against."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from mlm_jax.kernels.dropout import dropout
from mlm_jax.kernels.product import product

# Score of a key that a query does not see. Finite: the softmax of a row of them is uniform, that of -inf would be NaN.
UNSEEN = -1e30


def sees(
    query_segments: Int[Array, "..."],
    key_segments: Int[Array, "..."],
    query_positions: Int[Array, "..."] | None,
    key_positions: Int[Array, "..."] | None,
    window: int,
    causal: bool = False,
) -> Bool[Array, "..."]:
    """Whether a query sees a key, element by element: one of its own segment that is no padding, and of the window.

    causal: and none that stands after it. Positions are needed for a window and for causality alone.
    """
    seen = (query_segments == key_segments) & (key_segments > 0)
    if window:
        seen &= jnp.abs(query_positions - key_positions) <= window // 2
    return seen & (key_positions <= query_positions) if causal else seen


def probabilities(
    query: Float[Array, "b q h k"],
    key: Float[Array, "b s h k"],
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b s"],
    query_positions: Int[Array, "b q"] | None = None,
    key_positions: Int[Array, "b s"] | None = None,
    window: int = 0,
    causal: bool = False,
) -> Float[Array, "b h q s"]:
    """Softmax over the keys that a query sees, in float32: those of its own segment, and never padding (segment 0).

    window: a query sees only keys whose position in the segment is at most window / 2 from its own; 0: all of them.
    causal: and at most its own.
    A query of the padding sees nothing; its probabilities are uniform, so that what follows stays finite.
    """
    scores = product("bqhk,bshk->bhqs", query, key) / math.sqrt(query.shape[-1])
    queries = (x if x is None else x[:, :, None] for x in (query_segments, query_positions))
    keys = (x if x is None else x[:, None, :] for x in (key_segments, key_positions))
    (query_segments, query_positions), (key_segments, key_positions) = queries, keys
    seen = sees(query_segments, key_segments, query_positions, key_positions, window, causal)
    return jax.nn.softmax(jnp.where(seen[:, None], scores, UNSEEN), axis=-1)


def attend(
    query: Float[Array, "b q h k"],
    key: Float[Array, "b s h k"],
    value: Float[Array, "b s h k"],
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b s"],
    query_positions: Int[Array, "b q"] | None = None,
    key_positions: Int[Array, "b s"] | None = None,
    window: int = 0,
    dropout_keys: Key[Array, "b"] | None = None,
    dropout_rate: float = 0.0,
    causal: bool = False,
) -> Float[Array, "b q h k"]:
    """The values by the `probabilities`, on which dropout falls."""
    places = (query_segments, key_segments, query_positions, key_positions)
    seen = probabilities(query, key, *places, window, causal)
    seen = dropout(dropout_keys, seen, dropout_rate).astype(value.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", seen, value)
