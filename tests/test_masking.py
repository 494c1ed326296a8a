import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, MASK, PAD, SEP, batch, random_batch, vocabulary
from masks import many, oracle, run

from mlm_jax.config import MaskConfig, capacity
from mlm_jax.masking import hashes
from mlm_jax.tokenizer import Vocabulary


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("word_rate", [0.2, 0.7])
def test_selection_equals_a_plain_python_oracle(unit, rate, word_rate):
    rows = random_batch(seed=3, b=24, t=48, word_rate=word_rate)
    config = MaskConfig(max_rate=1.0, unit=unit)
    masked = run(rows, vocabulary(), config, rate)
    expected = oracle(rows, vocabulary(), config, rate)
    for i, positions in enumerate(expected):
        np.testing.assert_array_equal(np.flatnonzero(masked.selected[i]), positions)
        filled = np.asarray(masked.weights[i]) == 1
        np.testing.assert_array_equal(masked.indices[i][filled], positions)
        np.testing.assert_array_equal(masked.targets[i][filled], rows.tokens[i][np.array(positions, int)])
        assert not np.any(masked.indices[i][~filled]) and not np.any(masked.targets[i][~filled])


@pytest.mark.parametrize("least", [1, 3])
def test_least_tokens_of_a_segment(least):
    rows = random_batch(seed=5, b=24, t=48)
    config = MaskConfig(rate=0.05, max_rate=1.0, min_per_segment=least)
    masked = run(rows, vocabulary(), config)
    for i, positions in enumerate(oracle(rows, vocabulary(), config, 0.05)):
        np.testing.assert_array_equal(np.flatnonzero(masked.selected[i]), positions)
    for i in range(24):
        for segment in range(1, int(rows.segments[i].max()) + 1):
            here = np.asarray(rows.segments[i] == segment)
            maskable = here & (np.asarray(rows.tokens[i]) > 4)
            assert np.asarray(masked.selected[i])[here].sum() >= min(least, maskable.sum())


def test_whole_words_are_dropped_above_the_capacity():
    # many segments of few long words: each takes a whole word for a budget of 0 or 1, and together too much
    rows = random_batch(seed=7, b=256, t=64, max_segments=16, word_rate=0.15)
    config = MaskConfig(rate=0.06)
    masked = run(rows, vocabulary(), config)
    counts = np.asarray(masked.selected.sum(-1))
    assert capacity(config, 64, 16) == 8 and counts.max() <= 8
    without = oracle(rows, vocabulary(), dataclasses.replace(config, max_rate=1.0), config.rate)
    assert sum(map(len, without)) > counts.sum()
    assert int(masked.dropped.sum()) == sum(map(len, without)) - counts.sum()
    assert not run(rows, vocabulary(), dataclasses.replace(config, max_rate=1.0), 0.06).dropped.any()
    for i, positions in enumerate(oracle(rows, vocabulary(), config, 0.06)):
        np.testing.assert_array_equal(np.flatnonzero(masked.selected[i]), positions)


def test_words_of_any_tokenizer_by_its_flags():
    # <s> home land Ġse curity . </s>
    masked = many(
        [CLS, 10, 11, 12, 13, 14, SEP], MaskConfig(rate=0.4), vocabulary(), 400, word_starts=[0, 1, 0, 1, 0, 1, 0]
    )
    selected = np.asarray(masked.selected)
    assert not selected[:, [0, 6]].any()
    np.testing.assert_array_equal(selected[:, 1], selected[:, 2])
    np.testing.assert_array_equal(selected[:, 3], selected[:, 4])
    assert {tuple(row[[1, 3, 5]]) for row in selected} >= {(True, False, False), (False, True, False)}


def test_first_token_after_a_special_one_starts_a_word():
    masked = many([CLS, 10, 11, SEP, 12, 13, SEP, PAD], MaskConfig(rate=0.5), vocabulary(), 300, word_starts=[0] * 8)
    selected = np.asarray(masked.selected)
    np.testing.assert_array_equal(selected[:, 1], selected[:, 2])
    np.testing.assert_array_equal(selected[:, 4], selected[:, 5])
    assert (selected[:, 1] != selected[:, 4]).any()


