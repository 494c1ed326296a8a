"""Lengths of a run and of its parts, in steps, epochs or tokens: everything comes to steps here.

A share of the steps is rounded to the nearest step. A length in epochs or tokens ends with the first step that reaches
it; what a step reads of them is known with the rows. An epoch is a pass over the training rows, of a phase over those
that it reads; tokens do not count padding.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlm_jax.config.schema import Config, ConfigError, OptimizerConfig

FORMS = "must be a length such as '2000 steps', '0.5 epochs' or '1e9 tokens'"
ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004 in floating point, and its ceiling must be 3


class Length(NamedTuple):
    """So many of a unit: steps, epochs or tokens."""

    number: float
    unit: str


class Reading(NamedTuple):
    """What a step of a phase reads; None where that is not known yet."""

    epochs: float | None = None
    tokens: float | None = None

    def of(self, unit: str) -> float | None:
        return 1.0 if unit == "steps" else getattr(self, unit)


def parse(key: str, text: str) -> Length:
    """Reads a length. Raises ConfigError that names the key and the forms."""
    found = re.fullmatch(r"(\S+) (step|epoch|token)s?", text)
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    whole = not found or found[2] != "step" or number.is_integer()
    if not (0 < number < math.inf and whole):
        raise ConfigError(key, text, FORMS if whole else f"{FORMS}; there is no part of a step")
    return Length(number, found[2] + "s")


def of_share(share: float, steps: int) -> int:
    """A share of the steps, in steps."""
    return round(share * steps)


def begins(config: Config) -> tuple[int, ...]:
    """How many steps are done where each phase begins: 0 for the first one, and for a run without phases."""
    return tuple(of_share(phase.begin, config.steps) for phase in config.phases) or (0,)


def spans(config: Config) -> tuple[int, ...]:
    """The number of steps of each phase."""
    starts = begins(config)
    return tuple(end - begin for begin, end in zip(starts, (*starts[1:], config.steps)))


def open_lengths(config: Config) -> dict[str, str]:
    """The lengths that are still to become steps, by key."""
    keys = {
        "config.length": config.length,
        "config.optimizer.warmup_length": config.optimizer.warmup_length,
        "config.optimizer.cooldown_length": config.optimizer.cooldown_length,
    }
    return {key: text for key, text in keys.items() if text}


def in_steps(config: Config, readings: Sequence[Reading] | None = None) -> Config:
    """The config with its lengths as `steps` and as shares of them, as far as they are known; the rest stays open.

    readings: of each phase; None: before the rows are known. Raises ConfigError for a length that is none, for one
    beside its share, and for a part that is longer than the run.
    """
    _check(config)
    readings = readings or [Reading()] * max(1, len(config.phases))
    if config.length:
        length = parse("config.length", config.length)
        shares = [phase.begin for phase in config.phases] or [0.0]
        parts = [end - begin for begin, end in zip(shares, [*shares[1:], 1.0])]
        each = [reading.of(length.unit) for reading in readings]
        if None in each:
            return config
        steps = length.number / sum(share * one for share, one in zip(parts, each))
        config = dataclasses.replace(config, steps=max(1, math.ceil(steps - ROUNDING)), length="")
    optimizer = config.optimizer
    for name, order in (("warmup", 1), ("cooldown", -1)):  # the first steps of the run, and the last ones
        if text := getattr(optimizer, f"{name}_length"):
            key = f"config.optimizer.{name}_length"
            length = parse(key, text)
            each = [reading.of(length.unit) for reading in readings]
            if None not in each:
                parts = list(zip(spans(config), each))[::order]
                share = _steps(length.number, parts, ConfigError(key, text, _longer(config))) / config.steps
                optimizer = dataclasses.replace(optimizer, **{name: share, f"{name}_length": ""})
    return dataclasses.replace(config, optimizer=optimizer)


def amount(unit: str, config: Config, readings: Sequence[Reading]) -> float | None:
    """How many epochs or tokens the whole run reads; None where that is not known."""
    each = [reading.of(unit) for reading in readings]
    return None if None in each else sum(steps * one for steps, one in zip(spans(config), each))


def _steps(number: float, parts: Iterable[tuple[int, float]], too_long: ConfigError) -> int:
    """How many steps reach a number. parts: (steps, number of each), one after the other."""
    before = 0
    for steps, each in parts:
        needed = math.ceil(number / each - ROUNDING)
        if needed <= steps:
            return before + max(1, needed)
        before, number = before + steps, number - steps * each
    raise too_long


def _longer(config: Config) -> str:
    return f"is longer than the run of {config.steps:,} steps"


def _check(config: Config) -> None:
    optimizer, usual = config.optimizer, OptimizerConfig()
    for name in ("warmup", "cooldown"):
        text, share = getattr(optimizer, f"{name}_length"), getattr(optimizer, name)
        if text:
            parse(f"config.optimizer.{name}_length", text)
        if text and share not in (0, getattr(usual, name)):
            fix = f"is given beside config.optimizer.{name} = {share}, its share of the steps; set that to 0"
            raise ConfigError(f"config.optimizer.{name}_length", text, fix)
    if optimizer.cooldown_length and optimizer.schedule != "wsd":
        fix = f"config.optimizer.schedule = {optimizer.schedule!r} has no cool-down, 'wsd' has one"
        raise ConfigError("config.optimizer.cooldown_length", optimizer.cooldown_length, fix)
