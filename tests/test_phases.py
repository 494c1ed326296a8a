"""Phases of a run, and lengths in steps, epochs and tokens."""

import dataclasses
import json
import random
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from test_config import MANIFEST, changed
from test_data import config as data_config
from test_data import rows_of, take
from test_data import write as write_shards
from test_train import fails_at, steps_of, untimed

from mlm_jax import data, evaluate, position, records, samples, train
from mlm_jax import step as step_module
from mlm_jax.checkpoint import load_model, read_meta
from mlm_jax.cli import plan
from mlm_jax.config import (
    Config,
    ConfigError,
    DataConfig,
    MaskConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    begins,
    check,
    check_each,
    first_phase,
    from_json,
    in_steps,
    open_lengths,
    phase_at,
    phase_configs,
    readings,
    rows_folders,
    stream_configs,
    streams,
    to_json,
    without_rows,
)
from mlm_jax.report import facts
from mlm_jax.report.read import read

TINY = {"train": {"rows": 4000, "tokens": 500_000}, "eval": {"rows": 40}}


def phased(*phases, **rest):
    return Config(**{"steps": 100, "batch_size": 64, **rest}, phases=tuple(phases))


def test_what_a_phase_changes_by_hand():
    optimizer = OptimizerConfig(learning_rate=0.01, groups=(("head/.*", 0.01), (".*", 0.004)))
    mask = MaskConfig(rate=0.3, schedule="linear", end_rate=0.15)
    model = ModelConfig(family="modernbert")
    first, second, third = phase_configs(
        phased(
            PhaseConfig(),
            PhaseConfig(begin=0.5, batch_size=128, accumulation=2, mask_rate=0.2, rate=0.5),
            PhaseConfig(begin=0.9, row_length=1024, rotary_base=1e6, sources=("b",), weights=(1.0,)),
            optimizer=optimizer,
            mask=mask,
            model=model,
            data=DataConfig(exponent=0.5),
        )
    )
    assert first == Config(
        steps=100, batch_size=64, optimizer=optimizer, mask=mask, model=model, data=DataConfig(exponent=0.5)
    )
    assert (second.batch_size, second.accumulation, second.steps) == (128, 2, 100)
    assert second.mask == MaskConfig(rate=0.2)
    assert second.optimizer.learning_rate == 0.005
    assert second.optimizer.groups == (("head/.*", 0.005), (".*", 0.002))
    assert (third.row_length, third.model.rotary_base, third.data.sources) == (1024, 1e6, ("b",))
    assert (third.data.weights, third.data.exponent, third.batch_size) == ((1.0,), 1.0, 64)
    assert third.optimizer == optimizer and third.mask == mask


def test_where_phases_begin_and_which_rows_they_read_by_hand():
    config = phased(
        PhaseConfig(),
        PhaseConfig(begin=0.1, batch_size=128),  # goes on
        PhaseConfig(begin=0.25, row_length=1024),
        PhaseConfig(begin=0.5, weights=(2.0,)),  # the same rows, in another order
        PhaseConfig(begin=0.7, rows="long", row_length=1024),
        PhaseConfig(begin=0.9),  # back
    )
    assert begins(config) == (0, 10, 25, 50, 70, 90)
    assert [phase_at(config, step) for step in (0, 1, 10, 11, 25, 26, 90, 91, 100)] == [0, 0, 0, 1, 1, 2, 4, 5, 5]
    assert streams(config) == (0, 0, 1, 2, 3, 0)
    assert list(map(str, rows_folders(config, Path("w")))) == ["w/rows", "w/rows-1", "w/rows", "long"]
    given = dataclasses.replace(config, data=DataConfig(rows="mine"))
    assert list(map(str, rows_folders(given, Path("w")))) == ["mine", "w/rows-1", "mine", "long"]
    assert rows_folders(Config(), Path("w")) == (Path("w/rows"),) and begins(Config()) == (0,)


