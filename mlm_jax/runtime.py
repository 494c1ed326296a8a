"""Starting jax: its processes, its devices, memory, and the cache of compiled programs.

jax is imported within the functions, since some settings must come before it.
"""

import dataclasses
import errno
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlm_jax.cluster import NAMES, Group
from mlm_jax.config import ConfigError, RunError
from mlm_jax.memory import keep_freed

ACCELERATOR_PLUGINS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
HEARTBEAT_SECONDS = 60  # a process that is silent for so long is dead, and the others end

START_SECONDS = 300.0  # that processes wait for the others, by default
TELL_SECONDS = 30.0  # between lines that say so

processes, index = 1, 0  # how many there are, and which one this is, as `start` found
_steps = itertools.count(1)  # at which all processes may stop


def start(group: Group | None = None, wait_seconds: float = START_SECONDS) -> None:
    """Starts jax, as one of several processes if it belongs to a group.

    Raises ConfigError where the platform that was asked for has no device, or masks would depend on the mesh; RunError
    where the port of process 0 is taken.
    """
    if not any(importlib.util.find_spec(name) for name in ACCELERATOR_PLUGINS):
        keep_freed(1 << 30, 2**31 - 1)  # temporaries of a step on a CPU
    import jax

    if group:
        join(group, wait_seconds)
    try:
        jax.devices()
    except RuntimeError as error:
        raise ConfigError("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", ""), str(error).split("\n")[0]) from None
    if not getattr(jax.config, "jax_threefry_partitionable", True):  # newer versions have no other way
        raise ConfigError("JAX_THREEFRY_PARTITIONABLE", False, "must be left on, or masks depend on the mesh")
    keep_compiled_programs()


