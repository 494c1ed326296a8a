import dataclasses
import functools
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import random_batch, vocabulary
from masks import KEY
from test_train import SMALL, text  # noqa: F401  (a fixture)

from mlm_jax import __main__ as program
from mlm_jax.cli import study
from mlm_jax.cli.study import coverage as verb
from mlm_jax.config import MaskConfig
from mlm_jax.masking import mask
from mlm_jax.study import coverage

WORDS = vocabulary(400)
TOKENS = MaskConfig(rate=0.2, unit="token")
VISITS, VERSIONS = 7, 3
SIGMAS = 5


@pytest.mark.parametrize("visits, masks", [(5, 1), (7, 3), (6, 3), (4, 4), (1, 1)])
def test_the_distribution_is_that_of_all_outcomes(visits, masks):
    """Every outcome of the masks, one by one, with the visits that see each of them in turn."""
    chances = np.zeros((2, visits + 1))
    for i, p in enumerate((0.15, 0.6)):
        for outcome in itertools.product((0, 1), repeat=masks):
            times = sum(outcome[visit % masks] for visit in range(visits))
            chances[i, times] += p ** sum(outcome) * (1 - p) ** (masks - sum(outcome))
    found = coverage.distribution(np.array([0.15, 0.6]), visits, masks)
    np.testing.assert_allclose(found, chances, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "masks, covered, variance",
    [(1, 0.25, 3.0), (2, 0.4375, 1.5), (3, 0.578125, 1.125), (4, 0.68359375, 0.75)],
)
def test_closed_forms_by_hand(masks, covered, variance):
    """p = 1/4, four visits: 1 - (3/4)^k; 3/16 times 16, 4 + 4, 4 + 1 + 1 and 1 + 1 + 1 + 1."""
    chances = coverage.distribution(np.array([0.25]), 4, masks)
    assert coverage.coverage(chances) == pytest.approx([covered])
    assert coverage.variance(chances) == pytest.approx([variance])


def test_many_visits_and_the_ends_of_the_rate():
    chances = coverage.distribution(np.array([0.0, 0.5, 1.0]), verb.MOST_VISITS, verb.MOST_VISITS)
    assert chances.sum(1) == pytest.approx(1.0)
    assert chances[0, 0] == chances[2, -1] == 1.0 and chances[1, 500] == pytest.approx(0.025225, abs=1e-6)


def test_entropy_by_hand():
    """Four tokens, selected 0, 1, 1 and 2 times: 1.5 bits of at most 2. All alike: 1. Half of four, alike: 1 of 2."""
    assert coverage.entropy(np.array([[1, 2, 1], [0, 4, 0], [2, 0, 2]])) == pytest.approx([0.75, 1.0, 0.5])
    assert np.isnan(coverage.entropy(np.array([[4, 0, 0]]))).all()


def rows():
    """Two batches of rows of up to four segments; the last row only fills up."""
    found = jax.tree.map(np.array, random_batch(seed=1, b=384, t=64, size=400))
    found.segments[-1], found.row[-1] = 0, -1
    return [jax.tree.map(lambda leaf, part=part: leaf[part], found) for part in (slice(0, 192), slice(192, 384))]


def ways(configs):
    """What masks a batch by each config, at the rate of the config."""
    return [(config, functools.partial(mask_by, config)) for config in configs]


def mask_by(config, batch):
    return mask(KEY, batch, WORDS, config, config.rate)


@pytest.fixture(scope="module")
def counted():
    batches = rows()
    configs = coverage.regimes(TOKENS, [VERSIONS])
    return batches, coverage.count(batches, ways(configs), WORDS, VISITS)


def test_regimes_against_the_closed_forms(counted):
    """Single tokens have the same chance p = 0.2 each, so that the closed forms hold.

    The tokens of a row are drawn without replacement: no two make each other more likely, and N tokens give a smaller
    error than N draws apart. So the error of a share q is at most sqrt(q (1 - q) / N). That of a variance v is at most
    sqrt((2 v^2 + w^2 v) / N): for a sum of draws, each of which counts w times at most, the fourth moment is at most
    3 v^2 + w^2 v. The formula takes each row's own rate, which the rounding of its budget moves by half a token of
    some 30 in each mask: that changes a coverage by less than 0.002, and a variance by less than a hundredth.
    """
    _, (static, several, dynamic) = counted
    assert [one.name for one in (static, several, dynamic)] == ["static", "3 versions", "dynamic"]
    for one, masks in ((static, 1), (several, VERSIONS), (dynamic, VISITS)):
        assert one.dropped == 0 and one.rate == pytest.approx(0.2, abs=0.002)
        for visits in range(1, VISITS + 1):
            k, line = min(visits, masks), slice(visits - 1, visits)
            seen = np.bincount(np.arange(visits) % k)
            left, spread = 0.8**k, 0.16 * (seen**2).sum()
            error = SIGMAS * np.sqrt(left * (1 - left) / one.tokens)
            assert coverage.coverage(one.measured[line])[0] == pytest.approx(1 - left, abs=error)
            assert coverage.coverage(one.expected[line])[0] == pytest.approx(1 - left, abs=0.002)
            error = SIGMAS * np.sqrt((2 * spread**2 + seen.max() ** 2 * spread) / one.tokens)
            assert coverage.variance(one.measured[line])[0] == pytest.approx(spread, abs=error)
            assert coverage.variance(one.expected[line])[0] == pytest.approx(spread, rel=0.01)
        assert coverage.entropy(one.measured) == pytest.approx(coverage.entropy(one.expected), abs=0.002)
    assert coverage.coverage(static.measured) == pytest.approx(static.rate, abs=1e-12)
    assert coverage.entropy(static.measured)[-1] == pytest.approx(1 + np.log(static.rate) / np.log(static.tokens))