@pytest.mark.parametrize(
    "phases, key, says",
    [
        ([PhaseConfig(begin=0.1)], "config.phases[0].begin", "must begin at 0"),
        ([PhaseConfig(), PhaseConfig(batch_size=8)], "config.phases[1].begin", "greater than config.phases[0].begin"),
        ([PhaseConfig(), PhaseConfig(begin=1.0)], "config.phases[1].begin", "less than 1"),
        ([PhaseConfig(), PhaseConfig(begin=float("nan"), rate=2.0)], "config.phases[1].begin", "less than 1"),
        ([PhaseConfig(), PhaseConfig(begin=0.004, rate=2.0)], "config.phases[1].begin", "leaves config.phases[0] none"),
        ([PhaseConfig(), PhaseConfig(begin=0.999, rate=2.0)], "config.phases[1].begin", "leaves config.phases[1] none"),
        ([PhaseConfig(), PhaseConfig(begin=0.5, batch_size=64)], "config.phases[1]", "changes nothing"),
        ([PhaseConfig()], "config.phases[0]", "is the only phase and changes nothing"),
        ([PhaseConfig(rate=0.0)], "config.phases[0].rate", "greater than 0"),
        ([changed(PhaseConfig(), batch_size="8")], "config.phases[0].batch_size", "of type int"),
        ([PhaseConfig(), PhaseConfig(begin=0.5, row_length=4)], "config.phases[1].row_length", "at least 8"),
        (
            [PhaseConfig(), PhaseConfig(begin=0.5, row_length=1024)],
            "config.model.max_positions",
            "must be at least config.phases[1].row_length = 1024",
        ),
        ([PhaseConfig(), PhaseConfig(begin=0.5, batch_size=60)], "config.phases[1].batch_size", "nearest: 56 or 64"),
        ([PhaseConfig(), PhaseConfig(begin=0.5, mask_rate=1.5)], "config.phases[1].mask_rate", "in [0, 1]"),
        ([PhaseConfig(), PhaseConfig(begin=0.5, rotary_base=1e6)], "config.phases[1].rotary_base", "'learned'"),
        ([PhaseConfig(), PhaseConfig(begin=0.5, weights=(1.0, 2.0))], "config.phases[1].weights", "one weight for"),
        ([PhaseConfig(), PhaseConfig(begin=0.5, sources=())], "config.phases[1].sources", "at least one source"),
    ],
)
def test_a_contradiction_names_the_phase(phases, key, says):
    with pytest.raises(ConfigError) as error:
        check(phased(*phases), 8)
    assert error.value.key == key and says in str(error.value)


def test_phases_on_the_command_line():
    with pytest.raises(ConfigError, match="which only the config file can hold; the command line changes single"):
        check(changed(phased(), phases=((0.0, 0.5),)), 8)


def test_a_schedule_of_masks_that_no_phase_uses():
    scheduled = MaskConfig(rate=0.3, schedule="linear", end_rate=0.15)
    check(phased(PhaseConfig(mask_rate=0.4), PhaseConfig(begin=0.5), mask=scheduled), 8)
    with pytest.raises(ConfigError, match=r"config.mask.schedule = 'linear': is used in no phase"):
        check(phased(PhaseConfig(mask_rate=0.4), PhaseConfig(begin=0.5, mask_rate=0.2), mask=scheduled), 8)
    with pytest.raises(ConfigError, match=r"max_rate = 0.2: must be at least config.phases\[0\].mask_rate = 0.4"):
        check(phased(PhaseConfig(mask_rate=0.4), mask=MaskConfig(max_rate=0.2)), 8)


def test_numbers_of_each_phase():
    """64 rows of 512 and then 128 of 256, which fill as many places; 0.3 x 256 + 8 rounded up to eights is 88."""
    config = phased(PhaseConfig(), PhaseConfig(begin=0.5, row_length=256, batch_size=128, mask_rate=0.3))
    one, other = check_each(config, 8)
    assert (one.tokens_per_step, other.tokens_per_step) == (32768, 32768)
    assert (one.capacity, other.capacity) == (96, 88) and (one.rows_per_device, other.rows_per_device) == (8, 16)
    manifests = MANIFEST, {**MANIFEST, "row_length": 256, "corpora": [{"source": "a", "splits": TINY}]}
    one, other = check_each(config, 8, 1, manifests)
    assert (one.train_rows, other.train_rows, one.steps) == (1000, 4000, 100)
    # 50 steps of 64 of 1,000 rows and 50 of 128 of 4,000; of 500 and of 125 tokens
    assert one.epochs == other.epochs == pytest.approx(3.2 + 1.6)
    assert one.tokens == pytest.approx(50 * 64 * 500 + 50 * 128 * 125)


