"""The training step of a config, compiled ahead of time for TPUs or GPUs that are not here."""

import dataclasses
import importlib.util
import os
import re
import time
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mlm_jax import compilation, feedback, flops, keys, optim, sharding, state, step, tree
from mlm_jax import config as config_module
from mlm_jax.batch import Batch
from mlm_jax.config import Config, ConfigError, Derived
from mlm_jax.models import build
from mlm_jax.plan import gpus, hlo, products
from mlm_jax.tokenizer import Vocabulary

KNOWN = "v4:2x2x1, v5e:1x1, v5e:2x4, v5e:16x16, v5p:2x2x1, v5p:8x8x8, v6e:2x4, v6e:16x16, tpu7x:2x2x1"
KNOWN += ", 2xv5e:16x16 (two slices), a100:8, h100:8, h200:4x8"
SLICES = re.compile(r"([1-9]\d*)x(v\d\w*:.*|tpu.*)")
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # of the machine that libtpu looks for; it complains without them, and the topology that is named counts
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_STDERR_LOG_LEVEL": "4",
    "TPU_MIN_LOG_LEVEL": "4",
}
# Triton's products are chosen by trying them out, and without a GPU the compiler cannot: NVIDIA's library has them all
WITHOUT_TRIALS = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
AMOUNT = r"(\d+(?:\.\d+)?)([KMGT]?)B?"
# two wordings of the compiler: what the program needs, what there is
TOO_LARGE = (rf"Used {AMOUNT} of {AMOUNT} hbm", rf"\({AMOUNT}\) exceeds available HBM \({AMOUNT}\)")
OVERFLOW = 2**40  # bytes, more than any device has


class Topology(NamedTuple):
    """Devices that are not here, what is published of one, and the bytes that a program may use of it."""

    name: str
    devices: tuple
    kind: str
    chip: flops.Chip
    limit: int

    @property
    def slices(self) -> int:
        return sharding.slices_of(self.devices)


