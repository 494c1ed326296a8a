"""What training changes: parameters, optimizer state, the number of steps, and what is kept beside them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key

from mlm_jax import sharding
from mlm_jax.config import MeshConfig, OptimizerConfig
from mlm_jax.models import Model
from mlm_jax.optim import average, guard

LATER = ("guard", "ema")  # fields that a run may begin, or leave, with any start


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    step: Int[Array, ""]  # finished updates, those that were left out among them
    params: dict
    optimizer: optax.OptState
    feedback: dict = dataclasses.field(default_factory=dict)  # see `feedback.py`; empty for most configs
    guard: dict = dataclasses.field(default_factory=dict)  # see `optim/guard.py`; empty without one
    ema: dict = dataclasses.field(default_factory=dict)  # see `optim/average.py`; empty without one

    @property
    def averaged(self) -> dict:
        """The parameters to evaluate: their average, where the run keeps one."""
        return self.ema["params"] if self.ema else self.params


def abstract(
    model: Model,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    config: MeshConfig,
    feedback: dict | None = None,
    settings: OptimizerConfig | None = None,
) -> State:
    """Shapes, types and shardings of a state, nothing allocated: the target of a restore, and of ahead-of-time use.

    feedback: as `feedback.start` gives it; settings: by default without a guard and an average.
    """
    key = jax.random.key(0, impl="threefry2x32")
    shapes = jax.eval_shape(lambda key: _init(model, optimizer, key, feedback, settings), key)
    placed = sharding.shardings(mesh, shapes, config)
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), shapes, placed
    )


def create(
    model: Model,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    config: MeshConfig,
    key: Key[Array, ""],
    feedback: dict | None = None,
    settings: OptimizerConfig | None = None,
) -> State:
    """A new state, each array made where it stays. feedback, settings: as in `abstract`."""
    target = abstract(model, optimizer, mesh, config, feedback, settings)
    placed = jax.tree.map(lambda leaf: leaf.sharding, target)
    return jax.jit(lambda key: _init(model, optimizer, key, feedback, settings), out_shardings=placed)(key)


def _init(
    model: Model,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    feedback: dict | None,
    settings: OptimizerConfig | None,
) -> State:
    params = model.init(key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            raise TypeError(f"parameter {path} is {leaf.dtype}; master weights are float32")
    return _new(params, optimizer, feedback, settings)


def begin(
    params: dict,
    optimizer: optax.GradientTransformation,
    target: State,
    feedback: dict | None = None,
    settings: OptimizerConfig | None = None,
) -> State:
    """A new state with these parameters, host arrays, each of which goes to where its part of `target` lies."""

    def place(leaf, where: jax.ShapeDtypeStruct) -> jax.Array:
        leaf = np.asarray(leaf, np.float32)
        return jax.make_array_from_callback(leaf.shape, where.sharding, lambda index: leaf[index])

    placed = jax.tree.map(place, params, target.params)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, target)

    return jax.jit(lambda params: _new(params, optimizer, feedback, settings), out_shardings=shardings)(placed)


def completed(state: State, settings: OptimizerConfig) -> tuple[State, list[str]]:
    """A restored state whose fields of LATER that the checkpoint did not have begin now; and a line to say so for each.

    Such fields hold abstract arrays, as `Checkpoints.restore` leaves them.
    """
    begun, lines = {}, []

    def is_abstract(field: dict) -> bool:
        return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(field))

    if is_abstract(state.guard):
        begun["guard"] = jax.tree.map(
            lambda value, to: jax.device_put(value, to.sharding), guard.start(settings), state.guard
        )
        lines.append("the running mean of gradient norms begins anew")
    if is_abstract(state.ema):
        placed = jax.tree.map(lambda leaf: leaf.sharding, state.ema)
        begun["ema"] = jax.jit(lambda params: average.start(params, settings), out_shardings=placed)(state.params)
        lines.append("the average of the parameters begins with those of this checkpoint")
    return dataclasses.replace(state, **begun), lines


def _new(
    params: dict, optimizer: optax.GradientTransformation, feedback: dict | None, settings: OptimizerConfig | None
) -> State:
    fed, settings = jax.tree.map(jnp.asarray, feedback or {}), settings or OptimizerConfig()
    guarded = jax.tree.map(jnp.asarray, guard.start(settings))
    ema = average.start(params, settings)
    return State(jnp.zeros((), jnp.int32), params, optimizer.init(params), fed, guarded, ema)
