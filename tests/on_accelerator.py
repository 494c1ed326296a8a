"""Compares the attention backend of the accelerator that is present with the reference, forward and backward.

    python tests/on_accelerator.py

bfloat16 against the reference in float32 on the same inputs. Prints the largest differences, as shares of the largest
value, and ends with 1 where one is above `TOLERANCE`.
"""

import itertools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from batches import random_batch

from mlm_jax import sharding
from mlm_jax.config import MeshConfig
from mlm_jax.kernels import attention

CASES = [(256, 0), (512, 0), (512, 128), (1024, 128)]  # t, window; causal and not
TOLERANCE = 0.03  # a bfloat16 has 8 bits


def differences(backend: str, t: int, window: int, causal: bool) -> list[float]:
    """Of what attention gives at the real places, and of its gradients by query, key and value."""
    batch = random_batch(t, 4, t)
    places = {"query_segments": batch.segments, "key_segments": batch.segments}
    places |= {"query_positions": batch.positions, "key_positions": batch.positions, "window": window}
    random = np.random.default_rng(t)
    *inputs, weight = (jnp.asarray(random.normal(size=(4, t, 4, 64)), jnp.bfloat16) for _ in range(4))
    weight = jnp.where((batch.segments > 0)[..., None, None], weight, 0).astype(jnp.float32)

    def results(inputs: list[jax.Array], backend: str) -> tuple:
        def total(*x: jax.Array) -> tuple:
            read = attention.attend(*x, **places, aligned=True, backend=backend, causal=causal).astype(jnp.float32)
            return (read * weight).sum(), read * (weight != 0)

        (_, read), gradients = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(*inputs)
        return read, *gradients

    found, wanted = results(inputs, backend), results([x.astype(jnp.float32) for x in inputs], "reference")
    return [float(jnp.abs(x.astype(jnp.float32) - y).max() / jnp.abs(y).max()) for x, y in zip(found, wanted)]


def main() -> int:
    backend = {"gpu": "cudnn", "tpu": "splash"}.get(jax.default_backend())
    if backend is None:
        print("no accelerator: jax finds a CPU only")
        return 2
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    worst = 0.0
    with sharding.activate(mesh, MeshConfig()):
        for (t, window), causal in itertools.product(CASES, (False, True)):
            case = attention.Case(sharding.platform(), t, 64, "bfloat16", window, causal=causal)
            assert attention.choose(backend, case) == backend
            found = differences(backend, t, window, causal)
            print(f"{backend}, rows of {t}, window {window}{', causal' * causal}:", *(f"{x:.4f}" for x in found))
            worst = max(worst, *found)
    return int(not worst < TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
