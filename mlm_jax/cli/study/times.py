"""What a step of each variant costs: all are measured in turn, so that other loads of the machine meet all alike."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlm_jax import config as config_module
from mlm_jax import runtime
from mlm_jax.cli.bench import rows_of
from mlm_jax.config import Config

ROUNDS = 12
TURN = 4  # steps of a variant in each round


def measure(configs: Mapping[str, Config], rounds: int = ROUNDS, turn: int = TURN) -> dict[str, dict[str, float]]:
    """{variant: seconds of a step, and relative: to those of the first variant in the same round}: means of the rounds.

    The lowest and the highest round are left out. (No medians: the steps of one variant may be of two kinds, such as
    causal ones and others, which both count.) low, high: 10th and 90th percentile of the ratios. Each round begins with
    another variant. The rows of all configs are there, as `data.rows` names them; the parameters are new ones. All
    states are in memory at once. Raises ConfigError.
    """
    runtime.start()
    with contextlib.ExitStack() as stack:
        turns = [_start(config, stack, turn) for config in configs.values()]
        table = np.zeros((rounds + 2, len(turns)))  # the first two rounds compile and warm up
        for number in range(rounds + 2):
            for i in np.roll(np.arange(len(turns)), number):
                table[number, i] = turns[i]()
    table = table[2:]
    ratios = table / table[:, :1]
    low, high = np.quantile(ratios, (0.1, 0.9), axis=0)
    columns = {"seconds": trimmed(table), "relative": trimmed(ratios), "low": low, "high": high}
    return {name: {key: float(values[i]) for key, values in columns.items()} for i, name in enumerate(configs)}


def trimmed(table: np.ndarray) -> np.ndarray:
    """Means of the columns without their lowest and their highest value; of fewer than three rows, of all."""
    ordered = np.sort(table, axis=0)
    return (ordered[1:-1] if len(ordered) > 2 else ordered).mean(0)


def _start(config: Config, stack: contextlib.ExitStack, turn: int):
    """`next_turn() -> seconds of a step` of a config, the mean of `turn` steps; the input of each counts."""
    import jax

    from mlm_jax import data, feedback, keys, optim, sharding, state, step
    from mlm_jax.models import build

    rows = stack.enter_context(rows_of(config, Path()))
    config = config_module.first_phase(config, rows.manifest)
    derived = config_module.check(config, jax.device_count(), 1, rows.manifest, jax.default_backend())
    config = config_module.with_accumulation(config, derived.accumulation)
    mesh = sharding.make_mesh(derived.mesh)
    model = build(config.model, derived.vocab_size, config.objectives)
    optimizer = optim.optimizer(config.optimizer, config.steps)
    roots = keys.roots(config.seed)
    placed = sharding.batch_sharding(mesh, leading=1)
    batches = data.train_batches(rows.folder, rows.manifest, config, 0, placed)
    stack.callback(batches.close)
    with sharding.activate(mesh, config.mesh):
        fed = feedback.start(model, rows.vocabulary, config.mask)
        key = keys.root(config.seed, keys.INIT)
        now = [state.create(model, optimizer, mesh, config.mesh, key, fed, config.optimizer)]
        train_step = step.make_train_step(model, optimizer, rows.vocabulary, config, mesh)

    def next_turn() -> float:
        with sharding.activate(mesh, config.mesh):
            began = time.perf_counter()
            for _ in range(turn):
                now[0], _ = train_step(now[0], next(batches), roots)
            jax.block_until_ready(now[0])
            return (time.perf_counter() - began) / turn

    return next_turn
