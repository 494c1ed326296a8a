"""Parts that every encoder is made of. Parameters are float32; the computation runs in the type of the weights it is
given, with sums over many values in float32."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key, Shaped

from mlm_jax import sharding
from mlm_jax.config import ModelConfig
from mlm_jax.kernels.product import linear

VOCAB_MULTIPLE = 128  # the vocabulary is filled up to it: a TPU works in lanes of 128, and a mesh axis divides it


def compute_dtype(config: ModelConfig) -> jnp.dtype:
    """The type of weights and activations in the computation."""
    if config.dtype != "auto":
        return jnp.dtype(config.dtype)
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


class Draws:
    """Normal draws cut at two standard deviations, as BERT's own code makes them, handed out shape by shape.

    `initializer_range` is the deviation before the cut; that of the values is 0.88 times it, and is not corrected.
    All of a module's values come from one draw, since on a CPU each draw in a program takes half a second to compile:
    without a pool, `Draws` only counts how many there must be.
    """

    def __init__(self, pool: Float[Array, "n"] | None = None):
        self.pool = pool
        self.used = 0

    def __call__(self, *shape: int) -> Float[Array, "..."]:
        start = self.used
        self.used += math.prod(shape)
        return jnp.zeros(shape) if self.pool is None else self.pool[start : self.used].reshape(shape)

    @classmethod
    def from_key(cls, key: Key[Array, ""], number: int, deviation: float) -> "Draws":
        drawn = deviation * jax.random.truncated_normal(key, -2, 2, (number,), jnp.float32)
        return cls(sharding.constrain(drawn, None))  # whole on every device: slices of a sharded pool would be too


def add_bias(x: Float[Array, "..."], bias: Float[Array, "..."]) -> Float[Array, "..."]:
    """x + bias along the last axes, in float32: the bias' gradient is a sum over all positions."""
    return (x.astype(jnp.float32) + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)).astype(x.dtype)


def fold_in(keys: Key[Array, "b"] | None, number: Int[Array, ""] | int) -> Key[Array, "b"] | None:
    """The key of a place within each row; none without keys."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def take(x: Shaped[Array, "b t *rest"], at: Int[Array, "b q"]) -> Shaped[Array, "b q *rest"]:
    """The values at the positions `at` of each row."""
    return jnp.take_along_axis(x, at.reshape(*at.shape, *(1,) * (x.ndim - 2)), axis=1, mode="clip")


class Table(nnx.Module):
    """A vector for each id. Rows at and above `used` only fill up: they start at zero and are never looked up."""

    def __init__(self, rows: int, width: int, draw: Draws, used: int | None = None):
        drawn = draw(used or rows, width)
        self.table = nnx.Param(jnp.pad(drawn, ((0, rows - drawn.shape[0]), (0, 0))))

    def __call__(self, ids: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return jnp.take(self.table[...], ids, axis=0, mode="clip")


def output_scale(config: ModelConfig) -> float:
    """What the start of a kernel is scaled by whose product is added to the states of the residual stream.

    With pre-norm, that stream is a sum of 2 layers such products: 1 / sqrt(2 layers). Language Models are Unsupervised
    Multitask Learners (2019), section 2.3, Megatron-LM (2019), section 4, and so ModernBERT.
    """
    return 1 / math.sqrt(2 * config.layers) if config.norm == "pre" else 1.0


class Linear(nnx.Module):
    """The product of the last `axes` axes of x with the first ones of the kernel, and a bias where it is `biased`.

    scale: of the kernel's draw.
    """

    def __init__(
        self,
        kernel: tuple[int, ...],
        bias: tuple[int, ...],
        draw: Draws,
        *,
        axes: int = 1,
        biased: bool = True,
        scale: float = 1.0,
    ):
        self.axes = axes
        drawn = draw(*kernel)
        self.kernel = nnx.Param(drawn if scale == 1 else scale * drawn)
        if biased:
            self.bias = nnx.Param(jnp.zeros(bias))

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        y = linear(self.axes, x, self.kernel[...])
        return add_bias(y, self.bias[...]) if hasattr(self, "bias") else y


def recomputed(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function, which keeps nothing but its arguments for the backward pass, and is computed there again.

    For what reads less than it would keep, and costs next to nothing. (`jax.checkpoint` would do so, too, but not
    within another one, whose policy then decides.)
    """
    alone = jax.custom_vjp(function)
    alone.defvjp(lambda *given: (function(*given), given), lambda given, g: jax.vjp(function, *given)[1](g))
    return alone


class Norm(nnx.Module):
    """Layer normalisation of a sum over its last axis, in float32. Layer Normalization (2016), section 3.

    Without a bias where the config has none. width: None for that of the model.
    """

    def __init__(self, config: ModelConfig, width: int | None = None):
        self.epsilon = config.norm_epsilon
        self.scale = nnx.Param(jnp.ones(width or config.width))
        if config.biases:
            self.bias = nnx.Param(jnp.zeros(width or config.width))

    def __call__(self, *terms: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """The terms are added in float32; the result has the type of the first."""
        bias = self.bias[...] if hasattr(self, "bias") else None
        normed = recomputed(functools.partial(_normalise, self.epsilon))(self.scale[...], bias, *terms)
        return normed.astype(terms[0].dtype)


def _normalise(
    epsilon: float, scale: Float[Array, "d"], bias: Float[Array, "d"] | None, *terms: Float[Array, "*b d"]
) -> Float[Array, "*b d"]:
    x = sum(term.astype(jnp.float32) for term in terms)
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + epsilon) * jnp.broadcast_to(scale.astype(jnp.float32), x.shape)
    return normed if bias is None else normed + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)


@recomputed
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x times the normal distribution function of x, exact. Gaussian Error Linear Units (2016), section 2."""
    return _gelu(x).astype(x.dtype)


@recomputed
def gated_gelu(x: Float[Array, "..."], gate: Float[Array, "..."]) -> Float[Array, "..."]:
    """gelu(x) times the gate. GLU Variants Improve Transformer (2020), section 2."""
    return (_gelu(x) * gate.astype(jnp.float32)).astype(x.dtype)


def _gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    wide = x.astype(jnp.float32)
    return wide * (0.5 + 0.5 * jax.lax.erf(wide * math.sqrt(0.5)))
