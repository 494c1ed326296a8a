"""The last product of a head, with a table of the whole vocabulary, and losses without all of its logits in memory."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mlm_jax import sharding
from mlm_jax.kernels.product import product

MIB = 1 << 20
BLOCK = 128  # columns of the vocabulary that sampling looks at together; divides it


class Decoding(NamedTuple):
    """What logits are made of: states table^T + bias. States and table have the compute type."""

    states: Float[Array, "*b d"]
    table: Float[Array, "v d"]
    bias: Float[Array, "v"]  # float32


class Losses(NamedTuple):
    """Of targets [b,m]: -log softmax(logits)[target], in nats and float32, and what follows from the same logits."""

    total: Float[Array, ""]  # the weighted sum of the losses, z-loss included; it alone has a gradient
    each: Float[Array, "b m"]  # without the z-loss
    hits: Float[Array, "b m"]  # 1 where the target is what an argmax of the logits gives
    log_z: Float[Array, "b m"]  # logarithm of the sum of the exponentials of the logits


def logits(decoding: Decoding) -> Float[Array, "*b v"]:
    """All logits, in float32."""
    out = product("...d,vd->...v", decoding.states, decoding.table)
    return out + jnp.broadcast_to(decoding.bias, out.shape)


def piece_mib(given: int) -> int:
    """MiB of float32 logits that a device holds at most at once; given: 0 for a value by the kind of device.

    32 on a CPU, which is as fast as larger pieces, see benchmarks/RESULTS.md. 512 elsewhere, which is not measured:
    each piece reads and writes the float32 gradient of the whole table, 8 v d bytes beside 6 n v d operations for its n
    positions; with 4096 of them, 512 MiB at 32k ids, that is about 5 % of the time of the products on an accelerator
    that does 150 to 250 operations in the time of a byte.
    """
    return given or (32 if sharding.platform() == "cpu" else 512)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def losses(
    decoding: Decoding, targets: Int[Array, "b m"], weights: Float[Array, "b m"], most_mib: int, z_loss: float = 0.0
) -> Losses:
    """Losses of the logits, of which a device holds `most_mib` MiB at once; pieces are cut along m.

    Under differentiation each piece makes its part of the gradient while its logits are there, scaled by the weights,
    which are known beforehand: there are three products per piece, as without pieces, and no logits are kept or
    computed again. So does the fused linear cross entropy of Liger Kernel (Hsu et al. 2024, section 3.2). The products
    of the gradient round it to the compute type, see `product`; sums are float32. Beside the logits a device holds what
    the compiler makes of them, on a CPU about three times as much.

    z_loss: `total` has so many times log(Z)^2 of each target as well, where Z is the sum of the exponentials of its
    logits, which keeps Z near 1. PaLM (Chowdhery et al. 2022), section 5.
    """

    def piece(_: None, inputs: tuple) -> tuple[None, tuple]:
        return None, _of_piece(decoding, *inputs[:2])[1:]

    _, of_targets = jax.lax.scan(piece, None, _cut(decoding, targets, weights, most_mib))
    return _result(targets, weights, of_targets, z_loss)


def _forward(decoding: Decoding, targets: Array, weights: Array, most_mib: int, z_loss: float) -> tuple[Losses, tuple]:
    table = decoding.table
    v, d = table.shape

    def piece(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        states, target, weight = inputs
        out, each, hits, log_z = _of_piece(decoding, states, target)
        probabilities = jnp.exp(out - log_z[..., None])
        if z_loss:
            probabilities *= 1 + 2 * z_loss * log_z[..., None]  # they are the gradient of log(Z)
        gradient = (probabilities - _is_target(out, target)) * weight[..., None]
        narrow = gradient.astype(states.dtype)
        to_states = jnp.einsum("nbmv,vd->nbmd", narrow, table)
        # [d, v], and turned once at the end: a CPU takes up to twice the time for [v, d]
        to_table = jnp.einsum("nbmd,nbmv->ndv", states, narrow, preferred_element_type=jnp.float32)
        sums = sharding.constrain(to_table, "batch", None, "vocab"), gradient.sum((1, 2))
        return jax.tree.map(jnp.add, carry, sums), ((each, hits, log_z), to_states)

    n = sharding.parts("batch")
    start = (
        sharding.constrain(jnp.zeros((n, d, v)), "batch", None, "vocab"),
        sharding.constrain(jnp.zeros((n, v)), "batch", "vocab"),
    )
    pieces = _cut(decoding, targets, weights, most_mib)
    (to_table, to_bias), (of_targets, to_states) = jax.lax.scan(piece, start, pieces)
    # one sum over the devices for all pieces; the barrier keeps the turn out of the product
    to_table = jax.lax.optimization_barrier(to_table).sum(0).T
    gradient = Decoding(_join(to_states, targets), to_table.astype(table.dtype), to_bias.sum(0))
    result = _result(targets, weights, of_targets, z_loss)
    return result, (gradient, _penalised(result.each, result.log_z, z_loss))


def _backward(most_mib: int, z_loss: float, residuals: tuple, cotangents: Losses) -> tuple:
    gradient, each = residuals
    scale = cotangents.total
    of_decoding = jax.tree.map(lambda x: (scale * x.astype(jnp.float32)).astype(x.dtype), gradient)
    return of_decoding, None, scale * each


losses.defvjp(_forward, _backward)


def sample(decoding: Decoding, uniforms: Float[Array, "b m"], most_mib: int) -> Int[Array, "b m"]:
    """Ids drawn from softmax(logits) by numbers in [0, 1): the first of which its chance and those before it are more.

    All ids can be drawn, special ones too, as in ELECTRA (Clark et al. 2020, section 2), whose samples these are; not
    the columns that only fill up the vocabulary, whose probability is 0. A number has 23 bits, so an id with a
    probability below 1e-7 may never be drawn. No gradient passes. The logits are there in pieces, as in `losses`; with
    a sharded vocabulary they stay where they are.
    """
    decoding = jax.lax.stop_gradient(decoding)

    def piece(_: None, inputs: tuple) -> tuple[None, Int[Array, "n b m"]]:
        states, _, numbers = inputs
        out = _logits_of(decoding, states)
        return None, _drawn(jnp.exp(out - out.max(-1, keepdims=True)), numbers)

    slots = jnp.zeros(uniforms.shape, jnp.int32)
    _, ids = jax.lax.scan(piece, None, _cut(decoding, slots, uniforms, most_mib))
    return _join(ids, slots)


def _drawn(masses: Float[Array, "n b m v"], uniforms: Float[Array, "n b m"]) -> Int[Array, "n b m"]:
    """The first column at which the sum of the masses is above the share `uniforms` of all.

    First the block of 128 columns, then the column in it, so that no sum runs over the whole vocabulary.
    """
    blocks = masses.reshape(*masses.shape[:-1], -1, BLOCK)
    ends = jnp.cumsum(blocks.sum(-1), -1)
    aim = uniforms * ends[..., -1]
    block = (ends <= aim[..., None]).sum(-1)
    inside = jnp.take_along_axis(blocks, block[..., None, None], -2)[..., 0, :]
    before = jnp.where(_column(ends) < block[..., None], ends, 0.0).max(-1)
    within = jnp.cumsum(inside, -1)
    # by rounding, the sum of a block may end a little short of the aim: then the last one that has any mass
    last = jnp.where(inside > 0, _column(inside), 0).max(-1)
    place = (within <= (aim - before)[..., None]).sum(-1)
    return (block * BLOCK + jnp.minimum(place, last)).astype(jnp.int32)


def _logits_of(decoding: Decoding, states: Float[Array, "n b m d"]) -> Float[Array, "n b m v"]:
    out = jnp.einsum("nbmd,vd->nbmv", states, decoding.table, preferred_element_type=jnp.float32)
    return sharding.constrain(out + jnp.broadcast_to(decoding.bias, out.shape), "batch", None, None, "vocab")


def _of_piece(decoding: Decoding, states: Float[Array, "n b m d"], targets: Int[Array, "n b m"]) -> tuple[Array, ...]:
    """Logits [n,b,m,v]; loss, hit, and the logarithm of the sum of the exponentials of the logits [n,b,m]."""
    out = _logits_of(decoding, states)
    highest = out.max(-1)
    log_z = jnp.log(jnp.exp(out - highest[..., None]).sum(-1)) + highest
    # a sum over the vocabulary instead of a gather: it stays local where the vocabulary is sharded
    at_target = jnp.where(_is_target(out, targets), out, 0.0).sum(-1)
    # argmax by two plain reductions; jnp.argmax itself takes a CPU nearly as long as a product
    first = jnp.where(out == highest[..., None], _column(out), out.shape[-1]).min(-1)
    return out, log_z - at_target, (first == targets).astype(jnp.float32), log_z


def _column(out: Float[Array, "n b m v"]) -> Int[Array, "n b m v"]:
    return jax.lax.broadcasted_iota(jnp.int32, out.shape, out.ndim - 1)


def _is_target(out: Float[Array, "n b m v"], targets: Int[Array, "n b m"]) -> Array:
    return _column(out) == targets[..., None]


def _cut(decoding: Decoding, targets: Array, weights: Array, most_mib: int) -> tuple[Array, Array, Array]:
    """States, targets and weights as [pieces, n, b/n, m', ...]: n is how many devices share the rows.

    Each device cuts its own rows, so that the sums over pieces are its own until the last one. Places that fill up the
    last piece have weight 0.
    """
    b, m = targets.shape
    n = sharding.parts("batch")
    mib = b * m * decoding.table.shape[0] * 4 / (n * sharding.parts("vocab")) / MIB
    size = math.ceil(m / min(math.ceil(mib / most_mib), m))
    count = math.ceil(m / size)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, count * size - m), *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(n, b // n, count, size, *x.shape[2:])
        return sharding.constrain(jnp.moveaxis(x, 2, 0), None, "batch", *(None,) * (x.ndim - 2))

    return cut(decoding.states), cut(targets), cut(weights)


def _join(x: Array, targets: Int[Array, "b m"]) -> Array:
    """[pieces, n, b/n, m', ...] as [b, m, ...]."""
    b, m = targets.shape
    return jnp.moveaxis(x, 0, 2).reshape(b, -1, *x.shape[4:])[:, :m]


def _result(targets: Array, weights: Array, of_targets: tuple[Array, Array, Array], z_loss: float) -> Losses:
    each, hits, log_z = (_join(x, targets) for x in of_targets)
    return Losses((_penalised(each, log_z, z_loss) * weights).sum(), each, hits, log_z)


def _penalised(each: Float[Array, "b m"], log_z: Float[Array, "b m"], z_loss: float) -> Float[Array, "b m"]:
    return each + z_loss * jnp.square(log_z) if z_loss else each
