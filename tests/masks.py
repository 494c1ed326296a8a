"""Masks for tests: of a batch, of one row many times, and by a plain Python oracle."""

from functools import partial

import jax
import numpy as np
from batches import batch

from mlm_jax.config import capacity
from mlm_jax.masking import mask
from mlm_jax.masking.draws import draw
from mlm_jax.masking.units import geometric, harmonic

KEY = jax.random.key(0, impl="threefry2x32")
WORD, SENTENCE, PARAGRAPH, JOIN = 1, 2, 4, 8


@partial(jax.jit, static_argnums=(1, 2))
def run(batch, vocabulary, config, rate=None, **options):
    return mask(KEY, batch, vocabulary, config, config.rate if rate is None else rate, **options)


def many(tokens, config, vocabulary, n, segments=None, word_starts=None):
    """The masks of n rows that hold the same tokens."""
    tokens, segments, word_starts = (None if x is None else np.tile(x, (n, 1)) for x in (tokens, segments, word_starts))
    rows = batch(tokens, segments, word_starts, rows=np.arange(n), max_segments=16)
    return run(rows, vocabulary, config)


@partial(jax.jit, static_argnums=(2, 3))
def draws_of(rows, visits, t, config):
    keys = jax.vmap(lambda row, visit: jax.random.fold_in(jax.random.fold_in(KEY, row), visit))(rows, visits)
    return jax.vmap(lambda key: draw(key, t, config))(keys)


def which(draw, shares):
    """The number that a 16-bit draw stands for."""
    return int(np.searchsorted(np.round(65536 * np.cumsum(shares)[:-1]), draw, side="right"))


def lengths_of(draws, shares):
    """Words of one run after another; the first is what is left of a run at a random place."""
    left = [sum(shares[k:]) for k in range(len(shares))]
    yield 1 + which(draws[0], np.array(left) / sum(left))
    for each in draws[1:]:
        yield 1 + which(each, shares)


def units_of(flags, open_to_mask, segments, draws, config):
    """The units of a row, each a list of words, each a list of positions."""
    flags = [int(flag) for flag in flags]
    lengths = None
    if config.unit in ("span", "hierarchical"):
        lengths = lengths_of(draws.lengths.tolist(), geometric(config.span_p, config.span_cap))
    if config.unit == "ngram":
        lengths = lengths_of(draws.lengths.tolist(), harmonic(config.ngram_max))
    left = next(lengths) if lengths else 0
    units, level = [], None
    for j, flag in enumerate(flags):
        if not open_to_mask[j]:
            continue
        border = j == 0 or not open_to_mask[j - 1] or segments[j - 1] != segments[j]
        word = border or flag & WORD
        span = False
        if word and lengths:
            span, left = left == 0, left or next(lengths)
            left -= 1
        if config.unit == "hierarchical" and (border or flag & SENTENCE):
            weights = np.array([weight for _, weight in config.levels])
            level = config.levels[which(draws.levels[j], weights / weights.sum())][0]
        starts = {
            "token": True,
            "word": word,
            "span": span,
            "ngram": span,
            "phrase": word and not flag & JOIN,
            "sentence": flag & SENTENCE,
            "paragraph": flag & PARAGRAPH,
        }
        new = starts[config.unit] if level is None else starts[level] or flag & SENTENCE
        if border or new:
            units.append([])
        if border or new or word or config.unit == "token":
            units[-1].append([])
        units[-1][-1].append(j)
    return units


def oracle(batch, vocabulary, config, rate):
    """Positions selected in each row, by the rules one after another, in Python integers; uniform priority."""
    chosen = []
    all_draws = jax.device_get(draws_of(batch.row, batch.visit, batch.tokens.shape[1], config))
    for i in range(batch.tokens.shape[0]):
        tokens, segments, flags = (np.asarray(x[i]) for x in (batch.tokens, batch.segments, batch.flags))
        draws, t = jax.tree.map(lambda x, i=i: x[i], all_draws), len(tokens)
        order, crossing, rounding = draws.order.tolist(), draws.crossing.tolist(), int(draws.rounding)
        open_to_mask = (segments > 0) & ~np.isin(tokens, vocabulary.special)
        low = (1 << (t - 1).bit_length()) - 1
        units = units_of(flags, open_to_mask, segments, draws, config)
        units.sort(key=lambda unit: (order[unit[0][0]] & ~low, unit))
        total, taken, firsts = 0, [], {}
        integer_rate = round(rate * 65536)
        for segment in range(1, segments.max() + 1):
            own = [unit for unit in units if segments[unit[0][0]] == segment]
            before, total = total, total + sum(len(word) for unit in own for word in unit)
            limit = ((integer_rate * total + rounding) >> 16) - ((integer_rate * before + rounding) >> 16)
            used, ended = 0, False
            for unit in own:
                size, begin = sum(map(len, unit)), 0
                wanted = min(size, max(1, max(limit, config.min_per_segment) - used))
                if len(unit) > 1:  # a keyed word with enough behind it
                    choices = [k for k in range(len(unit)) if sum(map(len, unit[k:])) >= wanted]
                    begin = choices[int(draws.begins[unit[0][0]]) * len(choices) >> 16]
                firsts[unit[0][0]] = unit[begin]
                for word in unit[begin:] + unit[:begin]:
                    left = limit - used
                    lucky = left > 0 and (crossing[word[0]] * len(word)) >> 16 < left
                    ended = ended or not (len(word) <= left or lucky or used < config.min_per_segment)
                    taken += [] if ended else [word]
                    used += len(word)
        if not taken and (integer_rate * total + rounding) >> 16 > 0:
            taken = [firsts[units[0][0][0]]]
        # words above the capacity are dropped, last in keyed order first
        rank = {word[0]: (number, word) for number, unit in enumerate(units) for word in unit}
        slots, kept = capacity(config, t, batch.firsts.shape[1]), []
        for word in sorted(taken, key=lambda word: rank[word[0]]):
            if len(kept) + len(word) > slots:
                break
            kept += word
        chosen.append(sorted(kept))
    return chosen


def positions_of(masked):
    return [np.flatnonzero(row).tolist() for row in np.asarray(masked.selected)]
