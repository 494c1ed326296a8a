"""Text to ids and back, and what the rest of the project knows about ids (`Vocabulary`)."""

import dataclasses

import numpy as np


@dataclasses.dataclass(eq=False)
class Vocabulary:
    """What masking and losses need to know about ids. Compared by identity, so that it can be a static argument.

    `special` are the ids that are never selected and never drawn (padding, CLS, SEP, MASK, UNK, added specials);
    `ordinary` those that a random replacement is drawn from: real pieces only, neither special nor holes.
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
