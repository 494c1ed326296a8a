"""BERT: learned positions, token types, normalisation after each residual sum. BERT (2019), section 3.

The block follows Attention Is All You Need (2017), section 3, with exact GELU; biases everywhere.
"""

import functools

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mlm_jax.config import ModelConfig, round_up
from mlm_jax.kernels.dropout import dropout
from mlm_jax.models import encoder
from mlm_jax.models.attention import SelfAttention
from mlm_jax.models.heads import MaskedHead
from mlm_jax.models.layers import VOCAB_MULTIPLE, Draws, Linear, Norm, Table, fold_in, gelu, take

# Places of dropout in a layer, as its keys count them.
PROBABILITIES, ATTENTION_OUTPUT, FFN_OUTPUT = range(3)


class Embeddings(nnx.Module):
    """The sum of a token's word, position and type vectors, normalised."""

    def __init__(self, config: ModelConfig, vocab_size: int, draw: Draws):
        self.dropout_rate = config.dropout
        self.word = Table(round_up(vocab_size, VOCAB_MULTIPLE), config.width, draw, used=vocab_size)
        self.position = Table(config.max_positions, config.width, draw)
        self.type = Table(config.types, config.width, draw)
        self.norm = Norm(config)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        types: Int[Array, "b t"],
        keys: Key[Array, "b"] | None,
        dtype: jnp.dtype,
    ) -> Float[Array, "b t d"]:
        x = self.norm(self.word(tokens), self.position(positions), self.type(types)).astype(dtype)
        return dropout(fold_in(keys, 0), x, self.dropout_rate)


class Attention(SelfAttention):
    """norm(x + attention(x))."""

    def __init__(self, config: ModelConfig, draw: Draws):
        super().__init__(config, draw)
        self.output_dropout_rate = config.dropout
        self.norm = Norm(config)

    def __call__(
        self,
        x: Float[Array, "b q d"],
        context: Float[Array, "b s d"],
        segments: Int[Array, "b q"],
        context_segments: Int[Array, "b s"],
        keys: Key[Array, "b"] | None,
    ) -> Float[Array, "b q d"]:
        read = self.attend(x, context, segments, context_segments, fold_in(keys, PROBABILITIES))
        return self.norm(x, dropout(fold_in(keys, ATTENTION_OUTPUT), read, self.output_dropout_rate))


class FeedForward(nnx.Module):
    """norm(x + down(gelu(up(x))))."""

    def __init__(self, config: ModelConfig, draw: Draws):
        d, f = config.width, config.hidden
        self.output_dropout_rate = config.dropout
        self.up = Linear("btd,df->btf", (d, f), (f,), draw)
        self.down = Linear("btf,fd->btd", (f, d), (d,), draw)
        self.norm = Norm(config)

    def __call__(self, x: Float[Array, "b t d"], keys: Key[Array, "b"] | None) -> Float[Array, "b t d"]:
        y = self.down(gelu(self.up(x)))
        return self.norm(x, dropout(fold_in(keys, FFN_OUTPUT), y, self.output_dropout_rate))


class Layer(nnx.Module):
    """Attention, then feed-forward."""

    def __init__(self, config: ModelConfig, draw: Draws):
        self.attention = Attention(config, draw)
        self.ffn = FeedForward(config, draw)

    def __call__(
        self,
        x: Float[Array, "b s d"],
        segments: Int[Array, "b s"],
        at: Int[Array, "b q"] | None,
        keys: Key[Array, "b"] | None,
    ) -> Float[Array, "b _ d"]:
        """The new states at all positions, or at the positions `at`, which are all that is computed then."""
        asking, asking_segments = x, segments
        if at is not None:
            asking = take(x, at)
            asking_segments = jnp.take_along_axis(segments, at, axis=1, mode="clip")
        return self.ffn(self.attention(asking, x, asking_segments, segments, keys), keys)


def build(config: ModelConfig, vocab_size: int) -> encoder.Model:
    """BERT with its masked-language-model head."""
    return encoder.assemble(
        config,
        vocab_size,
        embeddings=functools.partial(Embeddings, config, vocab_size),
        layer=functools.partial(Layer, config),
        head=functools.partial(MaskedHead, config, vocab_size),
    )
