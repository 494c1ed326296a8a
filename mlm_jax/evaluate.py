"""Evaluation on held-out rows with fixed masks: MASK at every selected position, every row counted once."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from mlm_jax import data, keys, masking, order, sharding
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import Config, filler
from mlm_jax.kernels.vocabulary import Losses
from mlm_jax.models import Model
from mlm_jax.objectives import CAUSAL, OBJECTIVES, Passes, Rows, names_of, next_tokens
from mlm_jax.tokenizer import DECILES, Vocabulary, frequency_deciles, unigram_losses

Means = dict[str, float | int]


def make_mask(vocabulary: Vocabulary, config: Config, root: str = "mask") -> Callable[[Batch], Masked]:
    """The masks of evaluation: they depend on `config.evaluate.seed` and the row alone, MASK at every place.

    root: `view` for those of the other view, see `keys.roots`.
    """
    fixed, key = masking.fixed(config.mask, config.evaluate), keys.evaluation_roots(config.evaluate.seed)[root]
    return lambda batch: masking.mask(key, batch, vocabulary, fixed, fixed.rate)


def make_evaluation_step(
    model: Model, vocabulary: Vocabulary, config: Config, shuffle_context: bool = False
) -> Callable[[dict, Batch], dict[str, Array]]:
    """The jitted `step(params, batch [b,t]) -> {count, loss, accuracy, unigram_loss, ...}`, sums over the targets.

    And `decile_loss` and `decile_count` [10], by frequency decile of the target; of each other objective its sums and
    count, such as `nsp/loss` and `nsp/count`. Masks, the order of pairs and other views depend on
    `config.evaluate.seed` and the row alone. shuffle_context: of masked tokens alone; the tokens that are not selected
    change places within their row first, and what a model loses by it is what it had from their order.
    """
    fills = filler(config.objectives)
    names = (fills,) if shuffle_context else names_of(config.objectives)
    roots = keys.evaluation_roots(config.evaluate.seed)
    mask, other_mask = (make_mask(vocabulary, config, root) for root in ("mask", "view"))
    contrastive = "contrastive" in names
    by_dropout = contrastive and config.objectives.contrastive.view == "dropout"

    @jax.jit
    def step(params: dict, batch: Batch) -> dict[str, Array]:
        plain, batch = batch, order.as_read(roots["order"], batch, config)
        masked = mask(batch)
        if shuffle_context:
            masked = dataclasses.replace(masked, inputs=shuffle(roots["mask"], batch, masked, vocabulary))
        rows = Rows(batch, masked, other_mask(batch) if contrastive and not by_dropout else None)
        how = {"drops": False, "also_other": by_dropout}
        together = Passes(model, params, rows, config, names, roots, **how)
        in_order = Rows(plain, masked)  # as in training
        causal = Passes(model, params, in_order, config, CAUSAL, roots, **how)
        found = {}
        for name in names:
            passes = causal if name == "causal" else together
            if name in OF_TOKENS:
                count, sums = OF_TOKENS[name](passes, vocabulary)
            else:
                count, sums = OBJECTIVES[name].count(config, batch, masked), OBJECTIVES[name].sums(passes)
            prefix = "" if name == fills else f"{name}/"
            found |= {f"{prefix}{key}": value for key, value in {"count": count, **sums}.items()}
        return found

    return step


def _mlm(passes: Passes, vocabulary: Vocabulary) -> tuple[Array, dict[str, Array]]:
    return _of_masked(passes, passes.model, passes.selected, vocabulary)


def _generator(passes: Passes, vocabulary: Vocabulary) -> tuple[Array, dict[str, Array]]:
    return _of_masked(passes, passes.model.generator, passes.generated, vocabulary)


def _of_masked(
    passes: Passes, model: Model, states: Float[Array, "b m d"], vocabulary: Vocabulary
) -> tuple[Array, dict[str, Array]]:
    masked = passes.rows.masked
    losses = model.losses(passes.params, states, masked.targets, masked.weights)
    decile = jax.nn.one_hot(jnp.asarray(frequency_deciles(vocabulary))[masked.targets] - 1, DECILES)
    by_decile = {
        "decile_loss": jnp.einsum("bm,bmn->n", losses.each * masked.weights, decile),
        "decile_count": jnp.einsum("bm,bmn->n", masked.weights, decile),
    }
    sums = _of_tokens(losses, masked.targets, masked.weights, vocabulary)
    return masked.weights.sum(), {**sums, **by_decile}


def _causal(passes: Passes, vocabulary: Vocabulary) -> tuple[Array, dict[str, Array]]:
    """Over ordinary tokens alone, which guessing by frequency is a measure for; not over the ends of segments."""
    targets, weights = next_tokens(passes.rows.batch)
    ordinary = np.isin(np.arange(vocabulary.size), vocabulary.ordinary).astype(np.float32)
    weights = weights * jnp.asarray(ordinary)[targets]
    losses = passes.model.losses(passes.params, passes.causal, targets, weights)
    return weights.sum(), _of_tokens(losses, targets, weights, vocabulary)


def _of_tokens(losses: Losses, targets: Array, weights: Array, vocabulary: Vocabulary) -> dict[str, Array]:
    unigram = jnp.asarray(unigram_losses(vocabulary))[targets]
    per_target = {"loss": losses.each, "accuracy": losses.hits, "unigram_loss": unigram}
    return {name: (value * weights).sum() for name, value in per_target.items()}


OF_TOKENS = {"mlm": _mlm, "generator": _generator, "causal": _causal}  # of which evaluation tells more than training


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

    And loss_decile_1 to loss_decile_10 for the frequency deciles that have a target, 1 being the most frequent. Of each
    other objective its means, such as nsp_loss and nsp_accuracy, and their number, nsp_targets; replaced_entropy is
    what guessing by replaced_share costs. Sums in float64 on the host, divided once. All means are NaN-free: without a
    target they are 0, perplexity 1.
    """
    totals: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, value in jax.device_get(step(params, batch)).items():
            totals[name] = totals.get(name, 0.0) + np.asarray(value, np.float64)
    sums, counts = totals.pop("decile_loss", np.zeros(0)), totals.pop("decile_count", np.zeros(0))
    numbers = {name.removesuffix("count"): float(totals.pop(name)) for name in list(totals) if name.endswith("count")}
    found: Means = {}
    for prefix, count in numbers.items():
        own = [name for name in totals if name.rpartition("/")[0] == prefix.rstrip("/")]
        means = {name: float(totals[name]) / count if count else 0.0 for name in own}
        found |= {name.replace("/", "_"): value for name, value in {f"{prefix}targets": int(count), **means}.items()}
    if 0 < (share := found.get("replaced_share", 0)) < 1:
        found["replaced_entropy"] = -share * math.log(share) - (1 - share) * math.log1p(-share)
    if "loss" in found:
        found["perplexity"] = math.exp(min(found["loss"], 700.0))
    return found | {f"loss_decile_{i}": float(s / c) for i, (s, c) in enumerate(zip(sums, counts), start=1) if c}


