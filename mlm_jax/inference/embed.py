"""Texts to vectors."""

import functools
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mlm_jax.config import ConfigError
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.rows import Item, Rows
from mlm_jax.inference.run import Program, in_pieces, of_segments
from mlm_jax.inference.windows import cut
from mlm_jax.models import Model

POOLINGS: dict[str, Callable[[Model, dict, Rows], Float[Array, "b p d"]]] = {}


def embed(loaded: Loaded, texts: Iterable[str], pooling: str = "mean", normalize: bool = False) -> np.ndarray:
    """One vector for each text, f32[texts,d], by the states of the last layer.

    pooling: `mean` over the tokens of the text, CLS and SEP among them, as sentence encoders take it (Reimers and
    Gurevych 2019, "Sentence-BERT", section 3); `cls`: the state of CLS. normalize: to length 1. A text that is longer
    than the model reads is read in overlapping windows: the mean goes over all its tokens, each read once where it has
    the most around it; `cls` is the mean over the windows. Raises ConfigError for an unknown pooling.
    """
    found = list(embeddings(loaded, texts, pooling, normalize))
    return np.stack(found) if found else np.zeros((0, loaded.model.config.width), np.float32)


def embeddings(
    loaded: Loaded, texts: Iterable[str], pooling: str = "mean", normalize: bool = False
) -> Iterator[np.ndarray]:
    """The vectors of `embed` one after another, f32[d]; texts may be a stream."""
    if pooling not in POOLINGS:
        raise ConfigError("pooling", pooling, f"there is {', '.join(POOLINGS)}")
    program = _program(loaded.model, pooling)
    for piece in in_pieces(texts):
        items, owners, weights = [], [], []
        for number, ids in enumerate(loaded.encode(piece)):
            for window in cut(len(ids), loaded.limit - 2):
                whole = loaded.surrounded(ids[window.start : window.stop])
                counted = np.zeros(len(whole), bool)
                counted[window.first - window.start + 1 : window.last - window.start + 1] = True
                counted[[0, -1]] = window.first == 0, window.last == len(ids)
                items.append(Item(whole, counted=counted))
                owners.append(number)
                weights.append(counted.sum() if pooling == "mean" else 1)
        sums, totals = np.zeros((len(piece), loaded.model.config.width)), np.zeros(len(piece))
        for owner, weight, answer in zip(owners, weights, of_segments(program, loaded.params, items)):
            sums[owner] += weight * answer["vector"]
            totals[owner] += weight
        vectors = sums / totals[:, None]
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        yield from vectors.astype(np.float32)


@functools.lru_cache(maxsize=8)
def _program(model: Model, pooling: str) -> Program:
    @jax.jit
    def program(params: dict, rows: Rows) -> dict[str, Array]:
        return {"vector": POOLINGS[pooling](model, params, rows)}

    return program


def _mean(model: Model, params: dict, rows: Rows) -> Float[Array, "b p d"]:
    """Sums in float32: the mean of each segment's counted tokens."""
    hidden = model.apply(params, rows.batch).hidden.astype(jnp.float32)
    segment = jnp.where(rows.counted, rows.batch.segments, 0)[:, None, :]  # [b,1,t]
    own = (segment == jnp.arange(1, rows.batch.firsts.shape[1] + 1)[None, :, None]).astype(jnp.float32)  # [b,p,t]
    sums = jnp.einsum("bpt,btd->bpd", own, hidden, precision="highest")
    return sums / jnp.maximum(own.sum(-1), 1.0)[..., None]


def _cls(model: Model, params: dict, rows: Rows) -> Float[Array, "b p d"]:
    """The last layer is computed at these alone."""
    return model.apply(params, rows.batch, at=rows.batch.firsts).hidden.astype(jnp.float32)


POOLINGS |= {"mean": _mean, "cls": _cls}
