"""The random bits of a row's mask: one call of the generator, cut into named parts."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Key, UInt32

from mlm_jax.config import MaskConfig

STRATA = 10


class Draws(NamedTuple):
    """What a row of t tokens draws. Parts of 16 bits are uniform in 0 .. 65535; a part that is not needed is empty."""

    order: UInt32[Array, "t"]  # 32 bits: the order of the units; a unit's is the one at its first token
    crossing: UInt32[Array, "t"]  # 16 bits: whether a word that does not fit is taken
    kind: UInt32[Array, "t"]  # 16 bits: MASK, random or kept
    replacement: UInt32[Array, "t"]  # 32 bits: the random token
    rounding: UInt32[Array, ""]  # 16 bits: of the row's budget
    lengths: UInt32[Array, "n"]  # 16 bits: words of the n-th span of the row
    begins: UInt32[Array, "n"]  # 16 bits: where the run in a long unit begins
    levels: UInt32[Array, "n"]  # 16 bits: the level of the sentence that begins here
    strata: UInt32[Array, "n"]  # 16 bits: one for each stratum


def long_units(config: MaskConfig) -> bool:
    """Whether a unit may be longer than a word."""
    return config.unit not in ("token", "word")


def draw(key: Key[Array, ""], t: int, config: MaskConfig) -> Draws:
    """All draws of a row of t tokens. Which parts there are depends on the config alone."""
    sizes = (
        t,
        t,
        t,
        1,
        t * long_units(config),
        t * (config.unit == "hierarchical"),
        STRATA * config.stratify,
    )
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    bits = jax.random.bits(key, (ends[-1],))
    order, halves, replacement, rounding, cuts, levels, strata = (
        bits[end - size : end] for end, size in zip(ends, sizes)
    )
    return Draws(
        order=order,
        crossing=halves >> 16,
        kind=halves & 0xFFFF,
        replacement=replacement,
        rounding=rounding[0] & 0xFFFF,
        lengths=cuts & 0xFFFF,
        begins=cuts >> 16,
        levels=levels >> 16,
        strata=strata >> 16,
    )
