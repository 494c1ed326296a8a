"""What the masks take from the run: importance of tokens, surprisal by kind of token, rates that follow the run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, SEP, batch, random_batch, vocabulary
from test_step import VOCABULARY, config_of, rows_of_steps, run

from mlm_jax import evaluate, feedback, keys, masking
from mlm_jax.batch import Masked
from mlm_jax.config import MaskConfig, ModelConfig
from mlm_jax.models import build

KEY = jax.random.key(0, impl="threefry2x32")
KINDS = ("surprisal", "hidden", "attention")


def importance(kind, **changes):
    mask = MaskConfig(rate=0.2, priority="importance", importance=kind, **changes)
    return config_of(mask=mask, model=dataclasses.replace(config_of().model, dropout=0.0, attention_dropout=0.0))


@functools.cache
def runs(kind, shape=(1, 1, 1), accumulation=1):
    return run(importance(kind), rows_of_steps(8), shape, accumulation)


@pytest.mark.parametrize("kind, shape, accumulation", [("surprisal", (2, 2, 2), 2), ("hidden", (1, 1, 1), 4)])
def test_mesh_and_accumulation_change_nothing(kind, shape, accumulation):
    (expected, last), (got, other) = runs(kind), runs(kind, shape, accumulation)
    for one, two in zip(expected, got):
        assert one["targets"] == two["targets"] and one["rows_hash"] == two["rows_hash"]
        np.testing.assert_allclose(one["loss"], two["loss"], rtol=1e-4)
    assert [m["mask_hash"] for m in expected[:2]] == [m["mask_hash"] for m in got[:2]]
    if kind == "surprisal":
        np.testing.assert_allclose(last.feedback["surprisal"], other.feedback["surprisal"], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_same_again_is_bit_identical(kind):
    again = run(importance(kind), rows_of_steps(8))
    jax.tree.map(np.testing.assert_array_equal, runs(kind), again)


def test_the_table_by_hand():
    # id 7: two losses, 3 and 1; id 9: one of 5, in a row that does not count; others stay
    config = MaskConfig(priority="importance", importance="surprisal", surprisal_memory=2.0)
    fed = feedback.start(build(ModelConfig(layers=1, width=4, heads=1, hidden=4), 40), vocabulary(40), config)
    table = fed["surprisal"]
    np.testing.assert_allclose(table[5:], -np.log(np.arange(7, 42) / np.arange(7, 42).sum()), rtol=1e-5)
    masked = Masked(
        inputs=jnp.zeros((3, 1, 4), int),
        indices=jnp.zeros((3, 1, 2), int),
        targets=jnp.array([[[7, 0]], [[7, 0]], [[9, 0]]]),
        weights=jnp.array([[[1.0, 0]], [[1.0, 0]], [[0.0, 0]]]),
        selected=jnp.zeros((3, 1, 4), bool),
        dropped=jnp.zeros((3, 1), int),
    )
    losses = jnp.zeros((3, 1, 2)).at[:, 0, 0].set(jnp.array([3.0, 1.0, 5.0])).at[:, 0, 1].set(99.0)
    after = np.asarray(feedback.after_step({"surprisal": jnp.asarray(table)}, losses, masked, config)["surprisal"])
    assert after[7] == pytest.approx((2 * table[7] + 4) / 4, rel=1e-6)
    np.testing.assert_array_equal(np.delete(after, 7), np.delete(table, 7))


def test_scores_are_what_the_model_shows():
    """Norm, attention and table of a model, by its own outputs and numpy."""
    rows = random_batch(3, 4, 32)
    model = build(importance("hidden").model, 40)
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, KEY)
    params = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape) * 0.3, jnp.float32), shapes)
    full = model.apply(params, rows, want=("hidden", "attention"))
    asks = (np.asarray(rows.segments) > 0)[None, :, None, :, None]
    received = (np.asarray(full.out["attention"]) * asks).mean(2).sum(2)  # [l,b,t]
    norms = np.linalg.norm(np.asarray(full.out["hidden"]), axis=-1)
    table = np.linspace(0, 1, 40, dtype=np.float32)
    for layer in (1, 2, 3, -1):
        at = layer if layer > 0 else 3
        config = MaskConfig(importance_layer=layer)
        hidden = feedback.IMPORTANCE["hidden"](model, params, {}, rows, config)
        np.testing.assert_allclose(hidden, norms[at], rtol=1e-5)
        attention = feedback.IMPORTANCE["attention"](model, params, {}, rows, config)
        real = np.asarray(rows.segments) > 0
        np.testing.assert_allclose(np.asarray(attention)[real], received[at - 1][real], rtol=1e-5)
    surprisal = feedback.IMPORTANCE["surprisal"](model, params, {"surprisal": jnp.asarray(table)}, rows, config)
    np.testing.assert_array_equal(surprisal, table[np.asarray(rows.tokens)])


@pytest.mark.parametrize("temperature, share", [(1.0, 0.75), (0.5, 0.9)])
def test_tokens_are_sampled_by_their_importance(temperature, share):
    """Of two tokens, one has three times the loss of the other: it is the one selected in 3 of 4, or 9 of 10 rows."""
    mask_config = dataclasses.replace(importance("surprisal").mask, rate=0.5, unit="token", temperature=temperature)
    config = dataclasses.replace(importance("surprisal"), mask=mask_config)
    rows = batch([[CLS, 7, 8, SEP]] * 4000, rows=np.arange(4000))
    fed = {"surprisal": jnp.ones(40).at[7].set(3.0)}
    mask = jax.jit(feedback.make_mask(build(config.model, 40), VOCABULARY, config))
    masked = mask(0, KEY, jax.tree.map(lambda leaf: leaf[None], rows), {}, fed)
    first, second = np.asarray(masked.selected)[0, :, 1:3].mean(0)
    assert first + second == pytest.approx(1.0)
    assert first == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 4000))


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_a_run_that_has_not_begun_are_those_of_its_first_step(kind):
    config = importance(kind)
    model, key = build(config.model, VOCABULARY.size, config.objectives), keys.root(config.seed, keys.INIT)
    mask, _ = feedback.make_mask_at_start(model, VOCABULARY, config, lambda: jax.jit(model.init)(key))
    rows = rows_of_steps(8)[0]
    masked = mask(0, keys.roots(config.seed)["mask"], rows)
    assert int(masking.hashes(rows, masked)[1]) == int(runs(kind)[0][0]["mask_hash"])


def test_adaptive_rate_by_hand():
    # four ordinary ids of counts 0, 0, 0, 0: entropy log 4
    words = dataclasses.replace(vocabulary(9), counts=np.zeros(9, int))
    assert feedback.unigram_entropy(words) == pytest.approx(np.log(4))
    config = MaskConfig(rate=0.15, schedule="adaptive", reference_parameters=1000.0, reference_entropy=float(np.log(2)))
    for parameters, rate in [(500, 0.15), (600, 0.18), (100, 0.1), (5000, 0.3)]:  # x 2 for the entropy
        assert feedback.adaptive_rate(config, words, parameters) == pytest.approx(rate)


def test_the_rate_follows_the_evaluation_loss():
    config = MaskConfig(rate=0.3, schedule="loss", end_rate=0.1)
    fed = jax.device_put(feedback.start(build(config_of().model, 40), VOCABULARY, config))
    assert fed["rate"] == np.float32(0.3)
    # 1 target of loss 4, 3 of loss 2, unigram losses 6 and 4: 10 / 18 of what the frequencies leave
    results = {
        "a": {"targets": 1, "loss": 4.0, "unigram_loss": 6.0},
        "b": {"targets": 3, "loss": 2.0, "unigram_loss": 4.0},
    }
    assert feedback.after_evaluation(fed, results, config)["rate"] == pytest.approx(0.1 + 0.2 * 10 / 18)
    results["a"]["loss"] = 60.0
    assert feedback.after_evaluation(fed, results, config)["rate"] == pytest.approx(0.3)
    results["a"]["loss"] = float("nan")
    assert feedback.after_evaluation(fed, results, config) is fed
    assert feedback.after_evaluation(fed, {}, config) is fed
    assert feedback.after_evaluation(fed, results, MaskConfig()) is fed


def test_a_rate_from_the_state_is_that_of_the_masks():
    config = config_of(mask=MaskConfig(rate=0.5, schedule="loss", end_rate=0.0, unit="token"))
    model = build(config.model, VOCABULARY.size, config.objectives)
    mask = jax.jit(feedback.make_mask(model, VOCABULARY, config))
    rows = jax.tree.map(lambda leaf: leaf[None], random_batch(1, 64, 64))
    number = int(masking.maskable(rows.tokens, rows.segments, VOCABULARY).sum())
    for rate in (0.1, 0.4):
        masked = mask(0, KEY, rows, {}, {"rate": np.float32(rate)})
        assert int(masked.selected.sum()) / number == pytest.approx(rate, abs=0.02)
    assert mask._cache_size() == 1
    with pytest.raises(ValueError, match="'loss' needs a rate"):
        mask(0, KEY, rows, {}, {})


def test_evaluation_masks_do_not_depend_on_the_model():
    rows = random_batch(1, 8, 32)
    plain = jax.jit(evaluate.make_mask(VOCABULARY, config_of()))(rows)
    changed = jax.jit(evaluate.make_mask(VOCABULARY, importance("hidden")))(rows)
    np.testing.assert_array_equal(plain.selected, changed.selected)