def test_accumulation_of_a_phase_follows_from_the_rows_of_a_device():
    """64 rows by 4 and then 128 by 2 on 8, 2 and 1 devices; the last phase sets its accumulation by hand."""
    config = phased(
        PhaseConfig(),
        PhaseConfig(begin=0.5, batch_size=128, rows_per_device=2),
        PhaseConfig(begin=0.8, rows_per_device=0, accumulation=8),
        rows_per_device=4,
    )
    found = {devices: [one.accumulation for one in check_each(config, devices)] for devices in (8, 2, 1)}
    assert found == {8: [2, 8, 8], 2: [8, 32, 8], 1: [16, 64, 8]}
    config.phases[2].rows_per_device = None
    with pytest.raises(ConfigError, match=r"phases\[2\].accumulation = 8: contradicts config.rows_per_device = 4"):
        check(config, 8)


def test_phases_as_json():
    config = phased(PhaseConfig(), PhaseConfig(begin=0.5, sources=("a", "b"), weights=(0.5, 0.5)))
    again = from_json(to_json(config))
    assert again == config and hash(again) == hash(config) and isinstance(again.phases[1], PhaseConfig)
    with pytest.raises(ConfigError, match=r"config.phases\[1\].bach_size = 8: there is no such key"):
        from_json('{"phases": [{}, {"bach_size": 8}]}')


# ---- lengths: 1,000 rows of 500 tokens, so that a step of 250 rows is a quarter of an epoch and 125,000 tokens ----


def lengths(length="", warmup="", cooldown="", steps=100, batch_size=250, phases=()):
    optimizer = OptimizerConfig(schedule="wsd", warmup_length=warmup, cooldown_length=cooldown)
    return Config(steps=steps, length=length, batch_size=batch_size, optimizer=optimizer, phases=phases)


@pytest.mark.parametrize(
    "length, steps",
    [
        ("500 steps", 500),
        ("1 step", 1),
        ("3 epochs", 12),
        ("0.5 epochs", 2),
        ("0.6 epochs", 3),  # 2.4: the first step that reaches it
        ("1e9 tokens", 8000),
        ("125_001 tokens", 2),
        ("1 token", 1),
        ("", 100),
    ],
)
def test_a_length_in_steps_by_hand(length, steps):
    config = lengths(length)
    assert in_steps(config, readings(config, (MANIFEST,))).steps == steps


def test_lengths_of_warm_up_and_cool_down_by_hand():
    config = lengths("30 epochs", "1e6 tokens", "2.5 epochs")
    found = check(config, 1, 1, MANIFEST)
    assert (found.steps, found.warmup_steps, found.cooldown_steps) == (120, 8, 10)
    assert (found.epochs, found.tokens) == (30.0, 15e6)
    # whatever the number of steps, they stay exact
    for steps in (7, 333, 1_234_567):
        config = lengths(warmup="3 steps", cooldown="2 steps", steps=steps)
        assert (check(config, 1).warmup_steps, check(config, 1).cooldown_steps) == (3, 2)


def test_lengths_over_phases_by_hand():
    """Half of the steps read 100 rows, half 300: 200 of 1,000 in the mean, so 2 epochs are 10 steps."""
    phases = PhaseConfig(batch_size=100), PhaseConfig(begin=0.5, batch_size=300)
    config = lengths("2 epochs", "0.7 epochs", "0.5 epochs", phases=phases)
    (found, _) = check_each(config, 1, 1, (MANIFEST,))
    # 5 x 100 + 300 reach 700; from behind 2 x 300 reach 500
    assert (found.steps, found.warmup_steps, found.cooldown_steps, found.epochs) == (10, 6, 2, 2.0)


