"""What a run goes through: each phase with its rows and its numbers, and the programs that it runs.

The parameters and the rest of the state are the same in all phases; what differs is compiled anew for each.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from mlm_jax import audit, data, evaluate, feedback, keys, sharding, step
from mlm_jax import samples as samples_module
from mlm_jax.compilation import Watched
from mlm_jax.config import Config, Derived, MaskConfig, begins, phase_configs, streams, with_accumulation
from mlm_jax.models import Model, build
from mlm_jax.optim import optimizer
from mlm_jax.tokenizer import Tokenizer, Vocabulary


class Rows(NamedTuple):
    """The prepared rows of a stream; the vocabulary counts their ids."""

    stream: data.Stream
    folder: Path
    manifest: dict
    vocabulary: Vocabulary


class Phase(NamedTuple):
    """Steps begin + 1 to end of a run; `config` is the phase's own, with the steps and shares of the whole run.

    Its `accumulation` is the derived one.
    """

    number: int
    begin: int
    end: int
    config: Config
    derived: Derived
    rows: Rows


class Programs(NamedTuple):
    """What is compiled for a phase, and its batches."""

    batches: Iterator  # of training
    train_step: Watched
    evaluation: Callable
    samples: Callable
    masks: Callable  # that audits them


def of_run(config: Config, derived: Sequence[Derived], rows: Sequence[Rows]) -> tuple[Phase, ...]:
    """The phases of a run, one where the config has none. derived: of each; rows: of each stream."""
    starts = begins(config)
    configs = [with_accumulation(one, each.accumulation) for one, each in zip(phase_configs(config), derived)]
    facts = zip(starts, (*starts[1:], config.steps), configs, derived, streams(config))
    return tuple(Phase(number, *fact, rows[stream]) for number, (*fact, stream) in enumerate(facts))


def make_programs(
    phase: Phase,
    evaluated: MaskConfig,
    tokenizer: Tokenizer,
    mesh: Mesh,
    rows_read: int,
    say: Callable[[str], None],
    beat: Callable[[], None],
) -> Programs:
    """The programs of a phase, whose stream goes on from the place `rows_read`; nothing is compiled yet.

    evaluated: the masks of evaluation, which are the same in every phase; beat: as of `evaluate.make_evaluation`.
    Raises ConfigError where shards are broken.
    """
    config, (stream, folder, manifest, vocabulary) = phase.config, phase.rows
    fixed = dataclasses.replace(config, mask=evaluated)
    placed = sharding.batch_sharding(mesh, leading=1)
    model = model_of(phase)
    train_step = step.make_train_step(model, optimizer(config.optimizer, config.steps), vocabulary, config, mesh)
    make_mask = feedback.make_mask(model, vocabulary, config)
    return Programs(
        batches=data.train_batches(folder, manifest, config, rows_read, placed, stream),
        train_step=Watched(train_step, "train_step", say),
        evaluation=evaluate.make_evaluation(model, vocabulary, fixed, folder, manifest, mesh, beat=beat),
        samples=samples_module.make_samples(model, tokenizer, vocabulary, fixed, folder, manifest, mesh),
        masks=audit.auditor(make_mask, vocabulary, config, keys.roots(config.seed), placed),
    )


def model_of(phase: Phase) -> Model:
    """The same parameters in all phases; only the base of rotary positions may differ."""
    return build(phase.config.model, phase.derived.vocab_size, phase.config.objectives)
