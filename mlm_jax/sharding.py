"""Where arrays lie: parameter path -> logical axes, logical axis -> mesh axis, and the constraints that hold them.

The table of logical axes belongs to the code, the rules from logical to mesh axes to the config (`mesh.rules`).
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mlm_jax import tree
from mlm_jax.config import MeshConfig

BATCH_AXES = ("data", "fsdp")

# Path of a parameter (or of its moment in the optimizer state, which ends with it) -> logical axes, without the
# leading axis of layers that leaves of `body` have.
LOGICAL_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(.*/)?embeddings/word/table", ("vocab", "width")),
    (r"(.*/)?embeddings/(position|type)/table", (None, "width")),
    (r"(.*/)?embeddings/project/kernel", (None, "width")),
    (r"(.*/)?embeddings/project/bias", (None,)),
    (r"(.*/)?norm/(scale|bias)", (None,)),
    (r"(.*/)?attention/(query|key|value)/kernel", ("width", "heads", None)),
    (r"(.*/)?attention/(query|key|value)/bias", ("heads", None)),
    (r"(.*/)?attention/out/kernel", ("heads", None, "width")),
    (r"(.*/)?attention/out/bias", (None,)),
    (r"(.*/)?ffn/(up|gate)/kernel", ("width", "hidden")),
    (r"(.*/)?ffn/(up|gate)/bias", ("hidden",)),
    (r"(.*/)?ffn/down/kernel", ("hidden", "width")),
    (r"(.*/)?ffn/down/bias", (None,)),
    (r"(.*/)?head/dense/kernel", ("width", None)),
    (r"(.*/)?head/dense/bias", (None,)),
    (r"(.*/)?head/decoder/table", ("vocab", "width")),
    (r"(.*/)?head/bias", ("vocab",)),
    (r"(.*/)?(pair|contrast|discriminator)/dense/kernel", ("width", None)),
    (r"(.*/)?(pair|discriminator)/classifier/kernel", ("width", None)),
    (r"(.*/)?(pair|contrast|discriminator)/(dense|classifier)/bias", (None,)),
    (r"(.*/)?ns_coeffs", (None,)),  # of Muon
    (r"feedback/surprisal", (None,)),
)

_RULES: contextvars.ContextVar[tuple[tuple[str, str], ...]] = contextvars.ContextVar("rules", default=())


def make_mesh(shape: dict[str, int], devices: list | None = None) -> Mesh:
    """A mesh with the axes data, fsdp and tensor, all of them automatic."""
    return jax.make_mesh(tuple(shape.values()), tuple(shape), (AxisType.Auto,) * len(shape), devices=devices)


@contextlib.contextmanager
def activate(mesh: Mesh, config: MeshConfig) -> Iterator[None]:
    """Within it, `constrain` and `at_use` hold arrays to this mesh; outside, they leave them alone."""
    token = _RULES.set(config.rules)
    try:
        with jax.set_mesh(mesh):
            yield
    finally:
        _RULES.reset(token)


def spec_of(path: str, ndim: int, rules: tuple[tuple[str, str], ...]) -> P:
    """The partition of one leaf. Scalars are replicated. Raises KeyError for a path that the table does not know."""
    if ndim == 0:
        return P()
    axes = tree.first_match(LOGICAL_AXES, path, "sharding")
    if ndim == len(axes) + 1 and (path.startswith("body/") or "/body/" in path):
        axes = (None, *axes)
    if ndim != len(axes):
        raise ValueError(f"sharding: {path} has {ndim} axes, its logical axes are {axes}")
    table = dict(rules)
    mesh_axes = [table.get(axis) if axis else None for axis in axes]
    used = [axis for axis in mesh_axes if axis]
    if len(set(used)) != len(used):
        raise ValueError(f"sharding: {path} would use a mesh axis twice: {axes} -> {mesh_axes}")
    return P(*mesh_axes)


def shardings(mesh: Mesh, values: tree.PyTree, config: MeshConfig) -> tree.PyTree:
    """A NamedSharding for every leaf of parameters, optimizer state or their abstract values."""
    return tree.map_with_path(lambda path, leaf: NamedSharding(mesh, spec_of(path, leaf.ndim, config.rules)), values)


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Of arrays [b, ...], or [k, b, ...] with leading=1: rows are cut over the data and fsdp axes."""
    return NamedSharding(mesh, P(*(None,) * leading, BATCH_AXES))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Holds an activation to logical axes (`batch`, or one of the rules'); does nothing outside a mesh."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, _spec(axes))


def per_device(
    function: Callable[..., jax.Array], arguments: tuple[tuple[str | None, ...], ...], result: tuple[str | None, ...]
) -> Callable[..., jax.Array]:
    """`function` run on each device's parts of its arguments, for kernels that the compiler cannot cut itself.

    arguments, result: their logical axes, as for `constrain`. Outside a mesh it is the function itself.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    specs = tuple(map(_spec, arguments))
    return jax.shard_map(function, in_specs=specs, out_specs=_spec(result), check_vma=False)


def parts(axis: str) -> int:
    """How many parts the mesh cuts a logical axis of an activation into; 1 outside a mesh."""
    names = _table().get(axis) or ()
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return math.prod(sizes.get(name, 1) for name in ((names,) if isinstance(names, str) else names))


def platform() -> str:
    """What is compiled for: cpu, gpu or tpu. That of the mesh's devices, which may be on no machine; else jax's own."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _table() -> dict[str, str | tuple[str, ...]]:
    return {"batch": BATCH_AXES, **dict(_RULES.get())}


def _spec(axes: tuple[str | None, ...]) -> P:
    return P(*(_table().get(axis) if axis else None for axis in axes))


def at_use(subtree: tree.PyTree, prefix: str, dtype: jax.typing.DTypeLike) -> tree.PyTree:
    """The parameters of one layer as they enter the computation: cast, then gathered over the fsdp axis.

    Cast first, so that what travels is half as large. Biases and norm scales stay float32: they are small, and a scale
    of 1.001 would be 1 in bfloat16. `prefix` is the path of the subtree; leaves have no layer axis.
    """

    def use(path: str, leaf: jax.Array) -> jax.Array:
        if not path.endswith(("bias", "scale")):
            leaf = leaf.astype(dtype)
        if jax.sharding.get_abstract_mesh().empty:
            return leaf
        rules = tuple(rule for rule in _RULES.get() if rule[1] != "fsdp")
        return jax.lax.with_sharding_constraint(leaf, spec_of(f"{prefix}/{path}", leaf.ndim, rules))

    return tree.map_with_path(use, subtree)