def test_lengths_wait_for_the_rows():
    for config in (lengths("3 epochs"), lengths("1e6 tokens", "0.5 epochs"), lengths("1e6 tokens", "5 steps")):
        found = check(config, 1)
        assert (found.steps, found.warmup_steps) == (None, None)
    found = check(lengths("40 steps", "1 epochs"), 1)
    assert (found.steps, found.warmup_steps, found.cooldown_steps) == (40, None, 4)
    assert open_lengths(lengths("3 epochs", "5 steps")).keys() == {"config.length", "config.optimizer.warmup_length"}
    # of the rows of the second phase nothing is known: as full as those of the first, half as many
    config = lengths("6 epochs", phases=(PhaseConfig(), PhaseConfig(begin=0.5, row_length=1024)))
    assert first_phase(config, MANIFEST).steps == 16  # 6 / (0.25 / 2 + 0.5 / 2)


def test_lengths_without_rows_by_hand():
    """250 rows of 512 that are 80 % full: 102,400 tokens a step; half of the steps have half as many."""
    assert without_rows(lengths("1e6 tokens"), 0.8).steps == 10
    config = lengths("1e6 tokens", "150_000 tokens", phases=(PhaseConfig(), PhaseConfig(begin=0.5, batch_size=125)))
    found = without_rows(config, 0.8)
    assert (found.steps, check(found, 1).warmup_steps) == (14, 2)
    with pytest.raises(ConfigError, match=r"config.length = '3 epochs': is known once there are rows"):
        without_rows(lengths("3 epochs"), 0.8)


@pytest.mark.parametrize(
    "text",
    ["3 epoch s", "3", "epochs", "3 hours", "0 epochs", "-2 epochs", "nan tokens", "inf tokens", "1.5 steps", " "],
)
@pytest.mark.parametrize("key", ["length", "optimizer.warmup_length", "optimizer.cooldown_length"])
def test_what_is_no_length_names_the_forms(text, key):
    config = changed(lengths(), **{key.replace(".", "__"): text})
    with pytest.raises(ConfigError) as error:
        check(config, 1)
    assert error.value.key == f"config.{key}" and "such as '2000 steps', '0.5 epochs' or '1e9 tokens'" in str(
        error.value
    )


def test_lengths_that_contradict():
    with pytest.raises(ConfigError, match=r"warmup_length = '5 steps': is given beside config.optimizer.warmup = 0.1"):
        check(changed(lengths(warmup="5 steps"), optimizer__warmup=0.1), 1)
    with pytest.raises(ConfigError, match=r"cooldown_length = '5 steps': .*schedule = 'linear' has no cool-down"):
        check(changed(lengths(cooldown="5 steps"), optimizer__schedule="linear"), 1)
    with pytest.raises(ConfigError, match=r"warmup_length = '200 steps': is longer than the run of 100 steps"):
        check(lengths(warmup="200 steps"), 1)


# ---- what shows phases ----


def test_plan_takes_a_phase(capsys):
    config = phased(PhaseConfig(), PhaseConfig(begin=0.5, batch_size=128), length="1e6 tokens")
    # 0.9 of half of the steps with 64 rows of 512 and half with 128: 44,236.8 a step
    for number, batch_size in ((0, 64), (1, 128)):
        found = plan.phase_asked(config, number, 0.9)
        assert (found.steps, found.batch_size) == (23, batch_size)
        assert f"those of config.phases[{number}] of 2" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"--phase = 2: the config has 2"):
        plan.phase_asked(config, 2, 0.9)


def test_the_report_tells_phases(tmp_path):
    config = phased(PhaseConfig(mask_rate=0.3), PhaseConfig(begin=0.25, row_length=256, batch_size=128))
    (tmp_path / "config.json").write_text(to_json(config))
    run = read(tmp_path)
    assert [begin for begin, _ in facts.phases_of(run)] == [0, 25]
    shown = re.sub("<[^>]*>", " ", facts.phases(run))
    assert re.search(r"0\s+1 to 25\s+mask_rate 0.3\s+1\s+26 to 100\s+row_length 256, batch_size 128\s", shown)
    (tmp_path / "config.json").write_text(to_json(Config()))
    assert facts.phases(read(tmp_path)) is None


