"""Small batches for tests, made by hand or at random."""

import functools

import jax.numpy as jnp
import numpy as np

from mlm_jax.batch import Batch
from mlm_jax.tokenizer import Vocabulary

PAD, UNK, CLS, SEP, MASK = range(5)


@functools.cache  # static arguments are compared by identity
def vocabulary(size: int = 40) -> Vocabulary:
    return Vocabulary(
        size=size,
        special=np.arange(5),
        ordinary=np.arange(5, size),
        pad=PAD,
        unk=UNK,
        cls=CLS,
        sep=SEP,
        mask=MASK,
        counts=np.arange(1, size + 1),
    )


def batch(tokens, segments=None, word_starts=None, rows=None, visits=None, max_segments: int = 4) -> Batch:
    """A batch from lists of rows; segments default to 1 everywhere, word starts to every token."""
    tokens = np.asarray(tokens, np.int32)
    b, t = tokens.shape
    segments = np.ones_like(tokens) if segments is None else np.asarray(segments, np.int32)
    flags = np.ones_like(tokens) if word_starts is None else np.asarray(word_starts)
    begins = np.concatenate([segments[:, :1] > 0, (segments[:, 1:] != segments[:, :-1]) & (segments[:, 1:] > 0)], 1)
    place = np.arange(t)
    positions = np.where(segments > 0, place - np.maximum.accumulate(np.where(begins, place, 0), 1), 0)
    firsts = np.zeros((b, max_segments), np.int32)
    rows_of, starts = np.nonzero(begins)
    firsts[rows_of, segments[rows_of, starts] - 1] = starts
    arrays = {
        "tokens": tokens,
        "segments": segments,
        "positions": positions.astype(np.int32),
        "flags": flags.astype(np.uint8),
        "firsts": firsts,
        "pair_labels": np.full((b, max_segments), -1, np.int32),
        "row": np.arange(b, dtype=np.int32) if rows is None else np.asarray(rows, np.int32),
        "visit": np.zeros(b, np.int32) if visits is None else np.asarray(visits, np.int32),
        "weight": np.ones(b, np.float32),
    }
    return Batch(**{name: jnp.asarray(array) for name, array in arrays.items()})


def random_batch(seed: int, b: int, t: int, size: int = 40, max_segments: int = 4, word_rate: float = 0.6) -> Batch:
    """Packed rows: up to `max_segments` segments CLS ... SEP of random length, then padding in most rows."""
    rng = np.random.default_rng(seed)
    tokens, segments = np.zeros((b, t), np.int32), np.zeros((b, t), np.int32)
    for i in range(b):
        at = 0
        for segment in range(1, max_segments + 1):
            length = int(rng.integers(2, max(3, 2 * t // max_segments)))
            if at + length > t:
                break
            tokens[i, at : at + length] = rng.integers(5, size, length)
            tokens[i, at], tokens[i, at + length - 1] = CLS, SEP
            segments[i, at : at + length] = segment
            at += length
    starts = (rng.random((b, t)) < word_rate) & (tokens > 4)
    return batch(tokens, segments, starts, rows=rng.permutation(1000)[:b], max_segments=max_segments)
