"""The step of fine-tuning: the losses of a task in the place of the objectives, all else as in pretraining."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Num

from mlm_jax import keys
from mlm_jax.config import Config
from mlm_jax.finetune.batches import Examples
from mlm_jax.models import Model
from mlm_jax.state import State
from mlm_jax.step import Metrics, accumulated, updated

FAR = -1e30  # finite, so that nothing becomes NaN


def make_train_step(
    model: Model, optimizer: optax.GradientTransformation, config: Config, mesh: Mesh, kind: str
) -> Callable[..., tuple[State, Metrics]]:
    """The jitted `train_step(state, examples [k,b,...], roots) -> (state, metrics)`; the state is donated.

    The loss is the mean over all places with labels of the whole batch. Call it within
    `sharding.activate(mesh, config.mesh)`.
    """
    drops = model.config.dropout > 0 or model.config.attention_dropout > 0

    def loss(params: dict, examples: Examples, count: Float[Array, ""], roots: keys.Roots) -> tuple:
        row_keys = keys.of_dropout(roots["dropout"], examples.batch) if drops else None
        at = None if kind == "questions" else examples.at
        hidden = model.apply(params, examples.batch, at=at, row_keys=row_keys).hidden
        outputs = model.classify(params, hidden, row_keys)
        losses = LOSSES[kind](outputs, examples)
        mean = (losses * examples.weights).sum() / jnp.maximum(count, 1)
        return mean, ({"loss": mean}, ())

    def train_step(state: State, examples: Examples, roots: keys.Roots) -> tuple[State, Metrics]:
        count = examples.weights.sum()
        gradients, _, metrics = accumulated(loss, state.params, examples, (count, roots), config.mesh)
        metrics |= {"targets": count, "tokens": (examples.batch.segments > 0).sum()}
        return updated(state, gradients, metrics, state.feedback, optimizer, config, mesh)

    return jax.jit(train_step, donate_argnums=0)


def of_labels(outputs: Float[Array, "b q c"], examples: Examples) -> Float[Array, "b q"]:
    """Cross-entropy of the labels."""
    return optax.losses.softmax_cross_entropy_with_integer_labels(outputs, examples.labels)


def of_numbers(outputs: Float[Array, "b q 1"], examples: Examples) -> Float[Array, "b q"]:
    """Squared error."""
    return jnp.square(outputs[..., 0] - examples.labels)


def of_spans(outputs: Float[Array, "b t 2"], examples: Examples) -> Float[Array, "b q"]:
    """Cross-entropy of an answer's first and last place, each over all tokens of its segment.

    BERT (2019), section 4.2. Places of first tokens stand in even slots, those of last ones in odd ones.
    """
    return jnp.stack(
        [_of_places(outputs[..., i], examples.at[:, i::2], examples.batch.segments) for i in (0, 1)], -1
    ).reshape(examples.at.shape)


def _of_places(
    scores: Float[Array, "b t"], places: Int[Array, "b n"], segments: Int[Array, "b t"]
) -> Float[Array, "b n"]:
    own = jnp.take_along_axis(segments, places, 1)[:, :, None] == segments[:, None, :]
    total = jax.nn.logsumexp(jnp.where(own, scores[:, None, :], FAR), -1)
    return total - jnp.take_along_axis(scores, places, 1)


LOSSES: dict[str, Callable[[Num[Array, "b q c"], Examples], Float[Array, "b q"]]] = {
    "classification": of_labels,
    "regression": of_numbers,
    "tagging": of_labels,
    "questions": of_spans,
}