def test_nothing_is_lost_or_counted_twice(counted):
    """The same masks, made one visit after another by `mask` itself, and added up over the whole array."""
    batches, counts = counted
    several = counts[1]
    run = jax.jit(lambda batch: mask(KEY, batch, WORDS, several.config, 0.2).selected)
    histogram, selected = np.zeros(VISITS + 1, np.int64), 0
    for batch in batches:
        at = [dataclasses.replace(batch, visit=np.full_like(batch.visit, visit)) for visit in range(VISITS)]
        times = sum(np.asarray(run(jax.tree.map(jnp.asarray, each))).astype(int) for each in at)
        open_to_mask = (batch.segments > 0) & ~np.isin(batch.tokens, WORDS.special)
        histogram += np.bincount(times[open_to_mask], minlength=VISITS + 1)
        selected += times.sum()
    assert several.measured[-1].tolist() == histogram.tolist() and histogram @ np.arange(VISITS + 1) == selected
    for one in counts:
        assert one.rows == sum((batch.row >= 0).sum() for batch in batches)
        assert (one.measured.sum(1) == one.tokens).all() and one.expected.sum(1) == pytest.approx(one.tokens)
        times = np.arange(VISITS + 1)
        assert one.measured @ times == pytest.approx(one.expected @ times, rel=0.01)


def test_rare_words_first_leave_tokens_uncovered():
    config = dataclasses.replace(TOKENS, unit="word", priority="frequency", frequency_power=2.0)
    (found,) = coverage.count(rows()[:1], ways([config]), WORDS, VISITS)
    assert coverage.coverage(found.measured)[-1] < coverage.coverage(found.expected)[-1] - 0.05
    assert coverage.variance(found.measured)[-1] > 1.2 * coverage.variance(found.expected)[-1]


def test_rows_are_spread_over_all():
    assert verb.spread(10, 4).tolist() == [0, 2, 5, 7]
    assert verb.spread(3, 100).tolist() == [0, 1, 2]


def test_the_verb(text, tmp_path, capfd):  # noqa: F811
    argv = ["--config=configs/tiny.py", f"--config.data.sources={text}", f"--workdir={tmp_path}", *SMALL]
    argv += ["--versions=2", "--visits=3", "--max_rows=20"]
    assert program.main(["study", "coverage", *argv, f"--out={tmp_path}/out"]) == 0
    shown = capfd.readouterr()
    assert "training rows are counted, evenly spread" in shown.err
    lines = shown.out.splitlines()
    assert [line.split() for line in lines if line.startswith("visits")] == [
        ["visits", "static", "2", "versions", "dynamic"]
    ] * 3
    assert [line.split()[0] for line in lines if re.match(r" +\d", line)] == ["1", "2", "3"] * 3
    found = json.loads((tmp_path / "out/coverage.json").read_text())
    assert found["rows"] == 20 and [one["versions"] for one in found["regimes"]] == [None, 2, None]
    assert all(len(one["entropy"]["formula"]) == 3 for one in found["regimes"])
    covered = [one["coverage"]["measured"] for one in found["regimes"]]
    assert covered[0][2] == covered[0][0] < covered[1][1] == covered[1][2] < covered[2][2] < 1
    assert f"{covered[2][2]:.2%}" in shown.out
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<svg") == 4 and not re.search(r"https?://(?!www\.w3)|src=|<script|<link", page)
    assert f"{covered[2][2]:.2%}" in page and "--versions=2" in page
    assert study.main(["coverage", *argv, "--json", "--max_rows=0"]) == 0
    again = capfd.readouterr()
    assert "warning" not in again.err and json.loads(again.out)["rows"] > 20
    for flags, says in [
        (["--versions=0"], "--versions=0: numbers of masks"),
        (["--versions=few"], "--versions=few: numbers of masks"),
        (["--visits=0"], "visits"),
        (["--visits=1001"], "visits"),
        ([f"--out={text}"], "--out = "),
        (["more"], "unexpected 'more'"),
        (["--config.mask.rate=2"], "config.mask.rate = 2"),
        (["--config.mask.unit=phrase"], "needs rows that mark phrases"),
    ]:
        assert study.main(["coverage", *argv, *flags]) == 2
        assert says in capfd.readouterr().err


def test_an_unknown_study_lists_those_that_are_known(capfd):
    assert program.main(["study", "covrage"]) == 2
    error = capfd.readouterr().err
    assert "there is no study 'covrage'" in error and re.search(r"^  coverage +how often", error, re.M)
    assert program.main(["study"]) == 2 and program.main(["study", "--help"]) == 0
    assert program.main(["stdy"]) == 2 and "there is no verb 'stdy'" in capfd.readouterr().err
