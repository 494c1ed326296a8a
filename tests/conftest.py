"""Strict settings for the whole suite: 8 fake CPU devices, no rank promotion, shapes of public functions checked."""

import os
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the suite's time is compilation of small programs: optimise little, and compile each program once.
if "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    quick = "--xla_backend_optimization_level=0"
    if version("jaxlib").startswith("0.10."):  # loops emitted the old way: half the time; later ones know no other
        quick += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"

CACHE = tempfile.TemporaryDirectory(prefix="jax-cache-", ignore_cleanup_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE.name  # by the environment, so that subprocesses share it
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

from absl import flags
from jaxtyping import install_import_hook

flags.FLAGS.mark_as_parsed()  # Grain reads absl flags
# Not the pytree dataclasses: jax rebuilds them with placeholders, shardings and None as leaves.
PACKAGE = Path(__file__).parents[1] / "mlm_jax"
CHECKED = [
    f"mlm_jax.{path.stem}" for path in PACKAGE.iterdir() if path.stem not in ("__init__", "__main__", "batch", "state")
]
install_import_hook(CHECKED, "beartype.beartype")

# The files that take longest are begun first, so that no process is left with one of them at the end.
LONGEST = ("test_train", "test_objectives", "test_step", "test_phases", "test_hub", "test_models", "test_families")


def pytest_collection_modifyitems(items):
    """A file at a time, in this order (xdist's own goes by the number of tests): the longest ones, then as named."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
