"""What masking and losses know about ids (`Vocabulary`)."""

import dataclasses

import numpy as np

DECILES = 10


@dataclasses.dataclass(eq=False)
class Vocabulary:
    """What masking and losses need to know about ids. Compared by identity, so that it can be a static argument.

    `special` are the ids that are never selected and never drawn (padding, CLS, SEP, MASK, UNK, added specials);
    `ordinary` those that a random replacement is drawn from: real pieces only, neither special nor holes. Pieces that
    stand for bytes are ordinary: they stand in the text, are asked for as others are, and drawn as well.
    """

    size: int  # largest id + 1
    special: np.ndarray  # i32[n], sorted
    ordinary: np.ndarray  # i32[n], sorted
    pad: int
    cls: int
    sep: int
    mask: int
    unk: int
    counts: np.ndarray | None = None  # i64[size], how often each id stands in the training rows

    def __post_init__(self):
        self.special = np.unique(np.asarray(self.special, np.int32))
        self.ordinary = np.unique(np.asarray(self.ordinary, np.int32))
        if self.mask not in self.special:
            raise ValueError(f"the MASK id {self.mask} is not among the special ids {self.special.tolist()}")
        if self.mask in (self.unk, self.pad):
            raise ValueError(f"MASK has the id {self.mask} of UNK or PAD")
        if np.intersect1d(self.special, self.ordinary).size:
            raise ValueError("an id is both special and ordinary")
        for name, ids in (("special", self.special), ("ordinary", self.ordinary)):
            if not ids.size or ids[0] < 0 or ids[-1] >= self.size:
                raise ValueError(f"{name} ids must lie in [0, {self.size})")


def unigram_losses(vocabulary: Vocabulary) -> np.ndarray:
    """-log p(id) in nats, f32[size]; p from the counts of the training rows plus 1, over the ordinary ids."""
    counts = np.zeros(vocabulary.size)
    counts[vocabulary.ordinary] = vocabulary.counts[vocabulary.ordinary] + 1.0
    with np.errstate(divide="ignore"):
        losses = np.log(counts.sum()) - np.log(counts)
    return np.where(np.isfinite(losses), losses, 0.0).astype(np.float32)


def frequency_deciles(vocabulary: Vocabulary) -> np.ndarray:
    """The frequency decile of each id, 1 to 10, i32[size]: each decile holds about a tenth of the training tokens.

    The ordinary ids in order of their counts, the most frequent first, are cut where their cumulative count passes a
    tenth; an id belongs where its middle falls, so a decile is empty where one id holds more than two tenths.
    """
    counts = np.asarray(vocabulary.counts, np.float64)[vocabulary.ordinary]
    order = np.argsort(-counts, kind="stable")
    ends = np.cumsum(counts[order])
    middle = (ends - counts[order] / 2) / max(ends[-1], 1.0)
    deciles = np.ones(vocabulary.size, np.int32)
    deciles[np.asarray(vocabulary.ordinary)[order]] = np.minimum(middle * DECILES, DECILES - 1).astype(np.int32) + 1
    return deciles
