"""Freed memory that is kept, seen from the system."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from pathlib import Path
import numpy as np
from mlm_jax.memory import keep_freed

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

if {keep}:
    keep_freed(1 << 26, 1 << 28)
before = held()
array = np.ones(1 << 25, np.uint8)
del array
print(held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the C library of Linux")
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_stays_with_the_process(keep):
    line = [sys.executable, "-c", SCRIPT.format(keep=keep)]
    kept = int(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert (kept > 1 << 24) == keep
