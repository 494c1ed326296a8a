"""How fast masks are made: tokens a second of `masking.mask`, jitted, by strategy and rate.

Command: python benchmarks/masking_rate.py [--rows=256] [--row_length=512] [--only=span]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from mlm_jax import records
from mlm_jax.batch import Batch
from mlm_jax.config import MaskConfig
from mlm_jax.masking import mask
from mlm_jax.tokenizer import Vocabulary

REPEATS = 20
RATES = (0.15, 0.4)
STRATEGIES = {
    "token": {"unit": "token"},
    "word": {"unit": "word"},
    "span": {"unit": "span"},
    "ngram": {"unit": "ngram"},
    "phrase": {"unit": "phrase"},
    "sentence": {"unit": "sentence"},
    "paragraph": {"unit": "paragraph"},
    "hierarchical": {"unit": "hierarchical"},
    "word, rare first": {"priority": "frequency"},
    "word, by scores": {"priority": "importance"},
    "word, strata": {"stratify": True},
    "span, rare first, strata": {"unit": "span", "priority": "frequency", "stratify": True},
    "word, unigram random": {"random_ids": "unigram"},
}


def synthetic(rows: int, row_length: int, vocab_size: int) -> Batch:
    """Full rows of one segment each: six words in ten tokens, 20 tokens a sentence, 100 a paragraph, by chance."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, vocab_size, (rows, row_length)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 2, 3
    draws = rng.random(tokens.shape)
    flags = (draws < 0.6) * records.WORD_START + (rng.random(tokens.shape) < 0.3) * records.PHRASE_JOIN
    flags += (draws < 0.05) * records.SENTENCE_START + (draws < 0.01) * records.PARAGRAPH_START
    arrays = {
        "tokens": tokens,
        "segments": np.ones_like(tokens),
        "positions": np.tile(np.arange(row_length, dtype=np.int32), (rows, 1)),
        "flags": flags.astype(np.uint8),
        "firsts": np.zeros((rows, 1), np.int32),
        "pair_labels": np.full((rows, 1), -1, np.int32),
        "row": np.arange(rows, dtype=np.int32),
        "visit": np.zeros(rows, np.int32),
        "weight": np.ones(rows, np.float32),
    }
    return Batch(**{name: jnp.asarray(array) for name, array in arrays.items()})


def speed(batch: Batch, vocabulary: Vocabulary, config: MaskConfig) -> float:
    """Tokens a second, best of REPEATS."""
    key = jax.random.key(0, impl="threefry2x32")
    scores = jax.random.normal(key, batch.tokens.shape) if config.priority == "importance" else None
    run = jax.jit(lambda key, batch, rate: mask(key, batch, vocabulary, config, rate, scores))
    jax.block_until_ready(run(key, batch, config.rate))
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(run(key, batch, config.rate))
        seconds.append(time.perf_counter() - began)
    return batch.tokens.size / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--row_length", type=int, default=512)
    parser.add_argument("--only", default="", help="strategies with this in their name")
    arguments = parser.parse_args()
    size = 32_000
    batch = synthetic(arguments.rows, arguments.row_length, size)
    counts = 1_000_000 // np.arange(1, size + 1)
    vocabulary = Vocabulary(size, np.arange(5), np.arange(5, size), pad=0, unk=1, cls=2, sep=3, mask=4, counts=counts)
    print(f"{jax.devices()[0].device_kind}, {arguments.rows} rows of {arguments.row_length}, best of {REPEATS}")
    print(f"{'million tokens/s at rate':26}" + "".join(f"{rate:8.2f}" for rate in RATES))
    for name, options in STRATEGIES.items():
        if arguments.only in name:
            speeds = [speed(batch, vocabulary, MaskConfig(rate=rate, **options)) for rate in RATES]
            print(f"{name:26}" + "".join(f"{each / 1e6:8.2f}" for each in speeds), flush=True)


if __name__ == "__main__":
    main()
