"""The programs of a study: which are begun, and what becomes of those that fail or are stopped."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_study_runs import SMALL

from mlm_jax.cli.study import main
from mlm_jax.cli.study import runs as verb
from mlm_jax.cli.study.programs import locked
from mlm_jax.config import ConfigError, to_json
from mlm_jax.flags import parse

# What `train` leaves, but for the training: argv is the config's JSON, the folder, and what happens.
TRAIN = """
import json, os, pathlib, signal, sys
config, folder, happens = sys.argv[1:]
folder = pathlib.Path(folder)
folder.mkdir(parents=True, exist_ok=True)
print("at work")
if happens == "fails":
    sys.exit("no disk")
if happens == "mistake":
    sys.exit(2)
if happens == "stopped":
    signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(3)))
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
steps = json.loads(config)["steps"]
(folder / "config.json").write_text(config)
(folder / "checkpoints" / str(steps)).mkdir(parents=True)
line = {"step": steps, "eval/a/loss": 5.0, "eval/a/accuracy": 0.1, "eval/a/targets": 10}
(folder / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """`study(happens)` runs two variants with two seeds by the fake program; happens: run's name -> what it does."""
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    folder = tmp_path / "study"

    def run(happens: dict, *flags: str) -> tuple[int, Path]:
        def words(one, user):
            config = parse([*user, *one.words], "").config
            return [str(program), to_json(config), str(one.folder), happens.get(one.name, "works")]

        monkeypatch.setattr(verb, "words", words)
        monkeypatch.setattr(verb, "report", lambda asked: 0)
        argv = [f"--config={SMALL}", f"--workdir={folder}", "--seeds=0,1", "--runs=static,dynamic", "--notimes", *flags]
        return main(["masking", *argv]), folder

    return run


def begun(capfd) -> list[str]:
    return [line.split()[3] for line in capfd.readouterr().err.splitlines() if " of 4 " in line]


def test_runs_that_are_finished_are_not_begun_again(study, capfd):
    code, folder = study({})
    assert code == 0
    assert begun(capfd) == ["dynamic/seed-0", "static/seed-0", "dynamic/seed-1", "static/seed-1"]
    (folder / "runs" / "static" / "seed-0" / "checkpoints" / "600").rmdir()  # a crash before the last one was saved
    (folder / "runs" / "dynamic" / "seed-1" / "metrics.jsonl").unlink()
    (folder / "runs" / "dynamic" / "seed-1" / "checkpoints" / "600").rmdir()
    assert study({})[0] == 0 and begun(capfd) == ["static/seed-0", "dynamic/seed-1"]


@pytest.mark.parametrize(("happens", "code", "how"), [("fails", 1, "exit code 1"), ("mistake", 2, "exit code 2")])
def test_a_run_that_fails_ends_the_study(study, capfd, happens, code, how):
    found, folder = study({"static/seed-0": happens})
    log = folder / "runs" / "static" / "seed-0" / "log.txt"
    error = capfd.readouterr().err
    assert found == code and f"static/seed-0 ended with {how}; its output is in {log}" in error
    assert ("no disk" in error) == (happens == "fails") and not (folder / "runs" / "dynamic" / "seed-1").exists()
    assert study({})[0] == 0 and begun(capfd) == ["static/seed-0", "dynamic/seed-1", "static/seed-1"]
    assert log.read_text().count("at work") == 2  # of both tries


def test_a_signal_is_passed_on_and_ends_the_study_with_3(study, capfd):
    before = signal.getsignal(signal.SIGTERM)
    code, folder = study({"static/seed-0": "stopped"})
    assert code == 3 and (folder / "runs" / "static" / "seed-0" / "log.txt").read_text().endswith("saved\n")
    assert begun(capfd) == ["dynamic/seed-0", "static/seed-0"] and signal.getsignal(signal.SIGTERM) == before


def test_a_run_of_another_config_is_no_part_of_the_study(study, capfd):
    study({})
    assert study({}, "--config.batch_size=16")[0] == 2
    error = capfd.readouterr().err
    assert "config.batch_size = 16" in error and "dynamic/seed-0 was begun with 32" in error
    assert study({}, "--config.checkpoint.keep=3")[0] == 0  # of what it has learned that changes nothing


def test_dry_shows_commands_and_makes_nothing(study, capfd, monkeypatch):
    plain = verb.words
    study({})  # sets the fake one
    monkeypatch.setattr(verb, "words", plain)
    capfd.readouterr()
    argv = [f"--config={SMALL}", "--config.steps=9", "--workdir=none", "--dry", "--seeds=4", "--runs=token"]
    assert main(["masking", *argv]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    made = [f"--config={SMALL}", "--config.steps=9", "--config.data.rows=none/rows", "--config.mask.unit=token"]
    place = ["--config.seed=4", "--workdir=none/runs/token/seed-4"]
    assert shlex.split(line) == ["python", "-m", "mlm_jax.train", *made, *place] and not Path("none").exists()


def test_models_are_fine_tuned_with_their_seed_and_the_baseline_from_scratch_too(tmp_path, capfd):
    task = tmp_path / "spam.py"
    task.write_text("")
    argv = ["masking", f"--config={SMALL}", "--config.steps=9", "--workdir=w", "--dry", "--seeds=3"]
    assert main([*argv, "--runs=dynamic,token", f"--tasks={task}"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "finetune" in line]
    for line, (name, model, more) in zip(lines, TUNED, strict=True):
        config = [f"--config={task}", f"--config.model=w/runs/{model}/seed-3", "--config.seeds=(3,)", *more]
        place = f"--workdir=w/tasks/spam/{name}/seed-3"
        assert shlex.split(line) == ["python", "-m", "mlm_jax.finetune", *config, place]
    other = tmp_path / "other" / "spam.py"
    other.parent.mkdir()
    other.write_text("")
    assert main([*argv, f"--tasks={task},{other}"]) == 2 and "share a folder" in capfd.readouterr().err
    assert main([*argv, "--tasks=none.py"]) == 2 and "no such file" in capfd.readouterr().err


TUNED = [("dynamic", "dynamic", []), ("random", "dynamic", ["--config.scratch=True"]), ("token", "token", [])]


def test_the_words_of_the_config_are_those_that_all_programs_get():
    argv = ["--config", "a.py", "--seeds", "1,2", "--config.steps=3", "--config.model.tied", "--noconfig.scratch"]
    argv += ["--dry", "-config.seed=1", "--config.mask.rate", "0.2", "--workdir=config.d"]
    assert verb.config_words(argv) == [
        *("--config", "a.py", "--config.steps=3", "--config.model.tied", "--noconfig.scratch", "-config.seed=1"),
        *("--config.mask.rate", "0.2"),
    ]


@pytest.mark.parametrize("flag", ["--seeds=", "--seeds=1,1", "--seeds=-1", "--seeds=a", "--runs=mlm", "--init_from=x"])
def test_what_cannot_be_asked_for(flag, tmp_path, capfd):
    assert main(["masking", f"--config={SMALL}", f"--workdir={tmp_path}/a", flag]) == 2
    assert flag.partition("=")[0] in capfd.readouterr().err and not (tmp_path / "a").exists()


def test_a_continued_run_needs_its_source(tmp_path, capfd):
    argv = ["learning-rates", f"--config={SMALL}", f"--workdir={tmp_path}/a", "--dry"]
    assert main([*argv, "--runs=continued"]) == 2
    assert "runs/dynamic/seed-0': --runs: continued begins with it" in capfd.readouterr().err
    assert main(argv) == 0  # the baseline will be there by then


def test_rows_of_other_text_are_refused(tmp_path, capfd):
    rows = tmp_path / "a" / "rows"
    rows.mkdir(parents=True)
    made = {"sources": ["other.txt"]}
    (rows / "manifest.json").write_text(json.dumps({"format": 6, "options": made, "corpora": []}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlm_jax.records.read_manifest", lambda folder: {"options": made, "corpora": []})
        assert main(["masking", f"--config={SMALL}", f"--workdir={tmp_path}/a", "--dry"]) == 2
    assert "sources was ['other.txt'], is ['builtin:pydoc']" in capfd.readouterr().err


def test_one_study_at_a_time_in_a_folder_and_what_it_left_counts(tmp_path):
    with locked(tmp_path) as handle:
        with pytest.raises(ConfigError, match="is at work there"), locked(tmp_path):
            pass
        left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(handle,))
    with pytest.raises(ConfigError, match="is at work there"), locked(tmp_path):
        pass
    left.communicate(b"\n")
    with locked(tmp_path):
        pass


@pytest.mark.processes
def test_a_real_study(tmp_path, capfd):
    """Two variants of a tiny config: trained, measured in turn, and reported; again, nothing is trained."""
    words = [f"word{i % 7} and word{i % 11} stand with word{i % 13}." for i in range(6000)]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(words[i : i + 6]) for i in range(0, 6000, 6)))
    model = ["layers=1", "width=32", "heads=2", "hidden=32", "max_positions=32"]
    flags = [f"--config={SMALL}", *(f"--config.model.{one}" for one in model), "--config.row_length=32"]
    flags += ["--config.steps=10", "--config.batch_size=16", "--config.evaluate.every_steps=5"]
    flags += [f"--config.data.sources={tmp_path}/text.txt", "--config.tokenizer.vocab_size=120"]
    argv = ["masking", *flags, f"--workdir={tmp_path}/study", "--seeds=0", "--runs=dynamic,static"]
    assert main(argv) == 0
    out, error = capfd.readouterr()
    assert "1 of 2  dynamic/seed-0" in error and "2 of 2  static/seed-0" in error
    found = json.loads((tmp_path / "study" / "masking" / "results.json").read_text())
    dynamic, static = found["variants"]
    assert [step for step, _, _ in dynamic["curves"]["0"]] == [5, 10] and found["unfinished"] == []
    assert dynamic["spread"]["loss"]["mean"] < 4.8  # log of 120
    assert 0.3 < static["time"]["relative"] < 3 and dynamic["time"]["relative"] == 1
    assert 0.1 < static["rate"] < 0.2 and static["coverage"] <= dynamic["coverage"]
    assert "one seed: noise is not known" in out and (tmp_path / "study" / "masking" / "report.md").is_file()
    assert main([*argv, "--report_only", "--json"]) == 0
    again, error = capfd.readouterr()
    assert json.loads(again)["variants"][1]["spread"] == static["spread"] and "seed-0" not in error
