"""The launchers that need a cluster: their commands, called with a gcloud that is this machine; the JobSet's rules."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mlm_jax.flags import PREEMPTED, USER_ERROR

ROOT = Path(__file__).parents[1]
SETTINGS = {"PROJECT": "my-project", "ZONE": "zone-b", "TYPE": "v5litepod-16", "POLL_SECONDS": "0"}

# The second time that it is asked, the slice is there. Every host is the folder HOSTS.
GCLOUD = r"""#!/usr/bin/env bash
echo "$*" >> "$HOSTS/calls"
command=""
for word in "$@"; do case $word in --command=*) command=${word#--command=} ;; esac; done
case "$*" in
*" describe "*) if [[ -f $HOSTS/asked ]]; then echo ACTIVE; else touch "$HOSTS/asked"; echo PROVISIONING; fi ;;
*" scp "*) cp "$5" "$HOSTS/" ;;
*" ssh "*) cd "$HOSTS" && exec bash -c "$command" ;;
esac
"""
# Stands for venv/bin/python: waits to be stopped where it is told to.
PYTHON = r"""#!/usr/bin/env bash
trap 'echo stopped; exit 3' TERM
printf '%s\n' "$@"
case "$*" in *--wait*) for i in $(seq 200); do sleep 0.05; done ;; esac
exit 2
"""
VENV = r"""#!/usr/bin/env bash
mkdir -p venv/bin && cp "$HOSTS/python" venv/bin/python && ln -sf /bin/true venv/bin/pip
"""


@pytest.fixture
def slice_of_one(tmp_path, monkeypatch):
    """Calls tpu_vm.sh, with programs of a TPU VM that are fakes; returns its exit code and output."""
    for name, text in {"gcloud": GCLOUD, "python": PYTHON, "python3.11": VENV}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", str(tmp_path))

    def call(*words, **more):
        env = {**os.environ, **SETTINGS, **more}
        return subprocess.run(
            ["launch/tpu_vm.sh", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
        )

    return call


def test_a_slice_from_create_to_delete(slice_of_one, tmp_path):
    made = slice_of_one("create", "base", SPOT="1")
    assert made.returncode == 0 and re.findall(r"base: (\w+)", made.stdout) == ["PROVISIONING", "ACTIVE"]
    assert slice_of_one("install", "base").returncode == 0
    assert (tmp_path / "mlm_jax/mlm_jax/train.py").is_file()

    sources = "--config.data.sources=('a b', \"c's\")"
    ran = slice_of_one("run", "base", "--config=configs/base.py", sources)
    assert ran.returncode == 2  # the run's own code
    assert ran.stdout.splitlines()[-5:] == [
        "-m",
        "mlm_jax.train",
        "--distributed=tpu",
        "--config=configs/base.py",
        sources,
    ]

    env = {**os.environ, **SETTINGS}
    running = subprocess.Popen(["launch/tpu_vm.sh", "run", "base", "--wait"], cwd=ROOT, env=env, stdout=subprocess.PIPE)
    with running.stdout as said:
        while said.readline() != b"--wait\n":
            pass
        assert slice_of_one("stop", "base").returncode == 0
        assert running.wait(timeout=30) == 3 and b"stopped" in said.read()
    assert slice_of_one("watch", "base").returncode == 3  # once more

    assert slice_of_one("delete", "base").returncode == 0
    created, *_, deleted = (tmp_path / "calls").read_text().splitlines()
    where = "--project=my-project --zone=zone-b"
    assert created == (
        f"compute tpus queued-resources create base {where} --node-id=base --accelerator-type=v5litepod-16"
        " --runtime-version=v2-alpha-tpuv5-lite --spot"
    )
    assert deleted == f"compute tpus queued-resources delete base {where} --force --quiet"


def test_a_failure_of_gcloud_ends_it(slice_of_one, tmp_path):
    (tmp_path / "gcloud").write_text("#!/bin/sh\necho FAILED\nexit 7\n")
    for action in ("create", "install", "run", "watch", "stop", "delete"):
        assert slice_of_one(action, "base").returncode == 7, action
    (tmp_path / "gcloud").write_text("#!/bin/sh\necho FAILED\n")
    assert slice_of_one("create", "base").returncode == 1


@pytest.mark.parametrize(
    "words, more", [([], {}), (["fly", "base"], {}), (["run"], {}), (["create", "base"], {"TYPE": ""})]
)
def test_what_the_user_can_mend_is_two(slice_of_one, words, more):
    assert slice_of_one(*words, **more).returncode == 2


def test_dry_runs_print_commands_and_run_none(slice_of_one, tmp_path):
    for action in ("create", "install", "run", "watch", "stop", "delete"):
        shown = (
            slice_of_one(action, "base", "--config=a", DRY="1")
            if action == "run"
            else slice_of_one(action, "base", DRY="1")
        )
        assert shown.returncode == 0 and "+ gcloud compute tpus" in shown.stdout
    assert not (tmp_path / "calls").exists()
    env = {**os.environ, "DRY": "1", "PYTHON": sys.executable, "MPIRUN": "mpirun --verbose"}
    words = ["launch/mpi.sh", "node1:8,node2:8", "--config=configs/base.py"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "+ mpirun --verbose -n 16 --host node1:8\\,node2:8 " in done.stdout
    for hosts in ("node1:0,node2", "localhost:2,node2:2", "node1:a"):
        assert subprocess.run([words[0], hosts, words[2]], cwd=ROOT, env=env, capture_output=True).returncode == 2
    assert subprocess.run(["launch/slurm.sbatch", words[2]], cwd=ROOT, env=env, capture_output=True).returncode == 2


def test_the_job_set_knows_the_exit_codes():
    """As Kubernetes reads it: the first rule that holds the code fails the Job, with a message that names it."""
    spec = yaml.safe_load((ROOT / "launch/gke.yaml").read_text())["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["parallelism"] == job["completions"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # or the Job sees no exit code
    rules = job["podFailurePolicy"]["rules"]

    def action(code):
        for index, rule in enumerate(rules):
            found = rule.get("onExitCodes")
            if found and found["operator"] == "In" and code in found["values"]:
                assert rule["action"] == "FailJob" and found["containerName"] == "train"
                pod, rest = "default/mlm-jax-workers-0-0", f"matching FailJob rule at index {index}"
                message = f"Container train for pod {pod} failed with exit code {code} {rest}"
                for of_set in spec["failurePolicy"]["rules"]:
                    patterns = of_set.get("onJobFailureMessagePatterns", [""])
                    if any(re.search(pattern, message) for pattern in patterns):
                        return of_set["action"]
        return "RestartJobSet"  # as JobSet does where no rule matches

    assert action(USER_ERROR) == "FailJobSet"
    assert action(PREEMPTED) == "RestartJobSetAndIgnoreMaxRestarts"
    assert {action(code) for code in (1, 134, 137)} == {"RestartJobSet"}
    assert spec["failurePolicy"]["maxRestarts"] == 5
