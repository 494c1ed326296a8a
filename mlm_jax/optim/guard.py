"""Gradients that are bad: found on the device, so that their update is left out of parameters and moments.

A gradient is bad where it, the loss or the update is not finite; with `exploding`, also where its norm is more than so
many times the running mean of the norms. That mean is over all good updates of the run up to MEMORY of them, and then
moves by 1 / MEMORY of the difference; the first FIRST good updates, in which norms fall by themselves, are not judged.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from mlm_jax import tree
from mlm_jax.config import OptimizerConfig

MEMORY, FIRST = 100, 20

Guard = dict[str, Array]  # see `start`


def start(config: OptimizerConfig) -> dict[str, np.ndarray]:
    """Of a new run: good updates, those left out in all and in a row, running mean of norms; {} without a guard."""
    if config.bad_gradients == "stop" and not config.exploding:
        return {}
    counts = {name: np.zeros((), np.int32) for name in ("good", "skipped", "in_row")}
    return {**counts, "norm": np.zeros((), np.float32)}


def is_good(
    guard: Guard, norm: Float[Array, ""], others: list[Float[Array, ""]], config: OptimizerConfig
) -> Bool[Array, ""]:
    """Whether an update is applied; norm: of its gradient; others: what else must be finite."""
    good = jnp.isfinite(jnp.stack([norm, *others])).all()
    if config.exploding:
        good &= (guard["good"] < FIRST) | (norm <= config.exploding * guard["norm"])
    return good


def after(guard: Guard, good: Bool[Array, ""], norm: Float[Array, ""]) -> Guard:
    """The numbers after an update, or after one that was left out, which changes its counts alone."""
    count = guard["good"] + 1
    mean = guard["norm"] + (norm - guard["norm"]) / jnp.minimum(count, MEMORY)
    return {
        "good": jnp.where(good, count, guard["good"]),
        "skipped": guard["skipped"] + ~good,
        "in_row": jnp.where(good, 0, guard["in_row"] + 1),
        "norm": jnp.where(good, mean, guard["norm"]),
    }


def chosen(good: Bool[Array, ""], new: tree.PyTree, old: tree.PyTree) -> tree.PyTree:
    """`new` after a good update, else `old`; but the count that the learning rate goes by is that of the steps."""

    def choose(new, old):
        return new if _is_schedule(new) else jnp.where(good, new, old)

    return jax.tree.map(choose, new, old, is_leaf=_is_schedule)


def _is_schedule(value: object) -> bool:
    return isinstance(value, optax.ScaleByScheduleState)
