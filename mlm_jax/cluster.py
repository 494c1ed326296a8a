"""Whether this process is one of several, by what started it: Open MPI, Slurm, a TPU slice, Kubernetes, or flags.

Only the decision is made here, from the environment. Where the first process listens is found by jax's own detection
of clusters, whose names stand in `DETECTORS`.
"""

import dataclasses
import glob
import importlib.util
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from mlm_jax.config import ConfigError

DETECTORS = {"mpi": "ompi", "slurm": "slurm", "tpu": None, "kubernetes": None}  # as jax names them; None: its own order
NAMES = {"mpi": "Open MPI", "slurm": "Slurm", "tpu": "the TPU slice", "kubernetes": "Kubernetes", "flags": "flags"}
CHOICES = ("auto", "none", *DETECTORS)
METADATA_SECONDS = 5.0
FLAGS = "--coordinator_address, --num_processes and --process_id"
NEEDS = {
    "mpi": "OMPI_COMM_WORLD_SIZE is not set, as it is in processes that mpirun of Open MPI started",
    "slurm": "SLURM_STEP_NUM_TASKS is not that of a step of this job: start with srun (a batch script or the shell of"
    " salloc is one process)",
    "tpu": "there is neither TPU_WORKER_HOSTNAMES nor a metadata service that names the hosts of a slice",
    "kubernetes": "needs a pod of an Indexed Job, with JOB_COMPLETION_INDEX set, and `pip install kubernetes`",
}


@dataclasses.dataclass(frozen=True)
class Group:
    """Processes that are one job. What is None is asked of the cluster by jax."""

    by: str  # of NAMES
    count: int | None = None
    index: int | None = None  # of this process
    address: str | None = None  # HOST:PORT where process 0 listens
    local: tuple[int, int] | None = None  # number of this process on its host, and how many there are
    local_devices: tuple[int, ...] | None = None  # of the GPUs that this process sees, those that are its own

    @property
    def detector(self) -> str | None:
        return "deactivate" if self.by == "flags" else DETECTORS[self.by]


def find(asked: str, flags: tuple[str | None, int | None, int | None], environment: Mapping[str, str]) -> Group | None:
    """The group that this process belongs to; None where it is alone.

    asked: one of CHOICES, the flag --distributed. flags: coordinator address, number of processes, number of this one.
    Raises ConfigError where these contradict one another or the environment.
    """
    if asked not in CHOICES:
        raise ConfigError("--distributed", asked, f"must be one of {', '.join(CHOICES)}")
    if flags != (None, None, None):
        if asked != "auto":
            raise ConfigError("--distributed", asked, f"is for runs without {FLAGS}; leave one of both out")
        return _by_flags(*flags)
    if asked == "none":
        return None
    found = next(filter(None, (PRESENT[name](environment) for name in PRESENT if asked in ("auto", name))), None)
    if found is None and asked != "auto":
        raise ConfigError("--distributed", asked, NEEDS[asked])
    if found is None:
        _check_unknown(environment)
    if found is None or found.count == 1:
        return None
    if found.by == "mpi" and not {"OMPI_MCA_orte_hnp_uri", "JAX_COORDINATOR_ADDRESS"} & set(environment):
        fix = "Open MPI 5 does not say where the first process runs: mpirun -x JAX_COORDINATOR_ADDRESS=HOST:PORT"
        raise ConfigError("JAX_COORDINATOR_ADDRESS", None, f"{fix} (launch/mpi.sh does)")
    return dataclasses.replace(found, local_devices=_own_gpus(found, environment))


def _by_flags(address: str | None, count: int | None, index: int | None) -> Group:
    if None in (address, count, index):
        given = {"--coordinator_address": address, "--num_processes": count, "--process_id": index}
        key = next(key for key, value in given.items() if value is None)
        raise ConfigError(key, None, f"{FLAGS} go together")
    if not re.fullmatch(r".+:\d+", address):
        raise ConfigError("--coordinator_address", address, "must be HOST:PORT of process 0")
    if count < 1:
        raise ConfigError("--num_processes", count, "must be at least 1")
    if not 0 <= index < count:
        raise ConfigError("--process_id", index, f"must be one of 0 to {count - 1}, by --num_processes={count}")
    return Group("flags", count, index, address)


def _by_mpi(environment: Mapping[str, str]) -> Group | None:
    name = "OMPI_COMM_WORLD_{}".format
    if name("SIZE") not in environment:
        return None
    count, index, local, locals_ = (
        int(environment[name(end)]) for end in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE")
    )  # fmt: skip
    return Group("mpi", count, index, local=(local, locals_))


