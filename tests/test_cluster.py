"""Who belongs to whom: environments as Slurm 22.05 and Open MPI 4.1 set them, and Google's metadata by hand."""

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest

from mlm_jax import cluster, runtime
from mlm_jax.cluster import Group, find
from mlm_jax.config import ConfigError

ROOT = Path(__file__).parents[1]
NO_FLAGS = (None, None, None)

# What `sbatch -n 2` gives its script, and srun in it the second of two tasks (as recorded, without what is not read).
BATCH = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2",
}
STEP = {
    **BATCH,
    "SLURM_LOCALID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
ONE_TASK = {**STEP, "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}
# The shell of `salloc -n 2`, with and without use_interactive_step.
SHELL = {key: BATCH[key] for key in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NPROCS", "SLURM_NTASKS")}
INTERACTIVE = {**STEP, "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}
INTERACTIVE |= {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
# A script of `sbatch -n 1`, called by a task of another job's step of two.
WITHIN = {**STEP, "SLURM_JOB_ID": "3", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
# The second of two nodes with three tasks each, of three nodes with 3, 3 and 1.
NODES = {
    **STEP,
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),1",
}

MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "866582528.0;tcp://192.0.2.2:39209;tcp6://[fd00::2]:35389",
    "PMIX_RANK": "1",
}
MPI_5 = {key: value for key, value in MPI.items() if "hnp" not in key}  # it has PRTE_ variables in its place
MPI_ONE = {**MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}

SLICE = {"TPU_WORKER_HOSTNAMES": "h-0.s,h-1.s,h-2.s,h-3.s", "TPU_WORKER_ID": "3"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}


@pytest.mark.parametrize(
    "environment, group",
    [
        ({}, None),
        (BATCH, None),
        (SHELL, None),
        (INTERACTIVE, None),
        (WITHIN, None),
        (ONE_TASK, None),
        (MPI_ONE, None),
        (STEP, Group("slurm", 2, 1, local=(1, 2))),
        (NODES, Group("slurm", 7, 5, local=(2, 3))),
        (MPI, Group("mpi", 2, 1, local=(1, 2))),
        (BATCH | MPI, Group("mpi", 2, 1, local=(1, 2))),  # mpirun in a batch script
        (STEP | MPI_ONE, None),  # each task called mpirun -n 1
        (MPI_5 | {"JAX_COORDINATOR_ADDRESS": "node1:8476"}, Group("mpi", 2, 1, local=(1, 2))),
        (SLICE, Group("tpu", 4)),
        (SLICE | POD, Group("tpu", 4)),
        (SLICE | {"MEGASCALE_NUM_SLICES": "2"}, Group("tpu", 8)),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),
        (POD, None),  # without the package that asks the cluster
        ({"PMI_SIZE": "1"}, None),
    ],
)
def test_the_environment_tells_who_started_it(monkeypatch, environment, group):
    monkeypatch.setattr(cluster.glob, "glob", lambda pattern: [])
    assert find("auto", NO_FLAGS, environment) == group
    assert find("none", NO_FLAGS, environment) is None
    flags = ("host:1234", 3, 2)
    assert find("auto", flags, environment) == Group("flags", 3, 2, "host:1234")


def test_kubernetes_with_the_package_that_asks_the_cluster(monkeypatch):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: name == "kubernetes" or None)
    assert find("auto", NO_FLAGS, POD) == find("kubernetes", NO_FLAGS, POD) == Group("kubernetes", index=3)
    assert find("auto", NO_FLAGS, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None  # no Indexed Job


@pytest.mark.parametrize("asked, environment", [("slurm", STEP), ("mpi", MPI), ("tpu", SLICE)])
def test_forced_it_reads_that_environment_alone(asked, environment):
    everything = STEP | MPI | SLICE
    assert find(asked, NO_FLAGS, everything).by == asked == find("auto", NO_FLAGS, environment).by


@pytest.mark.parametrize(
    "asked, flags, environment, says",
    [
        ("torch", NO_FLAGS, {}, "--distributed = 'torch': must be one of auto, none, mpi, slurm, tpu, kubernetes"),
        ("slurm", NO_FLAGS, BATCH, "start with srun"),
        ("slurm", NO_FLAGS, INTERACTIVE, "start with srun"),
        ("mpi", NO_FLAGS, STEP, "OMPI_COMM_WORLD_SIZE is not set"),
        ("tpu", NO_FLAGS, STEP, "TPU_WORKER_HOSTNAMES"),
        ("kubernetes", NO_FLAGS, STEP, "JOB_COMPLETION_INDEX"),
        ("none", ("a:1", 2, 0), {}, "leave one of both out"),
        ("slurm", ("a:1", 2, 0), STEP, "leave one of both out"),
        ("auto", ("a:1", None, 0), {}, "--num_processes = None: --coordinator_address, --num_processes and"),
        ("auto", (None, 2, 0), {}, "--coordinator_address = None"),
        ("auto", ("a", 2, 0), {}, "--coordinator_address = 'a': must be HOST:PORT"),
        ("auto", ("a:1", 0, 0), {}, "--num_processes = 0"),
        ("auto", ("a:1", 2, 2), {}, "--process_id = 2: must be one of 0 to 1"),
        ("auto", ("a:1", 2, -1), {}, "--process_id = -1"),
        ("auto", NO_FLAGS, MPI_5, "JAX_COORDINATOR_ADDRESS"),
        ("auto", NO_FLAGS, {"PMI_SIZE": "4", "PMI_RANK": "1"}, "PMI_SIZE = '4'"),
        ("auto", NO_FLAGS, NODES | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "the 3 processes of this host"),
    ],
)
def test_contradictions_name_key_and_value(asked, flags, environment, says):
    with pytest.raises(ConfigError) as error:
        find(asked, flags, environment)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "environment, gpus",
    [
        (STEP | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (2, 3)),  # the second of two tasks, four GPUs
        (STEP | {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_PER_TASK": "2"}, (0, 1)),  # those of this task
        (STEP | {"CUDA_VISIBLE_DEVICES": "1"}, (0,)),  # bound to it
        (NODES | {"SLURM_LOCALID": "0", "SLURM_NODEID": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (0, 1, 2, 3)),
        (MPI | {"CUDA_VISIBLE_DEVICES": "0,1"}, (1,)),
        (STEP | {"CUDA_VISIBLE_DEVICES": ""}, None),  # none
        (STEP | {"CUDA_VISIBLE_DEVICES": "0,1", "JAX_LOCAL_DEVICE_IDS": "0"}, None),  # jax reads that itself
        (NODES | {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "JAX_PLATFORMS": "cpu"}, None),  # not wanted
        (SLICE | {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        (STEP, (4, 5, 6, 7)),  # of the eight that the machine has
    ],
)
def test_gpus_are_shared_by_the_processes_of_a_host(monkeypatch, environment, gpus):
    monkeypatch.setattr(cluster.glob, "glob", lambda pattern: [f"/dev/nvidia{i}" for i in range(8)])
    assert find("auto", NO_FLAGS, environment).local_devices == gpus


@pytest.mark.parametrize(
    "attributes, count",
    [
        ({"worker-network-endpoints": "unknown:unknown:10.0.0.2"}, None),
        ({"worker-network-endpoints": "a:b:10.0.0.2,a:b:10.0.0.3"}, 2),
        ({"worker-network-endpoints": "w-0,w-1", "tpu-env": "ZONE: 'x'\nMEGASCALE_NUM_SLICES: '2'\n"}, 4),
        ({}, None),  # a machine with TPUs that is no part of a slice
    ],
)
def test_a_slice_of_compute_engine_by_its_metadata(monkeypatch, attributes, count):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            key = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
            found = attributes.get(key) if self.headers["Metadata-Flavor"] == "Google" else None
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_):
            pass

    monkeypatch.setattr(cluster.glob, "glob", lambda pattern: ["/dev/accel0"] if "accel" in pattern else [])
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        there = {"GCE_METADATA_IP": f"127.0.0.1:{server.server_port}"}
        found = find("auto", NO_FLAGS, there)
        assert (found and found.count) == count and (found is None or found.by == "tpu")
        for unwanted in ({"JAX_PLATFORMS": "cpu"}, {"TPU_SKIP_MDS_QUERY": "1"}):
            assert find("auto", NO_FLAGS, there | unwanted) is None
        server.shutdown()
    assert find("auto", NO_FLAGS, there) is None  # nobody answers


def test_other_verbs_stay_alone(monkeypatch):
    for key, value in STEP.items():
        monkeypatch.setenv(key, value)
    runtime.start()  # as they all do
    assert runtime.processes == 1 and jax.process_count() == 1


def start(environment, *flags):
    """`train --print_config` in a process of its own, with one device."""
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", **environment}
    program = [sys.executable, "-m", "mlm_jax.train", "--config=configs/tiny.py", "--print_config", *flags]
    return subprocess.Popen(program, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


HERE = {"SLURM_STEP_NODELIST": "localhost,node2"}
OF_GKE = {"JAX_FORCE_TPU_INIT": "1", "MEGASCALE_COORDINATOR_ADDRESS": "localhost", "MEGASCALE_SLICE_ID": "0"}
OF_GKE |= {"MEGASCALE_NUM_SLICES": "1", "TPU_WORKER_HOSTNAMES": "localhost,localhost"}


@pytest.mark.processes
@pytest.mark.parametrize(
    "by, shared, own",
    [
        ("Slurm", STEP | HERE, ("SLURM_PROCID", "SLURM_LOCALID")),
        ("Open MPI", MPI | {"OMPI_MCA_orte_hnp_uri": "8192.0;tcp://127.0.0.1:1"}, ("OMPI_COMM_WORLD_RANK",)),
        ("the TPU slice", OF_GKE, ("TPU_WORKER_ID",)),  # as far as it goes without TPUs
    ],
)
def test_two_processes_find_one_another(by, shared, own):
    """By jax's detection of clusters; the first one alone says so and shows the config."""
    port = free_port()
    both = [start({**shared, "JAX_COORDINATOR_PORT": port, **dict.fromkeys(own, str(i))}) for i in (0, 1)]
    (code, config, said), (other_code, *quiet) = map(ended, both)
    assert (code, other_code) == (0, 0), said + quiet[1]
    assert re.search(rf"process     0 of 2 by {by}, coordinator (localhost|127.0.0.1):{port}\n", said)
    assert json.loads(config[config.index("{") :])["derived"]["processes"] == 2
    assert not quiet[0] and "process" not in quiet[1]


@pytest.mark.processes
def test_who_waits_in_vain_says_so_and_ends_with_one():
    ports, began = [free_port(), free_port()], time.monotonic()
    addresses = [f"127.0.0.1:{port}" for port in ports]
    flags = ["--num_processes=2", "--wait_seconds=2"]
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port_taken = {"SLURM_PROCID": "0", "JAX_COORDINATOR_PORT": str(other.getsockname()[1])}
        of_different_jobs = [
            start({}, *flags, f"--coordinator_address={where}", f"--process_id={i}")
            for i, where in enumerate(addresses)
        ]
        first, second, third = map(ended, [*of_different_jobs, start(STEP | HERE | port_taken)])
    assert [code for code, *_ in (first, second, third)] == [1, 1, 1]
    says = "mlm_jax: process {} of 2 by flags, coordinator {}: {} within 2 seconds".format
    assert says(0, addresses[0], "not all came") in first[2]
    assert says(1, addresses[1], "it was not reached") in second[2]
    assert "another program listens at that port" in third[2]
    assert time.monotonic() - began < 150  # not the 300 that it waits by default


@pytest.mark.processes
def test_an_interrupt_ends_the_waiting():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    port = free_port()
    process = start({}, f"--coordinator_address=127.0.0.1:{port}", "--num_processes=2", "--process_id=0")
    assert "0 of 2 by flags" in process.stderr.readline()
    signal.signal(signal.SIGINT, before)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == -signal.SIGINT
