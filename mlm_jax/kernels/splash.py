"""Attention by the splash kernel of jax for TPUs: no scores in memory, and no work on blocks outside of the window."""

import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jaxtyping import Array, Float, Int

from mlm_jax import sharding

LANES = 128  # blocks, and so the row, are multiples of it
LARGEST_BLOCK = 512  # of queries and of keys; several times the window would be keys outside of it
LARGEST_LOCAL_BLOCK = 256
RESIDUALS = "splash"  # name of what its backward pass reads beside its inputs, for policies of rematerialisation
HEADS, PLACES = ("batch", "heads", None, None), ("batch", None)  # how [b,h,t,k] and [b,t] lie on the mesh


def attend(
    query: Float[Array, "b t h k"],
    key: Float[Array, "b t h k"],
    value: Float[Array, "b t h k"],
    segments: Int[Array, "b t"],
    window: int,
    causal: bool = False,
) -> Float[Array, "b t h k"]:
    """Attention within segments and a window, which may be 0: none. The whole of it on each device's rows and heads.

    A segment's tokens stand side by side, so that a window in places of the row is one in positions of the segment.
    causal: a query sees no key that stands after it, and whole blocks of those are left out.
    The padding, and what fills the row up to whole blocks, sees itself alone. Interpreted on a CPU: slow, for tests.
    """
    t, k = query.shape[1], query.shape[-1]
    filled = round_up(t)
    query = (query.astype(jnp.float32) / math.sqrt(k)).astype(query.dtype)  # the kernel does not scale

    def fill(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, filled - t), *((0, 0),) * (x.ndim - 2)))

    def of_device(query: Array, key: Array, value: Array, segments: Array) -> Array:
        run = kernel(filled, query.shape[1], window, causal)
        return jax.vmap(run)(query, key, value, splash_attention.SegmentIds(segments, segments))

    by_head = (fill(x).swapaxes(1, 2) for x in (query, key, value))
    run = sharding.per_device(of_device, (HEADS, HEADS, HEADS, PLACES), HEADS)
    return run(*by_head, fill(segments)).swapaxes(1, 2)[:, :t]


def kernel(
    t: int, h: int, window: int, causal: bool = False
) -> splash_attention.splash_attention_kernel.SplashAttentionKernel:
    """The kernel for rows of t tokens, whole blocks, and h heads: (query, key, value [h,t,k], segments) -> [h,t,k]."""
    block = block_size(t, window)
    reach = (window // 2 if window else None, 0 if causal else window // 2)  # to the left, and to the right
    if window or causal:
        mask = splash_attention.LocalMask((t, t), reach, offset=0)
    else:
        mask = splash_attention.FullMask((t, t))
    blocks = splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    return splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * h),
        block_sizes=blocks,
        residual_checkpoint_name=RESIDUALS,
        interpret=sharding.platform() == "cpu",
    )


def round_up(t: int) -> int:
    return -(-t // LANES) * LANES


def block_size(t: int, window: int) -> int:
    """The largest block that divides a row of t tokens, a multiple of 128."""
    largest = min(LARGEST_LOCAL_BLOCK if window else LARGEST_BLOCK, t)
    return next(size for size in range(largest, 0, -LANES) if t % size == 0)
