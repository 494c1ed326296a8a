"""64-bit hashes of words and n-grams in whole arrays, and a fast look-up among known ones."""

import functools

import numpy as np

WORD_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, as those of polynomial hashes must be
PHRASE_FACTOR = np.uint64(0xD6E8FEB86659FD93)
SLOTS = 16  # of a look-up table, for each of its values


def mix(values: np.ndarray) -> np.ndarray:
    """A 64-bit finaliser (Steele, Lea and Flood 2014, SplitMix64): u64[n] -> u64[n]."""
    values = values * WORD_FACTOR
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@functools.lru_cache(maxsize=4)
def _powers_up_to(factor: np.uint64, bits: int) -> np.ndarray:
    powers = np.full(1 << bits, factor)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def powers(factor: np.uint64, n: int) -> np.ndarray:
    """factor^0 .. factor^(n-1) modulo 2^64, u64[n]."""
    return _powers_up_to(factor, n.bit_length())[:n]


def extend(shorter: np.ndarray, hashes: np.ndarray, n: int) -> np.ndarray:
    """Hashes of the n-grams at each place, u64[w - n + 1], from those of the (n-1)-grams and of the words, u64[w]."""
    longer = shorter[: max(len(hashes) - n + 1, 0)] * PHRASE_FACTOR
    longer += hashes[n - 1 :]
    return longer


class Lookup:
    """Numbers of known hashes: a table of slots for nearly all, a binary search for what shares one."""

    def __init__(self, known: np.ndarray):
        """known: u64[k], sorted, all different."""
        self.known = known
        bits = max(1, (SLOTS * len(known) - 1).bit_length())
        self.shift = np.uint64(64 - bits)
        self.slots = np.full(1 << bits, -1, np.int32)
        self.slots[self._slot(known)] = np.arange(len(known), dtype=np.int32)

    def _slot(self, hashes: np.ndarray) -> np.ndarray:
        return (hashes * WORD_FACTOR) >> self.shift

    def __call__(self, hashes: np.ndarray) -> np.ndarray:
        """The place of each hash among the known ones, i32[n]; -1 where it is unknown."""
        found = self.slots[self._slot(hashes)]
        taken = np.flatnonzero(found >= 0)
        doubtful = taken[self.known[found[taken]] != hashes[taken]]
        if len(doubtful):
            at = np.searchsorted(self.known, hashes[doubtful])
            at[at == len(self.known)] = 0
            found[doubtful] = np.where(self.known[at] == hashes[doubtful], at, -1)
        return found
