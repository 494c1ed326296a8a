"""Objectives beside masked tokens: hand calculations, and that accumulation and the mesh change nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, SEP, batch, random_batch
from test_step import config_of, run

from mlm_jax import keys, masking, objectives, order
from mlm_jax.config import (
    CausalConfig,
    ContrastiveConfig,
    MlmConfig,
    ObjectiveConfig,
    ObjectivesConfig,
    ReplacedConfig,
)
from mlm_jax.models import build
from mlm_jax.records import PHRASE_JOIN, SECOND_OF_PAIR, SENTENCE_START, WORD_START

OFF, ON = MlmConfig(weight=0.0), ObjectiveConfig(weight=1.0)
ALONE = {
    "nsp": ObjectivesConfig(mlm=OFF, nsp=ON),
    "sop": ObjectivesConfig(mlm=OFF, sop=ON),
    "contrastive": ObjectivesConfig(mlm=OFF, contrastive=ContrastiveConfig(weight=1.0, group_rows=4)),
    "causal": ObjectivesConfig(mlm=OFF, causal=CausalConfig(ratio=1.0)),
    "replaced": ObjectivesConfig(mlm=OFF, replaced=ReplacedConfig(weight=50.0, generator_layers=1)),
}
TOGETHER = ObjectivesConfig(
    mlm=MlmConfig(schedule=((0.0, 1.0), (1.0, 0.5)), z_loss=0.1),
    sop=ObjectiveConfig(weight=0.5),
    contrastive=ContrastiveConfig(weight=0.3, group_rows=2, view="dropout"),
    causal=CausalConfig(ratio=0.3),
)


def pairs(rows):
    """The rows with every segment of six or more tokens as a pair, cut at a SEP in its middle; labels 0."""
    tokens, flags, labels = (np.array(getattr(rows, name)) for name in ("tokens", "flags", "pair_labels"))
    for b, starts in enumerate(np.asarray(rows.firsts)):
        for segment, start in enumerate(starts, start=1):
            length = int((np.asarray(rows.segments[b]) == segment).sum())
            if length >= 6:
                cut = start + length // 2
                tokens[b, cut] = SEP
                flags[b, cut] = 0
                flags[b, cut + 1 : start + length] |= SECOND_OF_PAIR
                labels[b, segment - 1] = 0
    return dataclasses.replace(
        rows, tokens=jnp.asarray(tokens), flags=jnp.asarray(flags), pair_labels=jnp.asarray(labels)
    )


@functools.cache
def rows_of_pairs(steps):
    found = []
    for i in range(steps):
        rows = pairs(random_batch(i, b=16, t=32, max_segments=3))
        labels = jnp.where(rows.pair_labels == 0, jnp.asarray(np.arange(48).reshape(16, 3) % 2), -1)
        found.append((dataclasses.replace(rows, row=jnp.arange(16) + 16 * i), labels))
    return found


def rows_for(name, steps):
    """With labels of both kinds for `nsp`; else all in order."""
    labelled = name == "nsp"
    return [
        dataclasses.replace(rows, pair_labels=labels) if labelled else rows for rows, labels in rows_of_pairs(steps)
    ]


def given(rows, config, model, params, **states):
    """Passes over rows without a mask, with states in place of forward passes."""
    nothing = objectives.Rows(rows, masking.nothing(rows, 8))
    passes = objectives.Passes(model, params, nothing, config, (), keys.roots(0), drops=False, also_other=False)
    passes.__dict__.update(states)
    return passes


def count(name, rows, config=None):
    return objectives.OBJECTIVES[name].count(config or config_of(), rows, masking.nothing(rows, 8))


# ---- the order of pairs ----


def test_a_pair_is_swapped_by_hand():
    a, b = [11, 12, 13], [21, 22]
    rows = batch([[CLS, 31, SEP, CLS, *a, SEP, *b, SEP, 0]], [[1, 1, 1, *[2] * 8, 0]])
    flags = [0, WORD_START, 0, 0, WORD_START | SENTENCE_START, 0, WORD_START | PHRASE_JOIN, 0]
    flags += [WORD_START | SENTENCE_START | SECOND_OF_PAIR, SECOND_OF_PAIR, SECOND_OF_PAIR, 0]
    rows = dataclasses.replace(
        rows, flags=jnp.asarray([flags], jnp.uint8), pair_labels=jnp.asarray([[-1, 0, -1, -1]], jnp.int32)
    )
    seen = set()
    for visit in range(8):
        read = order.swapped(jax.random.key(0), dataclasses.replace(rows, visit=jnp.array([visit])))
        label = int(read.pair_labels[0, 1])
        seen.add(label)
        assert read.pair_labels[0].tolist() == [-1, label, -1, -1]
        if label == 0:
            jax.tree.map(np.testing.assert_array_equal, dataclasses.replace(read, visit=rows.visit), rows)
            continue
        assert read.tokens[0].tolist() == [CLS, 31, SEP, CLS, *b, SEP, *a, SEP, 0]
        moved = [WORD_START | SENTENCE_START, 0, 0]
        moved += [x | SECOND_OF_PAIR for x in (WORD_START | SENTENCE_START, 0, WORD_START | PHRASE_JOIN, 0)]
        assert read.flags[0].tolist() == [*flags[:4], *moved, 0]
        for name in ("segments", "positions", "firsts"):
            np.testing.assert_array_equal(getattr(read, name), getattr(rows, name))
    assert seen == {0, 1}


def test_half_of_the_pairs_are_swapped_anew_at_each_visit_wherever_they_stand():
    rows = pairs(random_batch(0, b=16, t=32, max_segments=3))
    rows = jax.tree.map(lambda x: jnp.tile(x, (40, *(1,) * (x.ndim - 1))), rows)
    rows = dataclasses.replace(rows, row=jnp.arange(640))
    swap = jax.jit(order.swapped)
    first = swap(jax.random.key(1), rows)
    labels, paired = np.asarray(first.pair_labels), np.asarray(rows.pair_labels) >= 0
    assert abs(labels[paired].mean() - 0.5) < 4 * 0.5 / np.sqrt(paired.sum())
    assert (labels[~paired] == -1).all()
    again = swap(jax.random.key(1), dataclasses.replace(rows, visit=jnp.full(640, 1)))
    agree = (np.asarray(again.pair_labels) == labels)[paired].mean()
    assert abs(agree - 0.5) < 0.1
    backwards = swap(jax.random.key(1), jax.tree.map(lambda x: x[::-1], rows))
    np.testing.assert_array_equal(np.asarray(backwards.tokens)[::-1], first.tokens)
    for one, other in zip(np.asarray(rows.tokens), np.asarray(first.tokens)):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))  # nothing is lost


# ---- sums and counts ----


def test_next_tokens_by_hand():
    rows = batch([[CLS, 7, SEP, CLS, 8, 9, SEP, 0]], [[1, 1, 1, 2, 2, 2, 2, 0]])
    targets, weights = objectives.next_tokens(rows)
    assert targets[0].tolist() == [7, SEP, 0, 8, 9, SEP, 0, 0]
    assert weights[0].tolist() == [1, 1, 0, 1, 1, 1, 0, 0]
    assert count("causal", rows) == 5


def test_contrastive_loss_by_a_loop():
    rows = random_batch(3, b=4, t=32, max_segments=3)
    config = config_of(objectives=ALONE["contrastive"])
    config.objectives.contrastive.group_rows, config.objectives.contrastive.temperature = 2, 0.5
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)

    model = build(config.model, 40)._replace(contrast=lambda params, hidden: hidden)
    passes = given(rows, config, model, {}, _main=jnp.asarray(one), other_firsts=jnp.asarray(other))
    sums = objectives.OBJECTIVES["contrastive"].sums(passes)
    there = np.asarray(rows.segment_weight) > 0
    loss = hits = chance = number = 0
    for group in ([0, 1], [2, 3]):
        segments = [(b, p) for b in group for p in range(3) if there[b, p]]
        for x, y in ((one, other), (other, one)):
            for i, at in enumerate(segments):
                cosines = [x[at] @ y[to] / np.linalg.norm(x[at]) / np.linalg.norm(y[to]) for to in segments]
                chances = np.exp(np.array(cosines) / 0.5)
                loss -= np.log(chances[i] / chances.sum()) / 2
                hits += (np.argmax(cosines) == i) / 2
        chance, number = chance + 1, number + len(segments)
    np.testing.assert_allclose([sums["loss"], sums["accuracy"], sums["chance"]], [loss, hits, chance], rtol=1e-5)
    assert count("contrastive", rows, config) == number


def test_pair_loss_by_hand_and_its_count():
    rows = rows_for("nsp", 1)[0]
    config = config_of(objectives=ALONE["nsp"])
    model = build(config.model, 40, config.objectives)
    params = jax.jit(model.init)(keys.root(0, keys.INIT))
    assert "head" not in params and set(params["pair"]) == {"dense", "classifier"}
    hidden = jax.jit(model.apply)(params, rows, at=rows.firsts).hidden
    sums = objectives.OBJECTIVES["nsp"].sums(given(rows, config, model, params, _main=hidden))
    pair, labels, hidden = *jax.device_get((params["pair"], rows.pair_labels)), np.asarray(hidden)
    pooled = np.tanh(hidden @ pair["dense"]["kernel"] + pair["dense"]["bias"])
    logits = np.asarray(pooled @ pair["classifier"]["kernel"] + pair["classifier"]["bias"])
    expected = [np.log(np.exp(l).sum()) - l[label] for l, label in zip(logits[labels >= 0], labels[labels >= 0])]
    np.testing.assert_allclose(sums["loss"], sum(expected), rtol=1e-5)
    assert count("nsp", rows) == len(expected) > 10


def test_weights_and_kinds_of_steps():
    config = config_of(objectives=TOGETHER, steps=101)
    weight = objectives.weight_at(config, "mlm")
    np.testing.assert_allclose([weight(0), weight(50), weight(100)], [1.0, 0.75, 0.5])
    assert objectives.weight_at(config, "sop")(30) == 0.5
    kinds = np.array(jax.vmap(lambda step: objectives.is_causal(config, step))(jnp.arange(4000)))
    assert abs(kinds.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 4000)
    other = dataclasses.replace(config, seed=1)
    assert (kinds != np.array(jax.vmap(lambda step: objectives.is_causal(other, step))(jnp.arange(4000)))).any()


# ---- the whole step ----


@pytest.mark.parametrize("name", [*ALONE, "together"])
def test_mesh_and_accumulation_change_nothing(name):
    chosen = {**ALONE, "together": TOGETHER}[name]
    model = dataclasses.replace(config_of().model, layers=1 if name == "replaced" else 2)
    config = config_of(objectives=chosen, model=model)
    rows = rows_for(name, 20 if name == "together" else 4)
    expected, _ = run(config, rows)
    got, _ = run(config, rows, (2, 2, 2) if name == "together" else (2, 1, 1), accumulation=2)
    for one, two in zip(expected, got):
        assert one.keys() == two.keys()
        for key in ("rows_hash", "mask_hash", "targets"):
            assert one[key] == two[key], key
        for key in [key for key in one if key.endswith("loss")]:
            np.testing.assert_allclose(one[key], two[key], rtol=1e-5, atol=1e-6, err_msg=key)
        np.testing.assert_allclose(one["grad_norm"], two["grad_norm"], rtol=1e-3)
    assert all(np.isfinite(metrics["loss"]) for metrics in expected)
    if name == "together":
        kinds = [bool(metrics["causal_step"]) for metrics in expected]
        assert kinds == [bool(objectives.is_causal(config, step)) for step in range(20)] and 2 < sum(kinds) < 12
        one = expected[kinds.index(False)]
        by_hand = sum(one[f"{key}/weight"] * one[f"{key}/loss"] for key in ("mlm", "sop", "contrastive"))
        # the z-loss is 0.1 times the mean of squares, of numbers near ln 40 = 3.7, and so of their mean's square
        of_z = one["mlm/weight"] * 0.1 * one["mlm/log_z"] ** 2
        np.testing.assert_allclose(one["loss"], by_hand + of_z, rtol=0.01)
        causal = expected[kinds.index(True)]
        np.testing.assert_allclose(causal["loss"], causal["causal/loss"] + 0.1 * causal["causal/log_z"] ** 2, rtol=0.01)
        assert 3 < one["mlm/log_z"] < 4.5 and "mlm/total" not in one
        assert causal["mask_rate"] == causal["mlm/loss"] == 0
