"""The mask of a batch, made on the device: units, priority, budget and corruption, one code path.

A mask is a pure function of (key, row, visit) and the rate. A row is cut into units, these are put in a keyed order,
in each segment they are taken while they fit its budget, and the corruption decides what stands at the selected
positions. Every step works on one row of t tokens and is mapped over the batch, so that nothing depends on a row's
place in it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from mlm_jax.batch import Batch, Masked, by_row
from mlm_jax.config import EvaluateConfig, MaskConfig, capacity
from mlm_jax.masking.budget import take
from mlm_jax.masking.corruption import corrupt
from mlm_jax.masking.draws import draw
from mlm_jax.masking.hashes import hashes
from mlm_jax.masking.priority import order
from mlm_jax.masking.rates import random_at, rate_at
from mlm_jax.masking.units import cut, maskable
from mlm_jax.tokenizer import Vocabulary

__all__ = ["fixed", "hashes", "mask", "mask_at", "maskable", "nothing", "random_at", "rate_at"]


def mask(
    key: Key[Array, ""],
    batch: Batch,
    vocabulary: Vocabulary,
    config: MaskConfig,
    rate: Float[Array, ""] | float,
    scores: Float[Array, "*b t"] | None = None,
    random_share: Float[Array, ""] | float | None = None,
) -> Masked:
    """Selects `rate` of the maskable tokens of each row, in whole words, and corrupts them.

    Args:
      key: the mask root, the same for every step; rows are told apart by `batch.row` and `batch.visit`.
      batch: rows of t tokens; all leading axes are mapped over.
      vocabulary: static. Special ids are never selected; random replacements are drawn from the ordinary ids. Its
        counts are needed where frequencies matter.
      config: static. `config.capacity` gives the number of slots m.
      rate: share of the maskable tokens, a number or a traced scalar between 0 and max_rate.
      scores: finite importance of each token, needed by priority "importance" and by no other.
      random_share: share of random tokens among the selected, in place of `corruption[1]`; the rest goes to MASK.

    Returns:
      inputs [b,t] (the corrupted tokens), indices, targets and weights [b,m] in order of position, selected [b,t], and
      dropped [b], the number of tokens that found no slot.

    Raises ValueError where scores or counts are missing.

    The budget is exact: rate x maskable tokens of the row, rounded by a keyed draw so that its mean is right, and a
    segment has the part of it that falls on its tokens. The word that would cross a segment's budget is taken with
    probability (tokens left over) / (its length), so that whole words keep the mean too. A row with a budget of which
    nothing was taken takes the first word of its first unit. Above m tokens whole words are dropped, last in keyed
    order first.
    """
    if (scores is None) == (config.priority == "importance"):
        raise ValueError(f"mask.priority = {config.priority!r} {'needs' if scores is None else 'takes no'} scores")
    m = capacity(config, batch.tokens.shape[-1], batch.firsts.shape[-1])

    def one_row(row, visit, scores):
        row_key = jax.random.fold_in(jax.random.fold_in(key, row.row), visit)
        return _mask_row(row_key, row, scores, vocabulary, config, rate, random_share, m)

    return by_row(one_row, batch)(batch, _regime_visit(config, batch.visit), scores)


def mask_at(
    step: Int[Array, ""] | int,
    steps: int,
    key: Key[Array, ""],
    batch: Batch,
    vocabulary: Vocabulary,
    config: MaskConfig,
    scores: Float[Array, "*b t"] | None = None,
    fed: Float[Array, ""] | float | None = None,
) -> Masked:
    """`mask` as the schedules of the config have it at step 0, 1, ... of `steps`, a number or a traced scalar.

    fed: the rate, for schedules of which it is no function of the step.
    """
    random = random_at(config, steps)
    share = random(step) if random else None
    return mask(key, batch, vocabulary, config, rate_at(config, steps, fed)(step), scores, share)


def nothing(batch: Batch, m: int) -> Masked:
    """Rows [*b,t] as they are: nothing is selected, all m slots are empty."""
    slots = jnp.zeros((*batch.row.shape, m))
    empty = slots.astype(jnp.int32)
    selected = jnp.zeros(batch.tokens.shape, bool)
    return Masked(batch.tokens, empty, empty, slots, selected, jnp.zeros(batch.row.shape, jnp.int32))


def fixed(config: MaskConfig, evaluate: EvaluateConfig) -> MaskConfig:
    """The config of evaluation masks: the same at every visit and step, and MASK at every selected position.

    Rate, unit and priority are those of `evaluate` where it names them. Else the rate is `mask.rate`, whatever the
    schedule, so that runs with different schedules are measured with the same masks, and importance, which would make
    the masks depend on the model, gives way to chance.
    """
    own = "uniform" if config.priority == "importance" else config.priority
    rate = config.rate if evaluate.rate is None else evaluate.rate
    unit, priority = evaluate.unit or config.unit, evaluate.priority or own
    constant = {"schedule": "constant", "end_rate": None, "parts": (), "max_rate": None, "random_end": None}
    chosen = {
        "rate": rate,
        "unit": unit,
        "priority": priority,
        "temperature": config.temperature if priority == config.priority else 1.0,
    }
    return dataclasses.replace(config, regime="static", corruption=(1.0, 0.0, 0.0), **chosen, **constant)


def _regime_visit(config: MaskConfig, visit: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """What stands for the visit in the key: the visit (dynamic), 0 (static), or the visit modulo the versions."""
    if config.regime == "static":
        return visit * 0
    return visit % config.versions if config.regime == "multi-version" else visit


def _mask_row(key, row: Batch, scores, vocabulary, config, rate, random_share, m) -> Masked:
    t = row.tokens.shape[0]
    candidates = maskable(row.tokens, row.segments, vocabulary)
    draws = draw(key, t, config)
    parts = cut(row, candidates, draws, config)
    keys = order(draws, parts.units, candidates, row.tokens, scores, vocabulary, config)
    taken, dropped = take(parts, candidates, row.segments, keys, draws, rate, config.min_per_segment, m)
    position = jnp.sort(taken)  # an empty slot has position t, which gathers clip and scatters drop
    filled = position < t
    indices = jnp.where(filled, position, 0)
    targets = jnp.where(filled, row.tokens[indices], 0)
    drawn_at = parts.units[indices] if config.corruption_per == "unit" else indices
    kind, replacement = draws.kind[drawn_at], draws.replacement[indices]
    corrupted = corrupt(targets, kind, replacement, vocabulary, config, random_share)
    return Masked(
        inputs=row.tokens.at[position].set(corrupted, mode="drop"),
        indices=indices,
        targets=targets,
        weights=jnp.where(filled, row.weight, 0.0),
        selected=jnp.zeros((t,), bool).at[position].set(True, mode="drop"),
        dropped=dropped,
    )
