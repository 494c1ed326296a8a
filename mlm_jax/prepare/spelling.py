"""Case and accents, as tables from a character to what stands for it: what SentencePiece models are given as rules.

Both tables go by single characters, so that the models and the files of the hub format change a text alike. Lower case
is that of the `tokenizers` library; accents are the nonspacing and enclosing marks (Mn, Me) of a character's canonical
decomposition, much as in BERT: also the vowels of Thai and Arabic, and what tells `が` from `か`.
"""

import functools
import unicodedata

from tokenizers import normalizers

from mlm_jax.tokenizer.spm import LOWERCASE

MARKS = ("Mn", "Me")


def names_of(lowercase: bool, strip_accents: bool) -> str:
    """What a model calls its rules."""
    return ", ".join([LOWERCASE] * lowercase + ["strip_accents"] * strip_accents) or "identity"


@functools.cache
def rules(lowercase: bool, strip_accents: bool) -> dict[str, str]:
    """Character -> what stands for it, where that differs."""
    characters = [chr(code) for code in range(0x20, 0x110000) if not 0xD800 <= code < 0xE000]
    changed = characters
    if lowercase:
        changed = normalizers.Lowercase().normalize_str("\n".join(characters)).split("\n")
    found = {char: after for char, after in zip(characters, changed) if after != char}
    if strip_accents:
        marked = [char for char in characters if unicodedata.decomposition(char) or unicodedata.category(char) in MARKS]
        for char in {*marked, *found}:
            found[char] = _without_marks(found.get(char, char))
    return {char: after for char, after in sorted(found.items()) if after != char}


def _without_marks(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    bare = "".join(char for char in decomposed if unicodedata.category(char) not in MARKS)
    return text if bare == decomposed else bare  # syllables of hangul, which are composed of letters, stay whole
