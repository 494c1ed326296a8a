"""How often tokens are selected over the visits of their rows, under each regime, beside closed forms.

What a regime decides is how many different masks a row has: after E visits one (static), at most `versions`
(multi-version), or E (dynamic). The closed forms hold for masks drawn apart from each other, each of which selects
every token of a row with the same probability p: units of single tokens, uniform priority. What other units and
priorities do to coverage is the difference.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from mlm_jax import masking
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import MaskConfig
from mlm_jax.tokenizer import Vocabulary

DYNAMIC, STATIC, VERSIONS = "dynamic", "static", "multi-version"


@dataclasses.dataclass
class Counts:
    """Histograms of how often tokens were selected under one regime, after each of E visits.

    Line e holds, for e + 1 visits, the number of tokens that were selected c = 0 .. E times: as counted, and as the
    closed form expects where p is what the masks so far selected of the row. (In a row of n tokens the rounding of its
    budget moves that by half a token in each mask, which lifts the variance by less than E^2 / (4 k n^2) for k masks.)
    """

    config: MaskConfig
    measured: Int[np.ndarray, "e c"]
    expected: Float[np.ndarray, "e c"]
    rows: int = 0  # that have a token that may be masked
    dropped: int = 0  # tokens that found no slot, over all visits

    @classmethod
    def empty(cls, config: MaskConfig, visits: int) -> "Counts":
        shape = (visits, visits + 1)
        return cls(config, np.zeros(shape, np.int64), np.zeros(shape))

    @property
    def name(self) -> str:
        if self.config.regime != VERSIONS:
            return self.config.regime
        return f"{self.config.versions} version{'s' * (self.config.versions > 1)}"

    @property
    def tokens(self) -> int:
        """Tokens that may be masked."""
        return int(self.measured[0].sum())

    @property
    def rate(self) -> float:
        """Share of the tokens that a visit selects, of all visits."""
        visits = len(self.measured)
        return float(self.measured[-1] @ np.arange(visits + 1) / max(visits * self.tokens, 1))


def regimes(config: MaskConfig, versions: Sequence[int]) -> list[MaskConfig]:
    """A config for each regime, with all else as it is: static, each number of versions, dynamic."""
    several = [dataclasses.replace(config, regime=VERSIONS, versions=number) for number in versions]
    return [dataclasses.replace(config, regime=STATIC), *several, dataclasses.replace(config, regime=DYNAMIC)]


def masks_in(config: MaskConfig, visits: int) -> int:
    """How many different masks a row has in so many visits."""
    return min(visits, {STATIC: 1, VERSIONS: config.versions, DYNAMIC: visits}[config.regime])


def count(
    batches: Iterable[Batch],
    masks: Sequence[tuple[MaskConfig, Callable[[Batch], Masked]]],
    vocabulary: Vocabulary,
    visits: int,
) -> list[Counts]:
    """Makes the masks of every row at its visits 0 .. `visits` - 1 in each way, and counts.

    batches: rows [b,t], whatever their visit; masks: for each way its config, and what masks a batch so. One batch of
    counts is in memory, never the masks of more than one visit.
    """
    makers = [_maker(mask) for _, mask in masks]
    counts = [Counts.empty(config, visits) for config, _ in masks]
    for batch in batches:
        batch = jax.tree.map(jnp.asarray, batch)
        maskable = np.asarray(masking.maskable(batch.tokens, batch.segments, vocabulary))
        kept = maskable.any(1)
        for make, found in zip(makers, counts):
            _add(found, make, batch, maskable[kept], kept)
    return counts


def _maker(mask: Callable[[Batch], Masked]):
    """`make(batch, visit)`: the tokens selected at this visit, bool[b,t], and how many of each row were dropped."""

    @jax.jit
    def make(batch: Batch, visit: Int[Array, ""]):
        batch = dataclasses.replace(batch, visit=jnp.full_like(batch.visit, visit))
        masked = mask(batch)
        return masked.selected, masked.dropped

    return make


def _add(found: Counts, make, batch: Batch, maskable: np.ndarray, kept: np.ndarray) -> None:
    """Adds the rows that are `kept`; maskable: of those, bool[n,t]."""
    visits = len(found.measured)
    times = np.zeros(maskable.shape, np.int32)  # each token was selected
    tokens, so_far = maskable.sum(1), np.zeros((visits, len(maskable)), np.int64)  # tokens of a row, and selections
    for visit in range(visits):
        selected, dropped = make(batch, jnp.int32(visit))
        times += np.asarray(selected)[kept]
        found.dropped += int(dropped.sum())
        found.measured[visit] += np.bincount(times[maskable], minlength=visits + 1)
        so_far[visit] = times.sum(1)
    for visit in range(visits):
        masks = masks_in(found.config, visit + 1)
        rates = so_far[masks - 1] / (masks * tokens)
        found.expected[visit, : visit + 2] += tokens @ distribution(rates, visit + 1, masks)
    found.rows += len(maskable)


# ---- closed forms ----


def distribution(p: Float[np.ndarray, " n"], visits: int, masks: int) -> Float[np.ndarray, "n c"]:
    """The chances that a token is selected c = 0 .. E times in E = `visits`, for each p: its chance in one mask.

    With k = `masks` masks that are seen in turn, and E = q k + s, s of them are seen q + 1 times and k - s q times:

        count = (q + 1) A + q B,   A ~ Binomial(s, p),   B ~ Binomial(k - s, p)

    From this: coverage 1 - (1 - p)^k; mean E p; variance p (1 - p) (s (q + 1)^2 + (k - s) q^2). Static masks (k = 1)
    have E^2 p (1 - p), dynamic ones (k = E) E p (1 - p). E is at most 1,000: larger binomial coefficients do not fit
    a float.
    """
    each, more = divmod(visits, masks)
    often, others = _binomial(p, more), _binomial(p, masks - more)
    chances = np.zeros((len(p), visits + 1))
    for a in range(more + 1):
        first = a * (each + 1)
        chances[:, first : first + each * (masks - more) + 1 : each] += often[:, a, None] * others
    return chances


def _binomial(p: Float[np.ndarray, " n"], trials: int) -> Float[np.ndarray, "n c"]:
    # powers 0, 1, ... of p, and those of 1 - p downwards
    return _coefficients(trials) * np.vander(p, trials + 1, increasing=True) * np.vander(1 - p, trials + 1)


@functools.cache
def _coefficients(trials: int) -> np.ndarray:
    return np.array([[float(math.comb(trials, c)) for c in range(trials + 1)]])


# ---- what the histograms say ----


def coverage(tokens: Num[np.ndarray, "e c"]) -> Float[np.ndarray, " e"]:
    """Share of the tokens that were selected at least once. tokens: by how often they were, as in `Counts`."""
    return 1 - tokens[:, 0] / tokens.sum(1)


def variance(tokens: Num[np.ndarray, "e c"]) -> Float[np.ndarray, " e"]:
    """Variance, over the tokens, of how often each was selected."""
    c = np.arange(tokens.shape[1])
    return tokens @ c**2 / tokens.sum(1) - (tokens @ c / tokens.sum(1)) ** 2


def entropy(tokens: Num[np.ndarray, "e c"]) -> Float[np.ndarray, " e"]:
    """Entropy of the place of a selection, as a share of the largest possible, log of the number of tokens.

    The selections of all visits are spread over the N tokens in shares q_i = c_i / sum(c): -sum(q_i log q_i) / log N.
    1: each token as often as any other. Static masks at rate p: 1 + log(p) / log(N). NaN where nothing is selected.
    """
    c = np.arange(tokens.shape[1])
    selections = tokens @ c
    with np.errstate(divide="ignore", invalid="ignore"):
        return (np.log(selections) - tokens @ (c * np.log(np.maximum(c, 1))) / selections) / np.log(tokens.sum(1))


MEASURES = {"coverage": coverage, "variance": variance, "entropy": entropy}
EXPLAINED = {
    "coverage": "share of the tokens selected at least once",
    "variance": "of how often each token is selected",
    "entropy": "of where selections fall, as a share of the largest possible: 1 is every token as often as any other",
}


def findings(counts: Sequence[Counts]) -> dict:
    """All figures, for programs: for each regime and measure one value for 1, 2, ... E visits, counted and expected.

    None stands where there is no value: the entropy of no selection.
    """
    found = []
    for one in counts:
        versions = one.config.versions if one.config.regime == VERSIONS else None
        about = {"name": one.name, "regime": one.config.regime, "versions": versions}
        kinds = {"measured": one.measured, "formula": one.expected}
        values = {
            name: {kind: _listed(measure(tokens)) for kind, tokens in kinds.items()}
            for name, measure in MEASURES.items()
        }
        found.append({**about, "rate": one.rate, "dropped for want of slots": one.dropped, **values})
    first = counts[0]
    return {"rows": first.rows, "tokens": first.tokens, "visits": len(first.measured), "regimes": found}


def _listed(values: Float[np.ndarray, " e"]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
