import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import random_batch, vocabulary
from masks import KEY

from mlm_jax.config import Config, ConfigError, DataConfig, EvaluateConfig, MaskConfig, ModelConfig, capacity, check
from mlm_jax.evaluate import make_mask
from mlm_jax.masking import fixed, mask, random_at, rate_at

PARTS = ((0.0, 0.7), (0.2, 1.0), (0.8, 0.9))


@pytest.mark.parametrize(
    "options, steps, expected",
    [
        ({}, 3, [0.2, 0.2, 0.2]),
        ({"schedule": "linear", "end_rate": 0.4}, 5, [0.2, 0.25, 0.3, 0.35, 0.4]),
        ({"schedule": "linear", "end_rate": 0.0}, 3, [0.2, 0.1, 0.0]),
        ({"schedule": "cosine", "end_rate": 0.1}, 5, [0.2, 0.15 + 0.05 / 2**0.5, 0.15, 0.15 - 0.05 / 2**0.5, 0.1]),
        ({"schedule": "step", "end_rate": 0.1, "stairs": 3}, 6, [0.2, 0.2, 0.15, 0.15, 0.1, 0.1]),
        ({"schedule": "step", "end_rate": 0.1, "stairs": 1}, 2, [0.2, 0.2]),
        ({"schedule": "parts", "parts": PARTS}, 10, [0.14] * 2 + [0.2] * 6 + [0.18] * 2),
        ({"schedule": "linear", "end_rate": 0.4}, 1, [0.2]),
    ],
)
def test_rates(options, steps, expected):
    at = jax.jit(rate_at(MaskConfig(rate=0.2, **options), steps))
    rates = [at(jnp.int32(n)) for n in range(steps)]
    assert rates[0].dtype == jnp.float32
    np.testing.assert_allclose(rates, expected, atol=1e-6)
    if steps > 1:
        assert float(at(jnp.int32(steps + 5))) == float(rates[-1])  # a run that goes on


def test_share_of_random_tokens():
    assert random_at(MaskConfig(), 5) is None
    at = random_at(MaskConfig(corruption=(0.6, 0.3, 0.1), random_end=0.1), 5)
    np.testing.assert_allclose([at(jnp.int32(n)) for n in range(5)], [0.3, 0.25, 0.2, 0.15, 0.1], atol=1e-6)


def test_capacity_is_for_the_largest_rate():
    t = 512
    assert capacity(MaskConfig(rate=0.1, schedule="linear", end_rate=0.4), t, 4) == capacity(MaskConfig(rate=0.4), t, 4)
    rising = MaskConfig(rate=0.2, schedule="parts", parts=((0.0, 1.0), (0.5, 2.0)))
    assert capacity(rising, t, 4) == capacity(MaskConfig(rate=0.4), t, 4)
    assert capacity(MaskConfig(rate=0.1, schedule="linear", end_rate=0.4, max_rate=0.5), t, 4) == 272


def test_a_changed_rate_compiles_nothing_anew():
    config = MaskConfig(rate=0.1, schedule="linear", end_rate=0.5)
    rows, at = random_batch(1, 64, 64), rate_at(config, 5)
    traced = []

    @jax.jit
    def of_step(step):
        traced.append(step)
        return mask(KEY, rows, vocabulary(), config, at(step))

    maskable = int((rows.tokens > 4).sum())
    for n in range(5):
        masked = of_step(jnp.int32(n))
        np.testing.assert_allclose(masked.selected.sum() / maskable, 0.1 + 0.1 * n, atol=0.015)
    assert len(traced) == 1


def test_evaluation_keeps_the_rate_whatever_the_schedule():
    config = MaskConfig(rate=0.1, schedule="linear", end_rate=0.5, random_end=0.0, priority="importance", unit="span")
    assert fixed(config, EvaluateConfig()) == MaskConfig(
        rate=0.1, regime="static", corruption=(1.0, 0.0, 0.0), unit="span"
    )
    frequent = fixed(MaskConfig(priority="frequency", max_rate=0.5), EvaluateConfig())
    assert frequent.priority == "frequency" and capacity(frequent, 512, 4) == capacity(MaskConfig(), 512, 4)


