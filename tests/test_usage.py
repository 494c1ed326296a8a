"""Memory of devices, of which these are made up, and of the host."""

import subprocess
import sys
import types

import jax
import pytest

from mlm_jax import logbook, usage
from mlm_jax.console import memory_line

GIB = 2**30


def devices(*stats):
    return [types.SimpleNamespace(memory_stats=lambda one=one: one) for one in stats]


def on_device(peak, limit=16 * GIB):
    return {"bytes_in_use": 1, "peak_bytes_in_use": peak, "bytes_limit": limit, "num_allocs": 3}


def test_the_fullest_device_counts():
    found = usage.memory(devices(on_device(9 * GIB), on_device(12 * GIB), on_device(2 * GIB)))
    assert (found["memory/peak_bytes"], found["memory/limit_bytes"]) == (12 * GIB, 16 * GIB)
    assert "at most 12.9GB of 17.2GB on a device, on the host" in memory_line(found)
    unlimited = usage.memory(devices({"peak_bytes_in_use": GIB}))
    assert unlimited["memory/peak_bytes"] == GIB and "memory/limit_bytes" not in unlimited


@pytest.mark.parametrize("given", [None, devices(None), devices({})])
def test_what_is_not_known_is_no_zero(given):
    found = usage.memory(given)
    assert set(found) == {"memory/host_bytes", "memory/host_peak_bytes"}
    assert memory_line(found).startswith("      memory: on the host ") and jax.devices()[0].memory_stats() is None


def test_memory_of_the_host():
    """96 MiB are taken and given back: the peak keeps them."""
    script = """
from mlm_jax import usage
before, array = usage.host(), bytearray(b"1") * (96 << 20)
held = usage.host()
del array
after = usage.host()
for found, key in ((before, usage.HOST), (held, usage.HOST), (after, usage.HOST), (after, usage.HOST_PEAK)):
    print((found[key] - before[usage.HOST]) >> 20)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    start, held, after, peak = map(int, said.split())
    assert start == 0 and held == pytest.approx(96, abs=2) and after < 10 and peak >= 95


def test_a_device_that_is_nearly_full_is_told_once(monkeypatch):
    lines = []
    log = types.SimpleNamespace(told_full=False, progress=types.SimpleNamespace(message=lines.append))
    for number, peak in ((100, 15.1), (200, 15.3), (300, 15.4)):
        monkeypatch.setattr(jax, "local_devices", lambda peak=peak: devices(on_device(int(peak * GIB))))
        assert logbook.Logbook._memory(log, number)["memory/peak_bytes"] == int(peak * GIB)
    (line,) = lines
    assert line.startswith("warning: step 200: a device is nearly full\n      memory: at most 16.4GB of 17.2GB on a")
