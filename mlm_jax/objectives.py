"""What is predicted: objectives as sums and the counts that they are divided by, which need no forward pass."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mlm_jax.batch import Batch, Encoded, Masked
from mlm_jax.models import Model


class Objective(NamedTuple):
    """Reads the hidden states at Masked.indices. `count(batch, masked)` -> f32[].

    `sums(model, params, encoded, batch, masked)` -> {"loss": f32[], "accuracy": f32[]}, to be divided by the count, and
    the loss of each target, f32[b,m].
    """

    count: Callable
    sums: Callable


def cross_entropy(logits: Float[Array, "*n v"], targets: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """-log softmax(logits)[target], in nats and float32."""
    logits = logits.astype(jnp.float32)
    # a sum over the vocabulary instead of a gather: it stays local where the vocabulary is sharded, and its gradient
    # is no scatter
    column = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    at_target = jnp.where(column == targets[..., None], logits, 0.0).sum(-1)
    return jax.nn.logsumexp(logits, -1) - at_target


def _mlm_count(batch: Batch, masked: Masked) -> Float[Array, ""]:
    return masked.weights.sum()


def _mlm_sums(
    model: Model, params: dict, encoded: Encoded, batch: Batch, masked: Masked
) -> tuple[dict[str, Float[Array, ""]], Float[Array, "b m"]]:
    logits = model.logits(params, encoded.hidden)
    losses = cross_entropy(logits, masked.targets)
    hits = (logits.argmax(-1) == masked.targets).astype(jnp.float32)
    return {"loss": (losses * masked.weights).sum(), "accuracy": (hits * masked.weights).sum()}, losses


OBJECTIVES = {"mlm": Objective(_mlm_count, _mlm_sums)}
