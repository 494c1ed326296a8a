"""A run that begins with the model of another: what its config takes from there."""

import dataclasses
from pathlib import Path

from mlm_jax.config import hub
from mlm_jax.config.families import positions
from mlm_jax.config.files import load
from mlm_jax.config.phases import phase_at, phase_configs
from mlm_jax.config.schema import Config, ConfigError, ModelConfig

# keys of the model that are not its architecture, and so the run's own; None: as the source has it
OWN = ("dropout", "attention_dropout", "dtype", "logits_mib", "unroll", "attention", "remat")


def with_source(config: Config, workdir: Path | None = None) -> Config:
    """With `init_from`: the architecture and, where the config names none, the tokenizer of that model.

    It is a folder of the hub format or of a run. A run in `workdir` that began with it needs it no more: what it took
    stands in its own `config.json`. Raises ConfigError for anything else, and where rows are longer than the model has
    positions.
    """
    if not config.init_from:
        return config
    folder = Path(config.init_from).expanduser()
    if hub.is_hub(folder):
        model, tokenizer = hub.read_config(folder)[0], folder
    elif (folder / hub.CONFIG).is_file():
        model, tokenizer = _of_newest(folder, load(folder / hub.CONFIG)), folder / "tokenizer"
    elif begun := _begun(config, workdir):
        model, tokenizer = begun.model, begun.tokenizer.path
    else:
        fix = "must be a folder of the hub format (config.json, model.safetensors) or of a run"
        raise ConfigError("config.init_from", config.init_from, fix)
    if config.row_length > positions(model):
        fix = f"{folder} has positions for {positions(model)} tokens; make the rows shorter"
        raise ConfigError("config.row_length", config.row_length, fix)
    own = {key: value for key in OWN if (value := getattr(config.model, key)) is not None}
    path = config.tokenizer.path or str(tokenizer)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, **own, vocab_size=config.model.vocab_size),
        tokenizer=dataclasses.replace(config.tokenizer, path=path),
    )


def _of_newest(folder: Path, config: Config) -> ModelConfig:
    """The model of a run as it is in the phase of its newest checkpoint."""
    saved = [int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdecimal()]
    return phase_configs(config)[phase_at(config, max(saved, default=0))].model


def _begun(config: Config, workdir: Path | None) -> Config | None:
    """The config of a run that began with the same source, if there is one."""
    if workdir is None or not (workdir / hub.CONFIG).is_file():
        return None
    begun = load(workdir / hub.CONFIG)
    return begun if begun.init_from == config.init_from else None
