"""Which objectives a config has, what they ask of the rows and of the model, and which contradict one another."""

import itertools
import math

from mlm_jax.config.families import resolve
from mlm_jax.config.schema import Config, ConfigError, ObjectivesConfig

PAIRED = {"nsp": "next", "sop": "order"}  # objective -> `data.pairs` of the rows that it needs


def together(objectives: ObjectivesConfig) -> tuple[str, ...]:
    """The objectives that are trained in one step; a step of the causal one has no other."""
    if objectives.causal.ratio == 1:
        return ()
    # by the objective whose weight they go with; the first one's targets are the step's
    names = {"mlm": "mlm", "generator": "replaced"} | {x: x for x in ("nsp", "sop", "contrastive", "replaced")}
    return tuple(name for name, of in names.items() if getattr(objectives, of).weight)


def fills_masks(objectives: ObjectivesConfig) -> bool:
    """Whether the model learns to predict tokens, and so has a head over the vocabulary."""
    return objectives.mlm.weight > 0 or objectives.causal.ratio > 0


def filler(objectives: ObjectivesConfig) -> str | None:
    """The objective whose model fills masks, in evaluation, samples and `fill-mask`; None without one."""
    names = together(objectives)
    return next((name for name in ("mlm", "generator") if name in names), None)


def check_objectives(config: Config, microbatch: int) -> None:
    """Raises ConfigError at the first contradiction. microbatch: rows of one forward pass over all devices."""
    objectives = config.objectives
    for name in ("mlm", "nsp", "sop", "contrastive", "replaced", "causal"):
        _check_schedule(f"config.objectives.{name}.schedule", getattr(objectives, name).schedule)
    _check_z_loss(objectives)
    causal = objectives.causal
    if causal.ratio and not causal.weight:
        raise ConfigError("config.objectives.causal.weight", causal.weight, "must be greater than 0 with a ratio")
    if not together(objectives) and causal.ratio < 1:
        raise ConfigError("config.objectives.mlm.weight", objectives.mlm.weight, "no objective has a weight")
    for name, kind in PAIRED.items():
        if not getattr(objectives, name).weight or config.data.pairs == kind:
            continue
        if not config.data.rows or config.data.pairs != "none":  # else their manifest tells
            weight = getattr(objectives, name).weight
            raise ConfigError(f"config.objectives.{name}.weight", weight, f"needs config.data.pairs = {kind!r}")
    if config.mask.schedule == "loss" and not filler(objectives):
        fix = "follows the loss of config.objectives.mlm, whose weight is 0"
        raise ConfigError("config.mask.schedule", "loss", fix)
    if config.mask.priority == "importance" and config.mask.importance == "surprisal" and not filler(objectives):
        fix = "needs the losses of config.objectives.mlm, whose weight is 0"
        raise ConfigError("config.mask.importance", "surprisal", fix)
    if objectives.contrastive.weight:
        _check_contrastive(config, microbatch)


def _check_z_loss(objectives: ObjectivesConfig) -> None:
    key, z_loss = "config.objectives.mlm.z_loss", objectives.mlm.z_loss
    if not 0 <= z_loss < math.inf:
        raise ConfigError(key, z_loss, "must be at least 0, such as 1e-4")
    if z_loss and not fills_masks(objectives):
        raise ConfigError(key, z_loss, "is of masked and of next tokens, and neither objective is on; leave it out")


def _check_contrastive(config: Config, microbatch: int) -> None:
    contrastive, model = config.objectives.contrastive, resolve(config.model)
    key = "config.objectives.contrastive"
    if contrastive.view == "dropout" and not (model.dropout or model.attention_dropout):
        fix = "without dropout both views are the same; set config.model.dropout, or use 'mask'"
        raise ConfigError(f"{key}.view", "dropout", fix)
    if contrastive.group_rows < 1 or microbatch % contrastive.group_rows:
        fix = f"must divide the microbatch, batch_size / accumulation = {microbatch} rows"
        raise ConfigError(f"{key}.group_rows", contrastive.group_rows, fix)
    if contrastive.group_rows == 1 and config.data.max_segments == 1:
        fix = "a row of one segment has nothing to compare it with; use more rows"
        raise ConfigError(f"{key}.group_rows", 1, fix)


def _check_schedule(key: str, points: tuple[tuple[float, float], ...]) -> None:
    shares = [share for share, _ in points]
    if any(not 0 <= share <= 1 for share in shares) or any(b <= a for a, b in itertools.pairwise(shares)):
        raise ConfigError(key, points, "the points must rise from a share of the steps of at least 0 to at most 1")
    if any(not 0 <= multiple < math.inf for _, multiple in points):
        raise ConfigError(key, points, "multiples of the weight cannot be negative")


def check_pairs(config: Config, found: str) -> None:
    """Raises ConfigError where rows, whose pairs are `found`, cannot serve an objective."""
    for name, kind in PAIRED.items():
        weight = getattr(config.objectives, name).weight
        if weight and found != kind:
            fix = f"the rows were prepared with data.pairs = {found!r}; it needs {kind!r}"
            raise ConfigError(f"config.objectives.{name}.weight", weight, fix)
