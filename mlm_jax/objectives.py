"""What is predicted: objectives as sums and the counts that they are divided by, which need no forward pass."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from mlm_jax import keys, replaced
from mlm_jax.batch import Batch, Encoded, Masked
from mlm_jax.config import Config, ObjectiveConfig, ObjectivesConfig, together
from mlm_jax.models import Model

Sums = dict[str, Float[Array, ""]]


class Rows(NamedTuple):
    """Rows [*b,t], their masks, and those of the other view where it has its own."""

    batch: Batch
    masked: Masked
    other: Masked | None = None


class Passes:
    """The forward passes of one microbatch [b,t], each made when an objective first asks for it.

    names: the objectives that are trained on it, which decide at which positions the last layer is computed. roots: see
    `keys.roots`; drops: whether there is dropout, also_other: in the other view.
    """

    def __init__(
        self,
        model: Model,
        params: dict,
        rows: Rows,
        config: Config,
        names: tuple[str, ...],
        roots: keys.Roots,
        *,
        drops: bool,
        also_other: bool,
    ):
        self.model, self.params, self.rows, self.config, self.roots = model, params, rows, config, roots
        self.drops, self.also_other = drops, also_other
        self.needs = {need for name in names for need in OBJECTIVES[name].needs}

    def _encode(
        self,
        tokens: Int[Array, "b t"],
        at: Int[Array, "b q"] | None,
        number: int,
        drops: bool,
        model: Model | None = None,
        **how,
    ) -> Encoded:
        batch, model = self.rows.batch, model or self.model
        row_keys = keys.of_dropout(self.roots["dropout"], batch, number) if drops else None
        return model.apply(self.params, dataclasses.replace(batch, tokens=tokens), at=at, row_keys=row_keys, **how)

    @functools.cached_property
    def _main(self) -> Float[Array, "b q d"]:
        """The masked rows, at the selected positions, at the first ones of segments, or at both one after another."""
        batch, masked = self.rows.batch, self.rows.masked
        at = {"selected": masked.indices, "firsts": batch.firsts}
        at = jnp.concatenate([at[need] for need in ("selected", "firsts") if need in self.needs], 1)
        return self._encode(masked.inputs, at, keys.FIRST_PASS, self.drops).hidden

    @property
    def selected(self) -> Float[Array, "b m d"]:
        return self._main[:, : self.rows.masked.indices.shape[1]]

    @property
    def firsts(self) -> Float[Array, "b p d"]:
        return self._main[:, self._main.shape[1] - self.rows.batch.firsts.shape[1] :]

    @functools.cached_property
    def other_firsts(self) -> Float[Array, "b p d"]:
        """The first positions of segments in the other view."""
        masked = self.rows.masked if self.rows.other is None else self.rows.other
        return self._encode(masked.inputs, self.rows.batch.firsts, keys.OTHER_VIEW, self.also_other).hidden

    @functools.cached_property
    def causal(self) -> Float[Array, "b t d"]:
        """The rows as they are, of which no token sees what follows it."""
        return self._encode(self.rows.batch.tokens, None, keys.FIRST_PASS, self.drops, causal=True).hidden

    @functools.cached_property
    def generated(self) -> Float[Array, "b m g"]:
        """The generator's states at the selected positions of the masked rows."""
        masked, generator = self.rows.masked, self.model.generator
        return self._encode(masked.inputs, masked.indices, keys.GENERATOR, self.drops, generator).hidden

    @functools.cached_property
    def corrupted(self) -> Int[Array, "b t"]:
        """The rows with the generator's samples at the selected positions."""
        batch, masked = self.rows.batch, self.rows.masked
        numbers = replaced.uniforms(self.roots["sample"], batch, masked)
        samples = self.model.generator.sample(self.params, self.generated, numbers)
        return replaced.corrupted(batch.tokens, masked, samples)

    @functools.cached_property
    def discriminated(self) -> Float[Array, "b t"]:
        """The logit of each token of those rows of having been replaced."""
        states = self._encode(self.corrupted, None, keys.DISCRIMINATOR, self.drops).hidden
        return self.model.discriminate(self.params, states)


class Objective(NamedTuple):
    """`count(config, batch, masked)` -> f32[], of rows with any leading axes: what the sums are divided by.

    needs: where the pass over the masked rows is asked for its states, `selected` and `firsts`. `sums(passes)` ->
    {"loss": f32[], "accuracy": f32[], ...} over a microbatch; "total" alone has a gradient, or "loss" without one. With
    `each`, also the loss of each selected token, f32[b,m].
    """

    needs: tuple[str, ...]
    count: Callable[[Config, Batch, Masked], Float[Array, ""]]
    sums: Callable[[Passes], Sums | tuple[Sums, Float[Array, "b m"]]]