@pytest.mark.parametrize(
    "pad, cls, sep, mask_id, tokens, segments, expected",
    [
        (0, 2, 3, 4, [2, 7, 8, 9, 10, 3, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0], [1, 2, 3, 4]),
        (1, 2, 3, 0, [2, 7, 8, 9, 10, 3, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0], [1, 2, 3, 4]),
        (0, 2, 3, 4, [0, 0, 2, 7, 8, 9, 10, 3], [0, 0, 1, 1, 1, 1, 1, 1], [3, 4, 5, 6]),
    ],
)
def test_padding_and_specials_are_never_selected(pad, cls, sep, mask_id, tokens, segments, expected):
    words = Vocabulary(
        16, np.array([pad, cls, sep, mask_id, 5]), np.arange(6, 16), pad=pad, cls=cls, sep=sep, mask=mask_id, unk=5
    )
    for unit in ("token", "word"):
        masked = run(batch([tokens], [segments]), words, MaskConfig(rate=1.0, unit=unit))
        np.testing.assert_array_equal(np.flatnonzero(masked.selected[0]), expected)


def test_specials_in_the_middle_are_known_by_their_id():
    words = Vocabulary(9000, np.array([0, 100, 101, 102, 103]), np.arange(1000, 9000), 0, 101, 102, 103, 100)
    masked = run(batch([[101, 3899, 7221, 102, 4937, 8254, 102]]), words, MaskConfig(rate=1.0))
    np.testing.assert_array_equal(np.flatnonzero(masked.selected[0]), [1, 2, 4, 5])


@pytest.mark.parametrize("hole", [None, 3])
def test_random_replacements_are_ordinary_ids_only(hole):
    ordinary = [i for i in (1, 2, 3, 4, 5, 6, 8) if i != hole]
    words = Vocabulary(10, np.array([0, 7, 9]), np.array(ordinary), pad=0, cls=7, sep=7, mask=9, unk=7)
    config = MaskConfig(rate=1.0, unit="token", corruption=(0.0, 1.0, 0.0))
    drawn = np.asarray(many([1] * 100, config, words, 1000).inputs)
    ids, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(ids, ordinary)
    np.testing.assert_allclose(counts / drawn.size, 1 / len(ordinary), atol=0.01)


def test_corruption_shares_per_token():
    config = MaskConfig(rate=1.0, corruption_per="token")
    masked = many([CLS, 20, 21, 22, SEP], config, vocabulary(10_000), 100_000, word_starts=[0, 1, 0, 0, 0])
    inputs = np.asarray(masked.inputs)[:, 1:4]
    np.testing.assert_allclose((inputs == MASK).all(1).mean(), 0.512, atol=0.006)
    np.testing.assert_allclose((inputs == MASK).mean(), 0.8, atol=0.004)
    np.testing.assert_allclose((inputs == [20, 21, 22]).mean(), 0.1, atol=0.003)
    np.testing.assert_array_equal(masked.targets[:, :3], np.tile([20, 21, 22], (100_000, 1)))


def test_corruption_shares_per_unit():
    config = MaskConfig(rate=1.0, corruption_per="unit")
    masked = many([CLS, 20, 21, 22, SEP], config, vocabulary(10_000), 100_000, word_starts=[0, 1, 0, 0, 0])
    inputs = np.asarray(masked.inputs)[:, 1:4]
    all_mask, all_kept = (inputs == MASK).all(1), (inputs == [20, 21, 22]).all(1)
    all_random = ((inputs != MASK) & (inputs != [20, 21, 22])).all(1)
    np.testing.assert_allclose(all_mask.mean(), 0.8, atol=0.005)
    np.testing.assert_allclose(all_kept.mean(), 0.1, atol=0.004)
    np.testing.assert_allclose(all_random.mean(), 0.1, atol=0.004)
    # what is none of the three drew one of its own ids by chance
    assert (all_mask | all_kept | all_random).mean() > 0.999


