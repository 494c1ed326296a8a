"""Dropout keyed per row: what is dropped in a row depends on its key alone, not on its place in the batch."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

ONE = 1 << 16  # a draw has 16 bits


def keep_probability(rate: float) -> float:
    """The probability that 16 bits really give to keeping a value: the multiple of 2^-16 nearest to 1 - rate."""
    return round(ONE * (1 - rate)) / ONE


def keep_mask(keys: Key[Array, "b"], shape: tuple[int, ...], rate: float) -> Bool[Array, "b ..."]:
    """True with probability `keep_probability(rate)`, drawn for each row from its own key. Returns [b, *shape].

    Each 32-bit word serves two places: its lower half one in the first half of the last axis, its upper half the one
    as far along in the second half.
    """
    *outer, last = shape
    words_shape = (*outer, math.ceil(last / 2))
    words = jax.vmap(lambda key: jax.random.bits(key, words_shape, jnp.uint32))(keys)
    limit = round(ONE * (1 - rate))
    kept = jnp.concatenate([(words & (ONE - 1)) < limit, (words >> 16) < limit], axis=-1)
    return kept[..., :last]


def dropout(keys: Key[Array, "b"] | None, x: Float[Array, "b *rest"], rate: float) -> Float[Array, "b *rest"]:
    """Zeroes values with probability `rate` and scales the others so that the mean stays; no keys, no dropout."""
    if keys is None or rate == 0:
        return x
    kept = keep_mask(keys, x.shape[1:], rate)
    return jnp.where(kept, x / keep_probability(rate), 0)
