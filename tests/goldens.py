"""What `transformers` computed with tiny models of each family, see golden/make.py."""

import functools
from pathlib import Path

import batches
import numpy as np

from mlm_jax.batch import Batch
from mlm_jax.config import ModelConfig
from mlm_jax.records import SECOND_OF_PAIR

PLAIN = {"dropout": 0.0, "attention_dropout": 0.0}
CONFIGS = {
    "bert": ModelConfig(layers=3, width=24, heads=3, hidden=40, max_positions=16, **PLAIN),
    "roberta": ModelConfig(family="roberta", layers=2, width=18, heads=3, hidden=40, max_positions=18, **PLAIN),
    "modernbert": ModelConfig(
        family="modernbert",
        layers=6,
        width=16,
        heads=2,
        hidden=24,
        local_window=4,
        norm_epsilon=1e-5,
        **PLAIN,
    ),
}
VOCABS = {"bert": 100, "roberta": 80, "modernbert": 60}


@functools.cache
def load(family: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(weights, the input, what was made of it), each by name."""
    with np.load(Path(__file__).parent / "golden" / f"{family}.npz") as file:
        arrays = {name: file[name] for name in file}
    weights, given, made = (
        {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(part)}
        for part in ("weights", "given", "made")
    )
    return weights, {name: array.astype(np.int32) for name, array in given.items()}, made


def padded(given: dict[str, np.ndarray]) -> Batch:
    """The input as it is: a text in each row."""
    ids, mask = given["input_ids"], given["attention_mask"]
    return batches.batch(ids, mask, given.get("token_type_ids", np.zeros_like(ids)) * SECOND_OF_PAIR)


def packed(given: dict[str, np.ndarray], padding: int = 3) -> Batch:
    """The texts of all rows in one row, and padding."""
    real = given["attention_mask"] > 0
    segments = np.cumsum(np.ones_like(real), 0)[real]
    types = given.get("token_type_ids", np.zeros_like(given["input_ids"]))[real]
    row = (given["input_ids"][real], segments, types * SECOND_OF_PAIR)
    return batches.batch(*(np.pad(part, (0, padding))[None] for part in row))
