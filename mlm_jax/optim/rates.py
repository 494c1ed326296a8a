"""Learning rate and decay of each parameter, by its layer path (`tree.layer_paths`)."""

import numpy as np
import optax

from mlm_jax import tree
from mlm_jax.config import ConfigError, OptimizerConfig


def rate_factor(path: str, layers: int, config: OptimizerConfig) -> float:
    """Learning rate of a layer path as a multiple of `learning_rate`.

    With `groups`, the first pattern that matches the whole path; a path without one is an error. Otherwise
    layer_decay ** distance, the distance from the head being 0 for the head and the norm below it, 1 for the last
    layer, and layers + 1 for the embeddings; a table that the head shares with the embeddings has the embeddings' rate.
    """
    if config.groups:
        try:
            return tree.first_match(config.groups, path, "optimizer.groups") / config.learning_rate
        except KeyError as error:
            raise ConfigError("config.optimizer.groups", config.groups, str(error.args[0])) from None
    part, *rest = path.split("/")
    distance = {"head": 0, "norm": 0, "embeddings": layers + 1}[part] if part != "layers" else layers - int(rest[0])
    return config.layer_decay**distance


def decays(path: str) -> bool:
    """Whether weight decay holds for a layer path: not for biases and norm scales."""
    return not path.endswith(("/bias", "/scale"))


def table(params: dict, config: OptimizerConfig) -> list[tuple[str, float, float, int]]:
    """(layer path, peak learning rate, weight decay, number of values) of every parameter, in order of depth."""
    layers = tree.layer_count(params)
    rows = []
    leaves = dict(tree.leaves(params))
    for name, paths in tree.layer_paths(params).items():
        for path in paths.paths:
            rate = config.learning_rate * rate_factor(path, layers, config)
            size = int(np.prod(leaves[name].shape)) // len(paths.paths)
            rows.append((path, rate, config.weight_decay * decays(path), size))
    order = {"embeddings": -1, "norm": layers, "head": layers + 1}
    return sorted(rows, key=lambda row: _depth(row[0], order))


def _depth(path: str, order: dict[str, int]) -> int:
    part, *rest = path.split("/")
    return order[part] if part in order else int(rest[0])


def scale_by_layer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Multiplies each update by the rate factor of its layer; stacked leaves by a vector along the axis of layers."""

    def update(updates, state, params=None):
        layers, paths = tree.layer_count(updates), tree.layer_paths(updates)

        def scale(name, leaf):
            factors = np.array([rate_factor(path, layers, config) for path in paths[name].paths], np.float32)
            if np.all(factors == 1):
                return leaf
            shape = (-1,) + (1,) * (leaf.ndim - 1) if paths[name].stacked else (1,) * leaf.ndim
            return leaf * factors.reshape(shape)

        return tree.map_with_path(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
