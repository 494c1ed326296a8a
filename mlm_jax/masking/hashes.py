"""Fingerprints of the rows and of their masks."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

from mlm_jax.batch import Batch, Masked


def _mix(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """The 32-bit finaliser of MurmurHash3 (Appleby)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def hashes(batch: Batch, masked: Masked) -> tuple[UInt32[Array, ""], UInt32[Array, ""]]:
    """Fingerprints of the rows and of their masks: sums over rows modulo 2^32, so that their order does not matter.

    Equal for every mesh, accumulation and number of processes, and independent of the number of slots.
    """
    row, visit = batch.row.astype(jnp.uint32), batch.visit.astype(jnp.uint32)
    of_row = _mix(_mix(row + 1) + visit)
    place = lax.broadcasted_iota(jnp.uint32, masked.inputs.shape, masked.inputs.ndim - 1)
    of_token = _mix(_mix(place + 1) + 2 * masked.inputs.astype(jnp.uint32) + masked.selected.astype(jnp.uint32))
    of_mask = _mix(of_row + of_token.sum(-1, dtype=jnp.uint32))
    return of_row.sum(dtype=jnp.uint32), of_mask.sum(dtype=jnp.uint32)
