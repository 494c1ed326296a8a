"""The folder of a run, and its config as JSON."""

import dataclasses
import json
import os
import typing
from pathlib import Path

from mlm_jax.config.schema import Config, ConfigError


def check_writable(folder: Path, key: str = "workdir") -> None:
    """Makes the folder of a run, or the one that `key` names. Raises ConfigError where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(key, str(folder), f"cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(key, str(folder), "cannot be written to")


def to_json(config: object) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2)


def from_json(text: str, kind: type = Config) -> object:
    """The inverse of `to_json`; an unknown key is a `ConfigError`."""
    return _build(kind, json.loads(text), "config")


def _build(kind: type, values: dict, key: str) -> object:
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in hints:
            raise ConfigError(f"{key}.{name}", values[name], "there is no such key")
    built = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = _build(hint, value, f"{key}.{name}")
        elif kind_of_items := items(hint):
            built[name] = tuple(_build(kind_of_items, item, f"{key}.{name}[{i}]") for i, item in enumerate(value))
        else:
            built[name] = _tuples(value)
    return kind(**built)


def items(hint: object) -> type | None:
    """The dataclass of which a type holds a tuple of any length, as `tuple[PhaseConfig, ...]`; else None."""
    args = typing.get_args(hint)
    one = args[0] if typing.get_origin(hint) is tuple and args[-1] is Ellipsis else None
    return one if dataclasses.is_dataclass(one) else None


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def load(path: str | Path) -> Config:
    """Reads a `config.json` as a run writes it. Raises ConfigError."""
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("workdir", str(path), f"is no config of a run: {error}") from None
