"""Words in writing that puts no white space between them: Chinese, Japanese, Thai, Lao, Khmer, Burmese.

A segmenter says where words begin inside of a run of such writing; the rows' flags follow it, and masks of whole words
with them. Ids do not change: a piece that crosses a border joins both words. A run is a word border on either side, so
`天气abc` is two words; all else follows the rule of `text`. Word starts matter in rows alone: what uses a trained model
reads ids, so it needs no segmenter.

`icu` is the dictionary break iteration of ICU, read through icu4py: one library for all these languages, released with
every Unicode version, in wheels that hold its dictionaries. It cuts 1.2 million characters a second on a core (jieba,
without a release since 2020 and for Chinese alone, 0.11; budoux, which finds phrases rather than words, 0.2 to 0.5).
Read beside each other on a hundred sentences: modern Chinese, Japanese and Thai are cut much as a reader would, but
names of persons and some expressions of four characters fall into smaller words; Japanese in old spelling falls into
single letters. Most of its errors are words that are too short.
"""

import re
import unicodedata
from collections.abc import Callable

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.text import IDEOGRAPHS, MARK
from mlm_jax.tokenizer import Encoding, Tokenizer
from mlm_jax.tokenizer.words import SPACE_KIND, kinds_of

KEY = "config.data.segmenter"
# Letters and marks of these blocks, besides ideographs: Thai, Lao, Burmese, Khmer; kana and their iteration marks.
BLOCKS = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3031, 0x303B))
BLOCKS += ((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xFF66, 0xFF9F))
BLOCKS += ((0x1AFF0, 0x1B16F),)
MARKS = r"\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef"


def _run() -> re.Pattern:
    """Letters of these blocks and ideographs, with the marks on them."""
    found = {"L": "", "M": "", "N": ""}
    for first, last in BLOCKS:
        for char in map(chr, range(first, last + 1)):
            category = unicodedata.category(char)
            if category[0] in "LM" or category == "Nl":
                found[category[0]] += char
    letters = found["L"] + found["N"] + "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS)
    return re.compile(f"[{letters}][{letters}{found['M']}{MARKS}]*")


RUN = _run()
NOT_TOLD, INSIDE, BEGINS = 0, 1, 2  # what a segmenter says of a character

Cut = Callable[[str], np.ndarray]  # runs, a line each -> places of the characters that begin words


def segment(name: str, texts: list[str], tokenizer: Tokenizer, encoding: Encoding, lengths: np.ndarray) -> np.ndarray:
    """Word starts bool[n] of the tokens of texts, as the segmenter `name` has them.

    texts: cleaned. encoding, lengths: what `Tokenizer.encode_batch` gave for them. Raises ConfigError where the
    segmenter's library is missing.
    """
    owners = [number for number, text in enumerate(texts) if not text.isascii() and RUN.search(text)]
    starts = encoding.word_starts.copy()
    if not owners:
        return starts
    base = np.cumsum(lengths) - lengths
    tokens = np.concatenate([np.arange(base[number], base[number] + lengths[number]) for number in owners])
    chosen = [texts[number] for number in owners]
    of_chosen = Encoding(
        encoding.ids[tokens], starts[tokens], None if encoding.places is None else encoding.places[tokens]
    )
    places = tokenizer.places(chosen, of_chosen, lengths[owners])
    told, kind = borders(name, chosen)
    characters = np.repeat(np.cumsum([0, *map(len, chosen)])[:-1], lengths[owners])
    starts[tokens] = _word_starts(kind, told, characters + places, starts[tokens])
    starts[base[lengths > 0]] = True
    return starts


def _word_starts(kind: np.ndarray, told: np.ndarray, places: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Word starts of tokens from the place i64[n] of each token's first character, and what is told of characters.

    A token of white space alone begins the word that follows it; of tokens that share a character the first begins it.
    """
    bare = kind[places] == SPACE_KIND
    first = np.append(True, places[1:] != places[:-1]) & ~np.append(False, bare[:-1])
    return np.where((told[places] == NOT_TOLD) | bare, starts, (told[places] == BEGINS) & first)


def borders(name: str, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """What a segmenter says of each character of texts, one text after another, i8[n], and their kinds u8[n].

    NOT_TOLD outside of runs, but for what stands right after one and begins a word.
    """
    base, spans, after, runs = 0, [], [], []
    for text in texts:
        for match in RUN.finditer(text):
            spans.append((base + match.start(), base + match.end()))
            runs.append(match[0])
            if match.end() < len(text):
                after.append(base + match.end())
        base += len(text)
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    kind, told = kinds_of(codes), np.full(len(codes), NOT_TOLD, np.int8)
    joined = "\n".join(runs)  # no word of a run depends on another run
    begins = np.zeros(len(joined) + 1, bool)
    begins[SEGMENTERS[name](joined)] = True
    breaks = np.cumsum([len(run) + 1 for run in runs])[:-1] - 1
    (starts, ends), steps = np.array(spans).T, np.zeros(len(codes) + 1, np.int8)
    steps[starts] += 1
    steps[ends] -= 1
    inside = np.cumsum(steps[:-1]) > 0
    told[inside] = INSIDE + np.delete(begins[:-1], breaks)
    told[inside & (kind == MARK)] = INSIDE
    told[starts] = BEGINS
    after = np.array(after, np.int64)
    told[after[(kind[after] != SPACE_KIND) & (kind[after] != MARK)]] = BEGINS
    return told, kind


# ---- libraries ----


def _icu(text: str) -> np.ndarray:
    breakers = _library()
    starts = np.fromiter((start for start, _ in breakers.WordBreaker(text, "root").segments()), np.int64)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    if (wide := codes > 0xFFFF).any():  # the library counts in units of UTF-16, of which these characters have two
        starts = np.searchsorted(np.cumsum(1 + wide) - wide - 1, starts)
    return starts


def _library():
    try:
        from icu4py import breakers
    except ImportError:
        raise ConfigError(KEY, "icu", "needs the package icu4py: pip install 'mlm-jax[prepare]'") from None
    return breakers


def describe(name: str) -> dict[str, str]:
    """Name and version of a segmenter's library, another one may find other words; nothing for `none`.

    Raises ConfigError where the library is missing.
    """
    if name == "none":
        return {}
    _library()
    import icu4py

    return {"name": name, "version": icu4py.icu_version}


SEGMENTERS: dict[str, Cut] = {"icu": _icu}