# ---- rows ----


def test_rows_of_a_stream_are_read_once_an_epoch_across_phases(tmp_path):
    """60 rows, by 4, 10 and 16 at a time, in several accumulations, with a stop at an odd place."""
    manifest = write_shards(tmp_path, [{"train": [33, 27]}])
    straight = rows_of(take(data.host_batches(tmp_path, manifest, data_config(batch_size=1)), 120))
    read = []
    for batch_size, accumulation, steps in ((4, 1, 5), (10, 2, 3), (10, 5, 1), (16, 4, 2), (4, 2, 7)):
        settings = data_config(batch_size, accumulation)
        read += rows_of(take(data.host_batches(tmp_path, manifest, settings, len(read)), steps))
    assert len(read) == 120 and read == straight
    assert sorted(read[:60]) == sorted(read[60:]) == list(range(60))


def test_rows_of_another_stream_have_numbers_and_an_order_of_their_own(tmp_path):
    manifest = write_shards(tmp_path, [{"train": [40]}])
    first, second = data.number_streams([manifest, manifest])
    assert (first, second) == (data.FIRST, data.Stream(1, 40))
    one, other = (
        take(data.host_batches(tmp_path, manifest, data_config(batch_size=40), stream=stream), 1)[0]
        for stream in (first, second)
    )
    assert sorted(one.row[0]) == list(range(40)) and sorted(other.row[0]) == list(range(40, 80))
    assert (other.row[0] - 40 != one.row[0]).any()
    np.testing.assert_array_equal(other.tokens[0, :, 1], 10 + other.row[0] - 40)  # the same rows
    assert not other.visit.any()
    large = {"corpora": [{"splits": {"train": {"rows": 2**30}}}]}
    with pytest.raises(ConfigError, match=r"config.phases = '2 streams': .* 2,147,483,648 in all"):
        data.number_streams([large, large])


# ---- a run ----

PHASED = """
import runpy
from mlm_jax.config import ModelConfig, PhaseConfig

def get_config():
    config = runpy.run_path("configs/tiny.py")["get_config"]()
    config.tokenizer.vocab_size, config.row_length, config.steps, config.batch_size = 60, 32, 6, 8
    config.model = ModelConfig(
        family="modernbert", layers=1, width=16, heads=2, hidden=32, max_positions=64, local_window=0, rotary_base=1e4
    )
    config.data.pack_groups, config.data.holdout, config.data.workers = 2, 0.1, 1
    config.checkpoint.every_steps, config.checkpoint.keep, config.evaluate.every_steps = 1, 9, 2
    config.phases = (
        PhaseConfig(mask_rate=0.3),
        PhaseConfig(begin=0.34, batch_size=16, rows_per_device=1, rate=2.0),  # accumulation 2 on 8 devices
        PhaseConfig(begin=0.67, row_length=64, rotary_base=1e5),
    )
    return config
"""


@pytest.fixture(scope="module")
def evaluated():
    """What the evaluations of runs would have been of: rows, their length, rate of the masks. Nor are masks audited."""
    found = []

    def make_evaluation(model, vocabulary, config, folder, manifest, mesh, beat):
        def evaluation(params, shuffled=False):
            found.append((folder.name, config.row_length, manifest["row_length"], config.mask.rate))
            return {}

        return evaluation

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluate, "make_evaluation", make_evaluation)
        patched.setattr(samples, "make_samples", lambda *what: lambda params: [])
        for name in ("audit_masks", "write_report"):
            patched.setattr(train, name, lambda *what: None)
        yield found


