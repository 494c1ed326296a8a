"""NVIDIA GPUs that are not here, as XLA wants them described: `h100:8` is one host of eight, `h100:4x8` are four."""

import re
from typing import NamedTuple

from mlm_jax.config import ConfigError

PREALLOCATED = 0.75  # share of a GPU's memory that jax takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise


class Gpu(NamedTuple):
    """A model of GPU: NVIDIA's data sheets and the table of compute capabilities in its programming guide."""

    kind: str  # as jax calls the device
    capability: int
    processors: int  # streaming multiprocessors
    lanes: int  # float32 units of one
    shared: int  # bytes of shared memory of one
    cache: int  # bytes of the second level
    clock: float  # GHz
    memory: int  # bytes that the driver gives
    bandwidth: float  # bytes per second
    network: float  # bytes per second and GPU between hosts, as NVIDIA's own servers have it


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", 8, 108, 64, 164 << 10, 40 << 20, 1.41, 85_100_068_864, 2.039e12, 25e9),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 128, 228 << 10, 50 << 20, 1.98, 84_942_979_072, 3.352e12, 50e9),
    "h200": Gpu("NVIDIA H200", 9, 132, 128, 228 << 10, 50 << 20, 1.98, 151_397_597_184, 4.8e12, 50e9),
}
SPLIT = re.compile(r"([a-z]+\d+):(?:(\d+)x)?(\d+)")
RESERVED = 1 << 10  # bytes of shared memory that the system keeps of each block
# What is the same for all of them.
COMMON = """
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 shared_memory_per_block: 49152
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
"""


def parse(name: str) -> tuple[Gpu, int, int] | None:
    """(model, hosts, GPUs of a host) from a name; None where it is not one of these models."""
    found = SPLIT.fullmatch(name)
    if not found or found[1] not in GPUS:
        return None
    hosts, each = int(found[2] or 1), int(found[3])
    if not hosts or not 1 <= each <= 8:
        fix = "a host has 1 to 8 GPUs that its links join: one host of 8 is h100:8, four of them h100:4x8"
        raise ConfigError("--topology", name, fix)
    return GPUS[found[1]], hosts, each


def description(gpu: Gpu) -> str:
    """The GpuTargetConfigProto of XLA, as text."""
    return f"""gpu_device_info {{ {COMMON}
  cuda_compute_capability {{ major: {gpu.capability} }} core_count: {gpu.processors} fpus_per_core: {gpu.lanes}
  shared_memory_per_core: {gpu.shared} shared_memory_per_block_optin: {gpu.shared - RESERVED}
  l2_cache_size: {gpu.cache} clock_rate_ghz: {gpu.clock} device_memory_size: {gpu.memory}
  memory_bandwidth: {round(gpu.bandwidth)}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{gpu.kind}"
"""


def link_bandwidth(gpu: Gpu, hosts: int, each: int, inside: float) -> float:
    """Bytes per second that a GPU sends in a collective over all.

    inside: over the links within a host. Between hosts an exchange goes in rings over all network cards of a host at
    once, each GPU with its own, so that all of them together bound it.
    """
    return inside if hosts == 1 else min(inside, each * gpu.network)
