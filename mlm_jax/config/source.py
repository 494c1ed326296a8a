"""A run that begins with the model of another: what its config takes from there."""

import dataclasses
from pathlib import Path

from mlm_jax.config import hub
from mlm_jax.config.files import load
from mlm_jax.config.schema import Config, ConfigError

# keys of the model that are not its architecture, and so the run's own
OWN = ("dropout", "attention_dropout", "dtype", "unroll", "attention", "remat")


def with_source(config: Config) -> Config:
    """With `init_from`: the architecture and, where the config names none, the tokenizer of that model.

    It is a folder of the hub format or of a run. Raises ConfigError where it is neither.
    """
    if not config.init_from:
        return config
    folder = Path(config.init_from).expanduser()
    if hub.is_hub(folder):
        model, size = hub.read_config(folder)
        model, tokenizer = dataclasses.replace(model, vocab_size=size), folder
    elif (folder / hub.CONFIG).is_file():
        model, tokenizer = load(folder / hub.CONFIG).model, folder / "tokenizer"
    else:
        fix = "must be a folder of the hub format (config.json, model.safetensors) or of a run"
        raise ConfigError("config.init_from", config.init_from, fix)
    same_ids = not config.tokenizer.path and not config.tokenizer.terms
    size = config.model.vocab_size or (model.vocab_size if same_ids else None)
    own = {key: getattr(config.model, key) for key in OWN}
    path = config.tokenizer.path or str(tokenizer)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, **own, vocab_size=size),
        tokenizer=dataclasses.replace(config.tokenizer, path=path),
    )
