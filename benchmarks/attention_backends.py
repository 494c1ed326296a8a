"""What attention costs by backend: steps on this machine in turn, or the compiler's memory for TPUs that are not here.

    python benchmarks/attention_backends.py [--rows 512 1024 2048] [--backends reference blocks] [--rounds 7]
    python benchmarks/attention_backends.py --topology=v5e:2x4 [--rows 512 1024 8192] --backends reference blocks splash

The first trains a small ModernBERT (9 layers, 3 of them global), window 128, with 2,048 tokens a step in generated rows
of segments of 128 tokens. The second compiles attention alone, forward and backward, 12 heads of 64 in bfloat16, with
8,192 tokens a device: memory, but no time, which the compiler does not know of a kernel. It needs libtpu.
"""

import argparse
import contextlib
import itertools
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from mlm_jax.cli import bench
from mlm_jax.config import Config, DataConfig, MaskConfig, MeshConfig, ModelConfig, TokenizerConfig

TOKENS = 2048  # of a step
WINDOW = 128
DEVICE_TOKENS, HEADS, SIZE = 8192, 12, 64  # with --topology
ENVIRONMENT = {  # libtpu without a TPU
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_MIN_LOG_LEVEL": "4",
}


def config_of(t: int, backend: str) -> Config:
    sizes = {"layers": 9, "width": 256, "heads": 4, "hidden": 384, "max_positions": t}
    return Config(
        batch_size=TOKENS // t,
        row_length=t,
        data=DataConfig(max_segments=t // bench.SEGMENT_TOKENS),
        tokenizer=TokenizerConfig(vocab_size=8192),
        mask=MaskConfig(rate=0.3, unit="token"),
        model=ModelConfig(family="modernbert", attention=backend, dropout=0.0, attention_dropout=0.0, **sizes),
    )


@contextlib.contextmanager
def stepper(config: Config):
    """`run(steps)`: seconds of a training step, the mean of so many, on generated rows."""
    import jax

    from mlm_jax import config as config_module
    from mlm_jax import data, keys, optim, sharding, state, step
    from mlm_jax.models import build

    vocabulary = bench.vocabulary_of(config)
    with tempfile.TemporaryDirectory() as folder:
        manifest = bench.generate(Path(folder), config, vocabulary)
        derived = config_module.check(config, jax.device_count(), 1, manifest, jax.default_backend())
        mesh = sharding.make_mesh(derived.mesh)
        model, optimizer = build(config.model, derived.vocab_size), optim.optimizer(config.optimizer, config.steps)
        train_step, roots = step.make_train_step(model, optimizer, vocabulary, config, mesh), keys.roots(0)
        batches = data.train_batches(folder, manifest, config, 0, sharding.batch_sharding(mesh, leading=1))
        with contextlib.closing(batches), sharding.activate(mesh, config.mesh):
            now = state.create(model, optimizer, mesh, config.mesh, keys.root(0, keys.INIT))

            def run(steps: int) -> float:
                nonlocal now
                began = time.perf_counter()
                for batch in itertools.islice(batches, steps):
                    now, _ = train_step(now, batch, roots)
                jax.block_until_ready(now)
                return (time.perf_counter() - began) / steps

            yield run


def measure(t: int, backends: list[str], rounds: int, steps: int) -> None:
    """Prints the median milliseconds of a step by backend, and how many times those of the first in the same round."""
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(stepper(config_of(t, name))) for name in backends]
        for run in runs:
            run(2)
        seconds = np.array([[run(steps) for run in runs] for _ in range(rounds)])
    for i, name in enumerate(backends):
        low, middle, high = np.quantile(seconds[:, i] / seconds[:, 0], (0, 0.5, 1))
        times = f"times {backends[0]}: {middle:.2f} [{low:.2f} {high:.2f}]"
        print(f"rows of {t:5}  {name:9}  {1e3 * np.median(seconds[:, i]):7.0f} ms  {times}", flush=True)


def compile_ahead(t: int, window: int, backend: str, topology: str) -> None:
    """Prints what a device needs for attention in one layer by the compiler, and the seconds of compiling."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies

    from mlm_jax import sharding
    from mlm_jax.kernels import attention

    devices = list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    mesh = sharding.make_mesh({"data": len(devices), "fsdp": 1, "tensor": 1}, devices)
    placed, b = sharding.batch_sharding(mesh), len(devices) * DEVICE_TOKENS // t
    states = jax.ShapeDtypeStruct((b, t, HEADS, SIZE), jnp.bfloat16, sharding=placed)
    places = jax.ShapeDtypeStruct((b, t), jnp.int32, sharding=placed)

    def gradients(query, key, value, segments, positions):
        where = {"query_segments": segments, "key_segments": segments}
        where |= {"query_positions": positions, "key_positions": positions, "window": window}

        def total(*x):
            read = attention.attend(*x, **where, aligned=True, backend=backend)
            return jnp.square(read.astype(jnp.float32)).sum()

        return jax.grad(total, (0, 1, 2))(query, key, value)

    with sharding.activate(mesh, MeshConfig()):
        began = time.perf_counter()
        compiled = jax.jit(gradients).trace(states, states, states, places, places).lower().compile()
        seconds = time.perf_counter() - began
    memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
    print(f"rows of {t:5}  window {window:3}  {backend:9}  {memory:5.0f} MiB, compiled in {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 1024, 2048], help="tokens a row")
    parser.add_argument("--backends", nargs="+", default=["reference", "blocks"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1, help="steps of a round")
    parser.add_argument("--topology", default="", help="compile for it instead, such as v5e:2x4")
    args = parser.parse_args()
    if not args.topology:
        for t in args.rows:
            measure(t, args.backends, args.rounds, args.steps)
        return
    os.environ |= ENVIRONMENT
    for t, window, backend in itertools.product(args.rows, (0, WINDOW), args.backends):
        if window or backend != "blocks":
            compile_ahead(t, window, backend, args.topology)


if __name__ == "__main__":
    main()
