"""How fast masks are made: tokens a second of `masking.mask`, jitted, by unit and rate.

Command: python benchmarks/masking_rate.py [--rows=256] [--row_length=512]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from mlm_jax.batch import Batch
from mlm_jax.config import MaskConfig
from mlm_jax.masking import mask
from mlm_jax.tokenizer import Vocabulary

REPEATS = 20


def synthetic(rows: int, row_length: int, vocab_size: int) -> Batch:
    """Full rows of one segment each, six words in ten tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, vocab_size, (rows, row_length)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 2, 3
    arrays = {
        "tokens": tokens,
        "segments": np.ones_like(tokens),
        "positions": np.tile(np.arange(row_length, dtype=np.int32), (rows, 1)),
        "flags": (rng.random(tokens.shape) < 0.6).astype(np.uint8),
        "firsts": np.zeros((rows, 1), np.int32),
        "pair_labels": np.full((rows, 1), -1, np.int32),
        "row": np.arange(rows, dtype=np.int32),
        "visit": np.zeros(rows, np.int32),
        "weight": np.ones(rows, np.float32),
    }
    return Batch(**{name: jnp.asarray(array) for name, array in arrays.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--row_length", type=int, default=512)
    arguments = parser.parse_args()
    vocab_size = 32_000
    batch = synthetic(arguments.rows, arguments.row_length, vocab_size)
    vocabulary = Vocabulary(vocab_size, np.arange(5), np.arange(5, vocab_size), pad=0, unk=1, cls=2, sep=3, mask=4)
    key = jax.random.key(0, impl="threefry2x32")
    print(f"{jax.devices()[0].device_kind}, {arguments.rows} rows of {arguments.row_length}, best of {REPEATS}")
    for unit in ("token", "word"):
        for rate in (0.15, 0.4):
            config = MaskConfig(rate=rate, unit=unit)
            run = jax.jit(lambda key, batch, config=config: mask(key, batch, vocabulary, config, config.rate))
            jax.block_until_ready(run(key, batch))
            seconds = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                jax.block_until_ready(run(key, batch))
                seconds.append(time.perf_counter() - began)
            rate_seen = batch.tokens.size / min(seconds)
            print(f"{unit:6} rate {rate:.2f}: {rate_seen / 1e6:6.2f} million tokens/s")


if __name__ == "__main__":
    main()
