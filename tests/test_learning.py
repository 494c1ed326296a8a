"""Each family of options learns a small language in which the word before or after decides the hidden one.

A row is CLS A B A B ... SEP. A word has two pieces; there are 12 words A, and each goes with one word B. Guessing by
frequency costs ln 48 = 3.87 nats a piece; who knows the pairs pays only where both words of a pair are hidden.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, SEP, batch, vocabulary

from mlm_jax import evaluate, feedback, keys, sharding, state, step
from mlm_jax.config import Config, MaskConfig, MlmConfig, ModelConfig, ObjectivesConfig, OptimizerConfig
from mlm_jax.models import build
from mlm_jax.optim import optimizer
from mlm_jax.records import PHRASE_JOIN, SENTENCE_START, WORD_START

pytestmark = pytest.mark.learning

WORDS, PAIRS, STEPS = 12, 7, 400
VOCABULARY = dataclasses.replace(vocabulary(5 + 4 * WORDS), counts=np.full(5 + 4 * WORDS, 1000))
# what the priorities take for rare and frequent
SKEWED = dataclasses.replace(VOCABULARY, counts=1000 // (1 + np.arange(5 + 4 * WORDS) % WORDS))
LEVELS = (("token", 1.0), ("span", 1.0), ("sentence", 1.0))
PARTS = ((0.0, 0.7), (0.2, 1.0), (0.8, 0.9))
Z_LOSS = ObjectivesConfig(mlm=MlmConfig(z_loss=1e-2))
FROZEN = ("embeddings/word/.*", "layers/0/ffn/.*")
SKIP = {"bad_gradients": "skip", "exploding": 10.0}  # then every 50th batch is poisoned
GROUPS = (("embeddings/.*", 3e-3), (r"layers/0/.*", 5e-3), (".*", 1e-2))

# one layer, a group of two, one; two places to either side hold a word's partner, and the row is longer
MODERNBERT = {"family": "modernbert", "layers": 4, "local_window": 4, "global_every": 2, "rotary_base": 1e4}

# A sentence, and a phrase, is a word B and the A after it: who hides it whole leaves both their partners standing.
FLAGS = np.array([0, *[WORD_START, 0, WORD_START | SENTENCE_START, 0] * PAIRS, 0])
FLAGS[5:-1:4] |= PHRASE_JOIN


def rows_of(number, size=32):
    rng = np.random.default_rng(number)
    first = rng.integers(0, WORDS, (size, PAIRS))
    second = (5 * first + 3) % WORDS
    pieces = np.stack([5 + first, 5 + WORDS + first, 5 + 2 * WORDS + second, 5 + 3 * WORDS + second], -1)
    tokens = np.concatenate([np.full((size, 1), CLS), pieces.reshape(size, -1), np.full((size, 1), SEP)], 1)
    return batch(tokens, np.ones_like(tokens), np.tile(FLAGS, (size, 1)), rows=np.arange(size) + size * (number % 40))


def config_of(mask, optimizer, model, **rest):
    sizes = {
        "layers": 2,
        "width": 32,
        "heads": 4,
        "hidden": 64,
        "max_positions": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return Config(
        **{"steps": STEPS, **rest},
        row_length=4 * PAIRS + 2,
        mask=MaskConfig(**{"rate": 0.15, "unit": "word", **mask}),
        optimizer=OptimizerConfig(**{"learning_rate": 1e-2, "warmup": 0.1, **optimizer}),
        model=ModelConfig(**{**sizes, "initializer_range": 0.1, **model}),
    )


@pytest.mark.parametrize(
    "mask, optimizer_options, model, rest",
    [
        ({}, {}, {}, {}),
        ({"unit": "token"}, {}, {}, {}),
        ({"regime": "static"}, {}, {}, {}),
        ({"regime": "multi-version", "versions": 3}, {}, {}, {}),
        ({"corruption_per": "unit"}, {}, {}, {}),
        ({"corruption": (1.0, 0.0, 0.0), "rate": 0.3}, {}, {}, {"objectives": Z_LOSS}),
        ({"rate": 0.05, "max_rate": 0.5, "min_per_segment": 4}, {}, {}, {}),
        ({"unit": "span", "span_cap": 2, "span_p": 0.5}, {}, {}, {"steps": 700}),
        ({"unit": "ngram", "ngram_max": 2}, {}, {}, {"steps": 700}),
        ({"unit": "phrase", "stratify": True}, {}, {}, {}),
        ({"unit": "sentence", "schedule": "parts", "parts": PARTS}, {}, {}, {}),
        ({"unit": "hierarchical", "levels": LEVELS, "schedule": "linear", "end_rate": 0.3}, {}, {}, {}),
        ({"priority": "frequency", "schedule": "cosine", "end_rate": 0.3}, {}, {}, {}),
        ({"priority": "importance"}, {}, {}, {}),
        ({"priority": "importance", "schedule": "adaptive", "reference_parameters": 2e4}, {}, {}, {"steps": 700}),
        ({"priority": "importance", "importance": "hidden", "importance_layer": -1}, {}, {}, {}),
        ({"priority": "importance", "importance": "attention", "temperature": 2.0}, {}, {}, {}),
        ({"random_ids": "unigram", "corruption": (0.5, 0.4, 0.1), "random_end": 0.0}, {}, {}, {}),
        ({}, {"schedule": "cosine", "layer_decay": 0.8}, {}, {}),
        ({}, {"schedule": "step", "step_every": 100, "step_factor": 0.7}, {}, {}),
        ({}, {"schedule": "constant", "learning_rate": 3e-3, "clip_norm": 0.0, "ema": 0.95}, {}, {}),
        ({}, {"groups": GROUPS, "schedule": "polynomial", "end": 0.1}, {}, {}),
        ({}, {"name": "lamb"}, {}, {"steps": 700}),
        ({}, {"name": "muon", "schedule": "wsd", "cooldown": 0.3}, {}, {}),
        ({}, {"name": "stable_adamw", "schedule": "inverse_sqrt", "freeze": FROZEN}, {}, {}),
        ({}, {"schedule": "parts", "parts": ((0.0, 1.0), (0.5, 0.3)), **SKIP}, {}, {}),
        ({}, {}, {"dropout": 0.1, "attention_dropout": 0.1}, {"steps": 1000}),
        ({}, {}, {"dtype": "bfloat16", "layers": 3, "unroll": 2}, {}),
        ({}, {}, {"layers": 1}, {}),
        ({}, {}, MODERNBERT, {}),
        ({}, {}, {}, {"accumulation": 4}),
    ],
)
def test_learns_the_pairs(mask, optimizer_options, model, rest):
    config = config_of(mask, optimizer_options, model, **rest)
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    network, update = build(config.model, VOCABULARY.size, config.objectives), optimizer(config.optimizer, config.steps)
    fed = feedback.start(network, SKEWED, config.mask)
    now = state.create(network, update, mesh, config.mesh, keys.root(0, keys.INIT), fed, config.optimizer)
    train_step = step.make_train_step(network, update, SKEWED, config, mesh)
    for number in range(config.steps):
        rows = rows_of(number % 40)
        rows = dataclasses.replace(rows, visit=jnp.full(rows.visit.shape, number // 40))
        if config.optimizer.bad_gradients == "skip" and number % 50 == 7:
            rows = dataclasses.replace(rows, weight=rows.weight.at[0].set(jnp.nan))
        folded = jax.tree.map(lambda x: x.reshape(config.accumulation, -1, *x.shape[1:]), rows)
        now, metrics = train_step(now, folded, keys.roots(0))
    assert np.isfinite(metrics["loss"])
    # evaluated on new rows, with whole words hidden
    plain = dataclasses.replace(config, mask=MaskConfig(rate=0.15))
    held_out = [rows_of(1000 + number) for number in range(4)]
    one = evaluate.evaluate(evaluate.make_evaluation_step(network, VOCABULARY, plain), now.averaged, held_out)
    shuffling = evaluate.make_evaluation_step(network, VOCABULARY, plain, shuffle_context=True)
    other = evaluate.evaluate(shuffling, now.averaged, held_out)
    assert one["unigram_loss"] == pytest.approx(np.log(48), abs=0.01)
    assert one["loss"] < 1.2, one
    assert other["loss"] > one["loss"] + 1, other
