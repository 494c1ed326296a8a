"""Studies of several runs: their variants, the order of the runs, what becomes of them, and what is said of them."""

import dataclasses
from pathlib import Path

import pytest

from mlm_jax.config import Config, ConfigError, check, get
from mlm_jax.flags import parse
from mlm_jax.study import runs

SMALL = str(Path(__file__).parents[1] / "configs" / "study" / "small.py")


@pytest.mark.parametrize("name", runs.STUDIES)
def test_every_variant_is_a_config_that_can_train(name, tmp_path):
    study = runs.STUDIES[name]
    config = parse([f"--config={SMALL}"], "").config
    runs.check_base(study, config)
    seen = {}
    for run in runs.plan(study, config, tmp_path, study.variants, (0, 3)):
        run.changes.pop("init_from", None)  # there is none yet
        found = parse([f"--config={SMALL}", *run.words], "").config
        check(found, 1)
        assert all(get(found, key) == value for key, value in run.variant.overrides.items())
        assert (found.evaluate.rate, found.evaluate.unit, found.evaluate.priority) == (0.15, "word", "uniform")
        assert found.seed in (run.seed, 1000 + run.seed) and found.data.rows.startswith(str(tmp_path / "rows"))
        plain = dataclasses.replace(found, seed=0)
        assert seen.setdefault(run.variant.name, plain) == plain  # seeds differ in nothing else
    differing = [one for name, one in seen.items() if not study.variant(name).continued]
    assert len(set(differing)) == len(differing)  # no two variants are the same


def test_the_baseline_is_shared_and_references_exist():
    for study in runs.STUDIES.values():
        assert study.variants[0] == runs.DYNAMIC and study.reference("dynamic") is None
        names = [variant.name for variant in study.variants]
        assert len(set(names)) == len(names)
        assert {study.reference(name) for name in names[1:]} <= {*names, None}
        for name, reference in study.references.items():
            assert (
                not reference or study.variant(name).rows == study.variant(reference).rows
            )  # other rows are another language


def test_layout_and_order_of_the_runs(tmp_path):
    study = runs.STUDIES["masking"]
    planned = runs.plan(study, Config(), tmp_path, runs.chosen(study, ["token", "dynamic"]), (0, 1))
    assert [run.folder.relative_to(tmp_path).as_posix() for run in planned] == [
        "runs/dynamic/seed-0",
        "runs/token/seed-0",
        "runs/dynamic/seed-1",
        "runs/token/seed-1",
    ]
    assert planned[1].words == [
        "--config.evaluate.rate=0.15",
        "--config.evaluate.unit=word",
        "--config.evaluate.priority=uniform",
        f"--config.data.rows={tmp_path}/rows",
        "--config.mask.unit=token",
        "--config.seed=0",
        f"--workdir={tmp_path}/runs/token/seed-0",
    ]


def test_a_config_that_names_the_masks_of_evaluation_keeps_them(tmp_path):
    study, config = runs.STUDIES["masking"], Config()
    config.evaluate.rate = 0.3
    (run,) = runs.plan(study, config, tmp_path, [runs.DYNAMIC], (0,))
    assert "evaluate.rate" not in run.changes and run.changes["evaluate.unit"] == "word"


def test_continued_runs_begin_with_the_baseline_and_read_other_masks(tmp_path):
    study = runs.STUDIES["learning-rates"]
    (run,) = runs.plan(study, Config(), tmp_path, [study.variant("continued")], (2,))
    assert run.changes["init_from"] == f"{tmp_path}/runs/dynamic/seed-2" and run.changes["seed"] == 1002
    (run,) = runs.plan(study, Config(), tmp_path, [study.variant("continued")], (2,), "other")
    assert run.changes["init_from"] == "other" and run.changes["data.rows"] == f"{tmp_path}/rows-continued"


@pytest.mark.parametrize(
    ("study", "key", "value"),
    [
        ("masking", "mask.unit", "span"),
        ("mask-rate", "mask.rate", 0.3),
        ("learning-rates", "optimizer.layer_decay", 0.9),
        ("objectives", "objectives.nsp.weight", 1.0),
        ("masking", "data.rows", "rows"),
        ("masking", "branch_from", "run"),
    ],
)
def test_what_a_study_sets_is_not_the_users_to_set(study, key, value):
    words = [f"--config={SMALL}", f"--config.{key}={value}"]
    with pytest.raises(ConfigError) as error:
        runs.check_base(runs.STUDIES[study], parse(words, "").config)
    assert error.value.key == f"config.{key}" and error.value.value == value


def test_phases_and_unknown_variants_are_refused():
    path = str(Path(SMALL).parents[1] / "phases.py")
    with pytest.raises(ConfigError, match="runs of one phase"):
        runs.check_base(runs.STUDIES["masking"], parse([f"--config={path}"], "").config)
    with pytest.raises(ConfigError, match=r"'nothing'.*has dynamic, static"):
        runs.chosen(runs.STUDIES["masking"], ["nothing"])
