"""The mask of a batch, made on the device: units, priority, budget and corruption, one code path.

A mask is a pure function of (key, row, visit). In each segment the units are taken in keyed order while they fit the
segment's budget; then the corruption decides what stands at the selected positions. Every step works on one row of t
tokens and is mapped over the batch, so that nothing depends on a row's place in it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from mlm_jax.batch import Batch, Masked
from mlm_jax.config import MaskConfig, capacity
from mlm_jax.tokenizer import Vocabulary

ONE = 1 << 16  # rates and 16-bit draws are fractions of it
LAST = np.uint32(0xFFFFFFFF)  # sort key of what is not to be taken


def mask(
    key: Key[Array, ""],
    batch: Batch,
    vocabulary: Vocabulary,
    config: MaskConfig,
    rate: Float[Array, ""] | float,
) -> Masked:
    """Selects `rate` of the maskable tokens of each row, in whole units, and corrupts them.

    Args:
      key: the mask root, the same for every step; rows are told apart by `batch.row` and `batch.visit`.
      batch: rows of t tokens; all leading axes are mapped over.
      vocabulary: static. Special ids are never selected; random replacements are drawn from the ordinary ids.
      config: static. `config.capacity` gives the number of slots m.
      rate: share of the maskable tokens, a number or a traced scalar between 0 and max_rate.

    Returns:
      inputs [b,t] (the corrupted tokens), indices, targets and weights [b,m] in order of position, selected [b,t].

    The budget is exact: rate x maskable tokens of the row, rounded by a keyed draw so that its mean is right, and a
    segment has the part of it that falls on its tokens. The unit that would cross a segment's budget is taken with
    probability (tokens left over) / (its length), so that whole words keep the mean too. A row with a budget of which
    nothing was taken takes its first unit. Above m tokens whole units are dropped, last in keyed order first.
    """
    m = capacity(config, batch.tokens.shape[-1], batch.firsts.shape[-1])

    def one_row(tokens, segments, word_starts, row, visit, weight):
        row_key = jax.random.fold_in(jax.random.fold_in(key, row), visit)
        return _mask_row(row_key, tokens, segments, word_starts, weight, vocabulary, config, rate, m)

    for _ in batch.row.shape:
        one_row = jax.vmap(one_row)
    visit = _regime_visit(config, batch.visit)
    return one_row(batch.tokens, batch.segments, batch.word_starts, batch.row, visit, batch.weight)


def _regime_visit(config: MaskConfig, visit: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """What stands for the visit in the key: the visit (dynamic), 0 (static), or the visit modulo the versions."""
    if config.regime == "static":
        return visit * 0
    return visit % config.versions if config.regime == "multi-version" else visit


def _mask_row(key, tokens, segments, word_starts, weight, vocabulary, config, rate, m) -> Masked:
    t = tokens.shape[0]
    candidates = maskable(tokens, segments, vocabulary)
    order, draws, replacements, rounding = jnp.split(jax.random.bits(key, (3 * t + 1,)), (t, 2 * t, 3 * t))
    crossing, kind = draws >> 16, draws & 0xFFFF
    budget = jnp.round(ONE * jnp.asarray(rate, jnp.float32)).astype(jnp.uint32)

    units = UNITS[config.unit](candidates, segments, word_starts)
    taken = _take(units, candidates, segments, order, crossing, budget, rounding[0] & 0xFFFF, config.min_per_segment, m)
    position = jnp.sort(taken)  # an empty slot has position t, which gathers clip and scatters drop
    filled = position < t
    indices = jnp.where(filled, position, 0)
    targets = jnp.where(filled, tokens[indices], 0)
    drawn_at = units[indices] if config.corruption_per == "unit" else indices
    corrupted = _corrupt(targets, kind[drawn_at], replacements[indices], vocabulary, config.corruption)
    return Masked(
        inputs=tokens.at[position].set(corrupted, mode="drop"),
        indices=indices,
        targets=targets,
        weights=jnp.where(filled, weight, 0.0),
        selected=jnp.zeros((t,), bool).at[position].set(True, mode="drop"),
    )


def maskable(tokens: Int[Array, "*b t"], segments: Int[Array, "*b t"], vocabulary: Vocabulary) -> Bool[Array, "*b t"]:
    """Tokens that may be selected: in a segment, and not special; known by their id, not by their place."""
    special = np.zeros(vocabulary.size, bool)
    special[vocabulary.special] = True
    return (segments > 0) & ~jnp.asarray(special)[tokens]


# ---- units: what stands or falls together ----
# A unit is a run of maskable tokens of one segment, named by the position of its first token.


def _runs(maskable: Bool[Array, "t"], starts: Bool[Array, "t"], segments: Int[Array, "t"]) -> Int[Array, "t"]:
    """Unit ids from unit starts; a run also starts after whatever is not maskable and at a segment's border."""
    before = jnp.concatenate([jnp.zeros((1,), bool), maskable[:-1]])
    border = jnp.concatenate([jnp.ones((1,), bool), segments[1:] != segments[:-1]])
    position = jnp.arange(maskable.shape[0])
    return lax.cummax(jnp.where(starts | ~before | border | ~maskable, position, 0))


