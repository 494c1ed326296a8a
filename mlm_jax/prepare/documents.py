"""Documents to ids and flags: clean, cut into paragraphs and sentences, encode, mark what begins where."""

import re

import numpy as np

from mlm_jax.records import PARAGRAPH_START, SENTENCE_START, WORD_START
from mlm_jax.text import clean
from mlm_jax.tokenizer import Encoding, Tokenizer

# Signs that end a sentence where white space follows; and those of scripts that put none between sentences. Each
# pattern begins with one set of characters, which is what makes the search fast.
SPACED, UNSPACED = ".!?…؟۔।॥።፧។៕‼⁇⁈⁉", "。！？｡"
CLOSERS = "\"'”’»)\\]}›」』】〉》）］"
END = re.compile(rf"[{SPACED}{UNSPACED}][{SPACED}{UNSPACED}]*[{CLOSERS}]*")
ASCII_END = re.compile(r"[.!?][.!?]*[\"')\]}]*(?= )")
SPACES = re.compile("  +")
OPENERS = "\"'“‘«([{¿¡‹"

# Words before a full stop that ends no sentence; the second ones only where a number follows.
TITLES = """
    mr mrs ms dr prof st sr jr rev hon gen col maj capt lt sgt gov sen rep pres messrs mme mlle mt ft vs etc al cf ca
    approx esp ed eds dept univ inc ltd co corp bros ave blvd jan feb mar apr jun jul aug sep sept oct nov dec viz bzw
"""
COUNTED = "no nos p pp vol vols fig figs eq eqs sec ch art nr bd"
ABBREVIATIONS, BEFORE_NUMBERS = frozenset(TITLES.split()), frozenset(COUNTED.split())


def paragraphs_of(text: str) -> list[str]:
    """The lines of a text, cleaned, with single spaces; those that hold nothing are left out."""
    found = []
    for line in text.split("\n"):
        line = clean(line).strip(" ")
        if "  " in line:
            line = SPACES.sub(" ", line)
        if line:
            found.append(line)
    return found


def sentence_ends(paragraph: str) -> list[int]:
    """Where the sentences of a paragraph end, but for the last: places in characters, before any white space."""
    ends, start, size = [], 0, len(paragraph)
    for match in (ASCII_END if paragraph.isascii() else END).finditer(paragraph):
        sign, end = match.span()
        if end == size:
            break
        if paragraph[end] == " ":
            if not _ends_sentence(paragraph, start, sign, end):
                continue
        elif paragraph[sign] not in UNSPACED:
            continue
        ends.append(end)
        start = end + (paragraph[end] == " ")
    return ends


def _ends_sentence(text: str, start: int, sign: int, end: int) -> bool:
    """Whether the sign at `sign` ends the sentence that began at `start`; text[end] is a space."""
    following = text[end + 1]
    if following in OPENERS:
        following = text[end + 2 : end + 3]
    if following.islower():
        return False
    if text[sign] != "." or text[sign + 1] == ".":
        return True
    space = text.rfind(" ", start, sign)
    word = text[max(start, space + 1) : sign].lstrip(OPENERS)
    if word.isdigit():
        return space >= start  # else it is the number of a list's item
    if len(word) < 2:
        return word == "I" or not word.isalpha()  # else an initial
    lower = word.lower()
    if lower in BEFORE_NUMBERS:
        return not following.isdigit()
    return not (lower in ABBREVIATIONS or (word[1] == "." and word.replace(".", "").isalpha()))


def encode_documents(texts: list[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids i32[n] and flags u8[n] of all texts one after another, and how many tokens each has, i64[texts]."""
    paragraphs, counts = [], []
    for text in texts:
        found = paragraphs_of(text)
        paragraphs += found
        counts.append(len(found))
    encoding, lengths = tokenizer.encode_batch(paragraphs)
    ends = np.cumsum(lengths)
    flags = encoding.word_starts.astype(np.uint8) * WORD_START
    sentences = _sentence_starts(encoding, lengths, paragraphs, tokenizer)
    flags[sentences] |= SENTENCE_START | WORD_START
    flags[(ends - lengths)[lengths > 0]] |= PARAGRAPH_START | SENTENCE_START | WORD_START
    # tokens up to the last paragraph of each document
    upto = np.concatenate([[0], ends])[np.cumsum(counts)] if counts else np.zeros(0, np.int64)
    return encoding.ids, flags, np.diff(upto, prepend=0)


def _sentence_starts(
    encoding: Encoding, lengths: np.ndarray, paragraphs: list[str], tokenizer: Tokenizer
) -> np.ndarray:
    """Places of the tokens that begin a sentence inside a paragraph."""
    owners, ends = [], []
    for number, paragraph in enumerate(paragraphs):
        for end in sentence_ends(paragraph):
            owners.append(number)
            ends.append(end)
    if not owners:
        return np.zeros(0, np.int64)
    return tokenizer.tokens_at(paragraphs, encoding, lengths, np.array(owners), np.array(ends))
