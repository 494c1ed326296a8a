"""What is in a folder of rows, and whether it is whole: `inspect(folder)`. Nothing here imports jax."""

from mlm_jax.inspection.findings import inspect, run_config, weights

__all__ = ["inspect", "run_config", "weights"]
