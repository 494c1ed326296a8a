"""The training step: mask the whole batch, count, accumulate gradients over microbatches, one clip, one update."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key

from mlm_jax import feedback, masking, sharding
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import Config
from mlm_jax.models import Model
from mlm_jax.objectives import OBJECTIVES
from mlm_jax.optim import schedule
from mlm_jax.state import State
from mlm_jax.tokenizer import Vocabulary

MASK_ROOT, DROPOUT_ROOT, EVALUATION_ROOT, INIT_ROOT = range(4)
FIRST_PASS = 0  # of dropout: a row may go through the model more than once per step

Metrics = dict[str, Float[Array, ""]]


def root(seed: int, which: int) -> Key[Array, ""]:
    """One of the roots of randomness of a run; they are never mixed. The generator is named, so no flag changes it."""
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), which)


def roots(seed: int) -> dict[str, Key[Array, ""]]:
    """The roots that a training step takes."""
    return {"mask": root(seed, MASK_ROOT), "dropout": root(seed, DROPOUT_ROOT)}


def row_keys(key: Key[Array, ""], batch: Batch) -> Key[Array, "b"]:
    """Dropout keys of the rows of a batch [b,t]: a function of row and visit, never of the place in the batch."""

    def of_row(row, visit):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, row), visit), FIRST_PASS)

    return jax.vmap(of_row)(batch.row, batch.visit)


def make_train_step(
    model: Model, optimizer: optax.GradientTransformation, vocabulary: Vocabulary, config: Config, mesh: Mesh
) -> Callable[..., tuple[State, Metrics]]:
    """The jitted `train_step(state, batch, roots) -> (state, metrics)`; the state is donated.

    It sums losses and divides by counts of the whole batch [k,b,t] that are known before the first forward pass, so
    the gradient is that of one large batch: no division comes later, and accumulation k and the mesh change nothing but
    rounding. Call it within `sharding.activate(mesh, config.mesh)`.
    """

    make_mask = feedback.make_mask(model, vocabulary, config)

    def train_step(state: State, batch: Batch, roots: dict[str, Key[Array, ""]]) -> tuple[State, Metrics]:
        masked = make_mask(state.step, roots["mask"], batch, state.params, state.feedback)
        counts = {name: objective.count(batch, masked) for name, objective in OBJECTIVES.items()}
        means, losses, gradients = _gradients(model, config, state.params, batch, masked, counts, roots["dropout"])
        placed = sharding.shardings(mesh, gradients, config.mesh)
        gradients = jax.lax.with_sharding_constraint(gradients, placed)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = _metrics(batch, masked, counts, means, vocabulary)
        metrics["grad_norm"] = optax.tree.norm(gradients)
        metrics["learning_rate"] = schedule(config.optimizer, config.steps)(state.step)
        fed = feedback.after_step(state.feedback, losses, masked, config.mask)
        return State(state.step + 1, params, optimizer_state, fed), metrics

    return jax.jit(train_step, donate_argnums=0)


def _gradients(
    model: Model,
    config: Config,
    params: dict,
    batch: Batch,
    masked: Masked,
    counts: Metrics,
    dropout_root: Key[Array, ""],
) -> tuple[Metrics, Float[Array, "k b m"], dict]:
    """Means of the whole batch, the loss of each target, and the gradient; one microbatch after another."""
    drops = model.config.dropout > 0 or model.config.attention_dropout > 0

    def loss(params: dict, batch: Batch, masked: Masked) -> tuple[Float[Array, ""], tuple]:
        keys = row_keys(dropout_root, batch) if drops else None
        inputs = dataclasses.replace(batch, tokens=masked.inputs)
        encoded = model.apply(params, inputs, at=masked.indices, row_keys=keys)
        means, losses = {}, {}
        for name, objective in OBJECTIVES.items():
            sums, losses[name] = objective.sums(model, params, encoded, batch, masked)
            for key, total in sums.items():
                # the sum is 0 where the count is
                means[f"{name}/{key}"] = total / jnp.maximum(counts[name], 1)
        return means["mlm/loss"], (means, losses["mlm"])

    gradient = jax.grad(loss, has_aux=True)
    first = jax.tree.map(lambda x: x[0], (batch, masked))
    if batch.row.shape[0] == 1:
        gradients, (means, losses) = gradient(params, *first)
        return means, losses[None], gradients

    def add(total: tuple, micro: tuple) -> tuple[tuple, Array]:
        gradients, (means, losses) = gradient(params, *micro)
        return jax.tree.map(jnp.add, total, (gradients, means)), losses

    gradients, (means, _) = jax.eval_shape(gradient, params, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (gradients, means))
    (gradients, means), losses = jax.lax.scan(add, zeros, (batch, masked))
    return means, losses, gradients


def _metrics(batch: Batch, masked: Masked, counts: Metrics, means: Metrics, vocabulary: Vocabulary) -> Metrics:
    rows_hash, mask_hash = masking.hashes(batch, masked)
    maskable = masking.maskable(batch.tokens, batch.segments, vocabulary).sum()
    return {
        "loss": means["mlm/loss"],
        **means,
        "targets": counts["mlm"],
        "mask_rate": masked.selected.sum() / jnp.maximum(maskable, 1),
        "mask_dropped": masked.dropped.sum(),
        "rows_hash": rows_hash,
        "mask_hash": mask_hash,
        "tokens": (batch.segments > 0).sum(),
    }