# ---- masked tokens ----


def _mlm_count(config: Config, batch: Batch, masked: Masked) -> Float[Array, ""]:
    return masked.weights.sum()


def _mlm_sums(passes: Passes) -> tuple[Sums, Float[Array, "b m"]]:
    masked = passes.rows.masked
    return _token_sums(passes, passes.model, passes.selected, masked.targets, masked.weights)


def _token_sums(
    passes: Passes,
    model: Model,
    states: Float[Array, "b q d"],
    targets: Int[Array, "b q"],
    weights: Float[Array, "b q"],
) -> tuple[Sums, Float[Array, "b q"]]:
    """With a z-loss, the total that includes it, and log_z."""
    z_loss = passes.config.objectives.mlm.z_loss
    losses = model.losses(passes.params, states, targets, weights, z_loss)
    sums = {"loss": losses.total, "accuracy": (losses.hits * weights).sum()}
    if z_loss:
        sums |= {"loss": (losses.each * weights).sum(), "log_z": (losses.log_z * weights).sum(), "total": losses.total}
    return sums, losses.each


# ---- pairs: what follows (0) or is of another document (1); what stands in order (0) or does not (1) ----


def _pair_weights(batch: Batch) -> Float[Array, "*b p"]:
    return (batch.pair_labels >= 0) * batch.segment_weight * batch.weight[..., None]


def _pair_count(config: Config, batch: Batch, masked: Masked) -> Float[Array, ""]:
    return _pair_weights(batch).sum()


def _pair_sums(passes: Passes) -> Sums:
    batch = passes.rows.batch
    labels, weights = jnp.maximum(batch.pair_labels, 0), _pair_weights(batch)
    logits = passes.model.pair(passes.params, passes.firsts)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    hits = (logits.argmax(-1) == labels).astype(jnp.float32)
    return {"loss": (losses * weights).sum(), "accuracy": (hits * weights).sum()}


# ---- the same segment in another view ----


