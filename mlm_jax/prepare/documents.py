"""Documents to ids and flags: clean, cut into paragraphs and sentences, encode, mark what begins where."""

import re

import numpy as np

from mlm_jax.prepare.segmentation import segment
from mlm_jax.prepare.sentences import sentence_ends
from mlm_jax.records import PARAGRAPH_START, SENTENCE_START, WORD_START
from mlm_jax.text import clean
from mlm_jax.tokenizer import Tokenizer

SPACES = re.compile("  +")
PLAIN = bytes(code for code in range(0x80) if chr(code).isprintable() or chr(code) == "\n")  # nothing to clean


def paragraphs_of(text: str) -> list[str]:
    """The lines of a text, cleaned, with single spaces; those that hold nothing are left out."""
    found = []
    plain = text.isascii() and not text.encode("ascii").translate(None, PLAIN)
    for line in text.split("\n"):
        line = (line if plain else clean(line)).strip(" ")
        if "  " in line:
            line = SPACES.sub(" ", line)
        if line:
            found.append(line)
    return found


def encode_documents(
    texts: list[str], tokenizer: Tokenizer, segmenter: str = "none"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids i32[n] and flags u8[n] of all texts one after another, and how many tokens each has, i64[texts].

    segmenter: what finds words in writing without white space, see `segmentation`.
    """
    paragraphs, counts = [], []
    for text in texts:
        found = paragraphs_of(text)
        paragraphs += found
        counts.append(len(found))
    encoding, lengths = tokenizer.encode_batch(paragraphs, cleaned=True)
    ends = np.cumsum(lengths)
    words = encoding.word_starts
    if segmenter != "none":
        words = segment(segmenter, paragraphs, tokenizer, encoding, lengths)
    flags = words.astype(np.uint8) * WORD_START
    sentences = tokenizer.tokens_at(paragraphs, encoding, lengths, *sentence_ends(paragraphs))
    flags[sentences] |= SENTENCE_START | WORD_START
    flags[(ends - lengths)[lengths > 0]] |= PARAGRAPH_START | SENTENCE_START | WORD_START
    # tokens up to the last paragraph of each document
    upto = np.concatenate([[0], ends])[np.cumsum(counts)] if counts else np.zeros(0, np.int64)
    return encoding.ids, flags, np.diff(upto, prepend=0)