def test_random_tokens_as_often_as_in_the_text():
    counts = np.array([999, 0, 1, 5, 12, 999, 40, 999, 3, 999])
    words = Vocabulary(10, np.array([0, 7, 9]), np.array([1, 2, 4, 5, 6, 8]), 0, 7, 7, 9, 7, counts)
    config = MaskConfig(rate=1.0, corruption=(0.0, 1.0, 0.0), random_ids="unigram")
    drawn = np.asarray(many([1] * 100, config, words, 1000).inputs)
    expected = np.array([0, 1, 2, 0, 13, 1000, 41, 0, 4, 0]) / 1061
    error = np.sqrt(expected / drawn.size)
    np.testing.assert_array_less(
        np.abs(np.bincount(drawn.ravel(), minlength=10) / drawn.size - expected), 4 * error + 1e-9
    )


def test_share_of_random_tokens_goes_to_mask():
    rows = batch(np.full((1000, 100), 20), rows=np.arange(1000))
    config = MaskConfig(rate=1.0, corruption=(0.6, 0.3, 0.1), random_end=0.05)
    for share, expected in ((0.3, 0.6), (0.05, 0.85), (0.0, 0.9)):
        inputs = np.asarray(run(rows, vocabulary(10_000), config, None, random_share=jnp.float32(share)).inputs)
        np.testing.assert_allclose((inputs == MASK).mean(), expected, atol=0.006)
        np.testing.assert_allclose((inputs == 20).mean(), 0.1, atol=0.004)


def test_a_target_may_be_any_ordinary_id_even_zero():
    words = Vocabulary(10, np.array([7, 8, 9]), np.arange(7), pad=7, cls=8, sep=8, mask=9, unk=8)
    masked = run(batch([[8, 0, 7, 7]], [[1, 1, 0, 0]]), words, MaskConfig(rate=1.0))
    np.testing.assert_array_equal(np.asarray(masked.weights[0]).nonzero()[0], [0])
    assert int(masked.indices[0, 0]) == 1 and int(masked.targets[0, 0]) == 0 and int(masked.inputs[0, 1]) == 9


def test_segments_of_ten_tokens_get_one_or_two():
    tokens = np.tile([CLS, *range(10, 20), SEP], (1, 10))[0]
    segments = np.repeat(np.arange(1, 11), 12)
    masked = many(tokens, MaskConfig(rate=0.15, unit="token"), vocabulary(), 300, segments)
    counts = np.asarray(masked.selected).reshape(300, 10, 12).sum(-1)
    assert set(np.unique(counts)) == {1, 2}
    np.testing.assert_allclose(counts.mean() / 10, 0.15, atol=0.002)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_realised_rate_of_tokens(unit, rate):
    rows = random_batch(seed=1, b=800, t=512, size=1000, word_rate=0.6)
    masked = run(rows, vocabulary(1000), MaskConfig(rate=rate, unit=unit))
    maskable = np.asarray(rows.tokens > 4).sum()
    np.testing.assert_allclose(np.asarray(masked.selected).sum() / maskable, rate, rtol=0.005)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_every_position_has_about_the_same_chance(unit):
    starts = [1, 0, 1, 1, 0, 0, 1, 1, 0, 1] * 2
    config = MaskConfig(rate=0.15, unit=unit)
    masked = many(range(10, 30), config, vocabulary(), 10_000, word_starts=starts)
    rates = np.asarray(masked.selected).mean(0)
    assert rates.min() > 0.10 and rates.max() < 0.20, rates


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_tiny_rows(unit, length):
    masked = many([10, 11, 12][:length], MaskConfig(rate=0.15, unit=unit), vocabulary(), 4000)
    np.testing.assert_allclose(np.asarray(masked.selected).mean(), 0.15, atol=0.02)
    assert not run(batch([[CLS, SEP]]), vocabulary(), MaskConfig(rate=1.0, unit=unit)).weights.any()


def test_regimes():
    rows = random_batch(seed=2, b=1, t=128)
    visits = [dataclasses.replace(rows, visit=jnp.array([visit])) for visit in range(6)]

    def distinct(**options):
        return [run(v, vocabulary(), MaskConfig(**options)).inputs[0].tobytes() for v in visits]

    dynamic, again = distinct(), distinct()
    assert len(set(dynamic[:4])) == 4 and dynamic == again
    assert len(set(distinct(regime="static"))) == 1 and distinct(regime="static")[0] == dynamic[0]
    three = distinct(regime="multi-version", versions=3)
    assert len(set(three)) == 3 and three[:3] == three[3:] == dynamic[:3]