@pytest.fixture(scope="module")
def command(evaluated, tmp_path_factory):
    """A command line for a folder: steps 1 and 2 read 8 rows of 32 each, 3 and 4 16 of them, 5 and 6 8 rows of 64."""
    folder, rng = tmp_path_factory.mktemp("phased"), random.Random(0)
    verbs = {"cat": "sleeps", "dog": "barks", "bird": "sings", "fish": "swims"}
    with open(folder / "small.jsonl", "w") as file:
        for number in range(60):
            sentences = " ".join(f"The {noun} {verbs[noun]} well." for noun in rng.choices(list(verbs), k=6))
            file.write(json.dumps({"id": f"d{number}", "text": sentences}) + "\n")
    (folder / "phased.py").write_text(PHASED)
    return lambda workdir, *more: [
        f"--config={folder}/phased.py",
        f"--config.data.sources={folder}/small.jsonl",
        f"--workdir={workdir}",
        *more,
    ]


@pytest.fixture(scope="module")
def straight(command, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "straight"
    assert train.main(command(workdir)) == 0
    return workdir


def test_a_run_of_three_phases(straight, evaluated):
    steps = steps_of(straight)
    assert [steps[number]["phase"] for number in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    # evaluation follows the rows, not the rate of training
    assert evaluated[:3] == [("rows", 32, 32, 0.15), ("rows", 32, 32, 0.15), ("rows-1", 64, 64, 0.15)]
    first, second = (records.read_manifest(straight / name) for name in ("rows", "rows-1"))
    assert (first["row_length"], second["row_length"]) == (32, 64)
    # one text, one tokenizer, the same documents held out; packed again, not encoded again
    assert first["tokenizer"]["hash"] == second["tokenizer"]["hash"] and len(list(straight.glob("encoded/*"))) == 1
    assert first["unigrams"] == second["unigrams"] != [0] * len(first["unigrams"])
    rows = [manifest["corpora"][0]["splits"]["train"]["rows"] for manifest in (first, second)]
    epochs = {2: 16 / rows[0], 3: 32 / rows[0], 4: 48 / rows[0], 5: 8 / rows[1], 6: 16 / rows[1]}
    assert {number: steps[number]["epoch"] for number in epochs} == pytest.approx(epochs)
    assert [steps[number]["mask/rate"] for number in (2, 4, 6)] == pytest.approx([0.3, 0.15, 0.15], abs=0.03)
    # cosine over 6 steps without warm-up, twice as high in the second phase
    rates = {number: 3e-3 * (1 + np.cos(np.pi * (number - 1) / 6)) / 2 for number in range(1, 7)}
    rates |= {3: 2 * rates[3], 4: 2 * rates[4]}
    assert {number: steps[number]["learning_rate"] for number in rates} == pytest.approx(rates, rel=1e-5)
    meta = read_meta(straight, 6)
    assert (meta["position"], meta["rows_read"], meta["rotary_base"]) == ([48, 16], 64, 1e5)
    assert read_meta(straight, 3)["position"] == [32, 0]
    assert [load_model(straight, step)[0].config.rotary_base for step in (4, 5)] == [1e4, 1e5]


def test_rows_of_a_run_follow_its_streams(straight):
    """Row and visit of what each step should have read, by hand; their hash as the design of `rows/hash` has it."""

    def mix(x):
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    manifests = [records.read_manifest(straight / name) for name in ("rows", "rows-1")]
    counts = [manifest["corpora"][0]["splits"]["train"]["rows"] for manifest in manifests]
    one, other = (
        data.training_order([count], Config(), stream) for count, stream in zip(counts, data.number_streams(manifests))
    )
    read = [(one, 0, 8), (one, 8, 16), (one, 16, 32), (one, 32, 48), (other, 0, 8), (other, 8, 16)]
    for (order, start, end), line in zip(read, steps_of(straight).values(), strict=True):
        numbers = [tuple(map(int, order[place])) for place in range(start, end)]
        if order is other:
            assert all(counts[0] <= row < sum(counts) for row, _ in numbers)
        assert line["rows/hash"] == sum(mix((mix(row + 1) + visit) % 2**32) for row, visit in numbers) % 2**32


def test_stopped_at_a_switch_and_before_one(straight, command, tmp_path, monkeypatch, capfd):
    """After step 2 another phase is next; step 3 is the first of it, and one before rows of another length."""
    for failing in (3, 4):
        fails_at(failing, command(tmp_path), monkeypatch)
    assert train.main(command(tmp_path)) == 0
    said = capfd.readouterr().err
    assert "goes on after step 2" in said and "goes on after step 3" in said
    assert "phases[2] begins after step 4: row_length 64, before 32;" in said
    assert list(map(untimed, steps_of(tmp_path).values())) == list(map(untimed, steps_of(straight).values()))


def test_a_run_that_is_made_longer_goes_back_to_rows_where_it_left_them(
    straight, command, tmp_path, monkeypatch, capfd
):
    shutil.copytree(straight, tmp_path / "more")
    assert train.main(command(tmp_path / "more", "--config.phases[2].row_length=48", "--config.steps=20")) == 2
    assert "config.phases[2].row_length = 48: the rows are 64 tokens long" in capfd.readouterr().err

    def make_train_step(model, optimizer, vocabulary, config, mesh):
        """Reads, and learns nothing."""
        names = "loss grad_norm targets learning_rate mask_rate mask_dropped rows_hash mask_hash tokens"
        return lambda state, batch, roots: (state, {name: jnp.sum(batch.row) for name in names.split()})

    monkeypatch.setattr(step_module, "make_train_step", make_train_step)
    assert train.main(command(tmp_path / "more", "--config.steps=12", "--config.checkpoint.every_steps=12")) == 0
    # of 12 steps 1-4, 5-8 and 9-12 are the phases, so 7 and 8 read on in the first stream
    steps = steps_of(tmp_path / "more")
    assert [steps[number]["phase"] for number in (6, 7, 8, 9, 12)] == [2, 1, 1, 2, 2]
    assert read_meta(tmp_path / "more", 12)["position"] == [48 + 2 * 16, 16 + 4 * 8]
    assert steps[9]["epoch"] > steps[6]["epoch"] and steps[7]["epoch"] > steps[4]["epoch"]


def test_rows_of_another_tokenizer(straight, command, tmp_path, capfd):
    """Rows that a phase names are taken as they are."""
    shutil.copytree(straight / "rows-1", tmp_path / "other")
    rows = [f"--config.data.rows={straight / 'rows'}", f"--config.phases[2].rows={tmp_path / 'other'}"]
    manifest = records.read_manifest(tmp_path / "other")
    manifest["tokenizer"]["hash"] = "another"
    records.write_json(tmp_path / "other" / "manifest.json", manifest)
    assert train.main(command(tmp_path, *rows)) == 2
    assert f"config.phases[2].rows = '{tmp_path}/other': has the tokenizer another, the rows" in capfd.readouterr().err


def test_what_a_checkpoint_knows_of_streams(tmp_path):
    """A stream that is new begins at 0, one that no phase reads any more is kept, another one is refused."""

    def facts(*fingerprints, weights=None):
        phases = [PhaseConfig(), PhaseConfig(begin=0.5, row_length=64, weights=weights)]
        config = phased(*phases[: len(fingerprints)])
        found = [position.stream_facts(one, {"fingerprint": f}) for one, f in zip(stream_configs(config), fingerprints)]
        return {"tokenizer": "t", "data": "a", "streams": found, "config": dataclasses.asdict(config)}

    both = {**facts("a", "b"), "position": [7, 3], "rows_read": 10}
    assert position.position({**facts("a"), "position": [7], "rows_read": 7}, facts("a", "b"), tmp_path) == [7, 0]
    fewer = facts("a")
    assert position.position(both, fewer, tmp_path) == [7, 3] and fewer["streams"] == both["streams"]
    with pytest.raises(ConfigError, match=r"another prepared rows \(b\); this one is c"):
        position.position(both, facts("a", "c"), tmp_path)
    with pytest.raises(ConfigError, match=r"config.phases\[1\].weights = \[1.0\]: .* was trained with \[\]"):
        position.position(both, facts("a", "b", weights=(1.0,)), tmp_path)
