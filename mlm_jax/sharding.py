"""Where arrays lie: parameter path -> logical axes, logical axis -> mesh axis, and the constraints that hold them.

The table of logical axes belongs to the code, the rules from logical to mesh axes to the config (`mesh.rules`). Code
is written for all rows, and the compiler cuts it by the constraints; but within `parallel.on_own_rows` it is run by
every device for its own rows, and the compiler cuts along the axes alone that are left to it.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Collection, Iterator, Sequence

import jax
from jax.experimental import mesh_utils
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
    (r"(.*/)?(pair|contrast|discriminator|task)/dense/kernel", ("width", None)),
    (r"(.*/)?(pair|discriminator|task)/classifier/kernel", ("width", None)),
    (r"(.*/)?(pair|contrast|discriminator|task)/(dense|classifier)/bias", (None,)),
    (r"(.*/)?ns_coeffs", (None,)),  # of Muon
    (r"feedback/surprisal", (None,)),
)

_RULES: contextvars.ContextVar[tuple[tuple[str, str], ...]] = contextvars.ContextVar("rules", default=())


def make_mesh(shape: dict[str, int], devices: list | None = None) -> Mesh:
    """A mesh with the axes data, fsdp and tensor, all of them automatic.

    Of devices in several slices, which slower links join, the outer axes cross the borders as far as they divide: data
    first, see `between_slices`.
    """
    devices = jax.devices() if devices is None else devices
    slices = slices_of(devices)
    kinds = (AxisType.Auto,) * len(shape)
    if slices == 1:
        return jax.make_mesh(tuple(shape.values()), tuple(shape), kinds, devices=devices)
    outer = between_slices(shape, slices)
    inner = [size // outer[axis] for axis, size in shape.items()]
    return Mesh(mesh_utils.create_hybrid_device_mesh(inner, list(outer.values()), devices), tuple(shape), kinds)


def slices_of(devices: Sequence) -> int:
    """In how many slices devices stand; 1 where they do not tell."""
    return len({getattr(device, "slice_index", None) for device in devices})


def between_slices(shape: dict[str, int], slices: int) -> dict[str, int]:
    """Axis -> in how many parts it lies over the slices, of which each holds a part of the mesh."""
    outer = {}
    for axis, size in shape.items():
        outer[axis] = math.gcd(size, slices)
        slices //= outer[axis]
    return outer


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
    return hold(x, _spec(axes))


def hold(x: jax.Array, spec: P) -> jax.Array:
    """Holds an array to those mesh axes of a spec that are the compiler's; does nothing outside a mesh."""
    left = axes_of_compiler()
    return jax.lax.with_sharding_constraint(x, only(spec, left)) if left else x


def per_device(
    function: Callable[..., jax.Array], arguments: tuple[tuple[str | None, ...], ...], result: tuple[str | None, ...]
) -> Callable[..., jax.Array]:
    """`function` run on each device's parts of its arguments, for kernels that the compiler cannot cut itself.

    arguments, result: their logical axes, as for `constrain`. Where the compiler cuts nothing it is just the function.
    """
    left = axes_of_compiler()
    if not left:
        return function
    specs = tuple(map(_spec, arguments))
    return jax.shard_map(function, in_specs=specs, out_specs=_spec(result), axis_names=set(left), check_vma=False)


def parts(axis: str) -> int:
    """How many parts the compiler cuts a logical axis of an activation into; 1 outside a mesh."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return math.prod(sizes[name] for name in names(_spec((axis,))[0]))


def platform() -> str:
    """What is compiled for: cpu, gpu or tpu. That of the mesh's devices, which may be on no machine; else jax's own."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def rules() -> tuple[tuple[str, str], ...]:
    """The rules of the mesh that is active; none without one."""
    return _RULES.get()


def axes_of_compiler() -> tuple[str, ...]:
    """The axes of the mesh along which the compiler cuts what is computed here; none outside a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(axis for axis in mesh.axis_names if axis not in mesh.manual_axes)


def names(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def only(spec: P, axes: Collection[str]) -> P:
    """A spec with these mesh axes alone."""
    kept = [tuple(name for name in names(entry) if name in axes) for entry in spec]
    return P(*(some if len(some) > 1 else some[0] if some else None for some in kept))


def _spec(axes: tuple[str | None, ...]) -> P:
    """Of logical axes, with those mesh axes alone that are the compiler's."""
    table = {"batch": BATCH_AXES, **dict(rules())}
    return only(P(*(table.get(axis) if axis else None for axis in axes)), axes_of_compiler())