def _present(config: Config, batch: Batch) -> Bool[Array, "*g n"]:
    """Which segments of each group of rows there are, where there are two at least."""
    rows = config.objectives.contrastive.group_rows
    there = batch.segment_weight * batch.weight[..., None] > 0
    *leading, b, p = there.shape
    there = there.reshape(*leading, b // rows, rows * p)
    return there & (there.sum(-1, keepdims=True) > 1)


def _contrastive_count(config: Config, batch: Batch, masked: Masked) -> Float[Array, ""]:
    return _present(config, batch).sum().astype(jnp.float32)


def _contrastive_sums(passes: Passes) -> Sums:
    """Both views in turn ask for the segment in the other; cosines over the temperature. SimCSE (2021), equation 1.

    Losses and hits are means of both directions. chance: that of finding it blindly.
    """
    there = _present(passes.config, passes.rows.batch)

    def directions(firsts: Float[Array, "b p d"]) -> Float[Array, "g n d"]:
        states = passes.model.contrast(passes.params, firsts).astype(jnp.float32)
        length = jnp.sqrt(jnp.square(states).sum(-1, keepdims=True) + 1e-12)
        return (states / length).reshape(*there.shape, -1)

    one, other = directions(passes.firsts), directions(passes.other_firsts)
    cosines = jnp.einsum("gnd,gkd->gnk", one, other) / passes.config.objectives.contrastive.temperature
    sums = {"loss": jnp.zeros(()), "accuracy": jnp.zeros(())}
    own = jnp.eye(there.shape[1], dtype=bool)[None]
    for scores in (cosines, cosines.swapaxes(1, 2)):
        scores = jnp.where(there[:, None, :], scores, -1e30)  # finite: a group may be empty
        right = jnp.where(own, scores, 0.0).sum(-1)
        losses = jax.nn.logsumexp(scores, -1) - right
        hits = right >= scores.max(-1)
        sums["loss"] += jnp.where(there, losses, 0.0).sum() / 2
        sums["accuracy"] += (hits & there).sum() / 2
    chances = there / jnp.maximum(there.sum(-1, keepdims=True), 1)
    return {**sums, "chance": chances.sum()}


# ---- replaced tokens, and the generator that replaces them ----


def _generator_sums(passes: Passes) -> tuple[Sums, Float[Array, "b m"]]:
    masked = passes.rows.masked
    return _token_sums(passes, passes.model.generator, passes.generated, masked.targets, masked.weights)


def _replaced_count(config: Config, batch: Batch, masked: Masked) -> Float[Array, ""]:
    return replaced.weights(batch).sum()


def _replaced_sums(passes: Passes) -> Sums:
    """share: how many were replaced. Who knows only that loses its entropy."""
    batch, logits = passes.rows.batch, passes.discriminated
    labels, weights = replaced.labels(batch.tokens, passes.corrupted), replaced.weights(batch)
    found = {
        "loss": replaced.cross_entropy(logits, labels),
        "accuracy": (logits > 0) == labels,
        "share": labels,
    }
    return {name: (value * weights).sum() for name, value in found.items()}


# ---- the next token ----


def next_tokens(batch: Batch) -> tuple[Int[Array, "*b t"], Float[Array, "*b t"]]:
    """The token after each one, and 1 where there is one in its segment."""
    after = jnp.pad(batch.segments[..., 1:], (*((0, 0),) * (batch.segments.ndim - 1), (0, 1)))
    weights = (after == batch.segments) & (batch.segments > 0)
    return jnp.where(weights, jnp.roll(batch.tokens, -1, -1), 0), weights * batch.weight[..., None]


def _causal_count(config: Config, batch: Batch, masked: Masked) -> Float[Array, ""]:
    return next_tokens(batch)[1].sum()


def _causal_sums(passes: Passes) -> Sums:
    targets, weights = next_tokens(passes.rows.batch)
    return _token_sums(passes, passes.model, passes.causal, targets, weights)[0]


OBJECTIVES = {
    "mlm": Objective(("selected",), _mlm_count, _mlm_sums),
    "nsp": Objective(("firsts",), _pair_count, _pair_sums),
    "sop": Objective(("firsts",), _pair_count, _pair_sums),
    "contrastive": Objective(("firsts",), _contrastive_count, _contrastive_sums),
    "replaced": Objective((), _replaced_count, _replaced_sums),
    "generator": Objective((), _mlm_count, _generator_sums),
    "causal": Objective((), _causal_count, _causal_sums),
}
CAUSAL = ("causal",)


def names_of(objectives: ObjectivesConfig) -> tuple[str, ...]:
    """All objectives of a config, those of ordinary steps first."""
    return together(objectives) + (CAUSAL if objectives.causal.ratio else ())


def weight_at(config: Config, name: str) -> Callable[[Int[Array, ""] | int], Float[Array, ""]]:
    """The weight of an objective at step n = 0, 1, ... of the run: weight x the schedule at n / (steps - 1)."""
    generator = ObjectiveConfig(config.objectives.replaced.generator_weight)
    one = generator if name == "generator" else getattr(config.objectives, name)
    shares, multiples = (jnp.array(side, jnp.float32) for side in zip(*(one.schedule or ((0.0, 1.0),))))
    last = max(config.steps - 1, 1)
    return lambda step: one.weight * jnp.interp(jnp.asarray(step, jnp.float32) / last, shares, multiples)


def is_causal(config: Config, step: Int[Array, ""] | int) -> Bool[Array, ""]:
    """Whether step n = 0, 1, ... trains the causal objective: hash of (seed, step) below the ratio.

    A function of both alone, so the same after a restart; every run of steps has about its share of them.
    """
    bits = jax.random.bits(jax.random.fold_in(keys.root(config.seed, keys.KIND), step), (), jnp.uint32)
    return bits.astype(jnp.float32) < config.objectives.causal.ratio * 2.0**32


def terms(passes: Passes, names: tuple[str, ...], counts: Sums) -> tuple[Sums, Float[Array, "b m"]]:
    """{"mlm/loss": ..., "mlm/accuracy": ..., ...} of a microbatch, each sum divided by the count of the whole batch.

    And the loss of each selected token by the first objective that has it, 0 without one.
    """
    found, each = {}, None
    for name in names:
        sums = OBJECTIVES[name].sums(passes)
        if isinstance(sums, tuple):
            sums, losses = sums
            each = losses if each is None else each
        for key, total in sums.items():
            found[f"{name}/{key}"] = total / jnp.maximum(counts[name], 1)  # the sum is 0 where the count is
    return found, jnp.zeros(passes.rows.masked.targets.shape) if each is None else each