def make_evaluation(
    model: Model,
    vocabulary: Vocabulary,
    config: Config,
    folder: Path,
    manifest: dict,
    mesh: Mesh,
    split: str = "eval",
    beat: Callable[[], None] = lambda: None,
) -> Callable[..., dict[str, Means]]:
    """`evaluation(params, shuffled=False) -> {set: means}` over the rows of a split of each corpus that has any.

    shuffled: also the loss of masked tokens with shuffled context, `shuffled_loss`. beat: is called before each batch.
    """
    plain = make_evaluation_step(model, vocabulary, config)
    fills = filler(config.objectives)
    with_shuffled = make_evaluation_step(model, vocabulary, config, shuffle_context=True) if fills else None
    sources = [corpus["source"] for corpus in manifest["corpora"]]
    sets = [i for i, corpus in enumerate(manifest["corpora"]) if corpus["splits"][split]["rows"]]
    placed = sharding.batch_sharding(mesh)

    def batches_of(corpus: int) -> Iterator[Batch]:
        for batch in data.evaluation_batches(folder, manifest, config, corpus, placed, split):
            beat()
            yield batch

    def evaluation(params: dict, shuffled: bool = False) -> dict[str, Means]:
        results = {}
        for i in sets:
            result = evaluate(plain, params, batches_of(i))
            if shuffled and with_shuffled:
                result["shuffled_loss"] = evaluate(with_shuffled, params, batches_of(i))["loss"]
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
