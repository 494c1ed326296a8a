"""Attention within a window, in blocks of the row."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mlm_jax.kernels.product import product
from mlm_jax.kernels.reference import UNSEEN, sees


def block_size(window: int) -> int:
    """Queries of a block: its keys and those of its neighbours hold the window of each of them."""
    return max(window // 2, 16)  # smaller blocks would be small matrix products, and no cheaper


def keys_of_block(window: int, causal: bool) -> int:
    """Keys that the queries of a block are compared with: of its own block and of its neighbours."""
    return (2 if causal else 3) * block_size(window)


def attend(
    query: Float[Array, "b t h k"],
    key: Float[Array, "b t h k"],
    value: Float[Array, "b t h k"],
    segments: Int[Array, "b t"],
    positions: Int[Array, "b t"],
    window: int,
    causal: bool = False,
) -> Float[Array, "b t h k"]:
    """Attention within segments and a window, by time and memory that grow with t and not with its square.

    The row is cut into n blocks of c queries, each with the 3 c keys of its own block and of its neighbours: c is at
    least half the window, and a segment's tokens stand side by side. Longformer (2020), section 3.2.
    causal: no key that stands after the query, so that 2 c keys are enough: those of its own block and of the one
    before.
    """
    c, t = block_size(window), query.shape[1]

    def blocks(x: Array) -> Array:  # [b,t,...] -> [b,n,c,...]
        padded = jnp.pad(x, ((0, 0), (0, -t % c), *((0, 0),) * (x.ndim - 2)))
        return padded.reshape(x.shape[0], -1, c, *x.shape[2:])

    def with_neighbours(x: Array) -> Array:  # [b,t,...] -> [b,n,3c,...], or [b,n,2c,...]
        x = jnp.pad(blocks(x), ((0, 0), (1, 0 if causal else 1), *((0, 0),) * (x.ndim - 1)))
        around = [x[:, :-1], x[:, 1:]] if causal else [x[:, :-2], x[:, 1:-1], x[:, 2:]]
        return jnp.concatenate(around, axis=2)

    scores = product("bnqhk,bnshk->bnhqs", blocks(query), with_neighbours(key)) / math.sqrt(query.shape[-1])
    query_segments, query_positions = (blocks(x)[..., None] for x in (segments, positions))
    key_segments, key_positions = (with_neighbours(x)[:, :, None, :] for x in (segments, positions))
    seen = sees(query_segments, key_segments, query_positions, key_positions, window, causal)
    weights = jax.nn.softmax(jnp.where(seen[:, :, None], scores, UNSEEN), axis=-1).astype(value.dtype)
    read = jnp.einsum("bnhqs,bnshk->bnqhk", weights, with_neighbours(value))
    return read.reshape(query.shape[0], -1, *query.shape[2:])[:, :t]