def _by_slurm(environment: Mapping[str, str]) -> Group | None:
    """A task of a step that srun started.

    A batch script is no step, but has the variables of one where `sbatch` was called within one; the shell of an
    interactive step says how many tasks the job may have. In both cases the two counts differ: it is one process.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS")
    if "SLURM_JOB_ID" not in environment or tasks is None or tasks != environment.get("SLURM_NTASKS"):
        return None
    node, local = int(environment.get("SLURM_NODEID", 0)), int(environment["SLURM_LOCALID"])
    on_node = _per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", tasks))[node]
    return Group("slurm", int(tasks), int(environment["SLURM_PROCID"]), local=(local, on_node))


def _per_node(text: str) -> list[int]:
    """Tasks of each node, from Slurm's notation: 2(x3),1 is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        count, times = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part).groups()
        counts += [int(count)] * int(times or 1)
    return counts


def _by_tpu(environment: Mapping[str, str]) -> Group | None:
    """A host of a TPU slice, or of several slices: by the variables that GKE sets, or Compute Engine's metadata."""
    names = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    slices = environment.get("MEGASCALE_NUM_SLICES")
    if not names:
        if not _has_tpu(environment):
            return None
        names = _metadata("worker-network-endpoints", environment)
        if names is None:
            return None
        found = re.search(r"MEGASCALE_NUM_SLICES\s*:\s*'?(\d+)", _metadata("tpu-env", environment) or "")
        slices = slices or (found and found[1])
    return Group("tpu", len(names.split(",")) * int(slices or 1))


def _has_tpu(environment: Mapping[str, str]) -> bool:
    """Whether TPUs are attached to this machine, and wanted. jax sets TPU_SKIP_MDS_QUERY where there is none."""
    wanted = "tpu" in environment.get("JAX_PLATFORMS", "tpu") and not environment.get("TPU_SKIP_MDS_QUERY")
    attached = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    return wanted and bool(attached) and importlib.util.find_spec("libtpu") is not None


def _metadata(key: str, environment: Mapping[str, str]) -> str | None:
    """An attribute of this machine on Google Cloud; None where nobody answers."""
    host = environment.get("GCE_METADATA_IP", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/attributes/{key}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=METADATA_SECONDS) as answer:
            return answer.read().decode()
    except OSError:
        return None


def _by_kubernetes(environment: Mapping[str, str]) -> Group | None:
    """A pod of an Indexed Job, alone or in a JobSet; how many there are, jax asks the cluster's service."""
    if not {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= set(environment):
        return None
    if importlib.util.find_spec("kubernetes") is None:
        return None
    return Group("kubernetes", index=int(environment["JOB_COMPLETION_INDEX"]))


PRESENT: dict[str, Callable[[Mapping[str, str]], Group | None]] = {  # in jax's own order
    "mpi": _by_mpi,
    "slurm": _by_slurm,
    "tpu": _by_tpu,
    "kubernetes": _by_kubernetes,
}


def _check_unknown(environment: Mapping[str, str]) -> None:
    """Raises ConfigError where another kind of MPI started several: each would take itself for the whole run."""
    size = environment.get("PMI_SIZE", "1")
    if size != "1":
        fix = f"several processes of an MPI that is not known here: give each {FLAGS}, or --distributed=none"
        raise ConfigError("PMI_SIZE", size, fix)


def _own_gpus(group: Group, environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """Which of the GPUs that this process sees are its own: an equal share of them, or all where it is alone.

    None: as jax has it. That is one GPU for each process under Slurm and Open MPI, whatever there is.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    count = len(glob.glob("/dev/nvidia[0-9]*")) if visible is None else len(list(filter(None, visible.split(","))))
    wanted = {"cuda", "gpu"} & set(environment.get("JAX_PLATFORMS", "cuda").split(","))
    if not group.local or not count or not wanted or "JAX_LOCAL_DEVICE_IDS" in environment:
        return None
    local, processes = group.local
    if "SLURM_GPUS_PER_TASK" in environment or (visible is not None and count == 1):
        return tuple(range(count))  # divided already
    if count % processes:
        fix = f"the {processes} processes of this host cannot share its {count} GPUs equally; change their number"
        raise ConfigError("CUDA_VISIBLE_DEVICES", visible, fix)
    share = count // processes
    return tuple(range(local * share, (local + 1) * share))
