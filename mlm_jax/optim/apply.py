"""From the gradient of a step to what it leaves: parameters, optimizer state, their average, and how far they moved."""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from mlm_jax import tree
from mlm_jax.config import OptimizerConfig
from mlm_jax.optim import average, guard
from mlm_jax.optim.rates import only_trained

LAYERS = ("first", "body", "last")  # parts of the parameters that are one in `update/layers`


class Applied(NamedTuple):
    params: dict
    optimizer: optax.OptState
    guard: dict
    ema: dict
    good: Bool[Array, ""] | bool  # whether the update was applied
    metrics: dict[str, Float[Array, ""]]


def apply(
    optimizer: optax.GradientTransformation,
    config: OptimizerConfig,
    gradients: dict,
    loss: Float[Array, ""],
    params: dict,
    optimizer_state: optax.OptState,
    guarded: dict,
    ema: dict,
) -> Applied:
    """One update, left out if it is bad. The other arguments are parts of a `state.State`.

    Metrics: `grad_norm` of what is trained; `update/<part>`, the length of the part's update by that of its parameters
    before it, 0 where it was left out; with a guard `skipped` and `skipped_in_row`, and the running mean of the norms
    before this one, `usual_norm`.
    """
    gradients = only_trained(gradients, config)
    norm = optax.tree.norm(gradients)
    updates, new_state = optimizer.update(gradients, optimizer_state, params)
    new_params = optax.apply_updates(params, updates)
    moved, lengths = lengths_by_part(updates), lengths_by_part(params)
    metrics, good = {"grad_norm": norm}, True
    if guarded:
        good = guard.is_good(guarded, norm, [loss, *moved.values()], config)
        new_params, new_state = guard.chosen(good, (new_params, new_state), (params, optimizer_state))
        metrics["usual_norm"] = guarded["norm"]
        guarded = guard.after(guarded, good, norm)
        metrics |= {"skipped": guarded["skipped"], "skipped_in_row": guarded["in_row"]}
    for part, length in lengths.items():
        ratio = jnp.where(length > 0, moved[part] / jnp.where(length > 0, length, 1.0), 0.0)
        metrics[f"update/{part}"] = jnp.where(good, ratio, 0.0)
    if ema:
        ema = average.after(ema, new_params, good, config)
    return Applied(new_params, new_state, guarded, ema, good, metrics)


def lengths_by_part(values: dict) -> dict[str, Float[Array, ""]]:
    """Euclidean lengths of the parts of the parameters, or of updates: all layers together, and each other part."""
    squares: dict[str, list] = {}
    for path, leaf in tree.leaves(values):
        part = path.split("/")[0]
        squares.setdefault("layers" if part in LAYERS else part, []).append(jnp.sum(jnp.square(leaf)))
    return {part: jnp.sqrt(sum(each)) for part, each in squares.items()}
