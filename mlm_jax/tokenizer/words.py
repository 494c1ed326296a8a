"""Where words begin among the tokens of a text, from the characters that each token stands for."""

import dataclasses

import numpy as np

from mlm_jax.text import ALONE, LETTER, MARK, kinds

SPACE_KIND, UNKNOWN_KIND = 3, 255  # beside the kinds of `text`; a character that was not met yet


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """Ids of a text, without CLS and SEP, and where its words begin."""

    ids: np.ndarray  # i32[n]
    word_starts: np.ndarray  # bool[n]; the first token is always a start
    # i64[n], place of each token's first visible character in its text, of white space alone its own; None: not told
    places: np.ndarray | None = None


_table = np.full(0x110000, UNKNOWN_KIND, np.uint8)  # code point -> kind, filled as characters are met


def kinds_of(codes: np.ndarray) -> np.ndarray:
    """The kinds of characters, u8[n], from their code points: those of `text`, and white space."""
    found = _table[codes]
    new = np.unique(codes[found == UNKNOWN_KIND])
    if len(new):
        _table[new] = [SPACE_KIND if code == 0x20 else kinds[chr(code)] for code in new.tolist()]
        found = _table[codes]
    return found


def _last(where: np.ndarray) -> np.ndarray:
    """The nearest place at or before each one that is True, i32[n]; -1 where there is none."""
    places = np.where(where, np.arange(len(where), dtype=np.int32), np.int32(-1))
    return np.maximum.accumulate(places) if len(where) else places


def begins(kind: np.ndarray) -> np.ndarray:
    """Where words begin in a text, bool[n], from the kinds u8[n] of its characters: `text.split_words` in numpy."""
    if not len(kind):
        return np.zeros(0, bool)
    before = np.append(np.uint8(SPACE_KIND), kind[:-1])  # kind of the character before each
    last = _last(before != MARK)  # combining marks hide no sign; white space stands before the text
    found = (before == SPACE_KIND) | (kind == ALONE) | ((kind == LETTER) & (before[last] == ALONE))
    return found & (kind != SPACE_KIND)


def find_words(
    texts: list[str], lengths: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Word starts bool[n] and `Encoding.places` i64[n] of the tokens of texts, one text after another.

    texts: cleaned, so that white space is " " alone. lengths: i64[texts], tokens of each text. starts, ends: i64[n],
    characters of its text that each token stands for. Tokens may share characters, as bytes of one do.

    A token begins a word where its first visible character does. One of white space alone belongs to the token after
    it, as in SentencePiece; so does one that the tokenizer puts before a text. A token is never split.
    """
    base = np.cumsum([0, *map(len, texts)])[:-1]
    base = np.repeat(base, lengths)
    starts, ends = starts + base, ends + base
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    kind = kinds_of(codes)
    # the first visible character at or after each place; after the last one the end of all
    visible = len(kind) - _last(np.append(kind, np.uint8(LETTER))[::-1] != SPACE_KIND)[::-1]
    first = visible[starts]
    bare = first >= ends
    before = np.append(-1, ends[:-1])  # where the token before ends; a token of another text ends at or before this one
    begun = np.append(begins(kind), False)[first] & (first >= before)
    found = begun | bare
    found[1:] &= ~bare[:-1]
    firsts = np.cumsum(lengths) - lengths
    found[firsts[lengths > 0]] = True
    return found, np.where(bare, starts, first) - base
