"""Long curves as few points: what a picture of a few hundred pixels can show of half a million steps."""

import numpy as np
from jaxtyping import Float, Int

POINTS = 400  # of a drawn curve


def finite(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """The points that have a value."""
    kept = np.isfinite(y)
    return x[kept], y[kept]


def smooth(y: Float[np.ndarray, " n"], share: float = 0.03) -> Float[np.ndarray, " n"]:
    """Means over a window of so large a share of the values.

    It is centred, and shrinks towards the start, where a loss falls steeply; at the end it only looks back.
    """
    n = len(y)
    half = int(n * share / 2)
    place = np.arange(n)
    first, after = np.maximum(place - half, 0), np.minimum(np.minimum(place + half, 2 * place), n - 1) + 1
    total = np.concatenate([[0.0], np.cumsum(y)])
    return (total[after] - total[first]) / (after - first)


def pick(n: int, most: int = POINTS) -> Int[np.ndarray, " k"]:
    """At most `most` places among n, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.zeros(0, int)


def envelope(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], most: int = 2 * POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points with the least and the largest of each run of values, in order: no spike is lost."""
    if len(x) <= most:
        return x, y
    places = []
    for run in np.array_split(np.arange(len(y)), most // 2):
        places += sorted({int(run[y[run].argmin()]), int(run[y[run].argmax()])})
    return x[places], y[places]


def runs(n: int, most: int = POINTS // 2, least: int = 10) -> list[np.ndarray]:
    """The places 0 .. n-1 in at most `most` runs of at least `least` each, where there are so many."""
    return np.array_split(np.arange(n), max(1, min(most, n // least))) if n else []
