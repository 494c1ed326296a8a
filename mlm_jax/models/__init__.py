"""Encoders as pairs of pure functions: `build(config, vocab_size)` -> `Model(init, apply, ...)`."""

import functools

from mlm_jax.config import ModelConfig, is_local, resolve
from mlm_jax.models import encoder
from mlm_jax.models.block import Layer
from mlm_jax.models.embeddings import Embeddings, Projection
from mlm_jax.models.encoder import Model
from mlm_jax.models.heads import MaskedHead
from mlm_jax.models.layers import Norm


def build(config: ModelConfig, vocab_size: int) -> Model:
    """The model that a config describes. vocab_size: ids of the tokenizer, or rows of an imported word table."""
    config = resolve(config)
    pre = config.norm == "pre"

    def layer(depth: int) -> functools.partial:
        # the embeddings' norm stands right before the first layer
        return functools.partial(Layer, config, is_local(config, depth), pre and depth == 0)

    return encoder.assemble(
        config,
        vocab_size,
        embeddings=functools.partial(Embeddings, config, vocab_size),
        projection=functools.partial(Projection, config) if config.embedding_width != config.width else None,
        layer=layer,
        norm=(lambda draw: Norm(config)) if pre else None,
        head=functools.partial(MaskedHead, config, vocab_size),
    )


__all__ = ["Model", "build"]
