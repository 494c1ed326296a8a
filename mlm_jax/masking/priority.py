"""Priority: which units go first. Every order is sampled; none is a hard choice of the best.

A unit of weight w goes before the others with the probability w / (sum of the weights), and so on with those that are
left: units are sorted by E / w, where the E are exponential draws (Efraimidis and Spirakis 2006, "Weighted random
sampling with a reservoir"; the same as Gumbel noise + log w in falling order, Kool et al. 2019, section 2). With
w = exp(score / temperature) a score is a log weight. The keys are log2(E) - log2(w) in fixed point, reckoned in
integers, so that the order by frequency is the same on every device.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from mlm_jax.config import MaskConfig
from mlm_jax.masking.draws import STRATA, Draws
from mlm_jax.masking.units import sizes
from mlm_jax.tokenizer import Vocabulary

LOG_BITS = 26  # bits after the point of a logarithm
KEY_BITS, WHOLE_BITS = 16, 7  # bits of a key after and before the point: up to 31 of the noise + 64 of the cost
COST_BITS = 10  # and of a cost, which is at most 64 - 1/1024, so that the sum of 65,535 fits 32 bits
WIDEST = (64 << COST_BITS) - 1
TABLE_BITS = 10


def order(
    draws: Draws,
    units: Int[Array, "t"],
    candidates: Bool[Array, "t"],
    tokens: Int[Array, "t"],
    scores: Float[Array, "t"] | None,
    vocabulary: Vocabulary,
    config: MaskConfig,
) -> UInt32[Array, "t"]:
    """The sort keys of the units, at their first tokens: the smallest goes first. The low bits may be cut off.

    uniform: the draws themselves. frequency: weight = (unigram frequency) ** -(frequency_power / temperature).
    importance: weight = exp(score / temperature), `scores` being finite numbers. A unit's score is the mean over its
    tokens, so that long units are not first because one of their tokens is rare.
    """
    key = draws.order
    if config.priority != "uniform":
        if config.priority == "importance":
            costs = _score_costs(scores, candidates, config)
        else:
            power = config.frequency_power / config.temperature
            costs = jnp.asarray(_costs(frequencies(vocabulary), vocabulary, power))[tokens]
        key = _race(draws.order, unit_means(costs, units, candidates)) << (32 - WHOLE_BITS - KEY_BITS)
    if config.stratify:
        key = _by_strata(key, draws.strata, units, candidates, tokens, vocabulary)
    return key


def unit_means(costs: UInt32[Array, "t"], units: Int[Array, "t"], candidates: Bool[Array, "t"]) -> UInt32[Array, "t"]:
    """The mean of each unit's costs at its first token, rounded down; undefined elsewhere."""
    total = jnp.zeros_like(costs).at[units].add(jnp.where(candidates, costs, 0))
    return total // jnp.maximum(sizes(units, candidates), 1).astype(jnp.uint32)


def _race(draws: UInt32[Array, "t"], costs: UInt32[Array, "t"]) -> UInt32[Array, "t"]:
    """log2(E) + cost with KEY_BITS after the point, E = -log2 of the uniform draw. The smallest wins."""
    exponential = np.uint32(32 << LOG_BITS) - log2(jnp.maximum(draws, 1))
    noise = log2(jnp.maximum(exponential, 1)) >> (LOG_BITS - KEY_BITS)
    return noise + (costs << (KEY_BITS - COST_BITS))


