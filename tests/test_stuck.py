"""What hangs is told, with or without the GIL, by another process; what ends is told, too."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlm_jax import stuck, train

SCRIPT = """
import ctypes, itertools, os, signal, sys, threading, time
from pathlib import Path
from mlm_jax import stuck, train

def sleeps_without_gil(): ctypes.CDLL(None).usleep(1_500_000)
def sleeps_with_gil(): ctypes.PyDLL(None).usleep(1_500_000)
def spins():
    end = time.monotonic() + 1.5
    while time.monotonic() < end: sum(itertools.repeat(0, 10_000_000))  # C that does not let go
def is_stopped(): os.kill(os.getpid(), signal.SIGSTOP)

threading.Thread(target=time.sleep, args=(60,), name="another", daemon=True).start()
watch = stuck.Watch(Path(sys.argv[1]), 3, 0.4)
for _ in range(15):  # until the watcher is there
    watch.mark("what begins")
    time.sleep(0.1)
for name in sys.argv[2:]:
    watch.mark(f"step {name}", 0.25)
    globals()[name]()
for _ in range(8):  # never silent for long
    watch.mark("an evaluation")
    time.sleep(0.1)
    watch.beat()
watch.close()
"""


def started(tmp_path, *names):
    line = [sys.executable, "-c", SCRIPT, str(tmp_path), *names]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])


def test_what_hangs_is_told_with_its_stack_and_what_ends_after_all(tmp_path):
    names = ("sleeps_without_gil", "sleeps_with_gil", "spins")
    process = started(tmp_path, *names)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    reports = re.split(r"\n?mlm_jax: ", said)[1:]
    assert said.replace("\n", "") == (tmp_path / "stuck/3.txt").read_text().replace("\n", "")
    for name in names:  # after 0.4 s and 0.8 s, then the end
        first, *more, last = (report for report in reports if f"step {name} " in report)
        assert re.match(r"[\d-]+ [\d:]+ UTC, process 3 on \S+: ", first)
        assert re.search(r"has not ended for 0\.[4-9]\d* s \(it usually takes 0\.25 s\); its threads", first)
        assert ", line " in first and f"in {name}\n" in first and first.count("hread 0x") == 3
        lasted = [float(re.search(r"has not ended for ([\d.]+) s", report)[1]) for report in (first, *more)]
        assert len(lasted) > 1 and all(seconds >= 0.4 * 2**i for i, seconds in enumerate(lasted))
        assert float(re.search(r"has ended after ([\d.]+) s", last)[1]) >= 1.4  # no sleep was interrupted
    assert not any("an evaluation" in report or "what begins" in report for report in reports)


def test_a_process_that_is_stopped_is_told_by_its_watcher(tmp_path, monkeypatch):
    process = started(tmp_path, "is_stopped")
    while "T (stopped)" not in stuck.state_of(process.pid):
        time.sleep(0.05)
    file = tmp_path / "stuck/3.txt"
    while not file.exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "step is_stopped has not ended for" in said and "does not say what its threads do, state T (stopped)" in said
    assert "step is_stopped has ended after" in said


def test_the_watcher_ends_with_what_it_watches(tmp_path):
    process = started(tmp_path, "is_stopped")
    while "T (stopped)" not in stuck.state_of(process.pid):
        time.sleep(0.05)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)  # as a scheduler sends to all: it waits for the run
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_without_a_limit_nothing_looks(tmp_path):
    watch = stuck.Watch(tmp_path, 0, 0)
    watch.mark("a step")
    watch.beat()
    watch.close()
    assert watch.pipe is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds, words", [(0.25, "0.25 s"), (12, "12 s"), (600, "10 minutes"), (9000, "2.5 hours")])
def test_durations(seconds, words):
    assert stuck.in_words(seconds) == words


@pytest.mark.parametrize("seconds, told", [(0.3, True), (0, False)])
def test_a_run_is_watched_as_its_config_says(monkeypatch, tmp_path, seconds, told):
    def hangs(config, workdir, command, began, profile_steps, watch, again):
        for _ in range(15):  # until the watcher is there
            watch.mark("what begins")
            time.sleep(0.1)
        watch.mark("step 7")
        time.sleep(1.0)
        return 0

    monkeypatch.setattr(train, "train", hangs)
    argv = ["--config=configs/tiny.py", f"--config.watch.stuck_seconds={seconds}", f"--workdir={tmp_path}"]
    assert train.main([*argv, "--config.batch_size=64"]) == 0
    file = tmp_path / "stuck" / "0.txt"
    assert file.exists() == told
    if told:
        assert "step 7 has not ended" in file.read_text()