def test_runs_with_different_masks_are_evaluated_by_the_same_ones():
    same = EvaluateConfig(rate=0.15, unit="word", priority="uniform")
    by_sentence = MaskConfig(rate=0.4, unit="sentence", priority="frequency", temperature=2.0, max_rate=0.5)
    assert fixed(by_sentence, same) == fixed(MaskConfig(), EvaluateConfig())
    rows = random_batch(seed=0, b=64, t=32)
    masks = make_mask(vocabulary(), Config(mask=by_sentence, evaluate=same))(rows)
    assert bool((masks.selected == make_mask(vocabulary(), Config())(rows).selected).all())
    with pytest.raises(ConfigError, match=r"config.evaluate.unit = 'letter': must be one of token, word, "):
        check(Config(evaluate=EvaluateConfig(unit="letter")), 1)
    with pytest.raises(ConfigError, match=r"config.evaluate.unit = 'phrase': needs rows that mark phrases"):
        check(Config(evaluate=EvaluateConfig(unit="phrase")), 1)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"schedule": "linear"}, r"mask.end_rate = None: .*'linear': name the rate"),
        ({"end_rate": 0.3}, r"mask.end_rate = 0.3: .*'constant': has no place"),
        ({"schedule": "cosine", "end_rate": 1.5}, r"mask.end_rate = 1.5: must lie in \[0, 1\]"),
        ({"schedule": "parts"}, r"mask.parts = \(\).*needs parts such as"),
        ({"parts": PARTS}, r"mask.parts.*takes no parts"),
        ({"schedule": "parts", "parts": ((0.1, 1.0),)}, r"mask.parts.*must begin at 0"),
        ({"schedule": "parts", "parts": ((0.0, 1.0), (0.0, 2.0))}, r"mask.parts.*rise"),
        ({"schedule": "parts", "parts": ((0.0, 9.0),)}, r"mask.parts.*rates in \[0, 1\]"),
        ({"schedule": "linear", "end_rate": 0.4, "max_rate": 0.3}, r"mask.max_rate = 0.3: .*largest rate, 0.4"),
        ({"schedule": "up"}, r"mask.schedule = 'up': must be one of constant, linear"),
        ({"priority": "rarity"}, r"mask.priority = 'rarity': must be one of uniform, frequency, importance"),
        ({"importance": "norm"}, r"mask.importance = 'norm': must be one of surprisal, hidden, attention"),
        ({"importance_layer": 0}, r"mask.importance_layer = 0: config.model.layers = 12: must be 1 to 12, or -1"),
        ({"importance_layer": 13}, r"mask.importance_layer = 13"),
        ({"surprisal_memory": 0.0}, r"mask.surprisal_memory = 0.0: must be greater than 0"),
        ({"schedule": "loss"}, r"mask.end_rate = None: config.mask.schedule = 'loss': name the rate at the end"),
        ({"schedule": "adaptive", "end_rate": 0.1}, r"mask.end_rate = 0.1: config.mask.schedule = 'adaptive'"),
        ({"schedule": "adaptive", "max_rate": 0.2}, r"mask.max_rate = 0.2: .*largest rate, 0.3"),
        ({"schedule": "adaptive", "reference_entropy": 0.0}, r"mask.reference_entropy = 0.0: must be greater than 0"),
        ({"temperature": 0.0}, r"mask.temperature = 0.0: must be greater than 0"),
        ({"frequency_power": -1.0}, r"mask.frequency_power = -1.0: must be at least 0"),
        ({"span_p": 1.0}, r"mask.span_p = 1.0"),
        ({"span_cap": 0}, r"mask.span_cap = 0: must be at least 1"),
        ({"ngram_max": 0}, r"mask.ngram_max = 0: must be at least 1"),
        ({"levels": ()}, r"mask.levels = \(\)"),
        ({"levels": (("paragraph", 1.0),)}, r"mask.levels = 'paragraph': a level is one of token, word"),
        ({"levels": (("word", -1.0), ("span", 2.0))}, r"mask.levels.*weights"),
        ({"random_ids": "zipf"}, r"mask.random_ids = 'zipf'"),
        ({"random_end": 0.95}, r"mask.random_end = 0.95: must be at most 0.9"),
    ],
)
def test_refusals(options, match):
    with pytest.raises(ConfigError, match=match):
        check(Config(mask=MaskConfig(**options), model=ModelConfig()), devices=1)


def test_what_is_accepted():
    for options in (
        {"schedule": "parts", "parts": PARTS},
        {"schedule": "linear", "end_rate": 0.0, "random_end": 0.9},
        {"unit": "hierarchical", "levels": (("phrase", 1.0), ("ngram", 0.0))},
        {"priority": "frequency", "stratify": True, "rate": 1.0},
    ):
        check(Config(mask=MaskConfig(**options), data=DataConfig(collocations=10)), devices=1)
