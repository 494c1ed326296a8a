"""Budget: how many tokens of each segment are taken, in whole words; exact and unbiased, in integers."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from mlm_jax.masking.draws import Draws
from mlm_jax.masking.units import ONE, Cut, sizes

LAST = np.uint32(0xFFFFFFFF)  # sort key of what is not to be taken


def take(
    cut: Cut,
    candidates: Bool[Array, "t"],
    segments: Int[Array, "t"],
    order: UInt32[Array, "t"],
    draws: Draws,
    rate: Float[Array, ""] | float,
    min_per_segment: int,
    m: int,
) -> tuple[Int[Array, "m"], Int[Array, ""]]:
    """Positions of the tokens that are taken, in keyed order, t in empty slots; and how many were dropped above m.

    `order` holds the sort keys of the units, at their first tokens. All tokens of the row stand in a line: segment by
    segment, in each the units in keyed order. A segment's budget is the first part of its stretch; words are taken
    while they end within it, and the one that crosses its end with the probability (part within) / (its length).

    A unit longer than what is left of the budget is turned round first: it begins at a keyed word, one of those from
    which at least the left over remains, all alike.
    """
    t = cut.units.shape[0]
    place = jnp.arange(t, dtype=jnp.uint32)
    count = candidates.sum(dtype=jnp.uint32)
    real = place < count
    first, by_segment = _line(cut.units, candidates, segments, order)
    position = first[by_segment].astype(jnp.int32)
    unit, segment = cut.units[position], jnp.where(real, segments[position], 0)
    size = sizes(cut.units, candidates)[unit]

    budget = jnp.round(ONE * jnp.asarray(rate, jnp.float32)).astype(jnp.uint32)
    begin, limit = _limits(segment, budget, draws.rounding)
    # tokens of the segment that stand before this unit, and before this word
    before = (place - begin - (position - unit).astype(jnp.uint32)).astype(jnp.int32)
    word, within = unit, 0
    if cut.words is not cut.units:
        wanted = jnp.clip(jnp.maximum(limit, min_per_segment) - before, 1, size)
        word, within = _turn(cut.words, position, unit, size, wanted, draws.begins)
        size = sizes(cut.words, candidates)[word]
    left = limit - before - within
    crosses = (left > 0) & (((draws.crossing[word] * size.astype(jnp.uint32)) >> 16).astype(jnp.int32) < left)
    taken = (left >= size) | crosses | (before + within < min_per_segment)
    # a row with a budget of which nothing was taken takes the first word of its first unit
    nothing = ~(taken & real).any() & ((budget * count + draws.rounding) >> 16 > 0)
    taken = real & (taken | (nothing & (unit == cut.units[first[0]]) & (within == 0)))
    return _fit(jnp.where(taken, by_segment, t), first, cut.words, m)


def _line(
    units: Int[Array, "t"], candidates: Bool[Array, "t"], segments: Int[Array, "t"], order: UInt32[Array, "t"]
) -> tuple[UInt32[Array, "t"], UInt32[Array, "t"]]:
    """The keyed order of the row: positions, units whole; and the places of that order, segment by segment.

    Keys of several parts are packed into one uint32, since sorting single integers is about five times as fast as
    sorting tuples: (key, position), then (segment, place in the keyed order).
    """
    t = units.shape[0]
    bits = (t - 1).bit_length()
    low = np.uint32((1 << bits) - 1)
    place = jnp.arange(t, dtype=jnp.uint32)
    first = jnp.sort(jnp.where(candidates, (order[units] & ~low) | place, LAST)) & low
    real = place < candidates.sum(dtype=jnp.uint32)
    return first, jnp.sort(jnp.where(real, (segments[first].astype(jnp.uint32) << bits) | place, LAST)) & low


def _limits(
    segment: Int[Array, "t"], budget: UInt32[Array, ""], rounding: UInt32[Array, ""]
) -> tuple[UInt32[Array, "t"], Int[Array, "t"]]:
    """For each place in the line: where its segment begins, and the segment's budget of tokens."""
    t = segment.shape[0]
    place = jnp.arange(t, dtype=jnp.uint32)
    change = segment[1:] != segment[:-1]
    begin = lax.cummax(jnp.where(jnp.concatenate([jnp.ones((1,), bool), change]), place, 0))
    end = lax.cummin(jnp.where(jnp.concatenate([change, jnp.ones((1,), bool)]), place + 1, t), reverse=True)
    limit = ((budget * end + rounding) >> 16) - ((budget * begin + rounding) >> 16)
    return begin, limit.astype(jnp.int32)


def _turn(
    words: Int[Array, "t"],
    position: Int[Array, "t"],
    unit: Int[Array, "t"],
    size: Int[Array, "t"],
    wanted: Int[Array, "t"],
    begins: UInt32[Array, "t"],
) -> tuple[Int[Array, "t"], Int[Array, "t"]]:
    """The word of each token in the line, and how many tokens of its unit stand before it once that is turned round.

    A unit of which all is wanted begins with its first word.
    """
    place = jnp.arange(words.shape[0])
    starts = words == place
    number = jnp.cumsum(starts, dtype=jnp.int32) - 1  # of the word that a token belongs to
    start_of = jnp.sort(jnp.where(starts, place, words.shape[0]))
    choices = (number[unit + size - wanted] - number[unit] + 1).astype(jnp.uint32)
    start = start_of[number[unit] + ((begins[unit] * choices) >> 16).astype(jnp.int32)]
    word = words[position]
    within = word - start
    return word, jnp.where(within < 0, within + size, within)


def _fit(
    kept: UInt32[Array, "t"], first: UInt32[Array, "t"], words: Int[Array, "t"], m: int
) -> tuple[Int[Array, "m"], Int[Array, ""]]:
    """The m first positions in keyed order; a word that does not fit whole is dropped. kept: places taken, else t."""
    t = words.shape[0]
    kept = jnp.sort(kept)
    position = jnp.where(kept < t, first[jnp.minimum(kept, t - 1)].astype(jnp.int32), t)
    if m == t:
        return position, jnp.zeros((), jnp.int32)
    padded = jnp.append(words, -1)
    cut = (position[m] < t) & (padded[position[:m]] == padded[position[m]])
    fitting = jnp.where(cut, t, position[:m])
    return fitting, (position < t).sum(dtype=jnp.int32) - (fitting < t).sum(dtype=jnp.int32)
