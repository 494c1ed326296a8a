"""Starting jax: its processes, its devices, memory, and the cache of compiled programs.

jax is imported within the functions, since some settings must come before it.
"""

import hashlib
import importlib.util
import os
import platform
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from mlm_jax.config import ConfigError
from mlm_jax.memory import keep_freed

ACCELERATOR_PLUGINS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
HEARTBEAT_SECONDS = 60  # a process that is silent for so long is dead, and the others end

processes = 1  # as `start` was told


def start(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Starts jax, with several processes if they are given.

    Raises ConfigError where the platform that was asked for has no device, or masks would depend on the mesh.
    """
    if not any(importlib.util.find_spec(name) for name in ACCELERATOR_PLUGINS):
        keep_freed(1 << 30, 2**31 - 1)  # temporaries of a step on a CPU
    import jax

    global processes
    if num_processes is not None:
        processes = num_processes
        jax.distributed.initialize(
            coordinator_address, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    try:
        jax.devices()
    except RuntimeError as error:
        raise ConfigError("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", ""), str(error).split("\n")[0]) from None
    if not getattr(jax.config, "jax_threefry_partitionable", True):  # newer versions have no other way
        raise ConfigError("JAX_THREEFRY_PARTITIONABLE", False, "must be left on, or masks depend on the mesh")
    keep_compiled_programs()


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


class Stop:
    """Whether the run was asked to stop, by SIGTERM or the first Ctrl-C; all processes agree on the step.

    A second Ctrl-C interrupts at once. Only the main thread can listen for signals; in another one nothing is changed.
    """

    def __init__(self):
        import jax

        self.several = jax.process_count() > 1
        self.signal: str | None = None
        self.before: dict = {}
        if threading.current_thread() is threading.main_thread():
            # of several processes, jax's own service hears SIGTERM and tells the others
            numbers = (signal.SIGINT,) if self.several else (signal.SIGINT, signal.SIGTERM)
            self.before = {number: signal.signal(number, self._asked) for number in numbers}

    def _asked(self, number: int, frame: object) -> None:
        self.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self.before[signal.SIGINT])
            if self.several:
                os.kill(os.getpid(), signal.SIGTERM)

    def at(self, step: int) -> bool:
        """Whether to stop after this step. All processes call it for every step, from the same one on."""
        if not self.several:
            return self.signal is not None
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(step)

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
