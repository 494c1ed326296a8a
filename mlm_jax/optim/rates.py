"""Learning rate and decay of each parameter, and which stay as they are, by its layer path (`tree.layer_paths`)."""

import difflib
import re

import jax.numpy as jnp
import numpy as np
import optax

from mlm_jax import tree
from mlm_jax.config import ConfigError, OptimizerConfig


def rate_factor(path: str, layers: int, config: OptimizerConfig) -> float:
    """Learning rate of a layer path as a multiple of `learning_rate`; 0 for what is frozen.

    With `groups`, the first pattern that matches the whole path; a path without one is an error. Otherwise
    layer_decay ** distance, the distance from the head being 0 for heads and the norm below them, 1 for the last
    layer, and layers + 1 for the embeddings; a table that the head shares with the embeddings has the embeddings' rate.
    A generator, whose layers are all there is of it, has the whole rate.
    """
    if frozen(path, config):
        return 0.0
    if config.groups:
        try:
            return tree.first_match(config.groups, path, "optimizer.groups") / config.learning_rate
        except KeyError as error:
            raise ConfigError("config.optimizer.groups", config.groups, str(error.args[0])) from None
    part, *rest = path.split("/")
    distance = layers - int(rest[0]) if part == "layers" else {"embeddings": layers + 1}.get(part, 0)
    return config.layer_decay**distance


def frozen(path: str, config: OptimizerConfig) -> bool:
    """Whether a pattern of `freeze` matches the whole layer path."""
    return any(re.fullmatch(pattern, path) for pattern in config.freeze)


def check_frozen(params: dict, config: OptimizerConfig) -> None:
    """Raises ConfigError where a pattern of `freeze` matches no parameter, or where none is left to train."""
    key, paths = "config.optimizer.freeze", [path for leaf in tree.layer_paths(params).values() for path in leaf.paths]
    for pattern in config.freeze:
        if not any(re.fullmatch(pattern, path) for path in paths):
            near = ", ".join(difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0))
            raise ConfigError(key, pattern, f"matches no parameter as a whole; nearest paths: {near}")
    if all(frozen(path, config) for path in paths):
        raise ConfigError(key, config.freeze, f"freezes all {len(paths)} parameters; leave some to train")


def only_trained(values: tree.PyTree, config: OptimizerConfig) -> tree.PyTree:
    """Gradients, or anything of the shape of the parameters, with 0 for all that is frozen, whatever stood there."""
    if not config.freeze:
        return values
    paths = tree.layer_paths(values)

    def keep(name, leaf):
        stays = np.array([frozen(path, config) for path in paths[name].paths])
        if stays.all() or not stays.any():
            return jnp.zeros_like(leaf) if stays.all() else leaf
        return jnp.where(_along_layers(stays, paths[name], leaf.ndim), jnp.zeros((), leaf.dtype), leaf)

    return tree.map_with_path(keep, values)


def _along_layers(values: np.ndarray, paths: tree.LayerPaths, ndim: int) -> np.ndarray:
    """A number for each layer path of a leaf, in the shape that goes with the leaf."""
    return values.reshape((-1,) + (1,) * (ndim - 1) if paths.stacked else (1,) * ndim)


def decays(path: str) -> bool:
    """Whether weight decay holds for a layer path: not for biases and norm scales."""
    return not path.endswith(("/bias", "/scale"))


def table(params: dict, config: OptimizerConfig) -> list[tuple[str, float, float, int]]:
    """(layer path, peak learning rate, weight decay, number of values) of every parameter, in order of depth.

    Rate and decay of what is frozen are 0. Raises ConfigError for patterns that do not fit the parameters.
    """
    check_frozen(params, config)
    layers = tree.layer_count(params)
    rows = []
    leaves = dict(tree.leaves(params))
    for name, paths in tree.layer_paths(params).items():
        for path in paths.paths:
            rate = config.learning_rate * rate_factor(path, layers, config)
            size = int(np.prod(leaves[name].shape)) // len(paths.paths)
            decay = config.weight_decay * (decays(path) and not frozen(path, config))
            rows.append((path, rate, decay, size))
    return sorted(rows, key=lambda row: _depth(row[0], layers))


def _depth(path: str, layers: int) -> int:
    """Place of a parameter's part from the embeddings on: layers by their depth, then the norm, then the heads."""
    part, *rest = path.split("/")
    return int(rest[0]) if part == "layers" else {"embeddings": -1, "norm": layers}.get(part, layers + 1)


def scale_by_layer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Multiplies each update by the rate factor of its layer; stacked leaves by a vector along the axis of layers."""

    def init(params):
        check_frozen(params, config)
        return optax.EmptyState()

    def update(updates, state, params=None):
        layers, paths = tree.layer_count(updates), tree.layer_paths(updates)

        def scale(name, leaf):
            factors = np.array([rate_factor(path, layers, config) for path in paths[name].paths], np.float32)
            return leaf if np.all(factors == 1) else leaf * _along_layers(factors, paths[name], leaf.ndim)

        return only_trained(tree.map_with_path(scale, updates), config), state

    return optax.GradientTransformation(init, update)
