"""What the words around a gap do to the log-probability of a word in it, in nats."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mlm_jax.batch import Batch
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.rows import Item, Rows, batches
from mlm_jax.inference.run import Program, at_places, batch_tokens
from mlm_jax.models import Model

AT_A_TIME = 16  # points of the path, at most
MOST_STEPS = 512
SMALL_GAP = 0.02  # of the completeness: no more points are needed
LEAST_CHANGE = 0.01  # nats; the gap of a smaller change is told in parts of this


class Integrated(NamedTuple):
    """Integrated gradients, and whether they add up."""

    scores: np.ndarray  # f64[n], nats by token
    expected: float  # log-probability of the word, less that in the baseline: what the scores should add up to
    steps: int  # points of the path

    @property
    def gap(self) -> float:
        """How far the sum is off, as a part of what is expected."""
        return abs(self.scores.sum() - self.expected) / max(abs(self.expected), LEAST_CHANGE)


def log_probabilities(
    loaded: Loaded, segments: Sequence[np.ndarray], place: int, target: int, top_k: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of segments i32[n]: the log-probability of an id at a place f64[segments], the best ids i32[segments,k] there,
    and their log-probabilities.
    """
    program = _at_gap(loaded.model, loaded.tokenizer.size, min(top_k, loaded.tokenizer.size))
    at, targets = np.array([place], np.int32), np.array([target], np.int32)
    answers = at_places(program, loaded.params, [Item(ids, at, targets) for ids in segments])
    found = (np.stack([answer[name][0] for answer in answers]) for name in ("target", "best", "chances"))
    return tuple(array if array.dtype == np.int32 else array.astype(np.float64) for array in found)


@functools.lru_cache(maxsize=8)
def _at_gap(model: Model, size: int, top_k: int) -> Program:
    @jax.jit
    def program(params: dict, rows: Rows) -> dict[str, Array]:
        found = _log_softmax(model, size, params, rows.batch, rows.at)
        chances, best = jax.lax.top_k(found, top_k)
        target = jnp.take_along_axis(found, rows.targets[..., None], axis=-1)[..., 0]
        return {"target": target, "best": best.astype(jnp.int32), "chances": chances}

    return program


def _log_softmax(
    model: Model, size: int, params: dict, batch: Batch, at: Int[Array, "b q"], words: Array | None = None
) -> Float[Array, "b q v"]:
    """Without the model's spare rows, which are no token."""
    hidden = model.filler.apply(params, batch, at=at, words=words).hidden
    return jax.nn.log_softmax(model.filler.logits(params, hidden)[..., :size].astype(jnp.float32))


# ---- leave one out ----


def without(ids: np.ndarray, mask: int, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """A copy of a segment for each span of tokens first .. last-1, in which MASK stands for all of them."""
    copies = []
    for first, last in spans:
        copy = ids.copy()
        copy[first:last] = mask
        copies.append(copy)
    return copies


# ---- integrated gradients ----


def baseline(loaded: Loaded, ids: np.ndarray) -> np.ndarray:
    """The segment without what it says, i32[n]: MASK in the place of every token but CLS and SEP at its ends."""
    return without(ids, loaded.tokenizer.mask, [(1, len(ids) - 1)])[0]


def integrated_gradients(
    loaded: Loaded, ids: np.ndarray, place: int, target: int, expected: float, steps: int
) -> Integrated:
    """Sundararajan, Taly and Yan 2017, "Axiomatic attribution for deep networks", equation 1, for the log-probability
    of an id at a place, with respect to the word vectors.

    The score of a token is the sum over the width of (x - x') times the integral of the gradient over the straight path
    from the baseline x' to the vectors x of the segment. Their sum over steps (equation 3) is that of Gauss and
    Legendre with `steps` points, which are doubled until the gap is below SMALL_GAP or there are MOST_STEPS.
    expected: see `Integrated`; it is what their proposition 1 (completeness) says of the sum.
    """
    while True:
        found = Integrated(path_integral(loaded, ids, place, target, *gauss_legendre(steps)), expected, steps)
        if found.gap < SMALL_GAP or 2 * steps > MOST_STEPS:
            return found
        steps *= 2


def gauss_legendre(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights f64[steps] for an integral from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return (points + 1) / 2, weights / 2


def path_integral(
    loaded: Loaded, ids: np.ndarray, place: int, target: int, points: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Scores f64[n] of the tokens by any points in 0 .. 1 of the path, with their weights f64[points]."""
    rows, _ = next(batches([Item(ids)], len(ids)))
    away = np.zeros_like(rows.batch.tokens)
    away[0, : len(ids)] = baseline(loaded, ids)
    together = max(1, min(AT_A_TIME, batch_tokens() // away.shape[1]))
    rest = -len(points) % together
    points, weights = np.pad(points, (0, rest)), np.pad(weights, (0, rest))
    program = _path(loaded.model, loaded.tokenizer.size)
    scores = np.zeros(away.shape[1])
    for first in range(0, len(points), together):
        some = (array[first : first + together].astype(np.float32) for array in (points, weights))
        scores += np.asarray(program(loaded.params, rows.batch, away, np.int32(place), np.int32(target), *some))
    return scores[: len(ids)]


@functools.lru_cache(maxsize=8)
def _path(model: Model, size: int) -> Callable[..., Float[Array, "t"]]:
    @jax.jit
    def program(params: dict, batch: Batch, away: Array, place: Array, target: Array, points: Array, weights: Array):
        table = params["embeddings"]["word"]["table"]
        x, base = (jnp.take(table, ids, axis=0, mode="clip") for ids in (batch.tokens, away))  # [1,t,e]
        batch = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(points), *leaf.shape[1:])), batch)
        at = jnp.full((len(points), 1), place)

        def total(words: Float[Array, "n t e"]) -> Float[Array, ""]:
            return _log_softmax(model, size, params, batch, at, words)[:, 0, target].sum()

        gradients = jax.grad(total)(base + points[:, None, None] * (x - base))
        mean = jnp.einsum("n,nte->te", weights, gradients, precision="highest")
        return ((x - base)[0] * mean).sum(-1)

    return program
