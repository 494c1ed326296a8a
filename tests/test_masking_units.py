import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import CLS, SEP, batch, random_batch, vocabulary
from masks import JOIN, KEY, PARAGRAPH, SENTENCE, WORD, draws_of, many, oracle, positions_of, run, units_of

from mlm_jax.config import MaskConfig
from mlm_jax.masking.draws import draw
from mlm_jax.masking.units import cut, geometric, harmonic, maskable

LONG = ["span", "ngram", "phrase", "sentence", "paragraph", "hierarchical"]
LEVELS = (("token", 1.0), ("span", 2.0), ("sentence", 1.0))


def config_of(unit):
    """One config and one shape for many tests, so that few programs are compiled."""
    return MaskConfig(max_rate=1.0, unit=unit, levels=LEVELS)


def marked(seed, b, t, **options):
    """Random packed rows in which sentences, paragraphs and phrases are marked."""
    rows = random_batch(seed, b, t, **options)
    rng = np.random.default_rng(seed + 100)
    flags = np.asarray(rows.flags) * WORD + (rng.random((b, t)) < 0.3) * JOIN
    sentences = rng.random((b, t)) < 0.08
    paragraphs = sentences & (rng.random((b, t)) < 0.3)
    flags = flags | sentences * (SENTENCE | WORD) | paragraphs * PARAGRAPH
    return dataclasses.replace(rows, flags=jnp.asarray(flags.astype(np.uint8)))


def cuts_of(rows, config):
    """Unit and word ids [b,t], and the maskable tokens."""

    def one(row):
        candidates = maskable(row.tokens, row.segments, vocabulary())
        key = jax.random.fold_in(jax.random.fold_in(KEY, row.row), row.visit)
        return *cut(row, candidates, draw(key, row.tokens.shape[0], config), config), candidates

    return map(np.asarray, jax.jit(jax.vmap(one))(rows))


@pytest.mark.parametrize("unit", LONG)
def test_cut_equals_a_plain_python_oracle(unit):
    rows, config = marked(3, 24, 48), config_of(unit)
    units, words, candidates = cuts_of(rows, config)
    draws = jax.device_get(draws_of(rows.row, rows.visit, 48, config))
    for i in range(24):
        own = jax.tree.map(lambda x, i=i: x[i], draws)
        expected = units_of(rows.flags[i], candidates[i], np.asarray(rows.segments[i]), own, config)
        for unit_ in expected:
            for word in unit_:
                assert set(units[i][word]) == {unit_[0][0]}
                assert set(words[i][word]) == {word[0]}


@pytest.mark.parametrize("unit", LONG)
def test_selection_equals_a_plain_python_oracle(unit):
    rows, config = marked(3, 24, 48), config_of(unit)
    for rate in (0.0, 0.05, 0.15, 0.5, 1.0):
        masked = run(rows, vocabulary(), config, jnp.float32(rate))
        assert positions_of(masked) == oracle(rows, vocabulary(), config, rate), rate


def test_least_tokens_of_a_segment():
    rows, config = marked(3, 24, 48), MaskConfig(max_rate=1.0, unit="sentence", min_per_segment=2)
    for rate in (0.0, 0.15):
        assert positions_of(run(rows, vocabulary(), config, jnp.float32(rate))) == oracle(
            rows, vocabulary(), config, rate
        )


def test_whole_words_of_long_units_are_dropped_above_the_capacity():
    rows = marked(7, 256, 64, max_segments=16, word_rate=0.15)
    config = MaskConfig(rate=0.06, unit="span")
    masked = run(rows, vocabulary(), config)
    assert positions_of(masked) == oracle(rows, vocabulary(), config, 0.06)
    wide = run(rows, vocabulary(), dataclasses.replace(config, max_rate=1.0))
    np.testing.assert_array_equal(masked.dropped, wide.selected.sum(-1) - masked.selected.sum(-1))
    assert int(masked.dropped.sum()) > 0


