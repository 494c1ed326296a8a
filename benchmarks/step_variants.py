"""The training step beside itself with one part computed in another way: time, and memory of temporaries.

    python benchmarks/step_variants.py --case=medium [--variants=logits,linear,unroll] [--rounds=15]

All variants are compiled in one process and take one step each in turn, forth and back. Ratios are to the step as it
is, of the same round, median [quartiles]: of the seconds that all cores worked, which hold on a shared machine, and of
the clock. Rows are random ids; masks of single tokens are made in the step. Float32, so for a CPU.
"""

import argparse
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from mlm_jax import keys, optim, runtime, sharding, state, step
from mlm_jax.batch import Batch
from mlm_jax.cli.bench import SPECIAL
from mlm_jax.config import Config, DataConfig, MaskConfig, ModelConfig
from mlm_jax.kernels.vocabulary import Losses
from mlm_jax.models import Model, build, layers
from mlm_jax.tokenizer import Vocabulary

CASES = {  # layers, width, heads, rows, row length, ids, rate, dropout
    "small": (2, 128, 4, 64, 64, 4096, 0.15, 0.0),
    "medium": (4, 256, 4, 32, 128, 8192, 0.15, 0.1),
    "base": (4, 768, 12, 8, 128, 30522, 0.15, 0.1),
    "head": (2, 256, 4, 32, 128, 32768, 0.59, 0.0),  # 80 slots a row
    "base_head": (2, 768, 12, 8, 512, 30522, 0.15, 0.0),
}


def plain_losses(model: Model) -> Model:
    """All logits at once, their gradient by jax."""

    def losses(params: dict, hidden: jax.Array, targets: jax.Array, weights: jax.Array) -> Losses:
        logits = model.logits(params, hidden)
        column = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2)
        at_target = jnp.where(column == targets[..., None], logits, 0.0).sum(-1)
        log_z = jax.nn.logsumexp(logits, -1)
        each = log_z - at_target
        return Losses((each * weights).sum(), each, (logits.argmax(-1) == targets).astype(jnp.float32), log_z)

    return model._replace(losses=losses)


def plain_linear(axes: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """As one product over several axes, its gradient by jax."""
    return jnp.tensordot(x, kernel, (tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))))


# name -> changes of the config's model, change of the model, what holds while the step is traced
VARIANTS: dict[str, tuple[dict, Callable, Callable]] = {
    "as it is": ({}, lambda model: model, contextlib.nullcontext),
    "logits": ({}, plain_losses, contextlib.nullcontext),
    "linear": ({}, lambda model: model, lambda: mock.patch.object(layers, "linear", plain_linear)),
    "unroll": ({"unroll": 3}, lambda model: model, contextlib.nullcontext),
    **{f"{mib} MiB": ({"logits_mib": mib}, lambda model: model, contextlib.nullcontext) for mib in (16, 64, 1024)},
}


def make(case: tuple, name: str) -> tuple[Callable, list]:
    """The compiled step, and its arguments with the state first."""
    depth, width, heads, rows, t, ids, rate, drop = case
    changes, of_model, within = VARIANTS[name]
    model = ModelConfig(
        layers=depth, width=width, heads=heads, hidden=4 * width, max_positions=t, dropout=drop, attention_dropout=drop
    )
    config = Config(
        batch_size=rows,
        row_length=t,
        data=DataConfig(max_segments=1),
        mask=MaskConfig(rate=rate, unit="token"),
        model=dataclasses.replace(model, **changes),
    )
    vocabulary = Vocabulary(ids, np.arange(5), np.arange(5, ids), **SPECIAL)
    tokens = np.random.default_rng(0).integers(5, ids, (1, rows, t)).astype(np.int32)
    one = np.ones_like(tokens)
    firsts, number = np.zeros((1, rows, 1), np.int32), np.arange(rows, dtype=np.int32)[None]
    weight = np.ones((1, rows), np.float32)
    batch = Batch(
        tokens, one, np.cumsum(one, -1) - 1, one.astype(np.uint8), firsts, firsts - 1, number, 0 * number, weight
    )
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    built, update = of_model(build(config.model, ids)), optim.optimizer(config.optimizer, config.steps)
    with sharding.activate(mesh, config.mesh), within():
        now = state.create(built, update, mesh, config.mesh, keys.root(config.seed, keys.INIT))
        arguments = [now, jax.device_put(batch, sharding.batch_sharding(mesh, 1)), keys.roots(config.seed)]
        jitted = step.make_train_step(built, update, vocabulary, config, mesh)
        return jitted.lower(*arguments).compile(), arguments


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} [{low:.3f} {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--variants", default="logits,linear,unroll", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    runtime.start()
    names = ["as it is", *arguments.variants.split(",")]
    steps = {name: make(CASES[arguments.case], name) for name in names}
    work, clock = {name: [] for name in names}, {name: [] for name in names}
    for i in range(-1, arguments.rounds):  # the first round does not count
        for name in names if i % 2 else reversed(names):
            run, given = steps[name]
            began, worked = time.perf_counter(), time.process_time()
            given[0], _ = jax.block_until_ready(run(*given))
            if i >= 0:
                work[name].append(time.process_time() - worked)
                clock[name].append(time.perf_counter() - began)
    print(f"{arguments.case}: {CASES[arguments.case]}, {arguments.rounds} rounds")
    print(f"{'':10} {'MiB':>6} {'core ms':>8}  {'ratio of core time':22} ratio of the clock")
    for name in names:
        mib = steps[name][0].memory_analysis().temp_size_in_bytes / (1 << 20)
        ratios = [
            spread([a / b for a, b in zip(times[name], times["as it is"], strict=True)]) for times in (work, clock)
        ]
        print(f"{name:10} {mib:6.0f} {1e3 * statistics.median(work[name]):8.0f}  {ratios[0]:22} {ratios[1]}")


if __name__ == "__main__":
    main()
