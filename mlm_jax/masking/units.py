"""Units: what stands or falls together.

A unit is a run of maskable tokens of one segment, named by the position of its first token. A way to cut is a function
that says where units start; a unit also starts after whatever is not maskable and where a segment begins, so that none
crosses a special token or a segment.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

from mlm_jax.batch import Batch
from mlm_jax.config import MaskConfig
from mlm_jax.masking.draws import Draws
from mlm_jax.tokenizer import Vocabulary

ONE = 1 << 16  # rates, shares and 16-bit draws are fractions of it


class Cut(NamedTuple):
    """The partition of a row. `words` is `units` where no unit is longer than a word (or a token, if those are it)."""

    units: Int[Array, "t"]
    words: Int[Array, "t"]  # parts of the units: whole words, or tokens where a unit is a token


def maskable(tokens: Int[Array, "*b t"], segments: Int[Array, "*b t"], vocabulary: Vocabulary) -> Bool[Array, "*b t"]:
    """Tokens that may be selected: in a segment, and not special; known by their id, not by their place."""
    special = np.zeros(vocabulary.size, bool)
    special[vocabulary.special] = True
    return (segments > 0) & ~jnp.asarray(special)[tokens]


def cut(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Cut:
    """The row's partition by `config.unit`. candidates: the maskable tokens."""
    if config.unit == "token":  # the same as below, where compilers take minutes for a scan over what is constant
        each = jnp.arange(candidates.shape[0])
        return Cut(each, each)
    starts = STARTS[config.unit](row, candidates, draws, config)
    units = runs(candidates, starts, row.segments)
    if config.unit == "word":
        return Cut(units, units)
    return Cut(units, runs(candidates, starts | row.word_starts, row.segments))


def runs(maskable: Bool[Array, "t"], starts: Bool[Array, "t"], segments: Int[Array, "t"]) -> Int[Array, "t"]:
    """Unit ids from unit starts; a run also starts after whatever is not maskable and at a segment's border."""
    before = jnp.concatenate([jnp.zeros((1,), bool), maskable[:-1]])
    border = jnp.concatenate([jnp.ones((1,), bool), segments[1:] != segments[:-1]])
    position = jnp.arange(maskable.shape[0])
    return lax.cummax(jnp.where(starts | ~before | border | ~maskable, position, 0))


def sizes(units: Int[Array, "t"], maskable: Bool[Array, "t"]) -> Int[Array, "t"]:
    """Tokens of the unit that starts at each position; undefined elsewhere."""
    return jnp.zeros_like(units).at[units].add(maskable.astype(units.dtype))


# ---- where units start ----


def _tokens(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    return jnp.ones_like(candidates)


def _words(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    """Whole words, from the word starts that the tokenizer gave."""
    return row.word_starts


def _spans(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    """Runs of words whose lengths are geometric, truncated at `span_cap` (SpanBERT, section 3.1)."""
    return _by_lengths(row, candidates, draws, geometric(config.span_p, config.span_cap))


def _ngrams(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    """Runs of 1 to `ngram_max` words, of n with a probability in proportion to 1 / n (ALBERT, section 4.1)."""
    return _by_lengths(row, candidates, draws, harmonic(config.ngram_max))


def _phrases(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    """Collocations: words that the rows mark as continuing the phrase before belong to it."""
    return row.word_starts & ~row.phrase_joins


def _sentences(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    return row.sentence_starts


def _paragraphs(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    return row.paragraph_starts


def _hierarchical(row: Batch, candidates: Bool[Array, "t"], draws: Draws, config: MaskConfig) -> Bool[Array, "t"]:
    """Each sentence draws a level by weight and is cut by it."""
    sentences = runs(candidates, row.sentence_starts, row.segments)
    weights = np.array([weight for _, weight in config.levels])
    level = pick(draws.levels[sentences], weights / weights.sum())
    starts = row.sentence_starts
    for number, (name, _) in enumerate(config.levels):
        starts |= (level == number) & STARTS[name](row, candidates, draws, config)
    return starts


STARTS = {
    "token": _tokens,
    "word": _words,
    "span": _spans,
    "ngram": _ngrams,
    "phrase": _phrases,
    "sentence": _sentences,
    "paragraph": _paragraphs,
    "hierarchical": _hierarchical,
}


# ---- keyed lengths ----


def geometric(p: float, cap: int) -> np.ndarray:
    """Probabilities of the lengths 1 .. cap: p (1 - p)^(n - 1), renormalised. p = 0.2, cap = 10: mean 3.797."""
    shares = (1 - p) ** np.arange(cap)
    return shares / shares.sum()


def harmonic(longest: int) -> np.ndarray:
    """Probabilities of the lengths 1 .. longest, in proportion to 1 / n."""
    shares = 1 / np.arange(1, longest + 1)
    return shares / shares.sum()


def pick(draws: UInt32[Array, "n"], shares: np.ndarray) -> Int[Array, "n"]:
    """The number 0 .. len(shares) - 1 that each 16-bit draw stands for, by the shares."""
    ends = np.round(ONE * np.cumsum(shares)[:-1]).astype(np.uint32)
    return (draws[:, None] >= jnp.asarray(ends)[None]).sum(-1, dtype=jnp.int32)


def _by_lengths(row: Batch, candidates: Bool[Array, "t"], draws: Draws, shares: np.ndarray) -> Bool[Array, "t"]:
    """Starts of runs of words of keyed lengths, one after another over the whole row.

    The row's first run is one that began before it: what is left of a run of length n at a random place of a long
    text, k = 1 .. n, has P(k) = P(n >= k) / mean (the equilibrium of a renewal process). So a text's first word is a
    border no more often than the others would be, and so are the first words of later segments, which cut a run short.
    """
    t = candidates.shape[0]
    position = jnp.arange(t)
    # the number of each word in the row
    starts = candidates & (runs(candidates, row.word_starts, row.segments) == position)
    word = jnp.cumsum(starts, dtype=jnp.int32) - 1
    left = np.cumsum(shares[::-1])[::-1]
    lengths = 1 + jnp.concatenate([pick(draws.lengths[:1], left / left.sum()), pick(draws.lengths[1:], shares)])
    borders = (
        jnp.zeros((t,), bool)
        .at[jnp.cumsum(lengths)]
        .set(True, mode="drop", indices_are_sorted=True, unique_indices=True)
    )
    return starts & borders[word]
