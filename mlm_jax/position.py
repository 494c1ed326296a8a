"""Where a run stands in its data, as its checkpoints know it: how far each stream is read, and what the streams are.

A position is a place in the order of all rows of a stream, whether rows before it were left out (`spikes.py`) or not.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from mlm_jax import config as config_module
from mlm_jax.config import Config, ConfigError


def after(place: int, rows: int, holes: Sequence[tuple[int, int]] = ()) -> int:
    """The place after the next so many rows from `place` on; holes: see `spikes.holes_of`."""
    for first, end in holes:
        if place + rows <= first:
            break
        if place < end:
            rows -= max(0, first - place)
            place = end
    return place + rows


def stream_facts(config: Config, manifest: dict) -> dict:
    """What a stream of rows follows from, beside the seed."""
    return {"data": manifest["fingerprint"], "weights": list(config.data.weights), "exponent": config.data.exponent}


def streams_read(saved: dict) -> list[dict]:
    """The `stream_facts` of what a checkpoint has read; empty without one. An older one knows of one stream."""
    if not saved or "streams" in saved:
        return saved.get("streams", [])
    return [stream_facts(config_module.from_json(json.dumps(saved["config"])), {"fingerprint": saved["data"]})]


def phase_facts(phase, config: Config) -> dict:
    """Of a checkpoint what its model needs to know of the phase (a `phases.Phase`) that it was made in."""
    return {"rotary_base": phase.config.model.rotary_base} if config.phases else {}


def position(saved: dict, facts: dict, workdir: Path, key: str = "workdir") -> list[int]:
    """How far each stream is read by the saved step; streams that are new come last, and those that are no more.

    `facts` gets the latter, which a later start may read again. Raises ConfigError where the run that goes on would not
    be the same run. workdir: where the checkpoint lies; key: what led there.
    """
    read_before, now = streams_read(saved), facts["streams"]
    then_config, config = (config_module.from_json(json.dumps(meta["config"])) for meta in (saved, facts))
    compared = [("tokenizer", saved["tokenizer"], facts["tokenizer"])]
    compared += [("prepared rows", one["data"], other["data"]) for one, other in zip(read_before, now)]
    for what, before, after in compared:
        if before != after:
            fix = f"its checkpoint was trained with another {what} ({before}); this one is {after}"
            raise ConfigError(key, str(workdir), fix)
    for field in ("seed", "mask.regime", "mask.versions", "optimizer.name"):
        before, after = (config_module.get(one, field) for one in (then_config, config))
        if before != after:
            raise ConfigError(f"config.{field}", after, f"the checkpoint in {workdir} was trained with {before!r}")
    for stream, (one, other) in enumerate(zip(read_before, now)):
        for field in ("weights", "exponent"):
            if one[field] != other[field]:
                with config_module.naming(config, config_module.streams(config).index(stream)):
                    fix = f"the checkpoint in {workdir} was trained with {one[field]!r}"
                    raise ConfigError(f"config.data.{field}", other[field], fix)
    read = saved.get("position", [saved["rows_read"]])
    facts["streams"] = now + read_before[len(now) :]
    return read + [0] * (len(now) - len(read))
