"""Matrix products with a gradient of their own: of a float32 result in the compute type, or in a form that is fast."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """`einsum(spec, x, y)` summed and returned in float32; x and y have one type.

    The gradient is rounded to that type before the two products that carry it back. Without this they would have one
    float32 operand, and an accelerator would run them at a fraction of its bfloat16 speed.
    """
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32)


def _forward(spec: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(spec, x, y), (x, y)


def _backward(spec: str, operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    _, pull = jax.vjp(functools.partial(jnp.einsum, spec), *operands)
    return pull(gradient.astype(operands[0].dtype))


product.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear(axes: int, x: Float[Array, "..."], kernel: Float[Array, "..."]) -> Float[Array, "..."]:
    """The product over the last `axes` axes of x and the first ones of the kernel, in the type of both.

    Each of its products, those of the gradient too, is one of two plain matrices, x to the left of the gradient. The
    gradient that jax finds by itself has them in the other order, over several axes, and turned afterwards: a CPU then
    copies x and the result, see benchmarks/RESULTS.md.
    """
    return _linear_forward(axes, x, kernel)[0]


def _linear_forward(axes: int, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    shape = x.shape[: x.ndim - axes] + kernel.shape[axes:]
    left, right = _matrices(axes, x, kernel)
    return (left @ right).reshape(shape), (x, kernel)


def _linear_backward(axes: int, operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = operands
    left, right = _matrices(axes, x, kernel)
    flat = gradient.reshape(-1, right.shape[1])
    return (flat @ right.T).reshape(x.shape), (left.T @ flat).reshape(kernel.shape)


def _matrices(axes: int, x: Array, kernel: Array) -> tuple[Float[Array, "n d"], Float[Array, "d e"]]:
    d = math.prod(kernel.shape[:axes])
    return x.reshape(-1, d), kernel.reshape(d, -1)


linear.defvjp(_linear_forward, _linear_backward)
