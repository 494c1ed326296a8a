"""Runs of two processes under Slurm and Open MPI, as the launchers start them: stopped, preempted, killed, cancelled.

Slurm's part runs within `tests/slurm.sh`, Open MPI's where there is an mpirun.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_survive import lines_of, rows, wait_for_step  # noqa: F401
from test_train import SMALL

from mlm_jax import checkpoint

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
STEPS = 400
ENV = {**os.environ, "PYTHON": sys.executable, "JAX_NUM_CPU_DEVICES": "1", "GRACE": "10"}
ENV |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
with_slurm = pytest.mark.skipif("SLURM_CONF" not in os.environ, reason="runs within tests/slurm.sh")
with_mpi = pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")


def flags(rows, workdir):  # noqa: F811
    every = [f"--config.{name}.every_steps=100" for name in ("checkpoint", "evaluate")]
    shared = [f"--config.steps={STEPS}", "--config.accumulation=1", *every, f"--config.data.rows={rows}"]
    return ["--config=configs/tiny.py", *SMALL, *shared, f"--workdir={workdir}"]


def mpi(rows, workdir, said):  # noqa: F811
    program = ["launch/mpi.sh", "localhost:2", *flags(rows, workdir)]
    with open(said, "a") as file:
        return subprocess.Popen(program, cwd=ROOT, env=ENV, stdout=file, stderr=file)


def numbers(workdir):
    """All that is logged of each step but times, evaluations included."""
    return [{key: line[key] for key in line if not key.startswith("memory/")} for line in lines_of(workdir)]


def starts(workdir):
    path = workdir / "starts.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.fixture(scope="module")
def straight(rows, tmp_path_factory):  # noqa: F811
    """A run left alone: by Open MPI, or else as Slurm's test does it."""
    folder = tmp_path_factory.mktemp("straight")
    if shutil.which("mpirun"):
        code = mpi(rows, folder / "run", folder / "said").wait(timeout=300)
    else:
        program = ["launch/local.sh", "2", *flags(rows, folder / "run")]
        code = subprocess.run(program, cwd=ROOT, env=ENV, timeout=300).returncode
    assert code == 0, (folder / "said").read_text()
    return numbers(folder / "run")


def processes_of(workdir):
    """Process ids of the run's own two processes, in order of start."""
    found = subprocess.run(["pgrep", "-f", f"^{sys.executable} -m mlm_jax.train.*{workdir}"], capture_output=True)
    return [int(word) for word in found.stdout.split()]


@with_mpi
def test_mpirun_stopped_and_killed_ends_with_the_same_numbers(rows, straight, tmp_path):  # noqa: F811
    workdir, said = tmp_path / "run", tmp_path / "said"
    process = mpi(rows, workdir, said)
    wait_for_step(process, workdir, 20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == 3, said.read_text()
    stopped = checkpoint.newest(workdir)
    assert f"stopped: {stopped} of {STEPS} steps" in said.read_text()

    process = mpi(rows, workdir, said)
    wait_for_step(process, workdir, stopped + 20, starts=2)
    both = processes_of(workdir)
    assert len(both) == 2
    os.kill(both[1], signal.SIGKILL)
    died = time.monotonic()
    assert process.wait(timeout=100) not in (0, 2, 3) and time.monotonic() - died < 20
    assert not processes_of(workdir)

    assert mpi(rows, workdir, said).wait(timeout=300) == 0, said.read_text()
    assert "process     0 of 2 by Open MPI, coordinator localhost:" in said.read_text()
    assert numbers(workdir) == straight


def mistake(folder):
    """A source without text, which the first process alone reads."""
    (folder / "empty.txt").write_text("\n")
    return ["--config=configs/tiny.py", f"--config.data.sources={folder}/empty.txt", f"--workdir={folder}/run"]


@with_mpi
def test_mpirun_gives_the_code_of_a_mistake(tmp_path):
    program = ["launch/mpi.sh", "localhost:2", *mistake(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stderr
    assert f"mlm_jax: config.data.sources = ('{tmp_path}/empty.txt',)" in done.stderr


def sbatch(rows, workdir, said):  # noqa: F811
    """Submits a job; returns its number."""
    options = ["--parsable", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", f"--output={said}"]
    program = ["sbatch", *options, "launch/slurm.sbatch", *flags(rows, workdir)]
    done = subprocess.run(program, cwd=ROOT, env=ENV, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def fact(job, key):
    shown = subprocess.run(["scontrol", "show", "job", "-o", job], capture_output=True, text=True, check=True).stdout
    return re.search(rf" {key}=(\S*)", shown)[1]


class Job:
    """Looks like a process to `wait_for_step`."""

    def __init__(self, number):
        self.number = number

    def poll(self):
        state = fact(self.number, "JobState")
        return None if state in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED") else state

    def wait(self, timeout):
        began = time.monotonic()
        while time.monotonic() - began < timeout:
            if state := self.poll():
                return state, fact(self.number, "ExitCode")
            time.sleep(0.2)
        raise TimeoutError(fact(self.number, "JobState"))


@with_slurm
def test_slurm_preempted_cancelled_and_killed_ends_with_the_same_numbers(rows, straight, tmp_path):  # noqa: F811
    workdir, said = tmp_path / "run", tmp_path / "said"
    job = sbatch(rows, workdir, said)
    wait_for_step(Job(job), workdir, 3)
    subprocess.run(["srun", "--partition=urgent", "--ntasks=4", "true"], check=True, timeout=60)
    preempted = checkpoint.newest(workdir)
    assert f"stopped: {preempted} of {STEPS} steps" in said.read_text() and preempted < STEPS

    # put back into the queue, it goes on; cancelled, it saves and stays out
    wait_for_step(Job(job), workdir, preempted + 3, starts=2)
    assert fact(job, "Restarts") == "1" and f"goes on after step {preempted}" in said.read_text()
    subprocess.run(["scancel", job], check=True)
    assert Job(job).wait(timeout=60)[0] == "CANCELLED"
    cancelled = checkpoint.newest(workdir)
    assert preempted + 3 <= cancelled < STEPS and f"stopped: {cancelled} of" in said.read_text()
    assert starts(workdir) == 2 and said.read_text().count("back into the queue") == 1

    job = sbatch(rows, workdir, said)
    wait_for_step(Job(job), workdir, cancelled + 20, starts=3)
    os.kill(processes_of(workdir)[-1], signal.SIGKILL)
    died = time.monotonic()
    assert Job(job).wait(timeout=100) == ("FAILED", "137:0") and time.monotonic() - died < 30

    job = sbatch(rows, workdir, said)
    assert Job(job).wait(timeout=300) == ("COMPLETED", "0:0"), said.read_text()
    assert "process     0 of 2 by Slurm, coordinator " in said.read_text()
    assert numbers(workdir) == straight


@with_slurm
def test_slurm_gives_the_code_of_a_mistake(tmp_path):
    options = ["--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", f"--output={tmp_path}/said", "--wait"]
    done = subprocess.run(
        ["sbatch", *options, "launch/slurm.sbatch", *mistake(tmp_path)], cwd=ROOT, env=ENV, timeout=100
    )
    assert (
        done.returncode == 2
        and f"mlm_jax: config.data.sources = ('{tmp_path}/empty.txt',)" in (tmp_path / "said").read_text()
    )
