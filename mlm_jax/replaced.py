"""Replaced token detection: what the generator's samples make of a row, and what the discriminator is asked of it.

Clark et al. 2020, "ELECTRA: pre-training text encoders as discriminators rather than generators", section 2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from mlm_jax import keys
from mlm_jax.batch import Batch, Masked, by_row


def uniforms(key: Key[Array, ""], batch: Batch, masked: Masked) -> Float[Array, "*b m"]:
    """A number in [0, 1) for each slot: a function of the row, its visit, and the position."""

    def of_row(key: Key[Array, ""], indices: Int[Array, "m"]) -> Float[Array, "m"]:
        return jax.random.uniform(key, batch.tokens.shape[-1:])[indices]

    return by_row(of_row, batch)(keys.of_rows(key, batch), masked.indices)


def corrupted(tokens: Int[Array, "b t"], masked: Masked, samples: Int[Array, "b m"]) -> Int[Array, "b t"]:
    """The rows with the generator's samples at all selected positions, those that masking left as they were too."""
    t = tokens.shape[1]
    at = jnp.where(jnp.take_along_axis(masked.selected, masked.indices, 1), masked.indices, t)  # empty slots: nowhere
    return jax.vmap(lambda row, at, samples: row.at[at].set(samples, mode="drop"))(tokens, at, samples)


def labels(tokens: Int[Array, "b t"], inputs: Int[Array, "b t"]) -> Bool[Array, "b t"]:
    """Whether a token was replaced. One that the generator guessed right was not."""
    return inputs != tokens


def weights(batch: Batch) -> Float[Array, "*b t"]:
    """1 for every real token, special ones too; 0 for padding."""
    return (batch.segments > 0) * batch.weight[..., None]


def cross_entropy(logits: Float[Array, "b t"], labels: Bool[Array, "b t"]) -> Float[Array, "b t"]:
    """-log sigmoid(logit) where the label is 1, -log(1 - sigmoid(logit)) where it is 0; equation 3."""
    return jax.nn.softplus(jnp.where(labels, -logits, logits))