def test_units_by_hand():
    # [CLS] the cat | sat . // it | ran [SEP] far a way [SEP], "cat sat" a phrase, "a way" one word
    tokens = [CLS, 10, 11, 12, 13, 14, 15, SEP, 16, 17, 18, SEP]
    flags = np.array([0, 7, 1, 1 | JOIN, 1, 7, 1, 0, 1 | JOIN, 1, 0, 0])
    flags[[5]] |= SENTENCE
    rows = batch([tokens], word_starts=[flags])
    expected = {
        "word": [1, 2, 3, 4, 5, 6, 8, 9, 9],
        "phrase": [1, 2, 2, 4, 5, 6, 8, 9, 9],
        "sentence": [1, 1, 1, 1, 5, 5, 8, 8, 8],  # what follows a SEP is a unit of its own
        "paragraph": [1, 1, 1, 1, 5, 5, 8, 8, 8],
    }
    for unit, ids in expected.items():
        units, words, candidates = cuts_of(rows, MaskConfig(unit=unit))
        np.testing.assert_array_equal(units[0][candidates[0]], ids)
        np.testing.assert_array_equal(words[0][candidates[0]], expected["word"])


@pytest.mark.parametrize("unit", LONG)
def test_words_stay_whole_and_special_tokens_and_segments_part_them(unit):
    rows, config = marked(3, 24, 48), config_of(unit)
    rows = dataclasses.replace(rows, tokens=rows.tokens.at[::2, 7].set(SEP))  # between the texts of a pair
    selected = np.asarray(run(rows, vocabulary(), config, jnp.float32(0.3)).selected)
    units, words, candidates = cuts_of(rows, config)
    assert not (selected & ~candidates).any()
    for i in range(24):
        for unit_ in np.unique(units[i][candidates[i]]):
            inside = np.flatnonzero((units[i] == unit_) & candidates[i])
            assert np.ptp(inside) == len(inside) - 1 and len(set(np.asarray(rows.segments[i])[inside])) == 1
        for word in np.unique(words[i][candidates[i]]):
            assert len(set(selected[i][(words[i] == word) & candidates[i]])) == 1