class Memory(NamedTuple):
    """Bytes of one device; the parts are without the padding of tiled layouts.

    needs: the most that is in use at once, or what the compiler asks for where that is too much.
    """

    needs: int
    parameters: int
    optimizer: int
    batch: int
    rest: int  # gradients and activations, the program itself, and padding


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step for a topology. `program` is None where it does not fit."""

    derived: Derived
    memory: Memory
    traced_flops: int  # matrix products of a step over all devices, as traced
    lower_seconds: float
    compile_seconds: float
    program: hlo.Program | None

    @property
    def fits(self) -> bool:
        return self.program is not None


def set_environment() -> None:
    """Lets compilers work without a TPU or GPU, quietly, and jax use the CPU; before jax looks for devices."""
    os.environ.update(ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")


def topology(name: str) -> Topology:
    """Looks up devices by name. Raises ConfigError without a compiler for them, or for a name that is not known."""
    found = gpus.parse(name)
    return _tpus(name) if found is None else _gpus(name, *found)


def _tpus(name: str) -> Topology:
    if importlib.util.find_spec("libtpu") is None:
        fix = "libtpu, which compiles for TPUs, is not installed: pip install -e '.[tpu]' (about 700 MB)"
        raise ConfigError("--topology", name, fix)
    several = SLICES.fullmatch(name)
    slice_name = several[2] if several else name
    options = {"num_slices": int(several[1])} if several else {}
    if slice_name.startswith("v4:"):
        options["chip_config_name"] = "megacore"  # a chip is one device, as on the machines themselves
    if re.fullmatch(r"\w+:1x1(x1)?", slice_name):
        options["chips_per_host_bounds"] = (1, 1, 1)
    devices = _devices(name, platform="tpu", topology_name=slice_name, **options)
    kind = devices[0].device_kind
    chip = flops.chip(kind)
    if chip is None or chip.memory is None:
        raise ConfigError("--topology", name, f"of {kind!r} no memory and bandwidth are known; names look like {KNOWN}")
    return Topology(name, devices, kind, chip, limit_of(devices))


def _gpus(name: str, gpu: gpus.Gpu, hosts: int, each: int) -> Topology:
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        fix = "the compiler for NVIDIA GPUs is not installed: pip install -e '.[cuda]' (about 5 GB)"
        raise ConfigError("--topology", name, fix)
    shape = f"1x{hosts}x{each}"
    devices = _devices(name, platform="cuda", target_config=gpus.description(gpu), topology=shape)
    chip = flops.chip(gpu.kind)
    chip = chip._replace(link_bandwidth=gpus.link_bandwidth(gpu, hosts, each, chip.link_bandwidth))
    return Topology(name, devices, gpu.kind, chip, int(gpu.memory * gpus.PREALLOCATED))


def _devices(name: str, **options: object) -> tuple:
    from jax.experimental import topologies

    try:
        return tuple(topologies.get_topology_desc(**options).devices)
    except Exception as error:  # what compilers raise has no type of its own
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError("--topology", name, f"not known ({said}); names look like {KNOWN}") from None


def limit_of(devices: tuple) -> int:
    """Bytes of a device that the compiler gives out: it says so of a program that is too large."""
    placed = NamedSharding(Mesh(np.array(devices), ("all",)), P("all"))
    huge = jax.ShapeDtypeStruct((len(devices), OVERFLOW), np.int8, sharding=placed)
    try:
        jax.jit(lambda x: x + 1).trace(huge).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if found := too_large(str(error)):
            return found[1]
        raise
    raise RuntimeError(f"{OVERFLOW} bytes fit on {devices[0].device_kind}")


def too_large(message: str) -> tuple[int, int] | None:
    """(bytes needed, bytes there are) from an error of the compiler; None where that is not what it says."""
    for pattern in TOO_LARGE:
        if found := re.search(pattern, message):
            needs, needs_unit, there, there_unit = found.groups()
            return round(float(needs) * UNITS[needs_unit]), round(float(there) * UNITS[there_unit])
    return None


def for_accelerator(config: Config) -> Config:
    """The config with the compute type that `auto` means on an accelerator."""
    if config.model.dtype != "auto":
        return config
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dtype="bfloat16"))


def check(config: Config, vocabulary: Vocabulary, on: Topology) -> Derived:
    """Every derived number of a run on a topology. Raises ConfigError, naming it."""
    try:
        derived = config_module.check(config, len(on.devices), platform=on.devices[0].platform)
    except ConfigError as error:
        raise ConfigError(error.key, error.value, f"on {on.name}: {error.fix}") from None
    size = config.model.vocab_size or vocabulary.size
    if size < vocabulary.size:
        raise ConfigError("config.model.vocab_size", size, f"the tokenizer has {vocabulary.size} ids")
    return dataclasses.replace(derived, vocab_size=size, vocab_rows=config_module.round_up(size, 128))


def compile_step(config: Config, vocabulary: Vocabulary, on: Topology) -> Compiled:
    """Compiles the training step that `train` would run on a topology. Raises ConfigError.

    That it does not fit is a result; any other error of the compiler is raised.
    """
    config = for_accelerator(config)
    derived = check(config, vocabulary, on)
    mesh = sharding.make_mesh(derived.mesh, list(on.devices))
    model = build(config.model, derived.vocab_size, config.objectives)
    optimizer = optim.optimizer(config.optimizer, config.steps)
    fed = feedback.start(model, vocabulary, config.mask)
    now = state.abstract(model, optimizer, mesh, config.mesh, fed, config.optimizer)
    batch = abstract_batch(config, derived, mesh)
    whole = NamedSharding(mesh, P())
    roots = jax.eval_shape(lambda: keys.roots(config.seed))
    roots = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), roots)
    with sharding.activate(mesh, config.mesh), compilation.without_cache():
        began = time.perf_counter()
        traced = step.make_train_step(model, optimizer, vocabulary, config, mesh).trace(now, batch, roots)
        lowered = traced.lower()
        lowered_at = time.perf_counter()
        program, needs = _compile(lowered, on, config.objectives.causal.ratio)
        ended = time.perf_counter()
    parts = [held(part) for part in (now.params, (now.optimizer, now.guard, now.ema), batch)]
    memory = Memory(needs, *parts, needs - sum(parts))
    traced_flops = round(products.flops(traced.jaxpr, config.objectives.causal.ratio))
    return Compiled(derived, memory, traced_flops, lowered_at - began, ended - lowered_at, program)


def _compile(lowered: jax.stages.Lowered, on: Topology, causal_ratio: int | float) -> tuple[hlo.Program | None, int]:
    """The program, and the bytes that it needs of a device; no program where they are more than there are.

    The compiler for TPUs says so itself, that for GPUs does not.
    """
    try:
        compiled = lowered.compile(WITHOUT_TRIALS if on.devices[0].platform == "gpu" else None)
    except jax.errors.JaxRuntimeError as error:
        if found := too_large(str(error)):
            return None, found[0]
        raise
    needs = compiled.memory_analysis().peak_memory_in_bytes
    return hlo.parse(compiled.as_text(), causal_ratio) if needs <= on.limit else None, needs


def abstract_batch(config: Config, derived: Derived, mesh: Mesh) -> Batch:
    """The shapes, types and shardings of a step's batch [k,b,t], as `data.train_batches` gives them."""
    placed = sharding.batch_sharding(mesh, leading=1)
    rows = (config.accumulation, derived.microbatch)

    def of(kind: type, *more: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*rows, *more), kind, sharding=placed)

    t, p = config.row_length, config.data.max_segments
    return Batch(
        tokens=of(np.int32, t),
        segments=of(np.int32, t),
        positions=of(np.int32, t),
        flags=of(np.uint8, t),
        firsts=of(np.int32, p),
        pair_labels=of(np.int32, p),
        row=of(np.int32),
        visit=of(np.int32),
        weight=of(np.float32),
    )


def held(values: tree.PyTree) -> int:
    """Bytes that one device holds of abstract values with shardings."""
    leaves = jax.tree.leaves(values)
    return sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in leaves)
