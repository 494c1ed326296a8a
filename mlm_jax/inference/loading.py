"""A model with all that is needed to ask it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm_jax import config as config_module
from mlm_jax.checkpoint import load_config, load_model, split_step
from mlm_jax.config import ConfigError, hub
from mlm_jax.models import Model
from mlm_jax.tokenizer import Tokenizer


class Loaded(NamedTuple):
    """A model, its parameters and its tokenizer."""

    model: Model
    params: dict
    tokenizer: Tokenizer
    limit: int  # tokens of the longest segment that it can read, CLS and SEP among them
    path: str  # where it was read
    causal: bool = False  # whether it was trained to predict next tokens as well

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """The ids of each text, i32[n], without CLS and SEP."""
        encoding, lengths = self.tokenizer.encode_batch(texts)
        return np.split(np.asarray(encoding.ids, np.int32), np.cumsum(lengths)[:-1]) if texts else []

    def surrounded(self, ids: np.ndarray) -> np.ndarray:
        """CLS ids SEP, i32[n + 2]."""
        return np.concatenate([[self.tokenizer.cls], ids, [self.tokenizer.sep]]).astype(np.int32)

    def check_fills(self) -> None:
        """Raises ConfigError for a model without a head that fills masks."""
        if self.model.filler is self.model and "head" not in self.params:
            has = "that of a fine-tuned model" if "task" in self.params else "an encoder"
            raise ConfigError("model", self.path, f"has no head that fills masks, only {has}")


def load(path: str | Path, step: int | None = None) -> Loaded:
    """The model of a run (of its newest whole checkpoint, or that of a step), of WORKDIR/checkpoints/STEP, or of a hub
    folder.

    A run with learned positions reads no longer segments than its longest rows: those of later positions were never
    trained. Raises ConfigError where the folder is none of these.
    """
    model, params, tokenizer = load_model(path, step, headless=True)
    limit = config_module.positions(model.config)
    if hub.is_hub(path):
        return Loaded(model, params, tokenizer, limit, str(path))
    run = load_config(split_step(path)[0])
    if config_module.resolve(model.config).positions == "learned":
        limit = min(limit, max(phase.row_length for phase in config_module.phase_configs(run)))
    return Loaded(model, params, tokenizer, limit, str(path), run.objectives.causal.ratio > 0)
