"""What the masks really did: realised rates, and rules that no mask may break, counted on finished masks.

The counts use nothing of how a mask is made, only the rows before and after; in numpy, on the host.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from mlm_jax import keys, masking, order
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import Config, ConfigError, MaskConfig
from mlm_jax.tokenizer import DECILES, Vocabulary, frequency_deciles

SIGMAS = 6.0  # a deviation beyond so many standard deviations is no accident
NOTICED = 0.02  # a rate that is off by less than this share of itself is no doubt: words do not divide evenly
FEW = 5  # tokens more or less are never a doubt
LEAST_TOKENS = 4  # asked for in a row, on average; below, the word that every row gets raises the rate
MOST_ROWS = 1024  # of a step that are audited
MOST_PAIRS = 256  # of neighbouring rows in a batch
LEAST_ROWS = 32  # below, no statement on rates is made
POSITIONS = 10  # bins of the place in a segment
LONGEST_WORD = 6  # longer ones are counted with these
LENGTHS = (8, 16, 32, 64, 128, 256, 512)  # bins of the segment length, in maskable tokens: up to


@dataclasses.dataclass
class Table:
    """Selected and maskable tokens by some property of the token."""

    names: list[str]
    selected: np.ndarray
    maskable: np.ndarray

    @classmethod
    def of(cls, names: list[str], places: np.ndarray, selected: np.ndarray) -> "Table":
        """places: the index into `names` of each maskable token; selected: whether it is, of each."""
        size = len(names)
        chosen = np.bincount(places[selected], minlength=size)[:size]
        return cls(names, chosen, np.bincount(places, minlength=size)[:size])

    def __add__(self, other: "Table") -> "Table":
        return Table(self.names, self.selected + other.selected, self.maskable + other.maskable)

    def rates(self) -> dict[str, float]:
        """Share that is selected, by name; names without a token are left out."""
        return {n: float(s / m) for n, s, m in zip(self.names, self.selected, self.maskable) if m}


class Places(NamedTuple):
    """Which tokens of rows may be selected, and which are."""

    row: np.ndarray  # i32[b], the rows' numbers
    maskable: np.ndarray  # bool[b,t]
    selected: np.ndarray  # bool[b,t]


def _agreement(one: Places, i: int, other: Places, j: int) -> list[float]:
    """Correlation of the masks of two rows at the places that are maskable in both: 0 on average for two draws.

    Nothing for visits of one row, or where all or none of the places are selected.
    """
    both = one.maskable[i] & other.maskable[j]
    x, y = one.selected[i][both].astype(float), other.selected[j][both].astype(float)
    if one.row[i] == other.row[j] or not x.size or x.std() == 0 or y.std() == 0:
        return []
    return [float(np.corrcoef(x, y)[0, 1])]


class Audit:
    """Counts over batches of rows and their masks; then `findings` and `breaches`."""

    def __init__(self, vocabulary: Vocabulary, config: MaskConfig, rate: float, random: float | None = None):
        """config: what the masks were asked to be; rate: the rate, random: the share of random tokens asked for."""
        self.vocabulary, self.config, self.rate = vocabulary, config, float(rate)
        kept = config.corruption[2]
        random = config.corruption[1] if random is None else float(random)
        self.shares = (1 - random - kept, random, kept)
        self.dropped = 0
        self.deciles = frequency_deciles(vocabulary) if vocabulary.counts is not None else None
        self.broken: dict[str, int] = {}  # rule -> how often it was broken
        self.rows: list[tuple[int, int]] = []  # (maskable, selected) of each row
        self.kinds = np.zeros(3, np.int64)  # MASK, random, kept
        self.tables: dict[str, Table] = {}
        self.labels = np.zeros(2, np.int64)  # pairs with label 0, with label 1
        self.pairs: list[float] = []  # of neighbouring rows, how much their masks agree
        self.device_pairs: list[float] = []  # and of rows at the same place on two devices

    def add(self, batch: Batch, masked: Masked) -> "Places":
        """Rows [b,t] and their masks, as numpy arrays. Returns those that count: some only fill up a batch."""
        kept = batch.row >= 0
        batch, masked = (_rows(value, kept) for value in (batch, masked))
        maskable = (batch.segments > 0) & ~np.isin(batch.tokens, self.vocabulary.special)
        self._rules(batch, masked, maskable)
        self.dropped += int(masked.dropped.sum())
        self.rows += list(zip(maskable.sum(1).tolist(), masked.selected.sum(1).tolist()))
        chosen, inputs = batch.tokens[masked.selected], masked.inputs[masked.selected]
        mask, same = inputs == self.vocabulary.mask, inputs == chosen
        self.kinds += [mask.sum(), (~mask & ~same).sum(), (~mask & same).sum()]
        self.labels += [(batch.pair_labels == label).sum() for label in (0, 1)]
        for name, (names, places) in self._properties(batch, maskable).items():
            table = Table.of(names, places[maskable], masked.selected[maskable])
            self.tables[name] = self.tables[name] + table if name in self.tables else table
        places = Places(batch.row, maskable, masked.selected)
        for i in range(min(len(places.row) - 1, MOST_PAIRS)):
            self.pairs += _agreement(places, i, places, i + 1)
        return places

    def _rules(self, batch: Batch, masked: Masked, maskable: np.ndarray) -> None:
        drawn = masked.selected & (masked.inputs != batch.tokens) & (masked.inputs != self.vocabulary.mask)
        filled = masked.weights > 0
        at_slots = np.take_along_axis(batch.tokens, masked.indices, 1)
        chosen_at_slots = np.take_along_axis(masked.selected, masked.indices, 1)
        counts = {
            "special tokens or padding selected": masked.selected & ~maskable,
            "tokens changed that are not selected": (masked.inputs != batch.tokens) & ~masked.selected,
            "random replacements that are no ordinary id": drawn & ~np.isin(masked.inputs, self.vocabulary.ordinary),
            "slots whose target is not the token that stood there": filled & (at_slots != masked.targets),
            "slots at places that are not selected": filled & ~chosen_at_slots,
            "rows with another number of slots than selected tokens": (
                (filled.sum(1) != masked.selected.sum(1)) & (batch.weight > 0)
            ),
        }
        for rule, places in counts.items():
            self.broken[rule] = self.broken.get(rule, 0) + int(places.sum())

    def _properties(self, batch: Batch, maskable: np.ndarray) -> dict[str, tuple[list[str], np.ndarray]]:
        """By property: names of its values, and which of them each token has, [b,t]."""
        place, length = _within(batch.segments, maskable)
        position = np.minimum(place * POSITIONS // np.maximum(length, 1), POSITIONS - 1)
        word = np.minimum(_word_lengths(batch, maskable), LONGEST_WORD) - 1
        names = {
            "position in the segment": ([f"{i}0%" for i in range(POSITIONS)], position),
            "tokens of the word": ([*map(str, range(1, LONGEST_WORD)), f"{LONGEST_WORD}+"], np.maximum(word, 0)),
            "tokens of the segment": (
                [f"to {n}" for n in LENGTHS] + [f"over {LENGTHS[-1]}"],
                np.searchsorted(LENGTHS, length),
            ),
        }
        if (batch.pair_labels >= 0).any():
            names["text of a pair"] = (["none", "first", "second"], _texts(batch))
        if self.deciles is not None:
            names["frequency decile"] = ([*map(str, range(1, DECILES + 1))], self.deciles[batch.tokens] - 1)
        return names

    def add_parts(self, parts: list[tuple[Batch, Masked]]) -> None:
        """Rows of several devices, and how much the masks of two of them agree, row by row."""
        places = [self.add(batch, masked) for batch, masked in parts]
        for one, other in itertools.pairwise(places):
            for i in range(min(len(one.row), len(other.row), MOST_PAIRS)):
                self.device_pairs += _agreement(one, i, other, i)

    def findings(self) -> dict:
        """Numbers of what was counted: rates, shares, tables by property, correlation of neighbouring rows."""
        maskable, selected = np.array(self.rows).reshape(-1, 2).sum(0).tolist()
        total = max(int(self.kinds.sum()), 1)
        return {
            "rows": len(self.rows),
            "maskable": maskable,
            "selected": selected,
            "rate": {"asked": self.rate, "realised": selected / max(maskable, 1)},
            "dropped for want of slots": self.dropped,
            "pairs": {str(label): int(count) for label, count in enumerate(self.labels)},
            "corruption": {name: int(n) / total for name, n in zip(("mask", "random", "kept"), self.kinds)},
            "broken": dict(self.broken),
            "correlation of neighbouring rows": float(np.mean(self.pairs)) if self.pairs else 0.0,
            "correlation between devices": float(np.mean(self.device_pairs)) if self.device_pairs else 0.0,
            "rate by": {name: table.rates() for name, table in self.tables.items()},
        }

    def breaches(self) -> list[str]:
        """A line for each rule that was broken: no mask may do that."""
        return [f"{count:,} {rule}" for rule, count in self.broken.items() if count]

    def doubts(self) -> list[str]:
        """A line for each rate that is off by more than chance allows, were all rows drawn for themselves."""
        if len(self.rows) < LEAST_ROWS:
            return []
        return [*self._rate_doubt(), *self._corruption_doubts(), *self._correlation_doubts()]

    def _rate_doubt(self) -> list[str]:
        maskable, selected = np.array(self.rows, np.float64).T
        off = selected - self.rate * maskable
        error = max(float(off.std()), 0.5) / math.sqrt(len(off))
        few = self.rate * maskable.mean() < LEAST_TOKENS
        raised = (self.config.min_per_segment > 0 or few) and off.mean() > 0  # asked for
        lowered = self.dropped > 0 and off.mean() < 0  # counted by itself
        if abs(off.mean()) <= max(SIGMAS * error, NOTICED * self.rate * maskable.mean()) or raised or lowered:
            return []
        return [f"{selected.sum() / maskable.sum():.4f} of the tokens are selected, {self.rate:.4f} were asked for"]

    def _corruption_doubts(self) -> list[str]:
        """A random draw that gives the token itself counts as kept."""
        if self.config.corruption_per == "unit" and self.config.unit not in ("token", "word"):
            return []  # few draws, each for many tokens
        mask, random, kept = self.shares
        same = random * self._chance_of_itself()
        total, lines = int(self.kinds.sum()), []
        draws = total / LONGEST_WORD if self.config.corruption_per == "unit" else total
        for name, count, share in zip(("masked", "random", "kept"), self.kinds, (mask, random - same, kept + same)):
            error = math.sqrt(share * (1 - share) / max(draws, 1))
            if total and abs(count - share * total) > SIGMAS * error * total + FEW:
                lines.append(f"{count / total:.4f} of the selected tokens are {name}, {share:.4f} were asked for")
        return lines

    def _chance_of_itself(self) -> float:
        """The chance that a random draw gives the token that stood there."""
        if self.config.random_ids == "uniform":
            return 1.0 / self.vocabulary.ordinary.size
        counts = np.asarray(self.vocabulary.counts, np.float64)[self.vocabulary.ordinary]
        return float(((counts / counts.sum()) ** 2).sum())

    def _correlation_doubts(self) -> list[str]:
        # frequent words, and the ends of long units, stand at the same places in rows of like texts
        if self.config.unit not in ("token", "word") or self.config.priority != "uniform":
            return []
        lines = []
        for name, pairs in (("of neighbouring rows", self.pairs), ("of rows on two devices", self.device_pairs)):
            mean, error = (float(np.mean(pairs)), float(np.std(pairs)) / math.sqrt(len(pairs))) if pairs else (0, 0)
            if len(pairs) >= LEAST_ROWS and abs(mean) > max(SIGMAS * error, 0.02):
                lines.append(f"the masks {name} are correlated by {mean:.3f}")
        return lines


# what a unit is cut by -> the marks of the rows that it needs, and how to get them
OTHER_ROWS = "or other rows"
MARKS = {
    "word": ("word_starts", "words", OTHER_ROWS),
    "span": ("word_starts", "words", OTHER_ROWS),
    "ngram": ("word_starts", "words", OTHER_ROWS),
    "phrase": ("phrase_joins", "phrases", "or prepare rows with config.data.collocations, such as 10_000"),
    "sentence": ("sentence_starts", "sentences", OTHER_ROWS),
    "paragraph": ("paragraph_starts", "paragraphs", OTHER_ROWS),
}


def check_rows(manifest: dict, config: MaskConfig) -> None:
    """Raises ConfigError where the unit needs marks that, as their manifest counts, no training row has."""
    levels = [name for name, weight in config.levels if weight] if config.unit == "hierarchical" else []
    for unit in [config.unit, *levels]:
        flag, what, otherwise = MARKS.get(unit, ("", "", ""))
        if flag and not manifest["flags"][flag]:
            fix = f"the rows mark no {what}; choose another unit, {otherwise}"
            raise ConfigError("config.mask.levels" if unit in levels else "config.mask.unit", unit, fix)


def asked(vocabulary: Vocabulary, config: MaskConfig, steps: int, step: int, fed: float | None = None) -> Audit:
    """An empty audit of masks as the schedules have them at step 0, 1, ... of `steps`; fed: see `masking.mask_at`."""
    random = masking.random_at(config, steps)
    rate = masking.rate_at(config, steps, fed)(step)
    return Audit(vocabulary, config, float(rate), float(random(step)) if random else None)


def auditor(
    make: Callable[..., Masked], vocabulary: Vocabulary, config: Config, roots: keys.Roots, sharding: NamedSharding
) -> Callable[[Batch, int, dict, dict], Audit]:
    """`audit(batch [k,b,t], step, params, feedback)`: the masks of this process's rows are made once more, and audited.

    make: as `feedback.make_mask` gives it; roots: of the run; sharding: of the batch's arrays; step: 0, 1, ... Masks
    that depend on the model are those of the parameters given.
    """
    make = jax.jit(make, out_shardings=sharding)
    read = jax.jit(lambda batch: order.as_read(roots["order"], batch, config), out_shardings=sharding)

    def audit(batch: Batch, step: int, params: dict, feedback: dict) -> Audit:
        rate = float(feedback["rate"]) if "rate" in feedback else None
        counted = asked(vocabulary, config.mask, config.steps, step, rate)
        batch = read(batch)
        counted.add_parts(_parts((batch, make(jnp.int32(step), roots["mask"], batch, params, feedback))))
        return counted

    return audit


def _parts(values: tuple[Batch, Masked]) -> list[tuple[Batch, Masked]]:
    """This process's first rows of global arrays [k,b,...], as [n,...]: a part for each device that has its own."""
    shards = [
        {shard.index[1].start or 0: shard.data for shard in leaf.addressable_shards} for leaf in jax.tree.leaves(values)
    ]
    structure = jax.tree.structure(values)
    found = []
    for start in sorted(shards[0]):
        leaves = [np.asarray(parts[start]) for parts in shards]
        most = max(MOST_ROWS // len(shards[0]), 1)
        found.append(jax.tree.unflatten(structure, [x.reshape(-1, *x.shape[2:])[:most] for x in leaves]))
    return found


def _rows(value: Batch | Masked, kept: np.ndarray) -> Batch | Masked:
    """The rows that are `kept`, as numpy arrays."""
    arrays = {field.name: np.asarray(getattr(value, field.name))[kept] for field in dataclasses.fields(value)}
    return type(value)(**arrays)


def _within(segments: np.ndarray, maskable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each token, its place among the maskable ones of its segment, and how many these are, both i64[b,t]."""
    place, length = np.zeros(segments.shape, np.int64), np.zeros(segments.shape, np.int64)
    for segment in range(1, int(segments.max(initial=0)) + 1):
        inside = maskable & (segments == segment)
        place = np.where(inside, np.cumsum(inside, 1) - 1, place)
        length = np.where(inside, inside.sum(1, keepdims=True), length)
    return place, length


def _texts(batch: Batch) -> np.ndarray:
    """Of each token: 0 in a segment that is no pair, 1 in the first text of a pair, 2 in the second, i64[b,t]."""
    labels = np.take_along_axis(batch.pair_labels, np.maximum(batch.segments - 1, 0), 1)
    return np.where(labels >= 0, 1 + np.asarray(batch.types), 0)


def _word_lengths(batch: Batch, maskable: np.ndarray) -> np.ndarray:
    """Of each maskable token, how many tokens its word has, i64[b,t]."""
    before = np.pad(maskable, ((0, 0), (1, 0)))[:, :-1]
    border = np.pad(batch.segments, ((0, 0), (1, 0)))[:, :-1] != batch.segments
    starts = maskable & (np.asarray(batch.word_starts) | ~before | border)
    words = np.cumsum(starts.reshape(-1)) * maskable.reshape(-1)  # 0 where there is no word
    lengths = np.bincount(words)
    return np.where(maskable.reshape(-1), lengths[words], 0).reshape(maskable.shape)
