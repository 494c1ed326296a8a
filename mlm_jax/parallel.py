"""Gradients by every device of its own rows: what weights are gathered for them, what is reduced, and when.

The compiler would find a program for any sharding, but not this one: with data parallelism it reduces the gradients of
stacked layers once per microbatch, and some of those of sharded weights whole. Here it is said. With data parallelism
alone one reduction of the gradient comes after all microbatches. With fully sharded parameters (ZeRO stage 3:
Rajbhandari et al. 2020, section 5.3) each layer's are gathered where they are used, once forward and once backward in
each microbatch, and their gradient is reduced and scattered there. Sums are in float32.
"""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jax.sharding import PartitionSpec as P

from mlm_jax import tree
from mlm_jax.config import MeshConfig
from mlm_jax.sharding import BATCH_AXES, axes_of_compiler, hold, names, only, rules, spec_of

FSDP = "fsdp"
# Tables, which the first and the last part of a forward pass read, are gathered before the first microbatch and reduced
# after the last one: twice in all, and not twice in each.
TABLES = re.compile(r"(.*/)?embeddings/.*|(.*/)?head/decoder/table")
# A gathering (no other `linear_call` is there), and what comes before and after it: where weights are not kept, none of
# these is.
GATHERING = ("reshape", "transpose", "concatenate", "linear_call", "split", "sharding_constraint")


def on_own_rows(function: Callable[..., tuple], config: MeshConfig) -> Callable[..., tuple]:
    """`function(params, rows, *rest) -> (gradients, each, sums)` by every device for its own rows, then added up.

    rows: arrays [k,b,...], of which a device has its part of b; each: such arrays, too. gradients have the paths of the
    parameters, and are sums over all rows, as are `sums`. What stands in `rest` is whole on every device. Call it
    within `sharding.activate`; on one device, and outside of a mesh, it is the function itself.
    """
    mesh = jax.sharding.get_abstract_mesh()
    own = {axis for axis, size in mesh.shape.items() if axis in BATCH_AXES or size == 1}
    several = tuple(axis for axis in BATCH_AXES if axis in mesh.shape and mesh.shape[axis] > 1)

    def of_params(params: tree.PyTree, tables: bool) -> tree.PyTree:
        """How parameters lie over the devices; tables: as all others do, else whole."""

        def spec(path: str, leaf: jax.Array) -> P:
            whole = TABLES.fullmatch(path) and not tables
            return P() if whole else only(spec_of(path, leaf.ndim, config.rules), own)

        return tree.map_with_path(spec, params)

    def reduce(path: str, gradient: jax.Array) -> jax.Array:
        spec = spec_of(path, gradient.ndim, config.rules)
        dimension = _cut_dimension(spec)
        if dimension is None or FSDP not in several:
            return jax.lax.psum(gradient, several)
        if TABLES.fullmatch(path):
            scatter = functools.partial(jax.lax.psum_scatter, axis_name=FSDP, scatter_dimension=dimension, tiled=True)
            gradient = _on_parts(scatter, (spec,), spec)(gradient)
        left = tuple(axis for axis in several if axis != FSDP)
        return jax.lax.psum(gradient, left) if left else gradient

    def of_device(params: tree.PyTree, rows: tree.PyTree, *rest: tree.PyTree) -> tuple:
        gradients, each, sums = function(params, rows, *rest)
        return tree.map_with_path(reduce, gradients), each, jax.lax.psum(sums, several)

    def run(params: tree.PyTree, rows: tree.PyTree, *rest: tree.PyTree) -> tuple:
        placed = P(None, BATCH_AXES)
        ins = (of_params(params, False), placed, *(P() for _ in rest))
        outs = (of_params(params, True), placed, P())
        cut = jax.shard_map(of_device, in_specs=ins, out_specs=outs, axis_names=own, check_vma=False)
        return cut(params, rows, *rest)

    return run if several else function


def at_use(subtree: tree.PyTree, prefix: str, dtype: jax.typing.DTypeLike) -> tree.PyTree:
    """The parameters of one layer as they enter the computation: cast, then gathered over the fsdp axis.

    Cast first, so that what travels is half as large. Biases and norm scales stay float32: they are small, and a scale
    of 1.001 would be 1 in bfloat16. `prefix` is the path of the subtree; leaves have no layer axis.
    """
    if gathers_weights():
        subtree = _whole(subtree, prefix, jnp.dtype(dtype))
    left = [axis for axis in axes_of_compiler() if axis != FSDP]

    def use(path: str, leaf: jax.Array) -> jax.Array:
        leaf = leaf if path.endswith(("bias", "scale")) else leaf.astype(dtype)
        return hold(leaf, only(spec_of(f"{prefix}/{path}", leaf.ndim, rules()), left)) if left else leaf

    return tree.map_with_path(use, subtree)


