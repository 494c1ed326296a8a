"""The program end to end, on a shrunk copy of the shipped config and a small generated language."""

import dataclasses
import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import programs
import pytest

from mlm_jax import audit, checkpoint, logbook, train
from mlm_jax.checkpoint import newest, steps_in
from mlm_jax.cli import evaluate, explain, fill_mask, prepare
from mlm_jax.config import Config, ConfigError, OptimizerConfig, RunError
from mlm_jax.evaluate import set_names
from mlm_jax.position import position, stream_facts
from mlm_jax.train import main

SMALL = [
    "--config.tokenizer.vocab_size=60",
    "--config.model.width=16",
    "--config.model.hidden=32",
    "--config.model.heads=2",
    "--config.model.dropout=0.1",
    "--config.row_length=32",
    "--config.batch_size=16",
    "--config.accumulation=2",
    "--config.steps=12",
    "--config.checkpoint.every_steps=4",
    "--config.evaluate.every_steps=6",
    "--config.data.pack_groups=2",
    "--config.data.holdout=0.1",
    "--config.data.workers=1",
]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    with programs.shared():
        yield


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """The page is drawn for `straight` alone, which begins before this."""
    monkeypatch.setattr(train, "write_report", lambda workdir, progress: None)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """120 documents of sentences in which the verb follows from the noun."""
    rng = random.Random(0)
    verbs = {"cat": "sleeps", "dog": "barks", "bird": "sings", "fish": "swims"}
    path = tmp_path_factory.mktemp("text") / "small.jsonl"
    with open(path, "w") as file:
        for number in range(120):
            nouns = rng.choices(list(verbs), k=6)
            sentences = " ".join(f"The {noun} {verbs[noun]} well." for noun in nouns)
            file.write(json.dumps({"id": f"d{number}", "text": sentences}) + "\n")
    return path


def command(text, workdir, *more):
    return ["--config=configs/tiny.py", f"--config.data.sources={text}", f"--workdir={workdir}", *SMALL, *more]


def steps_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    kept = {line["step"]: line for line in lines if "train/loss" in line}
    assert len(kept) == sum("train/loss" in line for line in lines)
    return kept


def untimed(line):
    """What is the same in every run: all but times and memory."""
    return {key: value for key, value in line.items() if not key.startswith(("time/", "throughput/", "memory/"))}


@pytest.fixture(scope="module")
def straight(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "straight"
    assert main(command(text, workdir)) == 0
    return workdir


def test_what_a_run_leaves_behind(straight):
    assert {path.name for path in straight.iterdir()} >= {
        "config.json",
        "tokenizer",
        "rows",
        "checkpoints",
        "metrics.jsonl",
        "samples.jsonl",
        "starts.jsonl",
        "tensorboard",
        "report.html",
    }
    assert sorted(path.name for path in (straight / "checkpoints").iterdir()) == ["12", "8"]
    steps = steps_of(straight)
    assert list(steps) == list(range(1, 13))
    names = "step epoch train/loss train/targets train/grad_norm learning_rate mask/rate rows/hash mask/hash"
    assert set(steps[12]) >= {*names.split(), "throughput/tokens_per_second", "throughput/mfu", "train/mlm/loss"}
    rows = json.loads((straight / "rows" / "manifest.json").read_text())["corpora"][0]["splits"]["train"]["rows"]
    assert steps[12]["epoch"] == pytest.approx(12 * 16 / rows)
    lines = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "eval/small/loss" in line]
    assert [line["step"] for line in evaluations] == [6, 12]
    assert set(evaluations[1]) >= {"eval/small/accuracy", "eval/small/unigram_loss", "eval/small/shuffled_loss"}
    deciles = [evaluations[1].get(f"eval/small/loss_decile_{i}") for i in range(1, 11)]
    assert sum(loss is not None for loss in deciles) > 3
    assert 0 < steps[12]["time/step"] < 60 and 0 <= steps[12]["time/goodput"] <= 1


