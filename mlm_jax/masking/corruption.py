"""Corruption: what stands at the selected positions: MASK, a random token, or the token itself."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from mlm_jax.config import MaskConfig
from mlm_jax.masking.priority import frequencies
from mlm_jax.masking.units import ONE
from mlm_jax.tokenizer import Vocabulary


def corrupt(
    tokens: Int[Array, "m"],
    kind: UInt32[Array, "m"],
    replacement: UInt32[Array, "m"],
    vocabulary: Vocabulary,
    config: MaskConfig,
    random_share: Float[Array, ""] | float | None = None,
) -> Int[Array, "m"]:
    """What the 16-bit draws `kind` make of tokens: below the share of MASK that, below random a drawn id, else kept.

    random_share: in place of `corruption[1]`; the difference is MASK's, the share of kept tokens stays.
    """
    masked, random = round(ONE * config.corruption[0]), round(ONE * (config.corruption[0] + config.corruption[1]))
    if random_share is not None:
        share = jnp.round(ONE * jnp.asarray(random_share, jnp.float32))
        masked = jnp.maximum(random - share, 0).astype(jnp.uint32)
    drawn = RANDOM_IDS[config.random_ids](replacement, vocabulary)
    return jnp.where(kind < masked, vocabulary.mask, jnp.where(kind < random, drawn, tokens))


def _uniform(draws: UInt32[Array, "m"], vocabulary: Vocabulary) -> Int[Array, "m"]:
    """Ordinary ids, all alike; a remainder prefers the lower ones by less than size / 2^32 of their share."""
    return jnp.asarray(vocabulary.ordinary)[draws % np.uint32(vocabulary.ordinary.size)]


def _unigram(draws: UInt32[Array, "m"], vocabulary: Vocabulary) -> Int[Array, "m"]:
    """Ordinary ids by their counts + 1 in the training rows: the inverse of the distribution function."""
    upto = np.cumsum(frequencies(vocabulary)[vocabulary.ordinary])[:-1]
    ends = np.minimum(np.round(upto * 2.0**32), 2.0**32 - 1).astype(np.uint32)
    return jnp.asarray(vocabulary.ordinary)[jnp.searchsorted(jnp.asarray(ends), draws, side="right")]


RANDOM_IDS = {"uniform": _uniform, "unigram": _unigram}
