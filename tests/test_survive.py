"""Real processes: killed at random moments, terminated, several of them, one that dies."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
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


def start(rows, workdir, *more, processes=0, devices=1):
    """A run in a process of its own, or under launch/local.sh; devices: of each process."""
    program = ["launch/local.sh", str(processes)] if processes else [sys.executable, "-m", "mlm_jax.train"]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHON": sys.executable, "GRACE": "1"}
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


ELASTIC = ("--config.accumulation=1", "--config.rows_per_device=2")  # of batches of 16 rows


def stopped(rows, workdir, step, starts, *more, **where):
    """The step after which a run saved that was terminated once it had done `step`, and what it said."""
    process = start(rows, workdir, *ELASTIC, *more, **where)
    wait_for_step(process, workdir, step, starts)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 3, said
    done = checkpoint.newest(workdir)
    assert step <= done < STEPS and f"stopped: {done} of {STEPS} steps" in said
    return done, said


def assert_same_rows_and_losses(workdir, straight):
    for line, wanted in zip(lines_of(workdir), lines_of(straight), strict=True):
        for key in line:
            if key.endswith("hash") or key in ("step", "train/targets"):
                assert line[key] == wanted[key]
            elif key.endswith("loss"):
                assert line[key] == pytest.approx(wanted[key], rel=1e-5)


def changed(said):
    return dict(re.findall(r"since the checkpoint: (\S+) was (.*)", said))


def test_from_eight_devices_to_four_and_to_one(rows, straight, tmp_path):
    """Data 4 x fsdp 2, then data 2 x tensor 2; two rows a device at once on all of them, and batches of 16."""
    eight = ("--config.mesh.fsdp=2",)
    done, said = stopped(rows, tmp_path, 4, 1, *eight, devices=8)
    assert "mesh data 4 x fsdp 2 x tensor 1" in said
    assert "16 rows = 2 a device (of at most 2) x 8 x accumulation 1 " in said
    one_device_loads_it(tmp_path, done)
    done, said = stopped(rows, tmp_path, done + 4, 2, "--config.mesh.tensor=2", devices=4)
    mesh = {"mesh.data": "4, is 2", "mesh.fsdp": "2, is 1", "mesh.tensor": "1, is 2"}
    assert changed(said) == {**mesh, "accumulation": "1, is 4"}
    code, said = run(rows, tmp_path, *ELASTIC)
    assert code == 0 and f"goes on after step {done}" in said, said
    assert changed(said) == {"mesh.data": "2, is 1", "mesh.tensor": "2, is 1", "accumulation": "4, is 8"}
    assert_same_rows_and_losses(tmp_path, straight)


def one_device_loads_it(workdir, step):
    """A checkpoint of eight devices on a machine with one: guesses, and an export with the same numbers."""
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    verb = [sys.executable, "-m", "mlm_jax"]
    for argv in (["fill-mask", f"--workdir={workdir}", "one [MASK] two"], ["convert", workdir, workdir / "exported"]):
        done = subprocess.run([*verb, *argv], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert argv[0] == "convert" or done.stdout.count("%") == 5
    (exported,) = (workdir / "exported").glob("*.safetensors")
    table = load_file(exported)["bert.embeddings.word_embeddings.weight"]
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    params = checkpoint.read_part(workdir, step, "params", here)
    np.testing.assert_array_equal(table, params["embeddings"]["word"]["table"][: len(table)])


def test_from_four_processes_to_two_and_to_one(rows, straight, tmp_path):
    """Fsdp 2 x tensor 2, then tensor 2: parameters in parts over processes, in another way each time."""
    done, said = stopped(rows, tmp_path, 4, 1, "--config.mesh.fsdp=2", "--config.mesh.tensor=2", processes=4)
    firsts = [{*map(int, some.split())} for some in re.findall(r"process \d: ([\d ]*) \.\.\.", said)]
    # those that differ along tensor alone read the same rows, the others different ones
    assert firsts[0] == firsts[1] and firsts[2] == firsts[3] and len(firsts) == 4
    assert len(firsts[0] | firsts[2]) == len(firsts[0]) + len(firsts[2])
    done, said = stopped(rows, tmp_path, done + 4, 2, "--config.mesh.tensor=2", processes=2)
    assert changed(said) == {"mesh.fsdp": "2, is 1", "accumulation": "4, is 8", "processes": "4, is 2"}
    code, said = run(rows, tmp_path, *ELASTIC)
    assert code == 0 and f"goes on after step {done}" in said and said.count("done: ") == 1, said
    assert changed(said) == {"mesh.tensor": "2, is 1", "processes": "2, is 1"}
    assert_same_rows_and_losses(tmp_path, straight)


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
