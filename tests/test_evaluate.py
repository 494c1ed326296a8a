import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from batches import CLS, MASK, SEP, batch, random_batch, vocabulary

from mlm_jax import masking
from mlm_jax.config import Config, MaskConfig, ModelConfig
from mlm_jax.evaluate import evaluate, make_evaluation_step, shuffle, unigram_losses
from mlm_jax.keys import root
from mlm_jax.models import build
from mlm_jax.tokenizer import frequency_deciles

MODEL = ModelConfig(layers=1, width=8, heads=2, hidden=16, max_positions=16, initializer_range=0.5)
CONFIG = Config(row_length=16, mask=MaskConfig(rate=0.3), model=MODEL)


@functools.cache
def made():
    """A model, its parameters, and the jitted step of evaluation."""
    model = build(MODEL, 40)
    return model, jax.jit(model.init)(root(0, 3)), make_evaluation_step(model, vocabulary(40), CONFIG)


def mask(key, rows, config):
    """Masks as they are made in the step, jitted."""
    return jax.jit(lambda rows: masking.mask(key, rows, vocabulary(40), config, config.rate))(rows)


def test_perplexity_is_that_of_the_mean_over_all_targets():
    sums = [{"count": 1.0, "loss": 4.0, "accuracy": 0.0}, {"count": 3.0, "loss": 3.0, "accuracy": 3.0}]
    result = evaluate(lambda params, batch: sums.pop(), {}, [random_batch(seed=0, b=1, t=8)] * 2)
    assert result["targets"] == 4 and result["loss"] == 1.75 and result["accuracy"] == 0.75
    assert math.isclose(result["perplexity"], 5.7546, rel_tol=1e-5)


def test_without_a_target_there_is_no_nan():
    zeros = {"count": 0.0, "loss": 0.0, "accuracy": 0.0, "unigram_loss": 0.0}
    result = evaluate(lambda params, batch: zeros, {}, [random_batch(seed=0, b=1, t=8)])
    assert result == {"targets": 0, "loss": 0.0, "accuracy": 0.0, "unigram_loss": 0.0, "perplexity": 1.0}


def test_unigram_loss_by_hand():
    words = dataclasses.replace(vocabulary(8), counts=np.array([9, 9, 9, 9, 9, 3, 0, 1]))
    # counts + 1 of the ordinary ids 5, 6, 7: 4, 1, 2
    np.testing.assert_allclose(unigram_losses(words)[5:], -np.log([4 / 7, 1 / 7, 2 / 7]), rtol=1e-6)


def test_frequency_deciles_by_hand():
    # ids 5.. have 40, 20, 20, 10, 5, 5 of 100 tokens: their middles are at 20, 50, 70, 85, 92.5 and 97.5
    words = dataclasses.replace(vocabulary(11), counts=np.array([9, 9, 9, 9, 9, 20, 5, 40, 5, 20, 10]))
    assert frequency_deciles(words)[5:].tolist() == [6, 10, 3, 10, 8, 9]


def test_losses_by_decile_add_up_to_the_loss():
    rows = random_batch(seed=0, b=4, t=16)
    _, params, step = made()
    sums = jax.device_get(step(params, rows))
    assert sums["decile_count"].sum() == sums["count"]
    np.testing.assert_allclose(sums["decile_loss"].sum(), sums["loss"], rtol=1e-5)
    selected = np.asarray(mask(root(0, 2), rows, MaskConfig(rate=0.3)).selected)
    deciles = frequency_deciles(vocabulary(40))[np.asarray(rows.tokens)[selected]]
    np.testing.assert_array_equal(sums["decile_count"], np.bincount(deciles, minlength=11)[1:])
    means = evaluate(lambda params, batch: {**sums, "decile_count": np.eye(10)[2] * 4}, {}, [rows])
    assert [name for name in means if "decile" in name] == ["loss_decile_3"]
    assert math.isclose(means["loss_decile_3"], sums["decile_loss"][2] / 4, rel_tol=1e-6)


def test_sums_of_a_step_against_numpy():
    rows = random_batch(seed=0, b=4, t=16)
    model, params, step = made()
    got = jax.device_get(step(params, rows))
    fixed = MaskConfig(rate=0.3, corruption=(1.0, 0.0, 0.0))
    masked = mask(root(CONFIG.evaluate.seed, 2), rows, fixed)
    assert (np.asarray(masked.inputs)[np.asarray(masked.selected)] == MASK).all()
    hidden = jax.jit(model.apply)(params, dataclasses.replace(rows, tokens=masked.inputs)).hidden
    logits = np.asarray(model.logits(params, hidden), np.float64)[..., :40]
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    places, tokens = np.asarray(masked.selected), np.asarray(rows.tokens)
    at_target = np.take_along_axis(chances, tokens[..., None], -1)[..., 0]
    assert got["count"] == places.sum() > 0
    np.testing.assert_allclose(got["loss"], -np.log(at_target)[places].sum(), rtol=1e-4)
    np.testing.assert_allclose(got["accuracy"], (logits.argmax(-1) == tokens)[places].sum())
    np.testing.assert_allclose(got["unigram_loss"], unigram_losses(vocabulary(40))[tokens[places]].sum(), rtol=1e-5)


def test_masks_of_evaluation_do_not_depend_on_the_visit_nor_the_seed_of_the_run():
    rows = random_batch(seed=0, b=4, t=16)
    model, params, step = made()
    other = make_evaluation_step(model, vocabulary(40), dataclasses.replace(CONFIG, seed=5))
    later = dataclasses.replace(rows, visit=rows.visit + 3)
    jax.tree.map(np.testing.assert_array_equal, step(params, rows), step(params, later))
    jax.tree.map(np.testing.assert_array_equal, step(params, rows), other(params, rows))


def test_padding_rows_count_for_nothing():
    rows = random_batch(seed=0, b=4, t=16)
    _, params, step = made()
    empty = jax.tree.map(jnp.zeros_like, rows)
    filled = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), rows, dataclasses.replace(empty, row=empty.row - 1))
    one, two = jax.device_get((step(params, rows), step(params, filled)))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5)


def test_shuffled_context_moves_what_is_not_selected_and_nothing_else():
    rows = batch([[CLS, *range(10, 36), SEP, 0, 0]] * 3, [[1] * 28 + [0, 0]] * 3)
    masked = mask(root(0, 2), rows, MaskConfig(rate=0.2, corruption=(1.0, 0.0, 0.0)))
    moved = np.asarray(jax.jit(lambda rows, masked: shuffle(root(0, 2), rows, masked, vocabulary(40)))(rows, masked))
    inputs, selected = np.asarray(masked.inputs), np.asarray(masked.selected)
    movable = np.asarray(masking.maskable(rows.tokens, rows.segments, vocabulary(40))) & ~selected
    np.testing.assert_array_equal(moved[~movable], inputs[~movable])
    for row in range(3):
        assert sorted(moved[row][movable[row]]) == sorted(inputs[row][movable[row]])
        assert (moved[row][movable[row]] != inputs[row][movable[row]]).mean() > 0.7
    assert (moved[0] != moved[1]).any()
