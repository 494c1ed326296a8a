"""What stands on top of the encoder."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mlm_jax.config import ModelConfig, round_up
from mlm_jax.kernels.product import product
from mlm_jax.models.layers import VOCAB_MULTIPLE, Draws, Linear, Norm, gelu, output_scale

# Logit of a column that stands for no id. Finite; its probability is exactly zero, and with it every gradient.
ABSENT = -1e30


class MaskedHead(nnx.Module):
    """Dense, GELU, normalisation, then the word table as the decoder, and a bias. BERT (2019), section 3.1.

    ModernBERT's dense layer and normalisation have no bias, and its kernel begins as small as those that write into the
    residual stream, as in the `transformers` library.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, draw: Draws):
        d = config.width
        self.vocab_size = vocab_size
        self.dense = Linear("...d,de->...e", (d, d), (d,), draw, biased=config.biases, scale=output_scale(config))
        self.norm = Norm(config)
        self.bias = nnx.Param(jnp.zeros(round_up(vocab_size, VOCAB_MULTIPLE)))

    def __call__(self, hidden: Float[Array, "*b d"], table: Float[Array, "v d"]) -> Float[Array, "*b v"]:
        """Logits over the rows of the word table, in float32."""
        x = self.norm(gelu(self.dense(hidden)))
        bias = self.bias[...].astype(jnp.float32)
        bias = jnp.where(jnp.arange(bias.size) < self.vocab_size, bias, ABSENT)
        logits = product("...d,vd->...v", x, table)
        return logits + jnp.broadcast_to(bias, logits.shape)
