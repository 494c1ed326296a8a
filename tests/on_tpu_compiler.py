"""The collectives of the training step as the compiler for TPUs makes them, on meshes of 8 chips that are not here.

Command: python tests/on_tpu_compiler.py (needs `pip install -e '.[tpu]'`; some minutes). BERT of base width with three
layers, two microbatches. Ends with 0 if what is gathered and reduced is what the mesh makes necessary, and no more.
"""

import sys

from batches import vocabulary

from mlm_jax.config import Config, MeshConfig, ModelConfig
from mlm_jax.plan import ahead, collectives
from mlm_jax.plan.collectives import Collective, totals

LAYERS, D, F, V, K = 3, 768, 3072, 8192, 2  # layers, width, hidden, ids, microbatches
LAYER, TABLES, DENSE = 4 * D * D + 2 * D * F, (V + 512 + 2) * D, D * D  # numbers in matrices
NUMBERS = 64 << 10  # bytes of what is no matrix: biases, norms, losses
STEP_NUMBERS = 1 << 10  # bytes of what is no parameter


def compiled(topology: str, **mesh: int) -> tuple[ahead.Compiled, dict[str, collectives.Total], list[Collective]]:
    """The step, its collectives by kind, and one by one."""
    model = ModelConfig(layers=LAYERS, width=D, heads=12, hidden=F, max_positions=512)
    rows = {"batch_size": 256, "accumulation": K, "row_length": 128}
    config = Config(model=model, mesh=MeshConfig(**mesh), **rows)
    step = ahead.compile_step(config, vocabulary(V), ahead.topology(topology))
    found = collectives.read(step.program, step.derived.devices)
    by_kind = totals(found)
    print(topology, mesh, {kind: (total.count, total.size) for kind, total in by_kind.items()}, flush=True)
    for one in found[:8]:
        print(f"    {one.kind} {one.times} x {one.size / 2**20:.2f} MiB of {one.group}: {one.type[:80]}", flush=True)
    assert not step.program.unknown_loops
    return step, by_kind, found


def data_alone() -> None:
    """Every gradient is reduced once for both microbatches, that of the word table too; beside it a few numbers."""
    step, by_kind, _ = compiled("v5e:2x4", data=8)
    assert set(by_kind) == {"all-reduce"}
    assert 0 <= by_kind["all-reduce"].size - step.memory.parameters < STEP_NUMBERS


def two_slices() -> None:
    """Every gradient is reduced once inside of a slice; no ring of all chips crosses the slow links."""
    step, by_kind, found = compiled("2xv5e:2x2", data=8)
    reduced = by_kind["all-reduce"].size + by_kind["reduce-scatter"].size
    assert 0 <= reduced - step.memory.parameters < NUMBERS
    assert not [one for one in found if one.group > 4 and one.size > STEP_NUMBERS]


def fully_sharded() -> None:
    """In each microbatch a layer is gathered once forward and once backward, the last one once in all, in bfloat16.

    Gradients are scattered once in each microbatch, in float32; tables are gathered and scattered once a step. Along
    `data` only the parts are reduced, once.
    """
    step, by_kind, _ = compiled("v5e:2x4", data=2, fsdp=4)
    assert set(by_kind) == {"all-gather", "reduce-scatter", "all-reduce"}
    gathered = by_kind["all-gather"].size - 2 * K * (2 * LAYERS - 1) * LAYER - 4 * TABLES
    assert 0 <= gathered <= 2 * K * DENSE
    scattered = by_kind["reduce-scatter"].size - 4 * K * LAYERS * LAYER - 4 * TABLES
    assert 0 <= scattered <= 4 * K * DENSE
    assert 0 <= by_kind["all-reduce"].size - step.memory.parameters < NUMBERS


def tensor() -> None:
    """Neither the word table nor logits are gathered over the axis that cuts the vocabulary."""
    _, _, found = compiled("v5e:2x4", data=2, tensor=4)
    assert not [one for one in found if one.kind == "all-gather" and one.size >= 2 * V * D // 4]


def all_three() -> None:
    """Tensor parallelism beside it changes how much a layer is, not how it is gathered: each device has its half."""
    _, by_kind, _ = compiled("v5e:2x4", data=2, fsdp=2, tensor=2)
    halves = 2 * K * (2 * LAYERS - 1) * LAYER // 2
    tables = 4 * (V // 2 + 512 + 2) * D
    assert 0 <= by_kind["all-gather"].size - halves - tables <= 2 * K * DENSE
    assert 0 <= by_kind["reduce-scatter"].size - 4 * K * LAYERS * LAYER // 2 - tables <= 4 * K * DENSE


def main() -> int:
    ahead.set_environment()
    data_alone()
    two_slices()
    fully_sharded()
    tensor()
    all_three()
    return 0


if __name__ == "__main__":
    sys.exit(main())
