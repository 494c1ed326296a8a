"""Optimizers as optax transformations: what becomes of a gradient before it is scaled by a learning rate.

Whatever an optimizer does by tensor it does by layer: leaves that hold several layers have them along their first axis.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from mlm_jax import tree
from mlm_jax.config import OptimizerConfig
from mlm_jax.optim.rates import decays

MUON_RMS = 0.2  # of the numbers in Muon's updates, about that of AdamW's (Liu et al., 2025, section 2.2)
# what Muon leaves to Adam, beside vectors, in the model and in its generator
NEITHER = ("embeddings/", "head/", "pair/", "contrast/", "discriminator/", "task/", "norm/")


def by_layer(function: Callable[..., jax.Array], *trees: tree.PyTree) -> tree.PyTree:
    """`jax.tree.map(function, *trees)`, each layer of a stacked leaf on its own."""
    paths = tree.layer_paths(trees[0])

    def apply(path, *leaves):
        return (jax.vmap(function) if paths[path].stacked else function)(*leaves)

    return tree.map_with_path(apply, *trees)


def adamw(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    """Loshchilov and Hutter, 2019."""
    return [optax.scale_by_adam(config.b1, config.b2, config.epsilon), decay(config)]


def stable_adamw(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    """AdamW with AdaFactor's clipping of updates (Wortsman et al., 2023, algorithm 2).

    Of each tensor with gradient g and second moment u, bias-corrected, the update without decay is divided by
    max(1, sqrt(mean(g^2 / max(u, epsilon^2)))).
    """
    adam = optax.scale_by_adam(config.b1, config.b2, config.epsilon)

    def update(gradients, state, params=None):
        updates, state = adam.update(gradients, state, params)
        unbiased = 1 - config.b2 ** state.count.astype(jnp.float32)

        def clipped(update, gradient, second):
            expected = jnp.maximum(second / unbiased, config.epsilon**2)
            return update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(jnp.square(gradient) / expected)))

        return by_layer(clipped, updates, gradients, state.nu), state

    return [optax.GradientTransformation(adam.init, update), decay(config)]


def lamb(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    """You et al., 2020, algorithm 2: AdamW whose update of a tensor, decay included, is as long as the tensor itself.

    Biases and norm scales, which do not decay, are not scaled either, and nothing is where one of the norms is 0.
    """

    def update(updates, state, params):
        def ratio(update, parameter):
            length, own = jnp.linalg.norm(update.reshape(-1)), jnp.linalg.norm(parameter.reshape(-1))
            return update * jnp.where((own > 0) & (length > 0), own / jnp.where(length > 0, length, 1.0), 1.0)

        scaled = by_layer(ratio, updates, params)
        return tree.map_with_path(lambda path, one, other: one if decays(path) else other, scaled, updates), state

    return [*adamw(config), optax.GradientTransformation(lambda params: optax.EmptyState(), update)]


class Sizes(NamedTuple):
    """Of a matrix kernel: the axes that it sums over, and those of its results, as one side each; their sizes."""

    summed: tuple[int, ...]
    results: tuple[int, ...]
    longer: int


def matrix(path: str, shape: tuple[int, ...], stacked: bool) -> Sizes | None:
    """How a kernel within a layer is a matrix; None for all other parameters."""
    if path.removeprefix(f"{tree.GENERATOR}/").startswith(NEITHER) or not path.endswith("/kernel"):
        return None
    axes = range(int(stacked), len(shape))
    inputs = len(axes) - 1 if "/out/" in path else 1  # attention's output sums over heads and their sizes
    summed, results = tuple(axes[:inputs]), tuple(axes[inputs:])
    sides = (math.prod(shape[axis] for axis in side) for side in (summed, results))
    return Sizes(summed, results, max(sides))


def muon(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    """Muon (Jordan et al., 2024) for the matrices of layers, Adam for embeddings, the head, biases and norms.

    The momentum of a matrix is made orthogonal by five Newton-Schulz iterations; times 0.2 sqrt(longer side) its
    numbers are about as large as Adam's, so that rate and decay are the same for all (Liu et al., 2025, equation 4).
    """

    def sizes(params):
        paths = tree.layer_paths(params)
        return tree.map_with_path(lambda path, leaf: matrix(path, leaf.shape, paths[path].stacked), params)

    def dimensions(params):
        return jax.tree.map(
            lambda one: contrib.MuonDimensionNumbers(one.summed, one.results), sizes(params), is_leaf=_is_sizes
        )

    def labels(params):
        return jax.tree.map(lambda one: "adam" if one is None else "muon", sizes(params), is_leaf=_is_sizes)

    def scaled(updates, state, params=None):
        def one(update, size):
            return update if size is None else update * MUON_RMS * size.longer**0.5

        return jax.tree.map(one, updates, sizes(updates)), state

    both = {
        "muon": contrib.scale_by_muon(beta=config.muon_momentum, weight_dimension_numbers=dimensions),
        "adam": optax.scale_by_adam(config.b1, config.b2, config.epsilon),
    }
    rescale = optax.GradientTransformation(lambda params: optax.EmptyState(), scaled)
    return [optax.partition(both, labels), rescale, decay(config)]


def _is_sizes(value: object) -> bool:
    return value is None or isinstance(value, Sizes)


def decay(config: OptimizerConfig) -> optax.GradientTransformation:
    """Decoupled weight decay, which spares biases and norm scales."""

    def mask(params):
        return tree.map_with_path(lambda path, _: decays(path), params)

    return optax.add_decayed_weights(config.weight_decay, mask)


OPTIMIZERS = {"adamw": adamw, "stable_adamw": stable_adamw, "lamb": lamb, "muon": muon}
