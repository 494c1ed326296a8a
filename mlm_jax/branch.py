"""A run that begins with the whole state of another one's checkpoint: a new cool-down off a stable learning rate.

It takes parameters, moments, averages, counts and the position in the data, and goes on by its own schedule to its own
number of steps. So that nothing jumps, both schedules must have the same learning rate at that step, after both
warm-ups and before the new cool-down (Hägele et al., 2024: one run at a constant rate serves models of any length).
"""

import json
from pathlib import Path
from typing import NamedTuple

from mlm_jax import config as config_module
from mlm_jax import optim
from mlm_jax.checkpoint import FOLDER, folder_of, problem, read_meta
from mlm_jax.config import Config, ConfigError
from mlm_jax.config.lengths import of_share
from mlm_jax.initial import step_of

KEY = "config.branch_from"
TOLERANCE = 1e-6  # of the two learning rates, relative


class Point(NamedTuple):
    """A checkpoint to branch from, and what was saved beside its state."""

    folder: Path
    step: int
    saved: dict


def find(config: Config, workdir: Path, begun: bool) -> Point | None:
    """The checkpoint that `config.branch_from` names: the newest whole one of a run, or WORKDIR/checkpoints/STEP.

    None where it names none, or where the run has begun and needs it no more. Raises ConfigError where there is no such
    checkpoint, or where it is of this very run.
    """
    if not config.branch_from:
        return None
    path = Path(config.branch_from).expanduser().absolute()
    names_step = path.parent.name == FOLDER and path.name.isdecimal()
    source = path.parent.parent if names_step else path
    if source.resolve() == workdir.resolve():
        raise ConfigError(KEY, config.branch_from, "is this very run; name another folder with --workdir")
    if begun:
        return None
    step = int(path.name) if names_step else step_of(source, KEY)
    folder = folder_of(source, step)
    if not folder.is_dir():
        raise ConfigError(KEY, config.branch_from, "there is no such checkpoint")
    if found := problem(folder):
        raise ConfigError(KEY, config.branch_from, found)
    saved = read_meta(source, step)
    if "rows_read" not in saved:
        fix = "holds an imported model, which was not trained here; begin with it by config.init_from"
        raise ConfigError(KEY, config.branch_from, fix)
    return Point(folder, step, saved)


def check_schedules(config: Config, point: Point) -> None:
    """Raises ConfigError where the learning rate of this run does not go on from that of the checkpoint.

    config: its lengths in steps.
    """
    step, before = point.step, config_module.from_json(json.dumps(point.saved["config"]))
    if step >= config.steps:
        fix = f"must be more than the {step:,} steps that the checkpoint of {KEY} has done"
        raise ConfigError("config.steps", config.steps, fix)
    for run, what in ((before, "the run that it comes from"), (config, "this run")):
        if step < (warmup := of_share(run.optimizer.warmup, run.steps)):
            fix = f"step {step:,} lies within the {warmup:,} steps of warm-up of {what}"
            raise ConfigError(KEY, config.branch_from, fix)
    cooldown = config.steps - of_share(config.optimizer.cooldown, config.steps)  # steps before it
    if config.optimizer.schedule == "wsd" and step > cooldown:
        fix = f"step {step:,} lies within the cool-down of this run, which begins after step {cooldown:,}"
        raise ConfigError(KEY, config.branch_from, fix)
    then, now = rate_of(before, step), rate_of(config, step)
    if abs(then - now) > TOLERANCE * max(then, now):
        fix = (
            f"the learning rate of step {step:,} was {then:.4g} there and is {now:.4g} by the schedule of this run;"
            " they must be equal, as on the constant part of schedule wsd with the same config.optimizer.learning_rate"
        )
        raise ConfigError(KEY, config.branch_from, fix)


def rate_of(config: Config, step: int) -> float:
    """The learning rate of step 1, 2, ... of a run, in its phase."""
    of_phase = config_module.phase_configs(config)[config_module.phase_at(config, step)]
    return float(optim.schedule(of_phase.optimizer, config.steps)(step - 1))
