"""How much memory a run takes: of the devices as their allocator counts it, and of the host."""

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

FULL = 0.95  # share of a device's memory above which a run should know
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
PEAK, LIMIT = "memory/peak_bytes", "memory/limit_bytes"
HOST, HOST_PEAK = "memory/host_bytes", "memory/host_peak_bytes"


def memory(devices: Sequence | None = None) -> dict[str, int]:
    """Bytes by the names of metrics: of the fullest device of this process, and of the process itself.

    peak: most that was in use at once since the start; limit: that the allocator gives out. What a platform does not
    tell, as CPUs do not, is left out.
    """
    stats = [device.memory_stats() for device in devices or jax.local_devices()]
    known = [one for one in stats if one and "peak_bytes_in_use" in one]
    found = {}
    if known:
        fullest = max(known, key=share)
        found[PEAK] = fullest["peak_bytes_in_use"]
        if fullest.get("bytes_limit"):
            found[LIMIT] = fullest["bytes_limit"]
    return {**found, **host()}


def share(stats: Mapping[str, int]) -> float:
    """Of what an allocator gives out, how much was in use at its peak; 0 where there is no limit."""
    return stats["peak_bytes_in_use"] / limit if (limit := stats.get("bytes_limit")) else 0.0


def is_full(found: Mapping[str, int]) -> bool:
    """Whether a device was nearly full at its peak."""
    return PEAK in found and LIMIT in found and found[PEAK] > FULL * found[LIMIT]


def host() -> dict[str, int]:
    """Bytes of this process that lie in memory now, where the system tells, and at most since its start."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return {HOST_PEAK: peak}
    now = pages * resource.getpagesize()
    return {HOST: now, HOST_PEAK: max(now, peak)}  # which are not counted at the same moments
