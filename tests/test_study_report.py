"""What is read of the runs of a study, and what is said of it: by hand on figures that are made up."""

import json
import math
import re

import numpy as np
import pytest

from mlm_jax.cli.study.times import trimmed
from mlm_jax.study import facts, runs, runs_page, summary, words
from mlm_jax.study.outcome import coverage, loss_at, read_run, steps_to

STUDY = runs.STUDIES["masking"]
CURVE = [(100, 6.0, 0.1), (200, 5.0, 0.2), (400, 4.0, 0.3)]


def write_run(folder, losses, steps=400, rates=(0.15,) * 4, **mask):
    """losses: step -> (loss, accuracy) of one set with 30 targets; another of 10 has a loss that is 4 higher."""
    folder.mkdir(parents=True)
    model = {"family": "bert", "layers": 3, "width": 128, "heads": 4}
    optimizer = {"name": "adamw", "learning_rate": 1e-4, "schedule": "linear"}
    config = {"steps": steps, "batch_size": 32, "row_length": 128, "model": model, "optimizer": optimizer}
    config["mask"] = {"regime": "dynamic", "priority": "uniform", "rate": 0.3, "unit": "span", **mask}
    config["evaluate"] = {"rate": 0.15, "unit": None}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        {"step": i + 1, "train/loss": 7.0, "mask/rate": rate, "epoch": (i + 1) / 2} for i, rate in enumerate(rates)
    ]
    for step, (loss, accuracy) in losses.items():
        one = {"eval/a/loss": loss - 1, "eval/a/accuracy": accuracy, "eval/a/targets": 30, "eval/a/loss_decile_1": 1.0}
        other = {"eval/b/loss": loss + 3, "eval/b/accuracy": accuracy, "eval/b/targets": 10}
        lines.append({"step": step, **one, **other})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4')


def test_a_run_is_read_over_all_its_sets(tmp_path):
    write_run(tmp_path / "a", {200: (5.0, 0.2), 400: (4.0, 0.25)}, rates=(0.1, 0.2, 0.3, 0.1), regime="static")
    found = read_run(tmp_path / "a")
    assert found["curve"] == [
        (200, pytest.approx(5.0), 0.2),
        (400, pytest.approx(4.0), 0.25),
    ]  # (3 (l - 1) + l + 3) / 4
    assert found["finished"] and (found["steps"], found["epochs"], found["masks"]) == (400, 2.0, 1)
    assert found["rate"] == pytest.approx(0.175) and found["rates"] == [pytest.approx(0.15), pytest.approx(0.2)]
    write_run(tmp_path / "b", {200: (5.0, 0.2)})
    assert not read_run(tmp_path / "b")["finished"] and read_run(tmp_path / "c") is None


def test_curves_are_read_on_straight_lines():
    assert loss_at(CURVE, 150) == 5.5 and loss_at(CURVE, 300) == 4.5 and loss_at(CURVE, 400) == 4.0
    assert loss_at(CURVE, 99) is None and loss_at(CURVE, 401) is None
    assert steps_to(CURVE, 5.5) == 150 and steps_to(CURVE, 4.25) == 350 and steps_to(CURVE, 4.0) == 400
    assert steps_to(CURVE, 6.5) == 100 and steps_to(CURVE, 3.9) is None
    assert steps_to([(1, 5.0, 0), (2, 6.0, 0), (3, 4.0, 0)], 4.5) == 2.75  # after a rise


def test_coverage_by_hand():
    rates = [0.15, 0.15, 0.3]
    assert coverage(rates, 1.0) == pytest.approx(0.15)
    assert coverage(rates, 2.5) == pytest.approx((0.2775 + (1 - 0.85 * 0.85 * 0.7)) / 2)  # half of the rows thrice
    assert coverage(rates, 2.5, masks=1) == pytest.approx(0.15)
    assert coverage(rates, 3.0, masks=2) == pytest.approx(0.2775)
    assert coverage(rates, 0.5) == pytest.approx(0.075)


@pytest.fixture
def study(tmp_path):
    """Three variants: the baseline, one that is better by 0.5, 0.6, 0.7, one that is not; a fourth has not ended."""
    for seed, (loss, gain, noise) in enumerate(zip((4.0, 4.2, 4.1), (0.5, 0.6, 0.7), (0.1, -0.1, 0.03))):
        for name, final in {"dynamic": loss, "static": loss - gain, "token": loss + noise}.items():
            write_run(tmp_path / "runs" / name / f"seed-{seed}", {200: (6.0, 0.1), 400: (final, 0.25)})
    write_run(tmp_path / "runs" / "span" / "seed-0", {200: (6.0, 0.1)})
    return tmp_path


