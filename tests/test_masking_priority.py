import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, SEP, batch, random_batch, vocabulary
from masks import many, run

from mlm_jax.config import MaskConfig
from mlm_jax.masking.priority import _race, log2
from mlm_jax.tokenizer import Vocabulary

N = 40_000


def counted(counts):
    return Vocabulary(len(counts), np.arange(5), np.arange(5, len(counts)), 0, 2, 3, 4, 1, np.array(counts))


def chosen_of(masked):
    """How often each position is selected, of rows in which one is."""
    selected = np.asarray(masked.selected)
    assert (selected.sum(1) == 1).all()
    return selected.mean(0)


def test_logarithm_in_integers():
    x = np.concatenate([np.arange(1, 5000), np.random.default_rng(0).integers(1, 1 << 32, 50_000), [(1 << 32) - 1]])
    seen = np.asarray(jax.jit(log2)(jnp.asarray(x.astype(np.uint32)))).astype(np.float64) / 2**26
    np.testing.assert_allclose(seen, np.log2(x), atol=3e-7)


def test_noise_is_the_logarithm_of_an_exponential_draw():
    draws = np.random.default_rng(0).integers(0, 1 << 32, 200_000).astype(np.uint32)
    noise = np.asarray(_race(jnp.asarray(draws), jnp.zeros(draws.shape, jnp.uint32))) / 2**16
    exponential = -np.log2((draws + 0.5) / 2**32)
    usual = exponential > 2**-14
    np.testing.assert_allclose(noise[usual] - 26, np.log2(exponential[usual]), atol=0.001)


@pytest.mark.parametrize("power, temperature", [(0.5, 1.0), (1.5, 2.0)])
def test_rare_words_first_by_their_weight(power, temperature):
    counts = np.zeros(10)
    counts[5:] = [0, 3, 15, 63, 255]
    config = MaskConfig(rate=1 / 5, unit="token", priority="frequency", frequency_power=power, temperature=temperature)
    seen = chosen_of(many([CLS, 5, 6, 7, 8, 9, SEP], config, counted(counts), N))[1:6]
    weights = np.array([1.0, 4, 16, 64, 256]) ** (-power / temperature)
    expected = weights / weights.sum()
    np.testing.assert_array_less(np.abs(seen - expected), 4 * np.sqrt(expected / N) + 1e-3)


def test_a_word_has_the_mean_score_of_its_tokens():
    counts = np.zeros(10)
    counts[5:] = [0, 255, 15, 15, 0]
    # words: (rare, frequent), (middle, middle): the same mean of logarithms
    config = MaskConfig(rate=0.5, priority="frequency", frequency_power=1.0)
    selected = np.asarray(many([5, 6, 7, 8], config, counted(counts), N, word_starts=[1, 0, 1, 0]).selected)
    assert (selected.sum(1) == 2).all()
    np.testing.assert_allclose(selected.mean(0), 0.5, atol=0.012)


@pytest.mark.parametrize("temperature, offset", [(1.0, 0.0), (0.5, 1e4)])
def test_scores_are_sampled_by_softmax(temperature, offset):
    scores = np.array([0.0, 1.0, -1.0, 2.5])
    rows = batch(np.full((N, 6), [CLS, 9, 9, 9, 9, SEP]), rows=np.arange(N))
    config = MaskConfig(rate=1 / 4, unit="token", priority="importance", temperature=temperature)
    given = np.full((N, 6), 1e9)  # of CLS and SEP it does not matter
    given[:, 1:5] = scores + offset
    seen = chosen_of(run(rows, vocabulary(), config, None, scores=jnp.asarray(given, jnp.float32)))[1:5]
    expected = np.exp(scores / temperature) / np.exp(scores / temperature).sum()
    np.testing.assert_array_less(np.abs(seen - expected), 4 * np.sqrt(expected / N) + 2e-3)


