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
    aligned: bool = False,
    dropout_keys: Key[Array, "b"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[Array, "b q h k"]:
    """Scaled dot-product attention in which a query sees the keys of its own segment, and of a window.

    Positions, which a window needs, are those within the segment. Dropout falls on the probabilities. aligned: query i
    stands where key i does; a window much shorter than the row is then computed in blocks, if nothing is dropped.
    Attention Is All You Need (2017), section 3.2.1; the window is that of Longformer (2020), section 3.1.
    """
    drops = dropout_keys is not None and dropout_rate > 0
    if aligned and window and not drops and 3 * block_size(window) < key.shape[1]:
        return attend_in_blocks(query, key, value, key_segments, key_positions, window)
    seen = probabilities(query, key, query_segments, key_segments, query_positions, key_positions, window)
    seen = dropout(dropout_keys, seen, dropout_rate).astype(value.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", seen, value)


def block_size(window: int) -> int:
    """Queries of a block: its keys and those of its neighbours hold the window of each of them."""
    return max(window // 2, 16)  # smaller blocks would be small matrix products, and no cheaper


def attend_in_blocks(
    query: Float[Array, "b t h k"],
    key: Float[Array, "b t h k"],
    value: Float[Array, "b t h k"],
    segments: Int[Array, "b t"],
    positions: Int[Array, "b t"],
    window: int,
) -> Float[Array, "b t h k"]:
    """What `attend` gives with a window, by time and memory that grow with t and not with its square.

    The row is cut into n blocks of c queries, each with the 3 c keys of its own block and of its neighbours: c is at
    least half the window, and a segment's tokens stand side by side. Longformer (2020), section 3.2.
    """
    c, t = block_size(window), query.shape[1]

    def blocks(x: Array) -> Array:  # [b,t,...] -> [b,n,c,...]
        padded = jnp.pad(x, ((0, 0), (0, -t % c), *((0, 0),) * (x.ndim - 2)))
        return padded.reshape(x.shape[0], -1, c, *x.shape[2:])

    def with_neighbours(x: Array) -> Array:  # [b,t,...] -> [b,n,3c,...]
        x = jnp.pad(blocks(x), ((0, 0), (1, 1), *((0, 0),) * (x.ndim - 1)))
        return jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], axis=2)

    scores = product("bnqhk,bnshk->bnhqs", blocks(query), with_neighbours(key)) / math.sqrt(query.shape[-1])
    query_segments, query_positions = (blocks(x)[..., None] for x in (segments, positions))
    key_segments, key_positions = (with_neighbours(x)[:, :, None, :] for x in (segments, positions))
    seen = (query_segments == key_segments) & (key_segments > 0)
    seen &= jnp.abs(query_positions - key_positions) <= window // 2
    weights = jax.nn.softmax(jnp.where(seen[:, :, None], scores, UNSEEN), axis=-1).astype(value.dtype)
    read = jnp.einsum("bnhqs,bnshk->bnqhk", weights, with_neighbours(value))
    return read.reshape(query.shape[0], -1, *query.shape[2:])[:, :t]
