"""Encoders as pairs of pure functions: `build(config, vocab_size)` -> `Model(init, apply, ...)`."""

from mlm_jax.config import ModelConfig
from mlm_jax.models import bert
from mlm_jax.models.encoder import Model

FAMILIES = {"bert": bert.build}


def build(config: ModelConfig, vocab_size: int) -> Model:
    """The model that a config describes. vocab_size: ids of the tokenizer, or rows of an imported word table."""
    return FAMILIES[config.family](config, vocab_size)


__all__ = ["FAMILIES", "Model", "build"]