NAMES = ["dynamic", "static", "token", "span"]


def summarise(folder, names=NAMES, seeds=(0, 1, 2), **others):
    return summary.summarise(STUDY, runs.chosen(STUDY, names), seeds, folder, **others)


def test_differences_by_hand(study):
    found = summarise(study)
    dynamic, static, token, span = found["variants"]
    assert dynamic["spread"]["loss"]["mean"] == pytest.approx(4.1)
    assert dynamic["spread"]["loss"]["deviation"] == pytest.approx(0.1)
    assert dynamic["compared"]["loss"] is None and span["spread"]["loss"] is None
    # -0.6, deviation 0.1, t of 2 degrees of freedom at 0.975: 4.3027
    better = static["compared"]["loss"]
    assert better["mean"] == pytest.approx(-0.6) and better["verdict"] == "better" and better["n"] == 3
    half = 4.30265 * 0.1 / math.sqrt(3)
    assert (better["low"], better["high"]) == (pytest.approx(-0.6 - half, 1e-4), pytest.approx(-0.6 + half, 1e-4))
    assert token["compared"]["loss"]["verdict"] == "difference below noise"
    assert found["unfinished"] == ["span/seed-0 (evaluated at 200 of 400 steps)", "span (seeds 1, 2: not begun)"]
    # the highest final loss is 4.1 of token's seeds 0 and 1, 4.2 of dynamic's seed 1
    assert found["target"] == pytest.approx(4.2)
    steps = dynamic["values"]["steps_to_target"]
    assert steps == {0: pytest.approx(200 + 200 * 1.8 / 2.0), 1: pytest.approx(400), 2: pytest.approx(200 + 360 / 1.9)}


def test_one_seed_says_nothing_of_noise(study):
    static = summarise(study, seeds=(1,))["variants"][1]
    assert static["compared"]["loss"] == {
        **{"n": 1, "mean": pytest.approx(-0.6), "low": None, "high": None},
        "verdict": "one seed: noise is not known",
    }
    said = words.sentences(summarise(study, ["dynamic", "static"], (1,)))
    assert said == [
        "`static`: the held-out loss is 0.6000 lower than that of `dynamic` (one seed: noise is not known).",
    ]


def test_equal_time_by_hand(study):
    times = {name: {"seconds": s, "relative": s, "low": s, "high": s} for name, s in zip(NAMES, (1.0, 1.25, 1.0, 2.0))}
    found = summarise(study, seconds=times)
    # span has no finished run, so the fastest is the baseline; static does 400 / 1.25 = 320 steps
    assert found["budget"] == 1.0
    assert found["variants"][1]["values"]["equal_time"][0] == pytest.approx(6.0 + (3.5 - 6.0) * 120 / 200)
    assert found["variants"][0]["values"]["equal_time"][0] == pytest.approx(4.0)
    assert found["variants"][1]["compared"]["equal_time"]["verdict"] == "worse"
    del times["token"]
    assert "equal_time" not in summarise(study, seconds=times)["variants"][0]["values"]


def test_times_are_means_without_the_extremes():
    table = np.array([[1.0, 5.0], [9.0, 2.0], [2.0, 3.0], [3.0, 100.0]])
    np.testing.assert_allclose(trimmed(table), [2.5, 4.0])
    np.testing.assert_allclose(trimmed(table[:2]), [5.0, 3.5])


def test_tasks_beside_the_model_without_pretraining(study):
    scores = {"dynamic": (0.8, 0.82), "static": (0.7, 0.71), "random": (0.5, 0.53)}
    for name, each in scores.items():
        for seed, score in enumerate(each):
            folder = study / "tasks" / "spam" / name / f"seed-{seed}"
            folder.mkdir(parents=True)
            dev = {"f1": score, "accuracy": 0.9}
            (folder / "results.json").write_text(json.dumps({"metric": "f1", "mean": {"dev": dev, "test": None}}))
    (task,) = summarise(study, ["dynamic", "static"], (0, 1, 2), tasks=["spam"])["tasks"]
    assert task["metric"] == "f1" and [row["name"] for row in task["variants"]] == ["dynamic", "static", "random"]
    assert task["variants"][2]["compared"]["f1"]["mean"] == pytest.approx(-0.295)
    assert task["variants"][1]["compared"]["f1"]["verdict"] == "worse"
    # -0.1 and -0.11: the deviation is 0.01 / sqrt(2), t of 1 degree of freedom at 0.975: 12.706
    assert task["variants"][1]["compared"]["f1"]["high"] == pytest.approx(-0.105 + 12.706 * 0.01 / 2, abs=1e-5)
    assert task["unfinished"] == [f"{name}/seed-2" for name in scores]
    table = words.task_table(task)
    assert table.rows[2][:3] == ["random", "2", "0.5150 ± 0.0212"] and "random/seed-2" in table.note


