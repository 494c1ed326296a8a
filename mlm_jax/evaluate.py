"""Evaluation on held-out rows with fixed masks: MASK at every selected position, every row counted once."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, Key

from mlm_jax import data, masking, sharding
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import Config
from mlm_jax.models import Model
from mlm_jax.step import EVALUATION_ROOT, root
from mlm_jax.tokenizer import DECILES, Vocabulary, frequency_deciles, unigram_losses

Means = dict[str, float | int]


def make_mask(vocabulary: Vocabulary, config: Config) -> Callable[[Batch], Masked]:
    """The masks of evaluation: they depend on `config.evaluate.seed` and the row alone, MASK at every place."""
    fixed, key = masking.fixed(config.mask), root(config.evaluate.seed, EVALUATION_ROOT)
    return lambda batch: masking.mask(key, batch, vocabulary, fixed, config.mask.rate)


def make_evaluation_step(
    model: Model, vocabulary: Vocabulary, config: Config, shuffle_context: bool = False
) -> Callable[[dict, Batch], dict[str, Array]]:
    """The jitted `step(params, batch [b,t]) -> {count, loss, accuracy, unigram_loss}`, sums over the targets.

    And `decile_loss` and `decile_count` [10], by frequency decile of the target.
    The masks depend on `config.evaluate.seed` and the row alone. shuffle_context: the tokens that are not selected
    change places within their row first; what a model loses by it is what it had from their order.
    """
    mask, key = make_mask(vocabulary, config), root(config.evaluate.seed, EVALUATION_ROOT)
    unigram, deciles = unigram_losses(vocabulary), frequency_deciles(vocabulary)

    @jax.jit
    def step(params: dict, batch: Batch) -> dict[str, Array]:
        masked = mask(batch)
        inputs = shuffle(key, batch, masked, vocabulary) if shuffle_context else masked.inputs
        encoded = model.apply(params, dataclasses.replace(batch, tokens=inputs), at=masked.indices)
        losses = model.losses(params, encoded.hidden, masked.targets, masked.weights)
        per_target = {
            "loss": losses.each,
            "accuracy": losses.hits,
            "unigram_loss": jnp.asarray(unigram)[masked.targets],
        }
        sums = {name: (value * masked.weights).sum() for name, value in per_target.items()}
        decile = jax.nn.one_hot(jnp.asarray(deciles)[masked.targets] - 1, DECILES)
        by_decile = {
            "decile_loss": jnp.einsum("bm,bmn->n", per_target["loss"] * masked.weights, decile),
            "decile_count": jnp.einsum("bm,bmn->n", masked.weights, decile),
        }
        return {"count": masked.weights.sum(), **sums, **by_decile}

    return step


def shuffle(key: Key[Array, ""], batch: Batch, masked: Masked, vocabulary: Vocabulary) -> Int[Array, "b t"]:
    """The inputs with the unselected ordinary tokens of each row permuted among themselves."""
    movable = masking.maskable(batch.tokens, batch.segments, vocabulary) & ~masked.selected

    def of_row(inputs: Int[Array, "t"], movable: Bool[Array, "t"], row: Int[Array, ""]) -> Int[Array, "t"]:
        draws = jax.random.bits(jax.random.fold_in(key, row), inputs.shape)
        place = jnp.arange(inputs.size, dtype=draws.dtype)
        # both bring the movable places to the front: once at random, once in order; the others stay in order
        shuffled = jnp.lexsort((jnp.where(movable, draws, place), ~movable))
        in_order = jnp.lexsort((place, ~movable))
        return inputs.at[in_order].set(inputs[shuffled])

    return jax.vmap(of_row)(masked.inputs, movable, batch.row)


def evaluate(step: Callable[[dict, Batch], dict[str, Array]], params: dict, batches: Iterable[Batch]) -> Means:
    """Means over all targets of all batches: loss, perplexity, accuracy, unigram_loss, and their number, targets.

    And loss_decile_1 to loss_decile_10 for the frequency deciles that have a target, 1 being the most frequent. Sums in
    float64 on the host, divided once. All means are NaN-free: without a target they are 0, perplexity 1.
    """
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, value in jax.device_get(step(params, batch)).items():
            totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
    count = float(totals.pop("count", 0.0))
    sums, counts = totals.pop("decile_loss", np.zeros(0)), totals.pop("decile_count", np.zeros(0))
    means = {name: float(value) / count if count else 0.0 for name, value in totals.items()}
    deciles = {f"loss_decile_{i}": float(s / c) for i, (s, c) in enumerate(zip(sums, counts), start=1) if c}
    return {"targets": int(count), **means, "perplexity": math.exp(min(means.get("loss", 0.0), 700.0)), **deciles}


def make_evaluation(
    model: Model,
    vocabulary: Vocabulary,
    config: Config,
    folder: Path,
    manifest: dict,
    mesh: Mesh,
    split: str = "eval",
) -> Callable[..., dict[str, Means]]:
    """`evaluation(params, shuffled=False) -> {set: means}` over the rows of a split of each corpus that has any.

    shuffled: also the loss with shuffled context, `shuffled_loss`.
    """
    plain = make_evaluation_step(model, vocabulary, config)
    with_shuffled = make_evaluation_step(model, vocabulary, config, shuffle_context=True)
    sources = [corpus["source"] for corpus in manifest["corpora"]]
    sets = [i for i, corpus in enumerate(manifest["corpora"]) if corpus["splits"][split]["rows"]]
    placed = sharding.batch_sharding(mesh)

    def evaluation(params: dict, shuffled: bool = False) -> dict[str, Means]:
        results = {}
        for i in sets:
            result = evaluate(plain, params, data.evaluation_batches(folder, manifest, config, i, placed, split))
            if shuffled:
                batches = data.evaluation_batches(folder, manifest, config, i, placed, split)
                result["shuffled_loss"] = evaluate(with_shuffled, params, batches)["loss"]
            results[set_names(sources)[i]] = result
        return results

    return evaluation


def set_names(sources: Sequence[str]) -> list[str]:
    """A short name for the held-out set of each source: `builtin:pydoc` -> pydoc, `text/en.jsonl.gz` -> en."""
    names = []
    for source in sources:
        last = re.split(r"[/:\\]", source.rstrip("/"))[-1].split(".")[0]
        name = re.sub(r"[^\w-]+", "-", last).strip("-") or "text"
        number, free = 2, name
        while free in names:
            number, free = number + 1, f"{name}-{number}"
        names.append(free)
    return names
