"""What is predicted: objectives as sums and the counts that they are divided by, which need no forward pass."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float

from mlm_jax.batch import Batch, Encoded, Masked
from mlm_jax.models import Model


class Objective(NamedTuple):
    """Reads the hidden states at Masked.indices. `count(batch, masked)` -> f32[].

    `sums(model, params, encoded, batch, masked)` -> {"loss": f32[], "accuracy": f32[]}, to be divided by the count, and
    the loss of each target, f32[b,m]. "loss" alone has a gradient.
    """

    count: Callable
    sums: Callable


def _mlm_count(batch: Batch, masked: Masked) -> Float[Array, ""]:
    return masked.weights.sum()


def _mlm_sums(
    model: Model, params: dict, encoded: Encoded, batch: Batch, masked: Masked
) -> tuple[dict[str, Float[Array, ""]], Float[Array, "b m"]]:
    losses = model.losses(params, encoded.hidden, masked.targets, masked.weights)
    return {"loss": losses.total, "accuracy": (losses.hits * masked.weights).sum()}, losses.each


OBJECTIVES = {"mlm": Objective(_mlm_count, _mlm_sums)}