def test_far_better_scores_are_first():
    rows = batch(np.full((500, 40), 9), rows=np.arange(500))
    high = jax.random.uniform(jax.random.key(1), (500, 40)).argsort(-1) < 8
    config = MaskConfig(rate=0.2, unit="token", priority="importance", temperature=0.1)
    selected = run(rows, vocabulary(), config, None, scores=jnp.where(high, 3.0, 0.0)).selected
    np.testing.assert_array_equal(selected, high)


def test_scores_and_priority_go_together():
    rows = batch([[9, 9]])
    with pytest.raises(ValueError, match="needs scores"):
        run(rows, vocabulary(), MaskConfig(priority="importance"))
    with pytest.raises(ValueError, match="takes no scores"):
        run(rows, vocabulary(), MaskConfig(), None, scores=jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match="no unigram counts"):
        run(rows, dataclasses.replace(vocabulary(), counts=None), MaskConfig(priority="frequency"))


def test_budget_does_not_depend_on_the_priority():
    rows = random_batch(1, 1000, 128, size=1000)
    plain = run(rows, vocabulary(1000), MaskConfig(unit="token"))
    other = run(rows, vocabulary(1000), MaskConfig(unit="token", priority="frequency"))
    np.testing.assert_array_equal(plain.selected.sum(-1), other.selected.sum(-1))
    both = run(rows, vocabulary(1000), MaskConfig(unit="span", priority="frequency", stratify=True, max_rate=0.3))
    off = np.asarray(both.selected.sum(-1)) - 0.15 * np.asarray(rows.tokens > 4).sum(-1)
    assert abs(off.sum()) < 4 * np.sqrt((off**2).sum())


def test_strata_take_turns():
    # ten kinds of tokens, each a tenth of the text, in a row of 100: a budget of 30 is 3 of each
    kinds = np.repeat(np.arange(5, 15), 10)
    words = counted([0] * 5 + [int(1000 * 1.01**i) for i in range(10)])
    config = MaskConfig(rate=0.3, unit="token", stratify=True)
    selected = np.asarray(many(kinds, config, words, 3000).selected).reshape(3000, 10, 10)
    counts = selected.sum(-1)
    assert set(np.unique(counts)) <= {2, 3, 4}
    assert (counts == 3).mean() > 0.8
    np.testing.assert_allclose(counts.mean(0), 3.0, atol=0.05)
    # within a stratum all are alike
    np.testing.assert_allclose(selected.mean(0), 0.3, atol=4 * np.sqrt(0.21 / 3000))


def test_rare_first_within_the_strata():
    # two frequent kinds and eight rare: without strata the frequent ones are hardly ever selected
    tokens = np.concatenate([np.full(50, 5), np.arange(6, 56)])
    words = counted([0] * 5 + [5_000_000] + [100_000] * 50)
    config = MaskConfig(rate=0.2, unit="token", priority="frequency", frequency_power=2.0)
    plain = np.asarray(many(tokens, config, words, 500).selected)[:, :50].sum(1).mean()
    strata = np.asarray(many(tokens, dataclasses.replace(config, stratify=True), words, 500).selected)[:, :50]
    assert plain < 1 and strata.sum(1).mean() == pytest.approx(10, abs=0.3)


def test_a_row_does_not_depend_on_its_place_nor_on_the_visit_of_others():
    rows, config = random_batch(4, 8, 64), MaskConfig(rate=0.3, priority="frequency", stratify=True)
    masked = run(rows, vocabulary(), config)
    shuffled = run(jax.tree.map(lambda x: x[::-1], rows), vocabulary(), config)
    np.testing.assert_array_equal(masked.inputs, shuffled.inputs[::-1])
    later = run(dataclasses.replace(rows, visit=rows.visit.at[0].set(1)), vocabulary(), config)
    np.testing.assert_array_equal(masked.inputs[1:], later.inputs[1:])
    assert (masked.selected[0] != later.selected[0]).any()
