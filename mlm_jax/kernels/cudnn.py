"""Attention by cuDNN's flash kernel on NVIDIA's GPUs: no scores in memory, but a mask of all pairs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mlm_jax import sharding

HEADS, MASK = ("batch", None, "heads", None), ("batch", None, None, None)  # how [b,t,h,k] and [b,1,t,t] lie on the mesh


def attend(
    query: Float[Array, "b t h k"],
    key: Float[Array, "b t h k"],
    value: Float[Array, "b t h k"],
    segments: Int[Array, "b t"],
    positions: Int[Array, "b t"] | None,
    window: int,
    causal: bool = False,
    implementation: str = "cudnn",
) -> Float[Array, "b t h k"]:
    """Attention within segments and a window, which may be 0: none; the whole of it on each device's rows and heads.

    In bfloat16 or float16, with even t and k of at most 128 and a multiple of 8. The kernel knows neither segments nor
    a window of two sides, so both are in the mask, b t t values of the compute type, and no block of pairs is left out
    but where causal: a query then sees no key that stands after it, and the kernel leaves out those of the row.
    implementation: `xla` computes the same anywhere, for tests.
    """

    def of_device(query: Array, key: Array, value: Array, mask: Array) -> Array:
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=causal, implementation=implementation
        )

    run = sharding.per_device(of_device, (HEADS, HEADS, HEADS, MASK), HEADS)
    return run(query, key, value, mask_of(segments, positions, window))


def mask_of(segments: Int[Array, "b t"], positions: Int[Array, "b t"] | None, window: int) -> Bool[Array, "b 1 t t"]:
    """Whether a query sees a key. The padding sees itself, so that no row of the mask is empty."""
    seen = segments[:, :, None] == segments[:, None, :]
    if window:
        seen &= jnp.abs(positions[:, :, None] - positions[:, None, :]) <= window // 2
    return seen[:, None]
