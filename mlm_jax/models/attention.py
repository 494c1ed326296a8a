"""Self-attention with explicit head axes: h heads of size k = d / h."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from mlm_jax.batch import Batch
from mlm_jax.config import ModelConfig
from mlm_jax.kernels import attention
from mlm_jax.models.layers import Draws, Linear, output_scale, take

Angles = tuple[Float[Array, "b t r"], Float[Array, "b t r"]]  # cosine and sine, for the r = k / 2 pairs of a head


class Places(NamedTuple):
    """Where tokens stand, and what rotary positions turn them by in global and in local layers; () without."""

    segments: Int[Array, "b t"]
    positions: Int[Array, "b t"]  # within the segment
    turns: tuple[Angles, ...]


def places_of(batch: Batch, config: ModelConfig) -> Places:
    """The places of all tokens of a batch, for every layer."""
    bases = (config.rotary_base, config.rotary_local_base) if config.positions == "rotary" else ()
    turns = tuple(angles(batch.positions, base, config.width // config.heads) for base in bases)
    return Places(batch.segments, batch.positions, turns)


def places_at(places: Places, at: Int[Array, "b q"]) -> Places:
    """The places of the tokens `at` of each row."""
    return jax.tree.map(lambda leaf: take(leaf, at), places)


def angles(positions: Int[Array, "b t"], base: float, k: int) -> Angles:
    """Cosine and sine of position x base ** (-2 i / k), for the pairs i of a head, in float32."""
    frequencies = np.float32(base ** -(np.arange(0, k, 2) / k))  # the power in float64: positions multiply its error
    angle = positions.astype(jnp.float32)[:, :, None] * frequencies[None, None]
    return jnp.cos(angle), jnp.sin(angle)


def turn(x: Float[Array, "b t h k"], by: Angles) -> Float[Array, "b t h k"]:
    """Rotary positions: the values i and i + k / 2 of each head, as a point of the plane, turned by angle i.

    RoFormer (2021), section 3.2.2; its pairs are neighbours, and those of checkpoints in use stand half a head apart.
    """
    cos, sin = (leaf[:, :, None, :] for leaf in by)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = (jnp.broadcast_to(leaf, first.shape) for leaf in (cos, sin))
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


class SelfAttention(nnx.Module):
    """Projects to queries, keys and values, attends within segments and a window, projects back."""

    def __init__(self, config: ModelConfig, local: bool, draw: Draws):
        d, h = config.width, config.heads
        k = d // h
        self.dropout_rate = config.attention_dropout
        self.backend = config.attention
        self.local = local
        self.window = config.local_window if local else 0
        self.query, self.key, self.value = (Linear((d, h, k), (h, k), draw, biased=config.biases) for _ in range(3))
        scale = output_scale(config)
        self.out = Linear((h, k, d), (d,), draw, axes=2, biased=config.biases, scale=scale)

    def attend(
        self,
        x: Float[Array, "b q d"],
        context: Float[Array, "b s d"],
        places: Places,
        context_places: Places,
        keys: Key[Array, "b"] | None,
        *,
        aligned: bool,
        causal: bool = False,
    ) -> Float[Array, "b q d"]:
        """What the positions of `x` read from those of `context`; keys are of the dropout on the probabilities.

        aligned: both are the same positions, and any backend may serve. causal: nothing from positions after
        their own in the segment.
        """
        read = attention.attend(
            self._turned(self.query(x), places),
            self._turned(self.key(context), context_places),
            self.value(context),
            query_segments=places.segments,
            key_segments=context_places.segments,
            query_positions=places.positions,
            key_positions=context_places.positions,
            window=self.window,
            aligned=aligned,
            dropout_keys=keys,
            dropout_rate=self.dropout_rate,
            backend=self.backend,
            causal=causal,
        )
        return self.out(read)

    def probabilities(self, x: Float[Array, "b t d"], places: Places, causal: bool = False) -> Float[Array, "b h t t"]:
        """What each position attends to, before dropout."""
        query, key = (self._turned(projected(x), places) for projected in (self.query, self.key))
        segments, positions = places.segments, places.positions
        return attention.probabilities(query, key, segments, segments, positions, positions, self.window, causal)

    def _turned(self, x: Float[Array, "b t h k"], places: Places) -> Float[Array, "b t h k"]:
        return turn(x, places.turns[self.local]) if places.turns else x
