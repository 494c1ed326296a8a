"""Self-attention with explicit head axes: h heads of size k = d / h."""

from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mlm_jax.config import ModelConfig
from mlm_jax.kernels import attention
from mlm_jax.models.layers import Draws, Linear


class SelfAttention(nnx.Module):
    """Projects to queries, keys and values, attends within segments, projects back."""

    def __init__(self, config: ModelConfig, draw: Draws):
        d, h = config.width, config.heads
        k = d // h
        self.dropout_rate = config.attention_dropout
        self.query, self.key, self.value = (Linear("btd,dhk->bthk", (d, h, k), (h, k), draw) for _ in range(3))
        self.out = Linear("bthk,hkd->btd", (h, k, d), (d,), draw)

    def attend(
        self,
        x: Float[Array, "b q d"],
        context: Float[Array, "b s d"],
        segments: Int[Array, "b q"],
        context_segments: Int[Array, "b s"],
        keys: Key[Array, "b"] | None,
    ) -> Float[Array, "b q d"]:
        """What the positions of `x` read from those of `context`; keys are of the dropout on the probabilities."""
        read = attention.attend(
            self.query(x),
            self.key(context),
            self.value(context),
            query_segments=segments,
            key_segments=context_segments,
            dropout_keys=keys,
            dropout_rate=self.dropout_rate,
        )
        return self.out(read)

    def probabilities(self, x: Float[Array, "b t d"], segments: Int[Array, "b t"]) -> Float[Array, "b h t t"]:
        """What each position attends to, before dropout."""
        return attention.probabilities(self.query(x), self.key(x), segments, segments)
