"""From ids to the states that enter the first layer; e is the width of the tables, which may be less than d."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from mlm_jax.batch import Batch
from mlm_jax.config import ModelConfig, round_up
from mlm_jax.kernels.dropout import dropout
from mlm_jax.models.layers import VOCAB_MULTIPLE, Draws, Linear, Norm, Table, fold_in


class Embeddings(nnx.Module):
    """The sum of a token's word, position and type vectors, normalised; the last two where the config has such tables.

    BERT (2019), section 3. With a padding id of 0 or more, positions begin at padding_id + 1 and those of the padding
    are padding_id, as in RoBERTa (2019) and its checkpoints. words: the word vectors; None: those of the tokens.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, draw: Draws):
        self.dropout_rate = config.dropout
        self.padding_id = config.padding_id
        self.word = Table(round_up(vocab_size, VOCAB_MULTIPLE), config.embedding_width, draw, used=vocab_size)
        if config.positions == "learned":
            self.position = Table(config.max_positions, config.embedding_width, draw)
        if config.types:
            self.type = Table(config.types, config.embedding_width, draw)
        self.norm = Norm(config, config.embedding_width)

    def __call__(
        self,
        batch: Batch,
        keys: Key[Array, "b"] | None,
        dtype: jnp.dtype,
        words: Float[Array, "b t e"] | None = None,
    ) -> Float[Array, "b t e"]:
        terms = [self.word(batch.tokens) if words is None else words]
        if hasattr(self, "position"):
            positions = batch.positions
            if self.padding_id >= 0:
                positions = jnp.where(batch.segments > 0, positions + 1, 0) + self.padding_id
            terms.append(self.position(positions))
        if hasattr(self, "type"):
            terms.append(self.type(batch.types))
        return dropout(fold_in(keys, 0), self.norm(*terms).astype(dtype), self.dropout_rate)


class Projection(nnx.Module):
    """From the width of the embeddings to that of the layers. ALBERT (Lan et al., 2020), section 3.1."""

    def __init__(self, config: ModelConfig, draw: Draws):
        e, d = config.embedding_width, config.width
        self.project = Linear((e, d), (d,), draw, biased=config.biases)

    def __call__(self, x: Float[Array, "b t e"]) -> Float[Array, "b t d"]:
        return self.project(x)