def gathers_weights() -> bool:
    """Whether `at_use` gathers weights itself, and reduces their gradient: within `on_own_rows`, with an fsdp axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return FSDP in mesh.manual_axes and mesh.shape[FSDP] > 1


def keep_all_but_gathered(primitive: jax.extend.core.Primitive, *_: object, **__: object) -> bool:
    """For `jax.checkpoint`: weights that were gathered for a layer are not kept for its backward pass, all else is.

    Kept, those of all layers would be whole on every device.
    """
    return primitive.name not in GATHERING


def _cut_dimension(spec: P) -> int | None:
    """The dimension that is cut along the fsdp axis; no leaf has two."""
    return next((number for number, entry in enumerate(spec) if FSDP in names(entry)), None)


def _whole(subtree: tree.PyTree, prefix: str, dtype: jnp.dtype) -> tree.PyTree:
    """The leaves of a layer that lie in parts, whole along the fsdp axis and in `dtype`.

    They are gathered together, as one matrix that is cut along its first axis: small ones, or others side by side, the
    compiler for TPUs would reduce whole. Those that a tensor axis cuts, too, apart from the others.
    """
    groups: dict[bool, dict[str, tuple[jax.Array, P]]] = {False: {}, True: {}}
    for path, leaf in tree.leaves(subtree):
        spec = spec_of(f"{prefix}/{path}", leaf.ndim, rules())
        if _cut_dimension(spec) is not None and not TABLES.fullmatch(f"{prefix}/{path}"):
            left = only(spec, axes_of_compiler())
            groups[any(left)][path] = (leaf, spec)
    found = {}
    for group in filter(None, groups.values()):
        leaves, specs = zip(*group.values())
        gather = functools.partial(_gathered_together, dimensions=tuple(map(_cut_dimension, specs)), dtype=dtype)
        found |= zip(group, _on_parts(gather, specs, specs)(*leaves))
    return tree.map_with_path(lambda path, leaf: found.get(path, leaf), subtree)


def _on_parts(function: Callable, ins: tuple[P, ...], outs: tuple[P, ...] | P) -> Callable:
    """`function` on what each device has along the axes that are left to the compiler, which lets those parts be.

    (It would bring them together before it scatters along the other axes.) Each argument and result is cut along all
    of these axes, or none is along any.
    """
    left = axes_of_compiler()
    ins, outs = jax.tree.map(lambda spec: only(spec, left), (ins, outs), is_leaf=lambda leaf: isinstance(leaf, P))
    if not any(map(any, ins)):
        return function
    return jax.shard_map(function, in_specs=ins, out_specs=outs, axis_names=set(left), check_vma=False)


def _gathered_together(*leaves: jax.Array, dimensions: tuple[int, ...], dtype: jnp.dtype) -> tuple[jax.Array, ...]:
    """Leaves of which each device has a part of a dimension, whole."""
    matrices = [
        jnp.moveaxis(x, dimension, 0).reshape(x.shape[dimension], -1) for x, dimension in zip(leaves, dimensions)
    ]
    whole = _gathered(jnp.concatenate(matrices, 1), dtype)
    pieces = jax.lax.split(whole, [matrix.shape[1] for matrix in matrices], 1)

    def like(piece: jax.Array, leaf: jax.Array, dimension: int) -> jax.Array:
        others = [size for number, size in enumerate(leaf.shape) if number != dimension]
        return jnp.moveaxis(piece.reshape(-1, *others), 0, dimension)

    return tuple(map(like, pieces, leaves, dimensions))


def _gathered(matrix: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """All rows of a matrix of which each device has a part, in `dtype`; their gradient is a sum in float32."""

    def gather(_: None, part: jax.Array) -> jax.Array:
        return jax.lax.all_gather(part.astype(dtype), FSDP, tiled=True)

    def scatter(_: None, whole: jax.Array) -> jax.Array:
        # the barrier keeps a compiler from adding up first, in the narrow type, and widening the sum
        wide = jax.lax.optimization_barrier(whole.astype(jnp.float32))
        return jax.lax.optimization_barrier(jax.lax.psum_scatter(wide, FSDP, tiled=True))

    return linear_call(gather, scatter, None, matrix)
