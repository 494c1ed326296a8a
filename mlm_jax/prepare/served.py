"""How well a tokenizer serves text that it was not trained on: pieces a word, what is unknown, by writing."""

import functools
import re
import unicodedata
from collections import Counter

import numpy as np

from mlm_jax.prepare.documents import paragraphs_of
from mlm_jax.prepare.segmentation import segment
from mlm_jax.tokenizer import Tokenizer

BYTE = re.compile("<0x[0-9A-F]{2}>")
WORST = 10  # words and characters that are named
FEW = 0.001  # share of the words from which a writing is told of


def serve(tokenizer: Tokenizer, texts: list[str], segmenter: str = "none") -> dict[str, object]:
    """What became of texts, or nothing where they hold no word. Words are those of the rows, see `segmentation`.

    bytes, words, tokens; unknown, as_bytes: shares of the tokens; tokens_per_word; scripts: words, tokens_per_word,
    unknown of each writing with a share of the words, the most frequent first; characters: those that are unknown, and
    words: those of most pieces, the most frequent first.
    """
    paragraphs = [paragraph for text in texts for paragraph in paragraphs_of(text)]
    encoding, lengths = tokenizer.encode_batch(paragraphs)
    ids = encoding.ids
    if not len(ids):
        return {}
    places, begins = tokenizer.places(paragraphs, encoding, lengths), encoding.word_starts
    if segmenter != "none":
        begins = segment(segmenter, paragraphs, tokenizer, encoding, lengths)
    unknown = ids == tokenizer.unk
    of_bytes = np.array([BYTE.fullmatch(piece) is not None for piece in tokenizer.pieces])[ids]
    starts = np.flatnonzero(begins)
    counts = np.diff(starts, append=len(ids))
    missing = np.add.reduceat(unknown.astype(np.int64), starts)
    texts_of = _words(paragraphs, lengths, starts, places)
    words, pieces, scripts = Counter(texts_of), dict(zip(texts_of, counts.tolist())), {}
    for word, count, without in zip(texts_of, counts.tolist(), missing.tolist()):
        found = scripts.setdefault(script_of(word[:1]), [0, 0, 0])
        for place, value in enumerate((1, count, without)):
            found[place] += value
    ordered = sorted(scripts.items(), key=lambda item: (-item[1][0], item[0]))
    lacking = Counter(char for word, without in zip(texts_of, missing.tolist()) if without for char in word)
    unknown_alone = [char for char in lacking if tokenizer.unk in tokenizer.encode(char).ids]
    longest = sorted(words, key=lambda word: (-pieces[word], -words[word], word))
    return {
        "bytes": sum(len(text.encode("utf-8", "replace")) for text in texts),
        "words": len(starts),
        "tokens": len(ids),
        "tokens_per_word": round(len(ids) / len(starts), 3),
        "unknown": round(float(unknown.mean()), 6),
        "as_bytes": round(float(of_bytes.mean()), 6),
        "scripts": {
            name: {"words": n, "tokens_per_word": round(tokens / n, 3), "unknown": round(without / tokens, 6)}
            for name, (n, tokens, without) in ordered
            if n > FEW * len(starts)
        },
        "characters": sorted(unknown_alone, key=lambda char: (-lacking[char], char))[:WORST],
        "words_of_most_pieces": longest[:WORST],
    }


def _words(paragraphs: list[str], lengths: np.ndarray, starts: np.ndarray, places: np.ndarray) -> list[str]:
    """The text of each word that begins at the token `starts`, i64[words]."""
    owners = np.repeat(np.arange(len(paragraphs)), lengths)
    # a token of white space alone stands where the word before it ends
    firsts, found = places[starts].tolist(), []
    of = owners[starts].tolist()
    for number, (owner, first) in enumerate(zip(of, firsts)):
        last = number + 1 == len(of) or of[number + 1] != owner
        found.append(paragraphs[owner][first : None if last else firsts[number + 1]].strip(" "))
    return found


@functools.cache
def script_of(char: str) -> str:
    """The writing that a character belongs to, by its name in Unicode: Latin, Cyrillic, Cjk, Thai; Digits, Signs."""
    if char.isdigit():
        return "Digits"
    if not char.isalpha():
        return "Signs"
    return unicodedata.name(char, "Other").split()[0].split("-")[0].capitalize()
