"""Which documents are no text worth learning: rules that hold in any language, on cleaned text, each off by default.

After the rules of Gopher (Rae et al. 2021, appendix A.1 and table A1) and C4 (Raffel et al. 2020, section 2.2), without
those that know English (stop words, the full stop at a line's end). The published limits: at least 50 words; symbols
at most 0.1 a word; lines that repeat 0.30 of all, their characters 0.20; words in repeated 5-grams 0.15. "Words" are
those of `plain`: where no white space stands between them, characters. Lines are the lines of the cleaned text.
"""

from collections.abc import Iterator

import numpy as np

from mlm_jax.config import FilterConfig
from mlm_jax.prepare.hashing import mix
from mlm_jax.prepare.plain import ALONE, LETTER, SPACE, SYMBOL, Plain

NGRAM = 5  # words of the n-grams whose repetition counts


def verdicts(texts: list[str], plain: Plain, rules: FilterConfig) -> list[str]:
    """Why each text is dropped, by the first rule that it breaks; nothing where it stays.

    texts: cleaned, d of them; plain: the same ones.
    """
    found = [""] * len(texts)
    for reason, broken in _broken(texts, plain, rules):
        for number in np.flatnonzero(broken):
            found[number] = found[number] or reason
    return found


def _broken(texts: list[str], plain: Plain, rules: FilterConfig) -> Iterator[tuple[str, np.ndarray]]:
    """The reason and the texts, bool[d], of each rule that is on."""
    if rules.min_characters:
        yield "too few characters", characters(plain) < rules.min_characters
    if rules.min_words:
        yield "too few words", plain.counts < rules.min_words
    if rules.max_word_characters:
        yield "too long a word", longest_words(plain) > rules.max_word_characters
    if rules.min_letters:
        yield "too few letters", letters(plain) < rules.min_letters
    if rules.max_symbols:
        yield "too many symbols", symbols(texts, plain) > rules.max_symbols
    if rules.max_repeated_lines < 1 or rules.max_repeated_text < 1:
        lines, text = np.array([repeated_lines(text) for text in texts]).reshape(-1, 2).T
        yield "repeated lines", lines > rules.max_repeated_lines
        yield "repeated text", text > rules.max_repeated_text
    if rules.max_repeated_ngrams < 1:
        yield "repeated n-grams", repeated_ngrams(plain) > rules.max_repeated_ngrams


def characters(plain: Plain) -> np.ndarray:
    """Characters other than white space, i64[d]."""
    return _sums(plain.kinds & SPACE == 0, plain)


def longest_words(plain: Plain) -> np.ndarray:
    """Characters of the longest run without white space, i64[d]; a character that is a word of its own ends a run."""
    borders = np.flatnonzero(plain.kinds & (SPACE | ALONE))
    if not len(borders):
        return np.zeros(0, np.int64)
    runs = np.diff(borders, prepend=-1) - 1
    return np.maximum.reduceat(runs, np.searchsorted(borders, _firsts(plain)))


def letters(plain: Plain) -> np.ndarray:
    """Share of letters and their marks among the characters other than white space, f64[d]."""
    return _sums(plain.kinds & LETTER > 0, plain) / np.maximum(characters(plain), 1)


def symbols(texts: list[str], plain: Plain) -> np.ndarray:
    """Hash signs, bullets and ellipses (also of three dots), for each word, f64[d]."""
    dots = np.array([text.count("...") for text in texts])
    return (_sums(plain.kinds & SYMBOL > 0, plain) + dots) / np.maximum(plain.counts, 1)


def repeated_lines(text: str) -> tuple[float, float]:
    """Share of the lines that stand further up already, and the share of all lines' characters that is in those."""
    lines = text.split("\n")
    if len(lines) == 1:
        return 0.0, 0.0
    seen: set[str] = set()
    count = size = 0
    for line in lines:
        if line in seen:
            count += 1
            size += len(line)
        seen.add(line)
    return count / len(lines), size / max(1, sum(map(len, lines)))


def repeated_ngrams(plain: Plain) -> np.ndarray:
    """Share of the words that lie in an n-gram which stands further up in the same text already, f64[d]."""
    hashes, places = plain.ngrams(NGRAM, short=False)
    keys = mix(hashes + plain.owners(places).astype(np.uint64))  # equal within a text alone
    order = np.argsort(keys, kind="stable")  # of equal ones the first stays in front
    keys = keys[order]
    again = keys[1:] == keys[:-1]
    repeats = places[order[1:][again]]
    borders = np.zeros(len(plain.starts) + 1, np.int64)
    np.add.at(borders, repeats, 1)
    np.add.at(borders, repeats + NGRAM, -1)
    covered = plain.owners(np.flatnonzero(np.cumsum(borders) > 0))
    return np.bincount(covered, minlength=len(plain.counts)) / np.maximum(plain.counts, 1)


def _firsts(plain: Plain) -> np.ndarray:
    """The first character of each text, its END if it has none, i64[d]."""
    return np.append(0, plain.ends[:-1] + 1) if len(plain.ends) else plain.ends


def _sums(which: np.ndarray, plain: Plain) -> np.ndarray:
    """How many characters of each text are so, i64[d]."""
    return np.add.reduceat(which.astype(np.int64), _firsts(plain)) if len(plain.ends) else plain.ends
