"""What training changes: parameters, optimizer state, the number of finished updates, and what masks take from them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key

from mlm_jax import sharding
from mlm_jax.config import MeshConfig
from mlm_jax.models import Model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    step: Int[Array, ""]  # finished updates
    params: dict
    optimizer: optax.OptState
    feedback: dict = dataclasses.field(default_factory=dict)  # see `feedback.py`; empty for most configs


def abstract(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, config: MeshConfig, feedback: dict | None = None
) -> State:
    """Shapes, types and shardings of a state, nothing allocated: the target of a restore, and of ahead-of-time use.

    feedback: as `feedback.start` gives it.
    """
    key = jax.random.key(0, impl="threefry2x32")
    shapes = jax.eval_shape(lambda key: _init(model, optimizer, key, feedback), key)
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
) -> State:
    """A new state, each array made where it stays. feedback: as `feedback.start` gives it."""
    target = abstract(model, optimizer, mesh, config, feedback)
    placed = jax.tree.map(lambda leaf: leaf.sharding, target)
    return jax.jit(lambda key: _init(model, optimizer, key, feedback), out_shardings=placed)(key)


def _init(model: Model, optimizer: optax.GradientTransformation, key: Key[Array, ""], feedback: dict | None) -> State:
    params = model.init(key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            raise TypeError(f"parameter {path} is {leaf.dtype}; master weights are float32")
    return _new(params, optimizer, feedback)


def begin(params: dict, optimizer: optax.GradientTransformation, target: State, feedback: dict | None = None) -> State:
    """A new state with these parameters, host arrays, each of which goes to where its part of `target` lies."""

    def place(leaf, where: jax.ShapeDtypeStruct) -> jax.Array:
        leaf = np.asarray(leaf, np.float32)
        return jax.make_array_from_callback(leaf.shape, where.sharding, lambda index: leaf[index])

    placed = jax.tree.map(place, params, target.params)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, target)

    return jax.jit(lambda params: _new(params, optimizer, feedback), out_shardings=shardings)(placed)


def _new(params: dict, optimizer: optax.GradientTransformation, feedback: dict | None) -> State:
    fed = jax.tree.map(jnp.asarray, feedback or {})
    return State(jnp.zeros((), jnp.int32), params, optimizer.init(params), fed)
