"""Which texts are nearly the same: signatures that agree in a band are compared in full (Leskovec et al., chapter 3.4).

A signature of k places is cut into bands of r places, the most for which two texts as similar as asked share a band
with a chance of 0.99 at least. Texts that share a band stand in one bucket, in the order that is given. In each bucket
all others are compared with the first; those that belong to it neither by the estimated similarity nor by what was
found before stay, and the first of them is the next one that the others are compared with, `ROUNDS` times at most. What
is similar belongs together, and so does what is linked by others.

Memory: 40 bytes a text, and those pairs that are compared; signatures and bands lie on disk, 512 bytes and 8 a band.
"""

from pathlib import Path

import numpy as np

from mlm_jax.prepare.hashing import PHRASE_FACTOR, mix

CHANCE = 0.99
ROUNDS = 16
AT_A_TIME = 1 << 14  # signatures


def rows_of_bands(similarity: float, places: int) -> int:
    """Places of each band."""
    chances = (1 - (1 - similarity**rows) ** (places // rows) for rows in range(1, places + 1))
    return max(rows for rows, chance in enumerate(chances, 1) if chance >= CHANCE or rows == 1)


def components(signatures: np.ndarray, order: np.ndarray, similarity: float, scratch: Path) -> np.ndarray:
    """The first text that each one belongs to, i64[n]: itself, or one before it; both are places in `order`.

    signatures: u32[n, places]; order: i64[n], numbers of their rows; scratch: path of a file for the bands.
    """
    rows = rows_of_bands(similarity, signatures.shape[1])
    least = int(np.ceil(similarity * signatures.shape[1] - 1e-9))  # places that agree
    label = np.arange(len(order))
    if not len(order):
        return label
    bands = _bands(signatures, rows, scratch)
    for band in bands:
        members, runs = _buckets(band[order])
        for _ in range(ROUNDS):
            if not len(members):
                break
            first = np.append(True, runs[1:] != runs[:-1])
            one, other = members[first][np.cumsum(first) - 1][~first], members[~first]
            apart = label[one] != label[other]
            alike = np.zeros(len(apart), bool)
            alike[apart] = _agreement(signatures, order[one[apart]], order[other[apart]]) >= least
            _join(label, one[alike], other[alike])
            stays = apart & ~alike
            members, runs = _shared(other[stays], runs[~first][stays])
    del bands
    scratch.unlink()
    return label


def _bands(signatures: np.ndarray, rows: int, path: Path) -> np.ndarray:
    """A hash of each band, u64[bands, n], on disk."""
    bands = np.memmap(path, "<u8", "w+", shape=(signatures.shape[1] // rows, len(signatures)))
    for start in range(0, len(signatures), AT_A_TIME):
        block = np.asarray(signatures[start : start + AT_A_TIME]).astype(np.uint64)
        for band in range(len(bands)):
            hashes = block[:, band * rows].copy()
            for place in range(band * rows + 1, (band + 1) * rows):
                hashes = hashes * PHRASE_FACTOR + block[:, place]
            bands[band, start : start + len(block)] = mix(hashes)
    return bands


def _buckets(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Members of all buckets of two or more, in order, and a number of the bucket for each."""
    members = np.argsort(hashes, kind="stable")
    hashes = hashes[members]
    return _shared(members, np.cumsum(np.append(True, hashes[1:] != hashes[:-1])))


def _shared(members: np.ndarray, runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those that do not stand alone in their run."""
    if not len(runs):
        return members, runs
    differs = np.concatenate([[True], runs[1:] != runs[:-1], [True]])
    kept = ~(differs[1:] & differs[:-1])
    return members[kept], runs[kept]


def _agreement(signatures: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Places in which the signatures of pairs agree, i64[pairs]."""
    blocks = [slice(start, start + AT_A_TIME) for start in range(0, len(one), AT_A_TIME)]
    counts = [np.count_nonzero(signatures[one[block]] == signatures[other[block]], axis=1) for block in blocks]
    return np.concatenate([np.zeros(0, np.int64), *counts])


def _join(label: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
    """Makes each pair belong together; label, changed in place, stays the smallest number of what belongs together."""
    while True:
        left, right = label[one], label[other]
        if (left == right).all():
            return
        np.minimum.at(label, np.maximum(left, right), np.minimum(left, right))
        while (label[label] != label).any():
            label[:] = label[label]
