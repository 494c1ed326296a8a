"""Phases, the parts of a run: each as a config of its own, and the streams of rows that they read.

A stream is a sequence of rows by corpora, weights and row length. Phases that agree in them read one stream, each from
where the one before stopped; streams are numbered as they first occur.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlm_jax.config.lengths import Reading, begins, in_steps, open_lengths, spans
from mlm_jax.config.schema import Config, ConfigError, PhaseConfig

# what a phase may set -> the key of the config that it stands for
KEYS = {
    "row_length": "row_length",
    "batch_size": "batch_size",
    "accumulation": "accumulation",
    "rows_per_device": "rows_per_device",
    "mask_rate": "mask.rate",
    "rate": "optimizer.learning_rate",
    "rotary_base": "model.rotary_base",
    "sources": "data.sources",
    "weights": "data.weights",
    "rows": "data.rows",
}


def phase_configs(config: Config) -> tuple[Config, ...]:
    """The config of each phase, without phases of its own; its `steps`, and all shares of them, are the whole run's."""
    return tuple(_phase_config(config, phase) for phase in config.phases) or (config,)


def _phase_config(config: Config, phase: PhaseConfig) -> Config:
    names = ("row_length", "batch_size", "accumulation", "rows_per_device")
    given = {name: getattr(phase, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    mask, model, optimizer = config.mask, config.model, config.optimizer
    if phase.mask_rate is not None:
        mask = dataclasses.replace(mask, rate=phase.mask_rate, schedule="constant", end_rate=None, parts=())
    if phase.rotary_base is not None:
        model = dataclasses.replace(model, rotary_base=phase.rotary_base)
    if phase.rate is not None:
        groups = tuple((pattern, rate * phase.rate) for pattern, rate in optimizer.groups)
        optimizer = dataclasses.replace(optimizer, learning_rate=optimizer.learning_rate * phase.rate, groups=groups)
    data = _data(config, phase)
    return dataclasses.replace(config, **given, mask=mask, model=model, optimizer=optimizer, data=data, phases=())


def _data(config: Config, phase: PhaseConfig):
    """Prepared rows that `data.rows` names are those of the first phase, and of the others that read the same text."""
    data, (first, *_) = config.data, config.phases
    if phase.sources is not None:
        data = dataclasses.replace(data, sources=phase.sources)
    if phase.weights is not None:
        data = dataclasses.replace(data, weights=phase.weights, exponent=1.0)
    if phase.rows is not None:
        return dataclasses.replace(data, rows=phase.rows)
    same = (_text(config, phase), first.rows) == (_text(config, first), None)
    return data if same else dataclasses.replace(data, rows="")


def _text(config: Config, phase: PhaseConfig) -> tuple:
    sources = config.data.sources if phase.sources is None else phase.sources
    return sources, config.row_length if phase.row_length is None else phase.row_length


def phase_at(config: Config, step: int) -> int:
    """The number, from 0, of the phase in which step 1, 2, ... is done; of step 0 the first."""
    return max(number for number, begin in enumerate(begins(config)) if begin < max(step, 1))


def streams(config: Config) -> tuple[int, ...]:
    """The number of the stream that each phase reads."""
    keys = [(one.data, one.row_length) for one in phase_configs(config)]
    distinct = list(dict.fromkeys(keys))
    return tuple(map(distinct.index, keys))


def stream_configs(config: Config) -> tuple[Config, ...]:
    """Of each stream the config of the first phase that reads it."""
    numbers, configs = streams(config), phase_configs(config)
    return tuple(configs[numbers.index(stream)] for stream in range(max(numbers) + 1))


def rows_folders(config: Config, workdir: Path) -> tuple[Path, ...]:
    """Where the prepared rows of each stream lie; streams that differ in weights alone share them."""
    found, places = [], {}
    for number, one in enumerate(stream_configs(config)):
        folder = (
            Path(one.data.rows).expanduser() if one.data.rows else workdir / (f"rows-{number}" if number else "rows")
        )
        found.append(places.setdefault((one.data.sources, one.data.rows, one.row_length), folder))
    return tuple(found)


def rows_folder(config: Config, workdir: Path) -> Path:
    """Where the prepared rows of a run lie, of one with phases those of the first."""
    return rows_folders(config, workdir)[0]


def first_phase(config: Config, manifest: dict) -> Config:
    """The config of the first phase, its lengths in steps, by the manifest of its rows.

    What is not known of the rows of later phases is reckoned as if they were as full and of the same text.
    """
    return phase_configs(in_steps(config, readings(config, (manifest,))))[0]


def readings(config: Config, manifests: Sequence[dict]) -> list[Reading]:
    """What a step of each phase reads, by the manifests of the streams; of those that have none, see `first_phase`."""
    found = []
    for stream, one in zip(streams(config), phase_configs(config)):
        manifest = manifests[min(stream, len(manifests) - 1)]
        splits = [corpus["splits"]["train"] for corpus in manifest["corpora"]]
        rows, tokens = sum(split["rows"] for split in splits), sum(split["tokens"] for split in splits)
        longer = one.row_length / manifest["row_length"]  # 1 but for rows that are reckoned
        epochs = one.batch_size * longer / rows if rows else None
        found.append(Reading(epochs, one.batch_size * longer * tokens / rows if rows else None))
    return found


def without_rows(config: Config, fill: float) -> Config:
    """The config with lengths in steps where there are no rows; fill: share of the places that hold a token.

    Raises ConfigError for a length in epochs, of which nothing is known.
    """
    places = [one.batch_size * one.row_length for one in phase_configs(config)]
    config = in_steps(config, [Reading(tokens=fill * each) for each in places])
    for key, text in open_lengths(config).items():
        raise ConfigError(key, text, "is known once there are rows, and here are none; give it in steps or tokens")
    return config


def check_phases(config: Config) -> None:
    """Raises ConfigError for phases that are none: what does not begin after the one before, or changes nothing."""
    starts = [phase.begin for phase in config.phases]
    for number, phase in enumerate(config.phases):
        key, begin = f"config.phases[{number}]", phase.begin
        if number == 0 and begin != 0:
            raise ConfigError(f"{key}.begin", begin, "the first phase must begin at 0")
        if number and not starts[number - 1] < begin < 1:
            fix = f"must be greater than config.phases[{number - 1}].begin = {starts[number - 1]} and less than 1"
            raise ConfigError(f"{key}.begin", begin, fix)
        if phase.rate is not None and not 0 < phase.rate < math.inf:
            raise ConfigError(f"{key}.rate", phase.rate, "must be greater than 0, a multiple of the learning rate")
    configs = phase_configs(config)
    for number, phase in enumerate(config.phases):
        before = configs[number - 1] if number else dataclasses.replace(config, phases=())
        if configs[number] == before and (number or len(configs) == 1):
            fix = "changes nothing; leave it out" if number else "is the only phase and changes nothing; leave it out"
            raise ConfigError(f"config.phases[{number}]", phase.begin, f"the phase that begins there {fix}")
    scheduled = config.mask.schedule != "constant"
    if config.phases and scheduled and all(phase.mask_rate is not None for phase in config.phases):
        fix = "is used in no phase, since all of them have a mask_rate; leave it out"
        raise ConfigError("config.mask.schedule", config.mask.schedule, fix)


def check_spans(config: Config) -> None:
    """Raises ConfigError for a phase without a step."""
    for number, steps in enumerate(spans(config)):
        if steps < 1:
            later = number + 1 if number + 1 < len(config.phases) else number
            fix = f"leaves config.phases[{number}] none of config.steps = {config.steps}"
            raise ConfigError(f"config.phases[{later}].begin", config.phases[later].begin, fix)


@contextlib.contextmanager
def naming(config: Config, number: int) -> Iterator[None]:
    """Lets a ConfigError that comes out of the config of a phase name what the phase has set, or the phase."""
    try:
        yield
    except ConfigError as error:
        if not config.phases:
            raise
        phase, key, fix = config.phases[number], error.key, error.fix
        for name, of_config in KEYS.items():
            if getattr(phase, name) is not None:
                pattern, named = rf"config\.{re.escape(of_config)}(?![\w.])", f"config.phases[{number}].{name}"
                key, fix = re.sub(pattern, named, key), re.sub(pattern, named, fix)
        if number and (key, fix) == (error.key, error.fix):
            fix = f"in config.phases[{number}]: {fix}"
        raise ConfigError(key, error.value, fix) from None


def changes(before: Config, now: Config) -> list[str]:
    """What is different in a phase, such as `batch_size 16, before 8`. Of the configs of two phases."""
    lines = []
    for key in (*KEYS.values(), "data.exponent", "mask.schedule"):
        old, new = before, now
        for part in key.split("."):
            old, new = getattr(old, part), getattr(new, part)
        if old != new:
            lines.append(f"{key} {new!r}, before {old!r}")
    return lines