def test_a_generators_loss_is_compared_with_none(tmp_path):
    objectives = runs.STUDIES["objectives"]
    for name in ("dynamic", "replaced"):
        write_run(tmp_path / "runs" / name / "seed-0", {400: (4.0, 0.25)})
    found = summary.summarise(objectives, runs.chosen(objectives, ["dynamic", "replaced"]), (0,), tmp_path)
    assert found["variants"][1]["values"] == {} and found["target"] is None
    assert words.loss_table(found).rows[1] == ["replaced", "1", "–", "–", "–", "not comparable"]


def test_sentences_say_what_the_numbers_say(study):
    found = summarise(study)
    said = words.sentences(found)
    assert said[0].startswith("Not finished, and left out: span/seed-0 (evaluated at 200 of 400 steps), span (seeds")
    assert said[1] == (
        "`static`: the held-out loss is 0.6000 lower than that of `dynamic` (3 seeds, 95 % interval -0.8484 to"
        " -0.3516): better, the interval does not contain 0."
    )
    assert said[2].endswith("the interval contains 0, so the difference is below the noise of the seeds.")
    assert said[3] == (
        "Of 2 comparisons of the held-out loss: 1 better, 0 worse, 1 below noise. Were there no differences at all,"
        " about 0.1 of 2 such intervals would be without 0 by chance."
    )
    found["variants"][2]["compared"]["loss"] |= {"mean": 0.00004, "low": 0.00003, "high": 0.00005}
    assert "the held-out loss is the same, to the digits shown here, as that of `dynamic`" in words.sentences(found)[2]
    for names in (["span"], ["static", "token"]):
        assert words.sentences(summarise(study, names))[-1].startswith("There is nothing to compare yet: no variant")


def test_the_page_and_the_text_hold_the_same(study):
    times = {name: {"seconds": 1.0, "relative": 1.0, "low": 0.9, "high": 1.1} for name in NAMES}
    found = summarise(study, seconds=times)
    about = facts.facts([study / "runs" / "dynamic" / "seed-0"], study / "rows")
    page = runs_page.html(found, about, "python -m mlm_jax study masking <x>")
    text = words.markdown(found, about, "python -m mlm_jax study masking <x>")
    model = "bert, 3 layers of 128, 4 heads"
    assert "masks 15% of the tokens, by the unit span, with MASK" in page and "learned, others by" in text
    for one in (
        model,
        "4.1000 ± 0.1000",
        "-0.6000 to dynamic [-0.8484, -0.3516]",
        "difference below noise",
        "27.8%",
        "1.000",
    ):
        assert one in page and one in text and (one == model or one in words.terminal(found))
    assert "&lt;x&gt;" in page and "<script" not in page and not re.search(r'(src|href)="(?!#)', page)
    assert page.count("<svg") == 4 and page.count('class="mean"') == 3 + 2 + 2  # wide and narrow curves; dots
    # the widest of an interval may leave the picture, no mark does
    assert all(0 <= float(left) <= 100 for left in re.findall(r"left:([\d.]+)%", page))
    json.dumps(found)


def test_bands_of_the_curves(study):
    found = summarise(study)
    colors = {row["name"]: "train" for row in found["variants"]}
    dynamic = runs_page.curves(found, colors).lines[0]
    np.testing.assert_allclose(dynamic.y, [6.0, 4.1])
    np.testing.assert_allclose(dynamic.band, [[6.0, 4.0], [6.0, 4.2]])
    static = runs_page.gaps(found, colors).lines[0]
    np.testing.assert_allclose(static.y, [0.0, -0.6], atol=1e-12)
    np.testing.assert_allclose(static.band[0], [0.0, -0.8484], atol=1e-4)
