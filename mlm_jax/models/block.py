"""A layer: attention, then feed-forward, each added to the states that it reads.

Attention Is All You Need (2017), section 3, with exact GELU. The states are normalised after each sum, as there and in
BERT, or only where a block reads them (pre-norm; Xiong et al., 2020, "On layer normalization in the transformer
architecture", figure 1), as in ModernBERT.
"""

from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mlm_jax.config import ModelConfig
from mlm_jax.kernels.dropout import dropout
from mlm_jax.models.attention import Places, SelfAttention, places_at
from mlm_jax.models.layers import Draws, Linear, Norm, fold_in, gated_gelu, gelu, output_scale, take

# Places of dropout in a layer, as its keys count them.
PROBABILITIES, ATTENTION_OUTPUT, FFN_OUTPUT = range(3)


class Attention(SelfAttention):
    """norm(x + attention(x)), or x + attention(norm(x)); without a norm for the first layer of the latter kind."""

    def __init__(self, config: ModelConfig, local: bool, bare: bool, draw: Draws):
        super().__init__(config, local, draw)
        self.output_dropout_rate = config.dropout
        self.pre = config.norm == "pre"
        self.bare = bare
        if not bare:
            self.norm = Norm(config)

    def __call__(
        self,
        x: Float[Array, "b s d"],
        places: Places,
        at: Int[Array, "b q"] | None,
        keys: Key[Array, "b"] | None,
        reference: bool,
        causal: bool,
    ) -> Float[Array, "b _ d"]:
        """The states at all positions, or at the positions `at`. reference: by the reference backend."""
        context = self._read(x)
        asking, asking_places, kept = context, places, x
        if at is not None:
            asking, asking_places = take(context, at), places_at(places, at)
            kept = take(x, at) if self.pre else asking
        aligned = at is None and not reference
        keys_inside = fold_in(keys, PROBABILITIES)
        read = self.attend(asking, context, asking_places, places, keys_inside, aligned=aligned, causal=causal)
        read = dropout(fold_in(keys, ATTENTION_OUTPUT), read, self.output_dropout_rate)
        return kept + read if self.pre else self.norm(kept, read)

    def weights(self, x: Float[Array, "b t d"], places: Places, causal: bool = False) -> Float[Array, "b h t t"]:
        """What each position attends to, before dropout."""
        return self.probabilities(self._read(x), places, causal)

    def _read(self, x: Float[Array, "b s d"]) -> Float[Array, "b s d"]:
        return self.norm(x) if self.pre and not self.bare else x


class FeedForward(nnx.Module):
    """norm(x + f(x)), or x + f(norm(x)), of f(x) = down(gelu(up(x))), or down(gelu(up(x)) * gate(x)).

    The latter is the GEGLU of GLU Variants Improve Transformer (2020), section 2.
    """

    def __init__(self, config: ModelConfig, draw: Draws):
        d, f = config.width, config.hidden
        self.output_dropout_rate = config.dropout
        self.pre = config.norm == "pre"
        self.up = Linear((d, f), (f,), draw, biased=config.biases)
        if config.ffn == "geglu":
            self.gate = Linear((d, f), (f,), draw, biased=config.biases)
        self.down = Linear((f, d), (d,), draw, biased=config.biases, scale=output_scale(config))
        self.norm = Norm(config)

    def __call__(self, x: Float[Array, "b t d"], keys: Key[Array, "b"] | None) -> Float[Array, "b t d"]:
        y = self.norm(x) if self.pre else x
        y = gated_gelu(self.up(y), self.gate(y)) if hasattr(self, "gate") else gelu(self.up(y))
        y = dropout(fold_in(keys, FFN_OUTPUT), self.down(y), self.output_dropout_rate)
        return x + y if self.pre else self.norm(x, y)


class Layer(nnx.Module):
    """Attention, then feed-forward. local: within a window; bare: without the attention's norm."""

    def __init__(self, config: ModelConfig, local: bool, bare: bool, draw: Draws):
        self.attention = Attention(config, local, bare, draw)
        self.ffn = FeedForward(config, draw)

    def __call__(
        self,
        x: Float[Array, "b s d"],
        places: Places,
        at: Int[Array, "b q"] | None,
        keys: Key[Array, "b"] | None,
        reference: bool = False,
        causal: bool = False,
    ) -> Float[Array, "b _ d"]:
        """The new states at all positions, or at the positions `at`, which are all that is computed then.

        reference: attention by the reference backend; causal: it sees nothing that stands later in the segment.
        """
        return self.ffn(self.attention(x, places, at, keys, reference, causal), keys)