@pytest.mark.parametrize(
    "config, shares, mean",
    [
        (MaskConfig(unit="span"), geometric(0.2, 10), 3.797),
        (MaskConfig(unit="span", span_p=0.5, span_cap=3), np.array([4, 2, 1]) / 7, 11 / 7),
        (MaskConfig(unit="ngram"), harmonic(3), 18 / 11),
        (MaskConfig(unit="ngram", ngram_max=1), np.ones(1), 1.0),
    ],
)
def test_lengths_in_words(config, shares, mean):
    np.testing.assert_allclose(shares @ np.arange(1, len(shares) + 1), mean, atol=0.001)
    starts = (np.arange(4096) % 2 == 0).astype(int)  # words of two tokens
    rows = batch(np.full((64, 4096), 9), word_starts=np.tile(starts, (64, 1)))
    units, _, _ = cuts_of(rows, config)
    # all but the first and the last run of a row
    lengths = np.concatenate([np.diff(np.unique(row))[1:] // 2 for row in units])
    assert abs(lengths.mean() - mean) < 0.05
    seen = np.bincount(lengths, minlength=len(shares) + 1)[1:] / len(lengths)
    np.testing.assert_array_less(np.abs(seen - shares), 4.5 * np.sqrt(shares / len(lengths)) + 1e-9)
    if config.unit == "span":
        # a border stands at every place alike, from the first words on: 1 / mean
        borders = (units == np.arange(4096))[:, 2:42:2]
        assert abs(borders.mean() - 1 / mean) < 4 * np.sqrt(0.25 / borders.size)


def test_each_sentence_draws_its_level():
    flags = np.full(64, WORD)
    flags[::8] |= SENTENCE
    rows = batch(np.full((2000, 64), 9), word_starts=np.tile(flags, (2000, 1)), rows=np.arange(2000))
    config = MaskConfig(unit="hierarchical", levels=(("word", 3.0), ("sentence", 1.0)))
    units, _, _ = cuts_of(rows, config)
    borders = (units == np.arange(64)).reshape(2000, 8, 8).sum(-1)
    assert set(np.unique(borders)) == {1, 8}
    np.testing.assert_allclose((borders == 8).mean(), 0.75, atol=4 * np.sqrt(0.1875 / 16000))


# A row's error is unbiased and at most a crossing word for each of its 4 segments: about 3 tokens, so that the mean of
# 1000 rows of some 190 maskable tokens has a standard error of 0.1 tokens of 28, or 0.35 %.
@pytest.mark.parametrize("unit", LONG)
def test_realised_rate_of_tokens(unit):
    rows = marked(1, 1000, 256, size=1000)
    masked = run(rows, vocabulary(1000), MaskConfig(rate=0.15, max_rate=0.3, unit=unit))
    counts = np.asarray(masked.selected.sum(-1))
    maskable_ = np.asarray(rows.tokens > 4).sum(-1)
    off = counts - 0.15 * maskable_
    assert abs(off.sum()) < 4 * np.sqrt((off**2).sum()), off.mean()
    np.testing.assert_allclose(counts.sum() / maskable_.sum(), 0.15, rtol=0.015)


@pytest.mark.parametrize("unit", ["span", "ngram"])
def test_every_position_of_a_short_row_has_about_the_same_chance(unit):
    masked = many(range(10, 30), MaskConfig(rate=0.15, unit=unit), vocabulary(), 10_000)
    rates = np.asarray(masked.selected).mean(0)
    assert rates.min() > 0.10 and rates.max() < 0.20, rates


def test_a_run_in_a_sentence_does_not_begin_at_its_start():
    flags = np.where(np.arange(64) == 0, SENTENCE | WORD, WORD)
    masked = many([9] * 64, MaskConfig(rate=0.15, unit="sentence"), vocabulary(), 4000, word_starts=flags)
    selected = np.asarray(masked.selected)
    # one run of 9 or 10 of 64 words, all its places alike: an end is in 1 of 55 to 56 runs, the middle in 10 of 55
    assert (np.abs(np.diff(selected.astype(int), axis=1)).sum(1) <= 2).all()
    rates = selected.mean(0)
    np.testing.assert_allclose(rates[[0, -1]], 1 / 55.4, atol=0.009)
    np.testing.assert_allclose(rates[10:-10], 9.6 / 55.4, atol=0.03)


@pytest.mark.parametrize("unit, length", [("span", 1), ("hierarchical", 2), ("paragraph", 10)])
def test_tiny_rows(unit, length):
    for rate in (0.15, 0.55, 1.0):
        config = MaskConfig(rate=rate, unit=unit, max_rate=1.0)
        masked = run(batch(np.full((2000, length), 9), rows=np.arange(2000)), vocabulary(), config, jnp.float32(rate))
        np.testing.assert_allclose(np.asarray(masked.selected).mean(), rate, atol=0.04)


@pytest.mark.parametrize("unit", LONG)
def test_a_row_does_not_depend_on_its_place_nor_on_leading_axes(unit):
    rows, config, rate = marked(3, 24, 48), config_of(unit), jnp.float32(0.3)
    masked = run(rows, vocabulary(), config, rate)
    shuffled = run(jax.tree.map(lambda x: x[::-1], rows), vocabulary(), config, rate)
    np.testing.assert_array_equal(masked.inputs, shuffled.inputs[::-1])
    if unit == "hierarchical":
        folded = run(jax.tree.map(lambda x: x.reshape(2, 12, *x.shape[1:]), rows), vocabulary(), config, rate)
        np.testing.assert_array_equal(masked.inputs, folded.inputs.reshape(24, 48))
        np.testing.assert_array_equal(masked.indices, folded.indices.reshape(24, -1))


def test_units_of_more_than_32767_tokens():
    # one word whose length times its crossing draw needs 32 bits: taken with the probability 0.4, or else as the first
    # word of a row of which nothing was taken; then a paragraph of single words, of which a run is taken
    flags = np.zeros((4, 40_000), int)
    flags[2:] = WORD
    rows = batch(np.full((4, 40_000), 9), word_starts=flags)
    masked = run(rows, vocabulary(), MaskConfig(rate=0.5, max_rate=1.0, unit="paragraph"))
    np.testing.assert_array_equal(masked.selected.sum(-1), [40_000, 40_000, 20_000, 20_000])
