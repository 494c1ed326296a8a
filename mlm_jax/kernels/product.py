"""Matrix products whose result is float32 while all that is multiplied stays in the compute type."""

import functools

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