def token_units(maskable: Bool[Array, "t"], segments: Int[Array, "t"], word_starts: Bool[Array, "t"]):
    """Each token alone."""
    return _runs(maskable, jnp.ones_like(maskable), segments)


def word_units(maskable: Bool[Array, "t"], segments: Int[Array, "t"], word_starts: Bool[Array, "t"]):
    """Whole words, from the word starts that the tokenizer gave."""
    return _runs(maskable, word_starts, segments)


UNITS = {"token": token_units, "word": word_units}


# ---- budget ----


def _take(
    units: Int[Array, "t"],
    maskable: Bool[Array, "t"],
    segments: Int[Array, "t"],
    order: UInt32[Array, "t"],
    crossing: UInt32[Array, "t"],
    budget: UInt32[Array, ""],
    rounding: UInt32[Array, ""],
    min_per_segment: int,
    m: int,
) -> Int[Array, "m"]:
    """Positions of the tokens that are taken, in keyed order; t in empty slots.

    `order` and `crossing` are draws, of which a unit's are those at its first token; `budget` is the rate and
    `rounding` a draw, both in units of 1/65536.

    Keys of several parts are packed into one uint32, since sorting single integers is about five times as fast as
    sorting tuples: (draw, position), then (segment, place in the keyed order), then the place in the keyed order alone.
    """
    t = units.shape[0]
    bits = (t - 1).bit_length()
    low = np.uint32((1 << bits) - 1)
    place = jnp.arange(t, dtype=jnp.uint32)
    count = maskable.sum(dtype=jnp.uint32)

    # the keyed order of the row: tokens by their unit's draw, then by position
    first = jnp.sort(jnp.where(maskable, (order[units] & ~low) | place, LAST)) & low
    # the same within segments
    by_segment = jnp.sort(jnp.where(place < count, (segments[first].astype(jnp.uint32) << bits) | place, LAST)) & low
    position = first[by_segment].astype(jnp.int32)
    real = place < count
    unit, segment = units[position], jnp.where(real, segments[position], 0)
    size = _sizes(units, maskable)[unit]

    # places where the token's segment begins and ends, and the segment's budget between them
    change = segment[1:] != segment[:-1]
    begin = lax.cummax(jnp.where(jnp.concatenate([jnp.ones((1,), bool), change]), place, 0))
    end = lax.cummin(jnp.where(jnp.concatenate([change, jnp.ones((1,), bool)]), place + 1, t), reverse=True)
    limit = ((budget * end + rounding) >> 16) - ((budget * begin + rounding) >> 16)
    start = place - begin - (position - unit).astype(jnp.uint32)  # tokens of the segment taken before this unit
    limit = limit.astype(jnp.int32)
    start = start.astype(jnp.int32)

    left = limit - start
    probability = (crossing[unit].astype(jnp.int32) * size) >> 16  # uniform in 0 .. size - 1
    take = (left >= size) | ((left > 0) & (probability < left)) | (start < min_per_segment)
    nothing = ~(take & real).any() & ((budget * count + rounding) >> 16 > 0)
    take = real & (take | (nothing & (unit == units[first[0]])))

    # the m first in keyed order; a unit that does not fit whole is dropped
    kept = jnp.sort(jnp.where(take, by_segment, t))
    position = jnp.where(kept < t, first[jnp.minimum(kept, t - 1)].astype(jnp.int32), t)
    if m == t:
        return position
    padded_units = jnp.append(units, -1)
    cut = (position[m] < t) & (padded_units[position[:m]] == padded_units[position[m]])
    return jnp.where(cut, t, position[:m])


def _sizes(units: Int[Array, "t"], maskable: Bool[Array, "t"]) -> Int[Array, "t"]:
    """Tokens of the unit that starts at each position; undefined elsewhere."""
    return jnp.zeros_like(units).at[units].add(maskable.astype(units.dtype))


# ---- corruption ----


def _corrupt(
    tokens: Int[Array, "m"],
    kind: UInt32[Array, "m"],
    replacement: UInt32[Array, "m"],
    vocabulary: Vocabulary,
    shares: tuple[float, float, float],
) -> Int[Array, "m"]:
    """MASK, a random ordinary id, or the token itself, by the 16-bit draw `kind`."""
    masked, random = round(ONE * shares[0]), round(ONE * (shares[0] + shares[1]))
    ordinary = jnp.asarray(vocabulary.ordinary)
    drawn = ordinary[replacement % np.uint32(vocabulary.ordinary.size)]
    return jnp.where(kind < masked, vocabulary.mask, jnp.where(kind < random, drawn, tokens))


# ---- fingerprints ----


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
