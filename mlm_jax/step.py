"""The training step: mask the whole batch, count, accumulate gradients over microbatches, one clip, one update."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from mlm_jax import feedback, keys, masking, optim, order, parallel, sharding
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import Config, MeshConfig, capacity, together
from mlm_jax.models import Model
from mlm_jax.objectives import CAUSAL, OBJECTIVES, Passes, Rows, is_causal, terms, weight_at
from mlm_jax.state import State
from mlm_jax.tokenizer import Vocabulary
from mlm_jax.tree import PyTree

Metrics = dict[str, Float[Array, ""]]
KIND_OF_STEP = "kind_of_step"  # names the choice between both kinds in the traced and in the compiled program


def make_train_step(
    model: Model, optimizer: optax.GradientTransformation, vocabulary: Vocabulary, config: Config, mesh: Mesh
) -> Callable[..., tuple[State, Metrics]]:
    """The jitted `train_step(state, batch, roots) -> (state, metrics)`; the state is donated. roots: see `keys.roots`.

    It sums losses and divides by counts of the whole batch [k,b,t] that are known before the first forward pass, so
    the gradient is that of one large batch: no division comes later, and accumulation k and the mesh change nothing but
    rounding. Call it within `sharding.activate(mesh, config.mesh)`.
    """
    forward_and_backward = _make_kinds(model, vocabulary, config)

    def train_step(state: State, batch: Batch, roots: keys.Roots) -> tuple[State, Metrics]:
        return updated(state, *forward_and_backward(state, batch, roots), optimizer, config, mesh)

    return jax.jit(train_step, donate_argnums=0)


def updated(
    state: State,
    gradients: dict,
    metrics: Metrics,
    fed: dict,
    optimizer: optax.GradientTransformation,
    config: Config,
    mesh: Mesh,
) -> tuple[State, Metrics]:
    """The state after an update, and the metrics with those of the update. metrics: with `loss`."""
    placed = sharding.shardings(mesh, gradients, config.mesh)
    gradients = jax.lax.with_sharding_constraint(gradients, placed)
    parts = (state.params, state.optimizer, state.guard, state.ema)
    done = optim.apply(optimizer, config.optimizer, gradients, metrics["loss"], *parts)
    if state.guard:
        fed = jax.tree.map(lambda new, old: jnp.where(done.good, new, old), fed, state.feedback)
    rate = optim.schedule(config.optimizer, config.steps)(state.step)
    metrics = metrics | done.metrics | {"learning_rate": rate}
    return State(state.step + 1, done.params, done.optimizer, fed, done.guard, done.ema), metrics


def _make_kinds(model: Model, vocabulary: Vocabulary, config: Config) -> Callable[..., tuple[dict, Metrics, dict]]:
    """`kinds(state, batch, roots) -> (gradients, metrics, feedback)`, causal or of the other objectives."""
    make_mask = feedback.make_mask(model, vocabulary, config)
    contrastive = config.objectives.contrastive
    has_other_view = contrastive.weight and contrastive.view == "mask"

    def ordinary(state: State, batch: Batch, roots: keys.Roots) -> tuple[dict, Metrics, dict]:
        batch = order.as_read(roots["order"], batch, config)
        masked = make_mask(state.step, roots["mask"], batch, state.params, state.feedback)
        other = make_mask(state.step, roots["view"], batch, state.params, state.feedback) if has_other_view else None
        return of(together(config.objectives), Rows(batch, masked, other), state, roots)

    def causal(state: State, batch: Batch, roots: keys.Roots) -> tuple[dict, Metrics, dict]:
        m = capacity(config.mask, batch.tokens.shape[-1], batch.firsts.shape[-1])
        return of(CAUSAL, Rows(batch, masking.nothing(batch, m)), state, roots)

    def of(names: tuple[str, ...], rows: Rows, state: State, roots: keys.Roots) -> tuple[dict, Metrics, dict]:
        counts = {name: OBJECTIVES[name].count(config, rows.batch, rows.masked) for name in names}
        weights = {name: weight_at(config, name)(state.step) for name in names}
        metrics, losses, gradients = _gradients(model, config, state.params, rows, counts, weights, roots)
        metrics |= _of_rows(rows.batch, rows.masked, vocabulary)
        metrics |= {f"{name}/weight": weight for name, weight in weights.items()}
        metrics["targets"] = counts[names[0]]
        if config.objectives.causal.ratio:
            metrics["causal_step"] = jnp.array(names == CAUSAL)
        fed = (
            state.feedback if names == CAUSAL else feedback.after_step(state.feedback, losses, rows.masked, config.mask)
        )
        return gradients, metrics, fed

    if not config.objectives.causal.ratio:
        return ordinary
    if config.objectives.causal.ratio == 1:
        return causal

    def either(state: State, batch: Batch, roots: keys.Roots) -> tuple[dict, Metrics, dict]:
        def padded(kind: Callable) -> Callable:
            """With the metrics of both kinds, 0 where they are not of this one."""

            def run(*operands):
                gradients, metrics, fed = kind(*operands)
                return gradients, {name: metrics.get(name, jnp.zeros(())) for name in found}, fed

            return run

        shapes = [jax.eval_shape(kind, state, batch, roots)[1] for kind in (ordinary, causal)]
        found = sorted({name for metrics in shapes for name in metrics})
        with jax.named_scope(KIND_OF_STEP):
            return jax.lax.cond(is_causal(config, state.step), padded(causal), padded(ordinary), state, batch, roots)

    return either


def _gradients(
    model: Model, config: Config, params: dict, rows: Rows, counts: Metrics, weights: Metrics, roots: keys.Roots
) -> tuple[Metrics, Float[Array, "k b m"], dict]:
    """Means of the whole batch, the loss of each selected token, and the gradient; one microbatch after another."""
    names = tuple(counts)
    drops = model.config.dropout > 0 or model.config.attention_dropout > 0

    def loss(params: dict, rows: Rows, counts: Metrics, weights: Metrics, roots: keys.Roots) -> tuple[Array, tuple]:
        passes = Passes(model, params, rows, config, names, roots, drops=drops, also_other=drops)
        means, losses = terms(passes, names, counts)
        totals = {name: means.pop(f"{name}/total", means[f"{name}/loss"]) for name in names}
        means["loss"] = sum(weights[name] * total for name, total in totals.items())
        return means["loss"], (means, losses)

    own = config.mesh if _have_own_rows(config, names, rows.batch) else None
    gradients, losses, means = accumulated(loss, params, rows, (counts, weights, roots), own)
    return means, losses, gradients


def accumulated(
    loss: Callable[..., tuple], params: dict, rows: PyTree, rest: tuple[PyTree, ...], own_rows: MeshConfig | None
) -> tuple[dict, PyTree, Metrics]:
    """(gradients, each, means) over microbatches, one after another.

    loss(params, rows [b,...], *rest) -> (f32[], (means, each)) is divided by counts of the whole batch, so that parts
    of it are added. rows: arrays [k,b,...]; each: such arrays, too. own_rows: the mesh where what a device computes of
    its rows needs no others, None where it does.
    """
    gradient = jax.grad(loss, has_aux=True)

    def of_rows(params: dict, rows: PyTree, *rest: PyTree) -> tuple[dict, PyTree, Metrics]:
        """These rows may be a part of the whole."""
        first = jax.tree.map(lambda x: x[0], rows)
        if jax.tree.leaves(rows)[0].shape[0] == 1:
            gradients, (means, each) = gradient(params, first, *rest)
            return gradients, jax.tree.map(lambda x: x[None], each), means

        def add(total: tuple, micro: PyTree) -> tuple[tuple, PyTree]:
            gradients, (means, each) = gradient(params, micro, *rest)
            return jax.tree.map(jnp.add, total, (gradients, means)), each

        gradients, (means, _) = jax.eval_shape(gradient, params, first, *rest)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (gradients, means))
        (gradients, means), each = jax.lax.scan(add, zeros, rows)
        return gradients, each, means

    if own_rows is not None:
        of_rows = parallel.on_own_rows(of_rows, own_rows)
    return of_rows(params, rows, *rest)


def _have_own_rows(config: Config, names: tuple[str, ...], batch: Batch) -> bool:
    """Whether what a device computes of its own rows needs no others: no group of rows is cut."""
    rows_of_device = batch.row.shape[1] // sharding.parts("batch")
    return "contrastive" not in names or rows_of_device % config.objectives.contrastive.group_rows == 0


def _of_rows(batch: Batch, masked: Masked, vocabulary: Vocabulary) -> Metrics:
    rows_hash, mask_hash = masking.hashes(batch, masked)
    maskable = masking.maskable(batch.tokens, batch.segments, vocabulary).sum()
    return {
        "mask_rate": masked.selected.sum() / jnp.maximum(maskable, 1),
        "mask_dropped": masked.dropped.sum(),
        "rows_hash": rows_hash,
        "mask_hash": mask_hash,
        "tokens": (batch.segments > 0).sum(),
    }