def join(group: Group, wait_seconds: float) -> None:
    """Waits for the other processes of the group; ends this process with 1 where they do not come in time.

    Raises ConfigError where jax does not find the cluster that the group is said to be of, RunError where process 0
    cannot listen.
    """
    import jax

    global processes, index
    processes, index = group.count or 2, group.index or 0  # as far as it is known
    waiting = _Waiting(group, wait_seconds)
    try:
        waiting.group = group = _completed(group, int(wait_seconds) + 60)
        if group.index == 0 and _is_taken(group.address):
            said = "another program listens at that port; JAX_COORDINATOR_PORT names another one"
            raise RunError(f"{waiting.described()}: {said}")
        jax.distributed.initialize(
            group.address,
            group.count,
            group.index,
            None if group.local_devices is None else list(group.local_devices),
            cluster_detection_method=group.detector,
            initialization_timeout=int(wait_seconds) + 60,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except RunError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        said = str(error).split("\n")[0]
        if "must be defined" in said or "should be defined" in said:
            fix = "jax finds no such cluster" + (", or no TPU: pip install -e '.[tpu]'" if group.by == "tpu" else "")
            raise ConfigError("--distributed", group.by, fix) from None
        raise RunError(f"{waiting.described()}: {said}") from None
    finally:
        waiting.close()
    index, processes, _ = waiting.facts()


def _completed(group: Group, timeout_seconds: int) -> Group:
    """The group with what jax's detection of clusters knows besides."""
    from jax._src.clusters import ClusterEnv  # jax.distributed would tell only when it listens already

    known = (group.address or os.environ.get("JAX_COORDINATOR_ADDRESS"), group.count, group.index)
    if group.detector != "deactivate":
        detect = ClusterEnv.auto_detect_unset_distributed_params
        known = detect(*known, None, group.detector, timeout_seconds)[:3]
    address, count, number = known
    return dataclasses.replace(group, address=address, count=count, index=number)


def _is_taken(address: str | None) -> bool:
    """Whether process 0 could not listen at the port of HOST:PORT. jaxlib 0.10 may crash where it tries."""
    if address is None:
        return False
    port, both = int(address.rpartition(":")[2]), socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


class _Waiting:
    """Says, for process 0, where it waits for the others, and how long; ends the process when the time is over.

    jax would end it with a core dump, where its own deadline passes.
    """

    def __init__(self, group: Group, wait_seconds: float):
        self.group, self.wait_seconds, self.said = group, wait_seconds, False
        self.over = threading.Event()
        self.interrupt = None
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _in_main_thread():
            # jax waits in C++, where Python hears no Ctrl-C
            self.interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def facts(self) -> tuple[int | None, int | None, str | None]:
        """Number of this process, of all, and where process 0 listens; None: not known yet."""
        from jax._src import distributed  # jax.distributed does not tell, until all are there

        state = distributed.global_state
        if state.client is None:
            return self.group.index, self.group.count, self.group.address
        return state.process_id, state.num_processes, state.coordinator_address

    def described(self) -> str:
        index, count, address = ("?" if fact is None else fact for fact in self.facts())
        return f"process {index} of {count} by {NAMES[self.group.by]}, coordinator {address}"

    def _say(self) -> None:
        index, _, address = self.facts()
        if index == 0 and address is not None and not self.said:
            self.said = True
            print(self.described().replace(" ", "     ", 1), file=sys.stderr, flush=True)

    def _watch(self) -> None:
        began = told = time.monotonic()
        while not self.over.wait(0.2):
            now = time.monotonic()
            self._say()
            if now - began > self.wait_seconds:
                print(f"mlm_jax: {self.described()}: {self._reason()}", file=sys.stderr, flush=True)
                os._exit(1)
            if now - told > TELL_SECONDS and self.facts()[0] == 0:
                told = now
                print(f"waiting for the others since {now - began:.0f} seconds", file=sys.stderr, flush=True)

    def _reason(self) -> str:
        if self.facts()[0] == 0:
            return f"not all came within {self.wait_seconds:g} seconds; --distributed=none runs one process alone"
        fix = "JAX_COORDINATOR_ADDRESS=HOST:PORT names another address of process 0"
        return f"it was not reached within {self.wait_seconds:g} seconds, or not all came; {fix}"

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        self._say()
        if self.interrupt is not None:
            signal.signal(signal.SIGINT, self.interrupt)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def keep_compiled_programs() -> None:
    """Keeps compiled programs on the disk, so that a run that is started again need not compile.

    In the folder that JAX_COMPILATION_CACHE_DIR names (empty: nowhere), by default in the user's cache folder. A
    program compiled for a CPU uses all that it can do, so each kind of CPU has a folder of its own.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.jax_compilation_cache_dir:
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = jax.default_backend() if jax.default_backend() != "cpu" else f"cpu-{_cpu_kind()}"
    jax.config.update("jax_compilation_cache_dir", str(caches / "mlm_jax" / name))


def _cpu_kind() -> str:
    """A name for what the CPU of this machine can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.blake2b(f"{platform.machine()} {features}".encode(), digest_size=6).hexdigest()


def shared(value: object) -> object:
    """What process 0 gives, in all processes; anything that JSON has. All call it together."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value if jax.process_index() == 0 else None).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    text = np.resize(text, size)  # of the others only the size counts
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(text)).tobytes())


def by_first(make: Callable[[], object]) -> object:
    """What `make` gives in process 0, in all processes; anything that JSON has. All call it together.

    The ConfigError or RunError that it raises there is raised in all of them: none waits for one that has left.
    """
    import jax

    raised, outcome = None, {}
    if jax.process_index() == 0:
        try:
            outcome = {"value": make()}
        except ConfigError as error:
            raised, outcome = error, {"config": [error.key, str(error.value), error.fix]}
        except RunError as error:
            raised, outcome = error, {"run": str(error)}
    outcome = shared(outcome)
    if "config" in outcome:
        raise raised or ConfigError(*outcome["config"])
    if "run" in outcome:
        raise raised or RunError(outcome["run"])
    return outcome["value"]


class Stop:
    """Whether the run was asked to stop, by SIGTERM, SIGUSR1 or the first Ctrl-C; all processes agree on the step.

    SIGUSR1 is what mpirun forwards, which kills where it gets SIGTERM itself. A second Ctrl-C interrupts at once. Only
    the main thread can listen for signals; in another one nothing is changed.
    """

    def __init__(self):
        import jax

        self.several = jax.process_count() > 1
        self.signal: str | None = None
        self.before: dict = {}
        if _in_main_thread():
            # of several processes, jax's own service hears SIGTERM and tells the others
            numbers = [signal.SIGINT, signal.SIGUSR1] + [signal.SIGTERM] * (not self.several)
            self.before = {number: signal.signal(number, self._asked) for number in numbers}

    def _asked(self, number: int, frame: object) -> None:
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self.before[signal.SIGINT])
        if self.several:
            os.kill(os.getpid(), signal.SIGTERM)

    def now(self) -> bool:
        """Whether to stop after this step. All processes call it for every step, from the same one on."""
        if not self.several:
            return self.signal is not None
        from jax.experimental import multihost_utils

        # jax's service takes a step that all have yet to reach, so they are counted over all that this process does
        return multihost_utils.reached_preemption_sync_point(next(_steps))

    def close(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}


class Profile:
    """A trace of some steps, for TensorBoard and Perfetto, once the first ones are over."""

    SKIPPED = 3  # the first steps compile, and fill what is read ahead

    def __init__(self, folder: Path, steps: int, report: Callable[[str], None]):
        """steps: how many to trace; 0: none. report: takes a line that says where the trace is."""
        self.folder, self.steps, self.report = folder, steps, report
        self.seen, self.open = 0, False

    def step(self, values: object) -> None:
        """A step was dispatched; `values` are its results."""
        import jax

        self.seen += 1
        if not self.steps or self.seen not in (self.SKIPPED, self.SKIPPED + self.steps):
            return
        jax.block_until_ready(values)
        if self.seen == self.SKIPPED:
            jax.profiler.start_trace(self.folder, create_perfetto_trace=True)
            self.open = True
        else:
            self.close()

    def close(self) -> None:
        """Writes a trace that is under way."""
        import jax

        if self.open:
            self.open = False
            jax.profiler.stop_trace()
            self.report(
                f"profile     {self.folder}: `tensorboard --logdir={self.folder}` shows it with the profile plugin,"
                " ui.perfetto.dev opens its perfetto_trace.json.gz"
            )