def fails_at(failing, argv, monkeypatch):
    """Runs a command until a step is under way, as far as a crash leaves it."""
    step = logbook.Logbook.step

    def fails(self, number, *rest):
        if number == failing:
            raise KeyboardInterrupt
        step(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(logbook.Logbook, "step", fails)
        with pytest.raises(KeyboardInterrupt):
            main(argv)


def test_stopped_and_started_again_is_the_same_run(straight, text, tmp_path, monkeypatch, capfd):
    fails_at(10, command(text, tmp_path), monkeypatch)
    assert main(command(text, tmp_path)) == 0
    assert "goes on after step 8" in capfd.readouterr().err
    one, other = steps_of(straight), steps_of(tmp_path)
    assert list(map(untimed, one.values())) == list(map(untimed, other.values()))
    starts = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert [start["step"] for start in starts] == [0, 8] and "--workdir=" in starts[1]["command"]
    assert [json.loads(line)["step"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()] == [6, 12]


@pytest.fixture(scope="module")
def following(straight, text, tmp_path_factory):
    """What all of it takes that a state may hold: its flags, and a run of them.

    Masks by losses, a guard, an average, and a constant rate until the last 3 of 12 steps.
    """
    rate = ["--config.mask.schedule=loss", "--config.mask.rate=0.6", "--config.mask.end_rate=0.1"]
    quick = [f"--config.optimizer.{key}" for key in ("learning_rate=0.03", "warmup=0", "schedule=wsd", "cooldown=0.25")]
    quick += ["--config.model.initializer_range=0.1"]  # so that six steps beat word frequencies, whatever the rows
    kept = [f"--config.optimizer.{key}" for key in ("bad_gradients=skip", "exploding=20", "ema=0.9")]
    follows = [f"--config.data.rows={straight / 'rows'}", "--config.mask.priority=importance", *rate, *quick, *kept]
    workdir = tmp_path_factory.mktemp("runs") / "following"
    assert main(command(text, workdir, *follows)) == 0
    return workdir, follows


def test_what_follows_the_run_goes_on_where_it_was(following, text, tmp_path, monkeypatch):
    workdir, follows = following
    fails_at(10, command(text, tmp_path / "two", *follows), monkeypatch)
    assert main(command(text, tmp_path / "two", *follows)) == 0
    one, two = steps_of(workdir), steps_of(tmp_path / "two")
    assert list(map(untimed, one.values())) == list(map(untimed, two.values()))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for part in ("ema", "guard"):
        states = [checkpoint.read_part(folder, 12, part, here) for folder in (workdir, tmp_path / "two")]
        jax.tree.map(np.testing.assert_array_equal, *states)
    _, averaged, _ = checkpoint.load_model(workdir)
    jax.tree.map(np.testing.assert_array_equal, averaged, checkpoint.read_part(workdir, 12, "ema", here)["params"])
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    (at_six,) = (line for line in lines if "eval/small/loss" in line and line["step"] == 6)
    asked = 0.1 + 0.5 * min(at_six["eval/small/loss"] / at_six["eval/small/unigram_loss"], 1)
    rates = {number: line["mask/rate"] for number, line in one.items()}
    assert [rates[number] for number in (1, 6)] == pytest.approx([0.6, 0.6], abs=0.02) and asked < 0.598
    assert [rates[number] for number in (7, 12)] == pytest.approx([asked, asked], abs=0.02)


def test_a_branch_cools_down_off_a_stable_checkpoint(following, text, tmp_path, monkeypatch, capfd):
    """From step 8 on to 11 steps of its own, over the last 3 of which the rate falls; killed and started again."""
    workdir, follows = following
    again = [*follows, f"--config.branch_from={workdir}/checkpoints/8", "--config.steps=11"]
    argv = command(text, tmp_path, *again, "--config.checkpoint.every_steps=1")
    fails_at(10, argv, monkeypatch)
    assert f"branch      {workdir}/checkpoints/8: goes on after step 8" in capfd.readouterr().err
    assert main(argv) == 0
    assert "goes on after step 9" in capfd.readouterr().err
    whole, steps = steps_of(workdir), steps_of(tmp_path)
    assert list(steps) == [9, 10, 11] and untimed(steps[9]) == untimed(whole[9])
    assert [steps[number]["rows/hash"] for number in steps] == [whole[number]["rows/hash"] for number in steps]
    expected = [0.03 * (1 - (done / 3) ** 0.5) for done in range(3)]
    assert [line["learning_rate"] for line in steps.values()] == pytest.approx(expected, rel=1e-5)
    starts = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert [(start["step"], start.get("branch_from")) for start in starts] == [
        (8, f"{workdir}/checkpoints/8"),
        (9, None),
    ]
    assert json.loads((tmp_path / "config.json").read_text())["branch_from"] == f"{workdir}/checkpoints/8"
    assert [path.name for path in sorted(workdir.glob("checkpoints/*"))] == ["12", "8"]


@pytest.mark.parametrize(
    "flags, says",
    [
        ([], "step 12 lies within the cool-down of this run, which begins after step 10"),
        (["--config.steps=12"], "config.steps = 12: must be more than the 12 steps"),
        (
            ["--config.optimizer.warmup=0.9", "--config.optimizer.schedule=constant"],
            "step 12 lies within the 13 steps of warm-up of this run",
        ),
        (["--config.steps=40"], "the learning rate of step 12 was 0.005505 there and is 0.03 by the schedule"),
        (["--config.branch_from={}/checkpoints/7"], "there is no such checkpoint"),
        (["--config.branch_from={}/rows"], "holds no whole checkpoint"),
        (["--config.branch_from={}", "--workdir={}"], "is this very run"),
        (["--config.init_from={}"], "config.init_from is set"),
        (["--config.branch_from={}/checkpoints/8", "--config.steps=11", "--config.seed=1"], "config.seed = 1"),
        (
            ["--config.branch_from={}/checkpoints/8", "--config.steps=11", "--config.model.hidden=64"],
            "float32[64] here",
        ),
    ],
)
def test_a_branch_that_would_jump_is_refused(following, text, tmp_path, flags, says, capfd):
    workdir, follows = following
    flags = [flag.format(workdir) for flag in flags]
    assert main(command(text, tmp_path, *follows, f"--config.branch_from={workdir}", "--config.steps=14", *flags)) == 2
    assert says in capfd.readouterr().err


def test_a_finished_run_says_so_and_can_be_asked_for_more_and_for_other(straight, text, tmp_path, capfd):
    before = (straight / "metrics.jsonl").read_bytes()
    assert main(command(text, straight)) == 0
    assert "done: 12 of 12 steps" in capfd.readouterr().err
    assert (straight / "metrics.jsonl").read_bytes() == before
    more = tmp_path / "more"
    shutil.copytree(straight, more)
    # another accumulation changes no row and no mask of the steps after
    changed = [
        "--config.accumulation=1",
        "--config.mask.rate=0.2",
        "--config.evaluate.rows=4",
        "--config.optimizer.ema=0.5",
    ]
    assert main(command(text, more, "--config.steps=14", *changed)) == 0
    said = capfd.readouterr().err
    for change in (
        "steps was 12, is 14",
        "mask.rate was 0.15, is 0.2",
        "evaluate.rows was 0, is 4",
        "optimizer.ema was 0.0, is 0.5",
    ):
        assert f"since the checkpoint: {change}" in said
    assert "the average of the parameters begins with those of this checkpoint" in said
    assert (more / "metrics.jsonl").read_bytes().startswith(before)
    steps = steps_of(more)
    assert list(steps) == list(range(1, 15))
    assert steps[14]["epoch"] == pytest.approx(steps[12]["epoch"] * 14 / 12)


def test_sigterm_saves_and_the_run_goes_on_as_if_nothing_had_been(straight, text, tmp_path, monkeypatch, capfd):
    step = logbook.Logbook.step

    def terminated_at_five(self, number, *rest):
        if number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(logbook.Logbook, "step", terminated_at_five)
        assert main(command(text, tmp_path)) == 3
    said = capfd.readouterr().err
    assert "stopped: 5 of 12 steps" in said and f"checkpoint {tmp_path}/checkpoints/5" in said
    assert newest(tmp_path) == 5
    assert main(command(text, tmp_path)) == 0
    assert [untimed(line) for line in steps_of(tmp_path).values()] == [
        untimed(line) for line in steps_of(straight).values()
    ]


def test_a_save_that_fails_is_one_line_that_names_what_is_left(text, tmp_path, monkeypatch, capfd):
    save = checkpoint.ocp.save_async

    def full(folder, *args, **kwargs):
        if folder.name == "8":
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        return save(folder, *args, **kwargs)

    monkeypatch.setattr(checkpoint.ocp, "save_async", full)
    assert main(command(text, tmp_path)) == 1
    said = capfd.readouterr().err
    assert "checkpoints/8: not saved: [Errno 28] No space left on device" in said and "Traceback" not in said
    assert said.strip().endswith("the newest whole checkpoint is of step 4")


def test_masks_follow_their_schedule_and_are_never_compiled_again(text, tmp_path, capfd):
    masks = ["--config.mask.schedule=linear", "--config.mask.end_rate=0.6", "--config.mask.unit=span"]
    more = ["--config.mask.priority=frequency", "--config.mask.random_end=0.0", "--config.data.holdout=0"]
    assert main(command(text, tmp_path, *masks, *more)) == 0
    said = capfd.readouterr().err
    assert "15% to 60% (linear) of the tokens by span in the order of frequency" in said
    assert "compiled again" not in said
    steps = steps_of(tmp_path)
    for step, asked in ((1, 0.15), (12, 0.6)):
        assert steps[step]["mask/rate"] == pytest.approx(asked, abs=0.04) and steps[step]["mask/dropped"] == 0


def test_masks_that_break_a_rule_end_the_run(text, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(audit.Audit, "_rules", lambda self, *rows: self.broken.update({"padding selected": 3}))
    assert main(command(text, tmp_path)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "mlm_jax: step 1: the masks are wrong: 3 padding selected; there is no checkpoint yet"


def test_prepare_leaves_the_rows_of_a_run_alone(straight, text, capfd):
    manifest = (straight / "rows" / "manifest.json").read_bytes()
    assert prepare.main(command(text, straight)) == 0
    assert prepare.main(command(text, straight, "--config.data.holdout=0.3")) == 2
    assert "holdout was 0.1, is 0.3" in capfd.readouterr().err
    assert (straight / "rows" / "manifest.json").read_bytes() == manifest


def test_a_damaged_checkpoint_is_never_loaded(straight, tmp_path, capfd):
    copy = tmp_path / "copy"
    shutil.copytree(straight, copy)
    (copy / "checkpoints/12/files.json").write_text("{}")
    data = next(path for path in (copy / "checkpoints/8").rglob("*") if path.is_file() and path.stat().st_size > 100)
    data.write_bytes(data.read_bytes()[:-1])
    for argv, says in [(["--step=12"], "is empty"), (["--step=8"], "bytes instead of"), ([], "no whole checkpoint")]:
        assert fill_mask.main([f"--workdir={copy}", *argv, "[MASK]"]) == 2
        assert says in capfd.readouterr().err
    (copy / "config.json").write_text("{")
    assert fill_mask.main([f"--workdir={copy}", "[MASK]"]) == 2


def test_rows_that_are_gone(straight, text, tmp_path, capfd):
    copy = tmp_path / "copy"
    shutil.copytree(straight, copy)
    shutil.rmtree(copy / "rows")
    assert main(command(text, copy, "--config.steps=20")) == 2
    assert "manifest.json" in capfd.readouterr().err


def test_a_loss_that_is_not_finite_ends_the_run_before_a_save(text, tmp_path, capfd):
    wild = ["--config.optimizer.learning_rate=1e38", "--config.optimizer.clip_norm=0.0"]
    assert main(command(text, tmp_path, *wild)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"mlm_jax: step \d+: (loss|grad_norm) is (nan|inf); (there is no|the newest whole) checkpoint.*", last
    )
    assert not steps_in(tmp_path) or newest(tmp_path) is not None


def checked(found, **options):
    """The lines that the metrics of step 7 give."""
    usual = {"loss": 2.0, "grad_norm": 3.0, "skipped": 5, "skipped_in_row": 1, "usual_norm": 0.25}
    config, lines = Config(optimizer=OptimizerConfig(exploding=10.0, **options)), []
    log = types.SimpleNamespace(config=config, progress=types.SimpleNamespace(message=lines.append))
    logbook.Logbook._check(log, 7, {**usual, **found})
    return lines


def test_what_becomes_of_a_bad_gradient():
    skip = {"bad_gradients": "skip", "most_skipped": 2}
    assert checked({"skipped_in_row": 0}) == checked({"skipped_in_row": 0}, **skip) == []
    exploded = "grad_norm is 3, more than 10 times its running mean 0.25"
    assert checked({}, **skip) == [f"warning: step 7 is left out: {exploded}; 5 so far"]
    assert checked({"loss": math.nan}, **skip) == ["warning: step 7 is left out: loss is nan; 5 so far"]
    assert checked({"usual_norm": 1.0}, **skip) == ["warning: step 7 is left out: its update is not finite; 5 so far"]
    with pytest.raises(RunError, match="step 7: 3 updates in a row were left out, more than"):
        checked({"skipped_in_row": 3}, **skip)
    with pytest.raises(FloatingPointError, match=f"step 7: {exploded}"):
        checked({})
    with pytest.raises(FloatingPointError, match="step 7: grad_norm is inf"):
        checked({"grad_norm": math.inf, "skipped_in_row": 0})


def test_a_run_with_a_checkpoint_keeps_its_rows_and_says_what_changed(straight, text, tmp_path, capfd):
    manifest = (straight / "rows" / "manifest.json").read_bytes()
    before = text.read_bytes()
    try:
        text.write_bytes(before + b'{"text": "One more."}\n')
        assert main(command(text, straight, "--config.data.holdout=0.2")) == 0
    finally:
        text.write_bytes(before)
    said = capfd.readouterr().err
    assert (
        "holdout was 0.1, is 0.2" in said and f"1 files of {len(before):,} bytes, is 1 of {len(before) + 22:,}" in said
    )
    assert (straight / "rows" / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--config.mask.rat=0.2"], "config.mask.rat"),
        (["--config.steps=many"], "config.steps"),
        (["--config.steps=1.5"], "config.steps"),
        (["--config.optimizer.learning_rate=fast"], "config.optimizer.learning_rate"),
        (["--config.batch_size=100"], "nearest: 96 or 112"),
        (
            ["--config.model.max_positions=16"],
            "config.model.max_positions = 16: must be at least config.row_length = 32",
        ),
        (["--config.optimizer.warmup=1.5"], "config.optimizer.warmup = 1.5"),
        (["--config.model.vocab_size=20"], "config.model.vocab_size = 20"),
        (["--config.data.sources=missing.txt"], "missing.txt"),
        (["--config.seed=1"], "config.seed = 1"),
        (["--config.seed=4294967296"], "less than 2**32"),
        (["--config.data.sources="], "a source has no name"),
        (["--config.optimizer.epsilon=0"], "greater than 0"),
        (["--config.optimizer.groups=(('(', 1e-3),)"], "no regular expression"),
        (["--config.optimizer.groups=(('head/.*', 1e-3),)"], "no pattern matches 'layers/0/"),
        (["--config.mesh.rules=(('bogus','fsdp'),)"], "logical axes are"),
        (["--config.mesh.rules=(('width','tensor'),('heads','tensor'))"], "twice"),
        (["--config.steps=3", "--config.data.workers=1"], "has done 12 already"),
        (["--num_processes=2"], "go together"),
        (["--distributed=slurm"], "start with srun"),
        (["--config=README.md"], "README.md"),
        (["--workdir=setup.cfg"], "setup.cfg"),
        (["--learning_rate=3"], "learning_rate"),
        (["text.txt"], "unexpected 'text.txt'"),
    ],
)
def test_what_the_user_can_mend_is_one_message_and_code_two(straight, text, tmp_path, flags, says, capfd):
    workdir = straight if flags[0] in ("--config.seed=1", "--config.steps=3") else tmp_path
    assert main(command(text, workdir, *flags)) == 2
    error = capfd.readouterr().err
    assert says in error and "Traceback" not in error
    assert [line.startswith("mlm_jax: ") for line in error.splitlines() if "mlm_jax: " in line] == [True]


@pytest.mark.parametrize("argv, says", [([], "--config=FILE is missing"), (["--config=no.py"], "no such file")])
def test_config_file_missing(argv, says, capfd):
    assert main(argv) == 2
    assert says in capfd.readouterr().err


def test_numbers_are_read_as_numbers(text, tmp_path, capfd):
    assert (
        main(command(text, tmp_path, "--config.optimizer.learning_rate=1e-4", "--config.steps=1_000", "--print_config"))
        == 0
    )
    shown = json.loads(capfd.readouterr().out)
    assert shown["config"]["optimizer"]["learning_rate"] == 1e-4 and shown["config"]["steps"] == 1000
    assert shown["derived"]["microbatch"] == 8 and not (tmp_path / "rows").exists()


def test_fill_mask(straight, capfd):
    assert fill_mask.main([f"--workdir={straight}", "--json", "--top_k=3", "The [MASK] sleeps [MASK]."]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert [len(best) for best in answer["masks"]] == [3, 3]
    for best in answer["masks"]:
        chances = [guess["probability"] for guess in best]
        assert chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1
    for argv, says in [
        ([f"--workdir={straight}", "no mask"], "holds no [MASK]"),
        ([f"--workdir={straight}/rows", "[MASK]"], "no config.json"),
        ([f"--workdir={straight}", "--step=3", "[MASK]"], "no checkpoint of step 3"),
        (["[MASK]"], "--workdir=DIR is missing"),
    ]:
        assert fill_mask.main(argv) == 2
        assert says in capfd.readouterr().err


def test_explain(straight, tmp_path, capfd):
    page = tmp_path / "new" / "why.html"
    argv = [f"--workdir={straight}", "--steps=4", "The [MASK] sleeps."]
    assert explain.main([*argv, "--json", "--top_k=2", f"--html={page}"]) == 0
    (gap,) = json.loads(capfd.readouterr().out)["masks"]
    assert len(gap["predictions"]) == 2 and gap["target"] == gap["predictions"][0]
    assert "Why this word?" in page.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        explain._write(page / "why.html", "")
    for changed, says in [
        ([*argv, "--target=[UNK]x?"], "must be one piece"),
        ([*argv, "another [MASK]"], "give one text"),
        (argv[:-1], "give one text"),
        (argv[1:], "--workdir=DIR is missing"),
    ]:
        assert explain.main(changed) == 2
        assert says in capfd.readouterr().err


def test_evaluate_any_checkpoint_at_several_rates(straight, tmp_path, capfd):
    assert evaluate.main([f"--workdir={straight}", "--step=all", "--rates=0.15,0.6", "--shuffled", "--json"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["step"], one["rate"], one["set"]) for one in found] == [
        (8, 0.15, "small"),
        (8, 0.6, "small"),
        (12, 0.15, "small"),
        (12, 0.6, "small"),
    ]
    logged = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()][-1]
    named = {key.removeprefix("eval/small/"): value for key, value in logged.items() if key != "step"}
    assert any(key.startswith("loss_decile") for key in named) and "shuffled_loss" in named
    assert {key: found[2][key] for key in named} == pytest.approx(named, rel=1e-5)
    assert found[3]["targets"] == pytest.approx(4 * found[2]["targets"], rel=0.1)
    assert evaluate.main([f"--workdir={straight}", "--split=train", "--max_rows=16"]) == 0
    shown = capfd.readouterr().out
    assert "step 12  mask 15%  eval small: loss" in shown and "from the most frequent tenth: " in shown
    manifest = json.loads((straight / "rows/manifest.json").read_text())
    manifest["tokenizer"]["hash"] = "another"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for argv, says in [
        ([f"--workdir={straight}", "--rates=1.5"], "must lie in (0, 1]"),
        ([f"--workdir={straight}", "--rates=much"], "numbers between 0 and 1"),
        ([f"--workdir={straight}", "--step=3"], "no checkpoint of step 3"),
        ([f"--workdir={straight}", "--step=last"], "numbers of steps, or all"),
        ([f"--workdir={straight}", f"--rows={tmp_path}"], "another tokenizer"),
        ([f"--workdir={straight}", f"--rows={tmp_path}/no"], "manifest.json"),
        ([f"--workdir={tmp_path}"], "no config.json"),
        ([f"--workdir={straight}", "more"], "unexpected 'more'"),
        ([], "--workdir=DIR is missing"),
    ]:
        assert evaluate.main(argv) == 2
        assert says in capfd.readouterr().err


def test_names_of_held_out_sets():
    assert set_names(["builtin:pydoc", "/a/en.jsonl.gz", "/b/en.txt", "/c/*.txt"]) == ["pydoc", "en", "en-2", "text"]
    assert set_names(["x-2.txt", "a/x.txt", "b/x.txt"]) == ["x-2", "x", "x-3"]


def test_a_platform_that_is_not_there_is_an_error_not_a_slow_run(text, tmp_path):
    line = [sys.executable, "-m", "mlm_jax.train", *command(text, tmp_path)]
    done = subprocess.run(line, env={**os.environ, "JAX_PLATFORMS": "tpu"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "JAX_PLATFORMS = 'tpu'" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("key, other", [("optimizer.name", "lamb"), ("data.exponent", 0.5)])
def test_what_cannot_change_when_a_run_goes_on_is_named(key, other, tmp_path):
    then, now = Config(), Config()
    section, name = key.split(".")
    setattr(getattr(then, section), name, other)
    saved, facts = ({"tokenizer": "t", "data": "d", "config": dataclasses.asdict(one)} for one in (then, now))
    facts["streams"] = [stream_facts(now, {"fingerprint": "d"})]
    with pytest.raises(ConfigError) as error:
        position({**saved, "rows_read": 7}, facts, tmp_path)
    assert error.value.key == f"config.{key}" and repr(other) in error.value.fix
    assert position({**facts, "rows_read": 7}, facts, tmp_path) == [7]
