"""What the masks take from the run itself: the model's view of its tokens, its losses, its size.

A run that needs it has some numbers of this in its state, saved and restored with it: `rate` f32[], the mask rate of a
schedule that is no function of the step, and `surprisal` f32[v], the loss by kind of token. Masks that read them, or
the parameters, are the same on the same mesh and after a restart; on another mesh a difference in rounding may change
the order of two units.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from mlm_jax import masking, tree
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import ADAPTIVE_RANGE, Config, MaskConfig
from mlm_jax.models import Model
from mlm_jax.tokenizer import Vocabulary, unigram_losses

Feedback = dict[str, Array]
LEAST = 1e-6  # importance below counts as that


def start(model: Model, vocabulary: Vocabulary, config: MaskConfig) -> dict[str, np.ndarray]:
    """The numbers at the start of a run; none for most configs."""
    values = {}
    if config.schedule == "loss":
        values["rate"] = np.array(config.rate, np.float32)
    if config.schedule == "adaptive":
        shapes = jax.eval_shape(model.init, jax.random.key(0, impl="threefry2x32"))
        values["rate"] = np.array(adaptive_rate(config, vocabulary, tree.size(shapes)), np.float32)
    if uses_surprisal(config):
        values["surprisal"] = unigram_losses(vocabulary)
    return values


def uses_surprisal(config: MaskConfig) -> bool:
    return config.priority == "importance" and config.importance == "surprisal"


def adaptive_rate(config: MaskConfig, vocabulary: Vocabulary, parameters: int) -> float:
    """rate x (parameters / reference_parameters) x (complexity / reference_entropy), clipped to [0.1, 0.3].

    That larger models learn best from higher rates is in Wettig et al. 2023, "Should you mask 15 % in masked language
    modeling?", section 3; the product and its bounds are a rule of thumb without a derivation. The complexity of a
    text is its unigram entropy, in nats a token. Taken at its word, the rule gives the lower bound for every model
    that is much smaller than the reference: at rate 0.15 for all below two thirds of it.
    """
    complexity = unigram_entropy(vocabulary) / config.reference_entropy
    return float(np.clip(config.rate * parameters / config.reference_parameters * complexity, *ADAPTIVE_RANGE))


def unigram_entropy(vocabulary: Vocabulary) -> float:
    """-sum p log p over the ordinary ids, in nats, p from the counts of the training rows plus 1."""
    losses = unigram_losses(vocabulary)[vocabulary.ordinary].astype(np.float64)
    return float((np.exp(-losses) * losses).sum())


def after_evaluation(feedback: Feedback, results: dict[str, dict], config: MaskConfig) -> Feedback:
    """schedule=loss: the rate is end_rate + (rate - end_rate) x (loss / unigram loss), the ratio at most 1.

    So it is `rate` until the model knows more than the frequencies of words, and goes to `end_rate` with the loss.
    The loss is the mean over the targets of all held-out sets, whose masks do not follow the rate. Without a held-out
    set, or where a loss is not finite, the rate stays. results: of `evaluate`, by set.
    """
    targets = sum(result["targets"] for result in results.values())
    if config.schedule != "loss" or not targets:
        return feedback
    loss, unigram = (
        sum(result[name] * result["targets"] for result in results.values()) for name in ("loss", "unigram_loss")
    )
    if not np.isfinite(loss):
        return feedback
    return with_rate(feedback, config.end_rate + (config.rate - config.end_rate) * min(loss / unigram, 1.0))


def with_rate(feedback: Feedback, rate: float) -> Feedback:
    """The same with another rate, which lies where the old one does."""
    return {**feedback, "rate": jax.device_put(np.float32(rate), feedback["rate"].sharding)}


def after_step(feedback: Feedback, losses: Float[Array, "*b m"], masked: Masked, config: MaskConfig) -> Feedback:
    """The table of surprisal with the losses [*b,m] of a step's targets, in nats.

    Of an id that was a target n times with the mean loss x, the value s becomes (memory s + n x) / (memory + n).
    The sums are those of the whole step, so that accumulation changes nothing.
    """
    if not uses_surprisal(config):
        return feedback
    table = feedback["surprisal"]
    count = jnp.zeros_like(table).at[masked.targets].add(masked.weights)
    total = jnp.zeros_like(table).at[masked.targets].add(losses * masked.weights)
    memory = config.surprisal_memory
    return {**feedback, "surprisal": (memory * table + total) / (memory + count)}


def make_mask(model: Model, vocabulary: Vocabulary, config: Config) -> Callable[..., Masked]:
    """`mask(step, key, batch, params, feedback) -> Masked`, as training masks the rows [k,b,t] of step 0, 1, ...

    The weight of a token is its importance ** (1 / temperature), as in prioritised sampling (Schaul et al. 2016,
    "Prioritized experience replay", section 3.3): only ratios count, not the unit. Importance is measured on the rows
    as they are, without a mask and without dropout, one microbatch after another.
    """
    score = IMPORTANCE[config.mask.importance] if config.mask.priority == "importance" else None

    def mask(step: Int[Array, ""] | int, key: Key[Array, ""], batch: Batch, params: dict, feedback: Feedback) -> Masked:
        scores = None
        if score:
            importance = jax.lax.map(lambda micro: score(model, params, feedback, micro, config.mask), batch)
            scores = jnp.log(jnp.maximum(importance, LEAST))
        fed = feedback.get("rate")
        return masking.mask_at(step, config.steps, key, batch, vocabulary, config.mask, scores, fed)

    return mask


def make_mask_at_start(
    model: Model, vocabulary: Vocabulary, config: Config, make_params: Callable[[], dict]
) -> tuple[Callable[..., Masked], dict[str, np.ndarray]]:
    """The jitted `mask(step, key, batch [b,t]) -> Masked` of a run that has not begun, and the numbers that it reads.

    make_params: gives the parameters that it will begin with; asked only if the masks depend on them.
    """
    fed = start(model, vocabulary, config.mask)
    reads = config.mask.priority == "importance" and not uses_surprisal(config.mask)
    params = make_params() if reads else {}
    mask = make_mask(model, vocabulary, config)

    @jax.jit
    def of_rows(step: Int[Array, ""], key: Key[Array, ""], batch: Batch, params: dict, fed: dict) -> Masked:
        masked = mask(step, key, jax.tree.map(lambda leaf: leaf[None], batch), params, fed)
        return jax.tree.map(lambda leaf: leaf[0], masked)

    return lambda step, key, batch: of_rows(step, key, batch, params, fed), fed


# ---- importance: f32[b,t], at least 0, from (model, params, feedback, batch [b,t], config) ----


def _surprisal(model: Model, params: dict, feedback: Feedback, batch: Batch, config: MaskConfig) -> Float[Array, "b t"]:
    """What the model lost on tokens of this kind of late, in nats: those that it does not know yet go first."""
    return feedback["surprisal"][batch.tokens]


def _hidden(model: Model, params: dict, feedback: Feedback, batch: Batch, config: MaskConfig) -> Float[Array, "b t"]:
    """The Euclidean norm of a token's state after the layer.

    Where the layer ends with a normalisation, all are alike at the start; they differ once its scale is learned.
    """
    hidden = model.apply(params, batch, upto=_layer(model, config)).hidden.astype(jnp.float32)
    return jnp.sqrt(jnp.square(hidden).sum(-1))


def _attention(model: Model, params: dict, feedback: Feedback, batch: Batch, config: MaskConfig) -> Float[Array, "b t"]:
    """The attention that the tokens of its segment give to a token in the layer, the mean over heads."""
    encoded = model.apply(params, batch, upto=_layer(model, config), want=("attention_received",))
    return encoded.out["attention_received"]


def _layer(model: Model, config: MaskConfig) -> int:
    return model.config.layers if config.importance_layer == -1 else config.importance_layer


IMPORTANCE = {"surprisal": _surprisal, "hidden": _hidden, "attention": _attention}
