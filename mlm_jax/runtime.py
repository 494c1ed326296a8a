"""Starting jax: its processes, its devices, memory, and the cache of compiled programs.

jax is imported within the functions, since some settings must come before it.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
from pathlib import Path

from mlm_jax.config import ConfigError

ACCELERATOR_PLUGINS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
HEARTBEAT_SECONDS = 60  # a process that is silent for so long is dead, and the others end


def start(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Starts jax, with several processes if they are given.

    Raises ConfigError where the platform that was asked for has no device.
    """
    if not any(importlib.util.find_spec(name) for name in ACCELERATOR_PLUGINS):
        keep_freed_memory()
    import jax

    if num_processes is not None:
        jax.distributed.initialize(
            coordinator_address, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    try:
        jax.devices()
    except RuntimeError as error:
        raise ConfigError("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS", ""), str(error).split("\n")[0]) from None
    keep_compiled_programs()


def keep_freed_memory() -> None:
    """Lets glibc keep the memory of a step's temporaries instead of returning it to the system each time.

    For training on a CPU, where they are allocated and freed in every step. Must come before jax starts its threads.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # names of malloc.h
    mallopt(arena_max, 1)
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, 2**31 - 1)


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