def log2(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """log2 of integers from 1, with LOG_BITS after the point, to about 2e-7: a table and a straight line between."""
    # its last entry stands for mantissa 2
    table = np.round(np.log2(1 + np.arange((1 << TABLE_BITS) + 1) / (1 << TABLE_BITS)) * (1 << LOG_BITS))
    steps = jnp.asarray(np.diff(table).astype(np.uint32))
    zeros = lax.clz(x)
    mantissa = x << zeros  # its top bit is 1
    entry = (mantissa >> (31 - TABLE_BITS)) & ((1 << TABLE_BITS) - 1)
    between = (mantissa & ((1 << (31 - TABLE_BITS)) - 1)) >> 6  # 15 bits; a step has 17
    whole = (31 - zeros) << LOG_BITS
    return whole + jnp.asarray(table[:-1].astype(np.uint32))[entry] + ((steps[entry] * between) >> 15)


# ---- costs: what a token's weight falls short of the largest, as a logarithm to base 2 ----


def frequencies(vocabulary: Vocabulary) -> np.ndarray:
    """Share of each id among the ordinary tokens of the training rows, their counts raised by 1; 0 for others.

    f64[size]. Raises ValueError where the vocabulary has no counts.
    """
    if vocabulary.counts is None:
        raise ValueError("the vocabulary has no unigram counts, which this way of masking needs")
    counts = np.zeros(vocabulary.size)
    counts[vocabulary.ordinary] = vocabulary.counts[vocabulary.ordinary] + 1.0
    return counts / counts.sum()


def _costs(shares: np.ndarray, vocabulary: Vocabulary, power: float) -> np.ndarray:
    """power x log2(share / the smallest share), u32[size] in fixed point."""
    rarest = shares[vocabulary.ordinary].min()
    bits = power * np.log2(np.maximum(shares, rarest) / rarest)
    return np.minimum(np.round(bits * (1 << COST_BITS)), WIDEST).astype(np.uint32)


def _score_costs(scores: Float[Array, "t"], candidates: Bool[Array, "t"], config: MaskConfig) -> UInt32[Array, "t"]:
    """Scores count from the row's highest; weights of less than 2 ** -64 of its weight count as that."""
    highest = jnp.where(candidates, scores, -jnp.inf).max()
    bits = (highest - scores) * np.float32((1 << COST_BITS) * np.log2(np.e) / config.temperature)
    return jnp.where(candidates, jnp.clip(jnp.round(bits), 0, WIDEST), 0).astype(jnp.uint32)


# ---- strata ----


def _by_strata(
    key: UInt32[Array, "t"],
    jitter: UInt32[Array, "strata"],
    units: Int[Array, "t"],
    candidates: Bool[Array, "t"],
    tokens: Int[Array, "t"],
    vocabulary: Vocabulary,
) -> UInt32[Array, "t"]:
    """Keys under which the ten strata of word frequency take turns, each in the order of the given keys.

    The unit of rank k among the n of its stratum in the row gets the key (k + u) / n, u a keyed number in [0, 1) per
    stratum: among the first units in this order each stratum has its share of the row, rounded without bias
    (proportional allocation, drawn systematically; Cochran 1977, "Sampling techniques", sections 5.5 and 8.1).
    """
    t = units.shape[0]
    low = np.uint32((1 << (t - 1).bit_length()) - 1)
    place = jnp.arange(t, dtype=jnp.uint32)
    is_unit = candidates & (units == place.astype(units.dtype))
    # (stratum, key, place) in one integer; the key has the bits that are left
    packed = (_strata(units, candidates, tokens, vocabulary) << 28) | ((key >> 4) & ~low) | place
    in_order = jnp.sort(jnp.where(is_unit, packed, np.uint32(0xFFFFFFFF)))
    stratum = in_order >> 28
    change = stratum[1:] != stratum[:-1]
    begin = lax.cummax(jnp.where(jnp.concatenate([jnp.ones((1,), bool), change]), place, 0))
    end = lax.cummin(jnp.where(jnp.concatenate([change, jnp.ones((1,), bool)]), place + 1, t), reverse=True)
    quantile = _fraction(((place - begin) << 16) + jitter[jnp.minimum(stratum, STRATA - 1)], end - begin)
    at = jnp.where(place < is_unit.sum(dtype=jnp.uint32), in_order & low, t)
    return jnp.zeros((t,), jnp.uint32).at[at].set(quantile, mode="drop", unique_indices=True)


def _fraction(x: UInt32[Array, "t"], n: UInt32[Array, "t"]) -> UInt32[Array, "t"]:
    """x / n with 32 bits after the point, of x < n in units of 1 / 65536."""
    return ((x // n) << 16) | (((x % n) << 16) // n)


def _strata(
    units: Int[Array, "t"], candidates: Bool[Array, "t"], tokens: Int[Array, "t"], vocabulary: Vocabulary
) -> UInt32[Array, "t"]:
    """0 (rarest) .. 9 at the first token of each unit, by its mean log frequency, in tenths of a text's tokens."""
    shares = frequencies(vocabulary)
    costs = _costs(shares, vocabulary, 1.0)
    by_cost = np.argsort(costs, kind="stable")
    upto = (
        np.cumsum(shares[by_cost]) - shares[by_cost] / 2
    )  # share of the text that is rarer than an id, itself by half
    # above the last there is nothing where one id holds more than two tenths
    ends = np.append(costs[by_cost], WIDEST + 1)[np.searchsorted(upto, np.arange(1, STRATA) / STRATA)]
    means = unit_means(jnp.asarray(costs)[tokens], units, candidates)
    return (means[:, None] >= jnp.asarray(ends)[None]).sum(-1, dtype=jnp.uint32)
