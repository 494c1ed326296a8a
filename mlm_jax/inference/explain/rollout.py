"""Where a gap looks: attention, and how it flows through the layers."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array

from mlm_jax.batch import Batch
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.rows import Item, batches
from mlm_jax.models import Model


def attention(loaded: Loaded, ids: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a segment i32[n]: the mean over heads f64[l,n,n] of each layer, and what the place attends to, f64[l,h,n]."""
    rows, _ = next(batches([Item(ids)], len(ids)))
    means, own = _program(loaded.model)(loaded.params, rows.batch, np.int32(place))
    n = len(ids)
    return np.asarray(means, np.float64)[:, :n, :n], np.asarray(own, np.float64)[..., :n]


def rollout(means: np.ndarray) -> np.ndarray:
    """What the places of the last layer have of the tokens that went in, f64[n,n], from `means` of `attention`.

    Abnar and Zuidema 2020, "Quantifying attention flow in transformers", section 3: half of each layer is the identity,
    for the residual connection, and the layers are multiplied from the first one on. Rows sum to 1.
    """
    flow = np.eye(means.shape[1])
    for layer in means:
        mixed = (layer + np.eye(len(layer))) / 2
        flow = mixed / mixed.sum(1, keepdims=True) @ flow
    return flow


@functools.lru_cache(maxsize=8)
def _program(model: Model) -> Callable[..., tuple[Array, Array]]:
    @jax.jit
    def program(params: dict, batch: Batch, place: Array) -> tuple[Array, Array]:
        found = model.filler.apply(params, batch, want=("attention",)).out["attention"][:, 0]  # [l,h,t,t]
        return found.mean(1), found[:, :, place]

    return program
