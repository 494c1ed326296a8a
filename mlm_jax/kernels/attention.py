"""Attention within segments: several documents share a row, and none of them sees another. One function, several
backends that give the same."""

import re

import jax
from jaxtyping import Array, Float, Int, Key

from mlm_jax import sharding
from mlm_jax.config.attention import Case, obstacle
from mlm_jax.kernels import blocks, cudnn, reference, splash
from mlm_jax.kernels.reference import probabilities

__all__ = ["attend", "choose", "probabilities"]

# What `auto` takes on a platform: the first that can serve rows so long (tokens); blocks wherever the keys of one are
# fewer than the row has, which is where they begin to save on a CPU (benchmarks/RESULTS.md). The lengths are reckoned
# and not measured. TPU: in rows of 128 the scores of all pairs are few, and a step of the kernel's grid costs more than
# what little it computes. GPU: a row of 2,048 has ten times the pairs that blocks of a window of 128 compute, which is
# more than the kernel gains over plain products; in a shorter one it has the window in its mask.
PREFERRED: dict[str, tuple[tuple[str, int], ...]] = {
    "cpu": (("blocks", 0),),
    "gpu": (("blocks", 2048), ("cudnn", 256), ("blocks", 0)),
    "tpu": (("splash", 256), ("blocks", 1024)),
}
KERNELS = ("cudnn", "splash")  # which run on each device's part alone


def attend(
    query: Float[Array, "b q h k"],
    key: Float[Array, "b s h k"],
    value: Float[Array, "b s h k"],
    *,
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b s"],
    query_positions: Int[Array, "b q"] | None = None,
    key_positions: Int[Array, "b s"] | None = None,
    window: int = 0,
    aligned: bool = False,
    dropout_keys: Key[Array, "b"] | None = None,
    dropout_rate: float = 0.0,
    backend: str = "auto",
    causal: bool = False,
) -> Float[Array, "b q h k"]:
    """Scaled dot-product attention in which a query sees the keys of its own segment, and of a window.

    Positions, which a window and causality need, are those within the segment. causal: a query sees no key that stands
    after it, which of a window leaves the left half. Dropout falls on the probabilities. aligned: query i stands where
    key i does. backend: which one computes it where it can serve, see `choose`; the results at the padding differ, and
    are finite.
    Attention Is All You Need (2017), section 3.2.1; the window is that of Longformer (2020), section 3.1.
    """
    b, t, h, k = query.shape
    rate = 0.0 if dropout_keys is None else dropout_rate
    case = Case(sharding.platform(), t, k, str(query.dtype), window, rate, causal)
    chosen = choose(backend, case, kernels=_can_cut(b, h)) if aligned else "reference"
    if chosen == "blocks":
        return blocks.attend(query, key, value, key_segments, key_positions, window, causal)
    if chosen == "cudnn":
        return cudnn.attend(query, key, value, key_segments, key_positions, window, causal)
    if chosen == "splash":
        return splash.attend(query, key, value, key_segments, window, causal)
    places = (query_segments, key_segments, query_positions, key_positions)
    return reference.attend(query, key, value, *places, window, dropout_keys, rate, causal)


def choose(asked: str, case: Case, kernels: bool = True) -> str:
    """The backend for a case: the one that is asked for where it can serve it, else as `auto` has it.

    kernels: whether those that run on each device's part may. Attention with dropout takes the reference.
    """

    def serves(backend: str) -> bool:
        if (backend in KERNELS and not kernels) or obstacle(backend, case):
            return False
        return backend != "cudnn" or has_flash_attention()

    if asked != "auto" and serves(asked):
        return asked
    for backend, shortest in PREFERRED.get(case.platform, ()):
        saves = backend != "blocks" or blocks.keys_of_block(case.window, case.causal) < case.row_length
        if serves(backend) and saves and case.row_length >= shortest:
            return backend
    return "reference"


def has_flash_attention() -> bool:
    """Whether GPUs are NVIDIA's of compute capability 8.0 (A100) or more, which cuDNN's attention needs.

    Those that are compiled for but are not here (`plan`) all are.
    """
    if sharding.platform() != jax.default_backend():
        return True
    found = re.fullmatch(r"(\d+)\.\d+", str(getattr(jax.local_devices()[0], "compute_capability", "")))
    return found is not None and int(found[1]) >= 8


def _can_cut(b: int, h: int) -> bool:
    """Whether every device has as many of b rows and h heads. Several devices without a mesh: nobody knows."""
    if jax.sharding.get_abstract_mesh().empty:
        return jax.device_count() == 1
    return b % sharding.parts("batch") == 0 and h % sharding.parts("heads") == 0
