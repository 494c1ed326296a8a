"""Objectives beside masked tokens learn a small language, and no more of it than there is to know.

A text is words A B A B ...; each has two pieces, there are 12 words A, and each goes with one word B. So of four pieces
in a row the first is one of 12, and the others follow from it. A row is a pair of texts. Those of the first six words A
are of one kind, the others of another; in `next` rows the second text is of the kind of the first where it follows, in
`order` rows a text of the first kind stands before one of the second.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, SEP, batch
from test_learning import VOCABULARY, WORDS, config_of

from mlm_jax import evaluate, feedback, keys, sharding, state, step
from mlm_jax.config import CausalConfig, ContrastiveConfig, MaskConfig, MlmConfig, ObjectiveConfig, ObjectivesConfig
from mlm_jax.models import build
from mlm_jax.optim import optimizer
from mlm_jax.records import SECOND_OF_PAIR, WORD_START

pytestmark = pytest.mark.learning

PAIRS = 4  # words A in a text
T = 8 * PAIRS + 3
FIRST, SECOND = [WORD_START, 0] * 2 * PAIRS, [WORD_START | SECOND_OF_PAIR, SECOND_OF_PAIR] * 2 * PAIRS
FLAGS = np.array([0, *FIRST, 0, *SECOND, SECOND_OF_PAIR])


def rows_of(number, kind, size=32):
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 2, size) if kind == "next" else np.zeros(size, int)
    first = rng.integers(0, 2, size) if kind == "next" else np.zeros(size, int)
    second = first ^ labels if kind == "next" else np.ones(size, int)

    def text(kinds):
        a = rng.integers(0, WORDS // 2, (size, PAIRS)) + kinds[:, None] * (WORDS // 2)
        b = (5 * a + 3) % WORDS
        return np.stack([5 + a, 5 + WORDS + a, 5 + 2 * WORDS + b, 5 + 3 * WORDS + b], -1).reshape(size, -1)

    sep = np.full((size, 1), SEP)
    tokens = np.concatenate([np.full((size, 1), CLS), text(first), sep, text(second), sep], 1)
    numbers = np.arange(size) + size * (number % 40)
    rows = batch(tokens, np.ones_like(tokens), np.tile(FLAGS, (size, 1)), numbers, max_segments=1)
    return dataclasses.replace(rows, pair_labels=jnp.asarray(labels[:, None], jnp.int32))


def learned(kind, objectives, steps, **model):
    config = config_of({}, {"learning_rate": 5e-3}, {"max_positions": T, **model}, steps=steps, objectives=objectives)
    config = dataclasses.replace(config, row_length=T)
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    network, update = build(config.model, VOCABULARY.size, objectives), optimizer(config.optimizer, steps)
    fed = feedback.start(network, VOCABULARY, config.mask)
    now = state.create(network, update, mesh, config.mesh, keys.root(0, keys.INIT), fed)
    train_step = step.make_train_step(network, update, VOCABULARY, config, mesh)
    for number in range(steps):
        rows = dataclasses.replace(rows_of(number % 40, kind), visit=jnp.full(32, number // 40))
        now, metrics = train_step(now, jax.tree.map(lambda x: x[None], rows), keys.roots(0))
    assert np.isfinite(metrics["loss"])
    plain = dataclasses.replace(config, mask=MaskConfig(rate=0.15))
    held_out = [rows_of(1000 + number, kind) for number in range(4)]
    return evaluate.evaluate(evaluate.make_evaluation_step(network, VOCABULARY, plain), now.params, held_out)


def test_next_sentence():
    found = learned("next", ObjectivesConfig(nsp=ObjectiveConfig(weight=1.0)), 500)
    assert found["nsp_targets"] == 128 and found["nsp_accuracy"] > 0.95, found
    assert found["loss"] < 2, found


def test_order_contrast_and_the_next_token_together():
    several = ObjectivesConfig(
        mlm=MlmConfig(weight=1.0),
        sop=ObjectiveConfig(weight=0.5, schedule=((0.0, 0.0), (0.1, 1.0))),
        contrastive=ContrastiveConfig(weight=0.2, group_rows=16),
        causal=CausalConfig(ratio=0.4),
    )
    found = learned("order", several, 700)
    assert found["sop_accuracy"] > 0.95, found
    assert found["contrastive_accuracy"] > 0.9 and found["contrastive_chance"] == pytest.approx(1 / 16), found
    # four pieces of a word and its partner have the entropy of the first, one of 6 in each text; nobody knows more
    assert np.log(6) / 4 - 0.02 < found["causal_loss"] < np.log(6) / 4 + 0.25, found
    assert found["causal_unigram_loss"] == pytest.approx(np.log(48), abs=0.01)
    assert found["loss"] < 2, found


def test_another_draw_of_dropout_makes_the_other_view():
    contrastive = ContrastiveConfig(weight=1.0, view="dropout", group_rows=16)
    objectives = ObjectivesConfig(mlm=MlmConfig(weight=0.0), contrastive=contrastive)
    found = learned("order", objectives, 300, dropout=0.1)
    assert found["contrastive_accuracy"] > 0.9, found
