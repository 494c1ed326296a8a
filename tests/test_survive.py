"""Real processes: killed at random moments, terminated, several of them, one that dies."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from test_prepare import write_json_lines
from test_train import SMALL, untimed

from mlm_jax import checkpoint
from mlm_jax.cli import prepare

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
STEPS = 24
ENDS_WITHIN_SECONDS = 20  # of the death of a process, under launch/local.sh


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    rng = random.Random(1)
    text = "\n\n".join(" ".join(rng.choices(["one", "two", "three", "four", "five", "six"], k=40)) for _ in range(60))
    (folder / "text.txt").write_text(text)
    argv = ["--config=configs/tiny.py", f"--config.data.sources={folder}/text.txt", f"--workdir={folder}", *SMALL]
    assert prepare.main(argv) == 0
    return folder / "rows"


def flags(rows, workdir, *more):
    shared = [f"--config.steps={STEPS}", "--config.checkpoint.every_steps=3", "--config.evaluate.every_steps=12"]
    return ["--config=configs/tiny.py", *SMALL, *shared, f"--config.data.rows={rows}", f"--workdir={workdir}", *more]


def start(rows, workdir, *more, processes=0):
    """A run in a process of its own with one device, or under launch/local.sh with one device a process."""
    program = ["launch/local.sh", str(processes)] if processes else [sys.executable, "-m", "mlm_jax.train"]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHON": sys.executable, "GRACE": "1"}
    return subprocess.Popen(
        [*program, *flags(rows, workdir, *more)], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True
    )


def run(rows, workdir, *more, processes=0):
    process = start(rows, workdir, *more, processes=processes)
    _, said = process.communicate(timeout=200)
    return process.returncode, said


def lines_of(workdir):
    return [untimed(json.loads(line)) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def wait_for_step(process, workdir, step, starts=1):
    """Until the run that was started so often has finished this step, or ended."""
    begun, metrics = workdir / "starts.jsonl", workdir / "metrics.jsonl"
    while process.poll() is None:
        # before it has begun, the lines are those of the start before
        has_begun = begun.exists() and begun.read_text().count("\n") == starts
        if has_begun and metrics.exists() and f'{{"step": {step},' in metrics.read_text():
            return
        time.sleep(0.001)


def state_of(workdir):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return [checkpoint.read_part(workdir, STEPS, part, here) for part in ("step", "params", "optimizer")]


@pytest.fixture(scope="module")
def straight(rows, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("straight")
    code, said = run(rows, workdir)
    assert code == 0, said
    return workdir


def test_killed_three_times_it_ends_with_the_same_bits(rows, straight, tmp_path):
    """Across an epoch border, with accumulation 2, at random moments: most of the time goes into saves."""
    rng = random.Random(3)
    for starts in (1, 2, 3):
        newest = checkpoint.newest(tmp_path) or 0
        process = start(rows, tmp_path)
        wait_for_step(process, tmp_path, min(newest + rng.randint(2, 7), STEPS), starts)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    code, said = run(rows, tmp_path)
    assert code == 0, said
    assert len((tmp_path / "starts.jsonl").read_text().splitlines()) == 4
    assert lines_of(tmp_path) == lines_of(straight)
    assert lines_of(tmp_path)[-2]["epoch"] > 1
    jax.tree.map(np.testing.assert_array_equal, state_of(straight), state_of(tmp_path))


def test_stopped_with_four_processes_it_goes_on_with_one_and_with_two(rows, straight, tmp_path):
    four, two = tmp_path / "four", tmp_path / "two"
    process = start(rows, four, processes=4)
    wait_for_step(process, four, 4)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 3, said
    firsts = re.findall(r"process \d: ([\d ]*) \.\.\.", said)
    assert len(firsts) == 4 and len({row for rows in firsts for row in rows.split()}) > 4  # all read other rows
    stopped = checkpoint.newest(four)
    assert stopped < STEPS and f"stopped: {stopped} of {STEPS} steps" in said
    shutil.copytree(four, two)
    for workdir, processes in ((four, 0), (two, 2)):
        code, said = run(rows, workdir, processes=processes)
        assert code == 0, said
        assert f"goes on after step {stopped}" in said and said.count("done: ") == 1
        for line, wanted in zip(lines_of(workdir), lines_of(straight), strict=True):
            for key in line:
                if key.endswith("hash") or key in ("step", "train/targets"):
                    assert line[key] == wanted[key]
                elif key.endswith("loss"):
                    assert line[key] == pytest.approx(wanted[key], rel=1e-5)


def test_a_process_that_dies_ends_the_job(rows, tmp_path):
    process = start(rows, tmp_path, "--config.steps=100_000", processes=2)
    wait_for_step(process, tmp_path, 2)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    died = time.monotonic()
    process.communicate(timeout=100)
    assert process.returncode != 0 and time.monotonic() - died < ENDS_WITHIN_SECONDS
    for child in children:
        assert not Path(f"/proc/{child}").exists()


def test_prepare_killed_ten_times_ends_with_the_same_bytes(tmp_path):
    """With two workers, at random moments of every stage."""
    text = write_json_lines(tmp_path / "text.jsonl", 4000, words=200)
    program = [sys.executable, "benchmarks/prepare_kills.py", "--kills=10", f"--sources={text}"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed after") == 10 and "DIFFERENT" not in done.stdout