def test_a_row_does_not_depend_on_its_place_nor_on_leading_axes():
    rows, config = random_batch(seed=4, b=8, t=32), MaskConfig()
    masked = run(rows, vocabulary(), config)
    shuffled = run(jax.tree.map(lambda x: x[::-1], rows), vocabulary(), config)
    folded = run(jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), rows), vocabulary(), config)
    for name in ("inputs", "indices", "targets", "weights", "selected", "dropped"):
        np.testing.assert_array_equal(getattr(masked, name), getattr(shuffled, name)[::-1])
        np.testing.assert_array_equal(getattr(masked, name), getattr(folded, name).reshape(getattr(masked, name).shape))


def test_everything_else_passes_through():
    rows = batch([[2, 7, 8, 3, 0, 0]], [[1, 1, 1, 1, 0, 0]])
    rows = dataclasses.replace(rows, pair_labels=jnp.array([[1, -1, -1, -1]]))
    masked = run(rows, vocabulary(), MaskConfig(rate=1.0, corruption=(1.0, 0.0, 0.0)))
    np.testing.assert_array_equal(masked.inputs[0], [2, MASK, MASK, 3, 0, 0])
    np.testing.assert_array_equal(rows.segments[0] > 0, [1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(rows.types[0], [0] * 6)
    assert int(rows.pair_labels[0, 0]) == 1


def test_rate_is_traced_and_rate_zero_selects_nothing():
    rows, config = random_batch(seed=6, b=4, t=64), MaskConfig(rate=0.15, max_rate=0.4)
    low, high = (run(rows, vocabulary(), config, jnp.float32(rate)).selected.sum() for rate in (0.1, 0.4))
    assert 0 < low < high
    assert not run(rows, vocabulary(), config, jnp.float32(0)).selected.any()


def test_weight_of_the_row_is_the_weight_of_its_targets():
    rows = dataclasses.replace(random_batch(seed=6, b=2, t=64), weight=jnp.array([0.0, 0.5]))
    masked = run(rows, vocabulary(), MaskConfig())
    assert not masked.weights[0].any() and set(np.unique(masked.weights[1])) == {0.0, 0.5}


def test_capacity():
    slots = [capacity(MaskConfig(rate=rate), t, 4) for t, rate in ((512, 0.15), (128, 0.15), (20, 0.15), (64, 1.0))]
    assert slots == [96, 24, 8, 64]
    assert capacity(MaskConfig(rate=0.15, min_per_segment=2), 512, 32) == 160
    assert capacity(MaskConfig(rate=0.0, max_rate=0.0), 512, 32) == 16


def test_hashes_by_hand():
    def mix(x):
        x ^= x >> 16
        x = x * 0x85EBCA6B % 2**32
        x ^= x >> 13
        x = x * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    assert mix(1) == 0x514E28B7  # published: MurmurHash3 x86 32 of no bytes, seed 1
    rows, config = random_batch(seed=8, b=3, t=16), MaskConfig(rate=0.3)
    rows = dataclasses.replace(rows, visit=jnp.array([0, 1, 5]))
    masked = run(rows, vocabulary(), config)
    of_rows, of_masks = 0, 0
    for i in range(3):
        h = mix((mix(int(rows.row[i]) + 1) + int(rows.visit[i])) % 2**32)
        inner = sum(
            mix((mix(j + 1) + 2 * int(masked.inputs[i, j]) + int(masked.selected[i, j])) % 2**32) for j in range(16)
        )
        of_rows, of_masks = of_rows + h, of_masks + mix((h + inner) % 2**32)
    assert [int(x) for x in hashes(rows, masked)] == [of_rows % 2**32, of_masks % 2**32]
    # independent of the number of slots
    wide = run(rows, vocabulary(), dataclasses.replace(config, max_rate=1.0))
    assert hashes(rows, wide)[1] == hashes(rows, masked)[1]
