"""Words of plain text as numbers, whatever the language and the tokenizer: for filters, duplicates, contamination.

A word here is a run of letters, digits and combining marks; in scripts that put no white space between words (Chinese
characters, kana, Thai, Lao, Burmese, Khmer) each character is one. All else, signs included, stands between words, and
case does not matter. All is done in whole arrays: a character costs some 25 ns, and 28 bytes
while the texts of a unit are looked at.
"""

import dataclasses
import functools
import unicodedata

import numpy as np

from mlm_jax.prepare.hashing import WORD_FACTOR, extend, mix, powers
from mlm_jax.text import is_ideograph

END = "\0"  # after each text; cleaned text holds none

# What a character is, a set of bits. INSIDE: goes on with a word; ALONE: is a word; LETTER: a letter or a mark of one;
# SPACE: white space, and what ends a text; SYMBOL: a hash sign, a bullet, an ellipsis
INSIDE, ALONE, LETTER, SPACE, SYMBOL, UNSEEN = 1, 2, 4, 8, 16, 128
SYMBOLS = "#…•‣▪●■◦"
UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0xFF66, 0xFF9F),
)
_table = np.full(0x110000, UNSEEN, np.uint8)  # filled as characters are met


def kind(char: str) -> int:
    """The bits of one character."""
    category = unicodedata.category(char)
    if char in (END, "\n") or category == "Zs":
        return SPACE
    bits = SYMBOL if char in SYMBOLS else 0
    if category[0] in "LM":
        bits |= LETTER
    if category[0] in "LMN":
        unspaced = is_ideograph(char) or any(first <= ord(char) <= last for first, last in UNSPACED)
        bits |= ALONE if unspaced else INSIDE
    return bits


def kinds(codes: np.ndarray) -> np.ndarray:
    """u32[c] -> u8[c], `kind` of each."""
    found = _table[codes]
    unseen = found & UNSEEN > 0
    if unseen.any():
        for code in np.unique(codes[unseen]).tolist():
            _table[code] = kind(chr(code))
        found = _table[codes]
    return found


@dataclasses.dataclass(frozen=True)
class Plain:
    """Texts one after another, in lower case: c characters, w words, d texts."""

    text: str  # with END after each
    codes: np.ndarray  # u32[c]
    kinds: np.ndarray  # u8[c]
    ends: np.ndarray  # i64[d], where each text's END stands
    starts: np.ndarray  # i64[w], the first character of each word
    sizes: np.ndarray  # i64[w], characters of each
    counts: np.ndarray  # i64[d], words of each text

    @classmethod
    def of(cls, texts: list[str]) -> "Plain":
        text = "".join([part for one in texts for part in (one.lower(), END)])
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        of_each = kinds(codes)
        inside, alone = of_each & INSIDE > 0, of_each & ALONE > 0
        begins = inside.copy()
        begins[1:] &= ~inside[:-1]
        starts = np.flatnonzero(begins | alone)
        upto = np.cumsum(inside | alone)
        before = upto[starts] - 1
        sizes = np.diff(np.append(before, upto[-1] if len(upto) else 0))
        ends = np.flatnonzero(codes == 0)
        counts = np.diff(np.searchsorted(starts, ends), prepend=0)
        return cls(text, codes, of_each, ends, starts, sizes, counts)

    @functools.cached_property
    def hashes(self) -> np.ndarray:
        """u64[w]: equal for equal words."""
        if not len(self.starts):
            return np.zeros(0, np.uint64)
        first = np.cumsum(self.sizes) - self.sizes
        within = np.arange(self.sizes.sum()) - np.repeat(first, self.sizes)
        values = (
            self.codes[within + np.repeat(self.starts, self.sizes)] * powers(WORD_FACTOR, int(self.sizes.max()))[within]
        )
        return mix(np.add.reduceat(values, first))

    @functools.cached_property
    def left(self) -> np.ndarray:
        """i64[w]: words from each one to the end of its text, itself included."""
        return np.repeat(np.cumsum(self.counts), self.counts) - np.arange(len(self.starts))

    def ngrams(self, n: int, short: bool) -> tuple[np.ndarray, np.ndarray]:
        """The n-grams of words within each text: hashes u64[g] and the place of their first word, i64[g].

        short: whether a text of fewer than n words counts as one n-gram, as a whole.
        """
        left, firsts = self.left, np.cumsum(self.counts) - self.counts
        grams = found = self.hashes.copy()
        chosen = left >= n
        for length in range(1, n + 1):
            if length > 1:
                grams = extend(grams, self.hashes, length)
            if length < n and short:
                whole = firsts[self.counts == length]
                found[whole], chosen[whole] = grams[whole], True
        places = np.flatnonzero(chosen)
        long = left[places] >= n
        values = found[places]
        values[long] = grams[places[long]]
        return mix(values), places

    def owners(self, places: np.ndarray) -> np.ndarray:
        """The text that each of these words belongs to, i64[places]."""
        return np.searchsorted(np.cumsum(self.counts), places, side="right")

    def show(self, place: int, n: int) -> str:
        """The n words from that one on."""
        spans = zip(self.starts[place : place + n].tolist(), self.sizes[place : place + n].tolist())
        return " ".join(self.text[start : start + size] for start, size in spans)
