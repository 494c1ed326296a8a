"""Where sentences end: at a sign that white space and no lower-case letter follow; not at abbreviations and numbers."""

import functools

import numpy as np

# Signs that end a sentence where white space follows; and those of scripts that put none between sentences.
SPACED, UNSPACED = ".!?…؟۔।॥።፧။។៕།։᠃‼⁇⁈⁉", "。！？｡"
CLOSERS = "\"'”’»)]}›」』】〉》）］"
OPENERS = "\"'“‘«([{¿¡‹"

# Words before a full stop that ends no sentence; the second ones only where a number follows.
TITLES = """
    mr mrs ms dr prof st sr jr rev hon gen col maj capt lt sgt gov sen rep pres messrs mme mlle mt ft vs etc al cf ca
    approx esp ed eds dept univ inc ltd co corp bros ave blvd jan feb mar apr jun jul aug sep sept oct nov dec viz bzw
"""
COUNTED = "no nos p pp vol vols fig figs eq eqs sec ch art nr bd"
OF_OTHER_SCRIPTS = frozenset(["डॉ", "श्री", "श्रीमती", "सुश्री", "प्रो"])
ABBREVIATIONS, BEFORE_NUMBERS = frozenset(TITLES.split()), frozenset(COUNTED.split())

ENDS, GOES_ON, NUMBER, COUNTS = range(4)  # what a word before a full stop says
SPACE, BREAK, STOP = ord(" "), ord("\n"), ord(".")
SIGN, WITHOUT_SPACE, CLOSES, OPENS, LOWER, LETTER = 1, 2, 4, 8, 16, 32  # what a character is: bits; the last of ASCII
LONGEST_KNOWN = max(map(len, ABBREVIATIONS | BEFORE_NUMBERS))
LONGEST_PLAIN = 12  # letters of words that are looked at all at once


def _key(word: str) -> int:
    """A number for a word of ASCII letters, whatever their case."""
    return sum((ord(char) & 31) << 5 * place for place, char in enumerate(word))


KNOWN = np.array(sorted(map(_key, (word[::-1] for word in ABBREVIATIONS | BEFORE_NUMBERS))))


def _table(size: int) -> np.ndarray:
    """What each character is, u8[size], by code point."""
    found = np.zeros(size, np.uint8)
    for characters, bits in ((SPACED, SIGN), (UNSPACED, SIGN | WITHOUT_SPACE), (CLOSERS, CLOSES), (OPENERS, OPENS)):
        for char in characters:
            if ord(char) < size:
                found[ord(char)] |= bits
    lower = [code for code in range(min(size, 0x80)) if chr(code).islower()]
    found[lower] |= LOWER
    found[[code for code in range(min(size, 0x80)) if chr(code).isalpha()]] |= LETTER
    return found


_ascii, _all = _table(0x80).tobytes().ljust(0x100, b"\0"), _table(0x110000)


def sentence_ends(paragraphs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Where sentences end inside of paragraphs (number of the paragraph, place in characters), i64[n] each.

    The end of a paragraph is left out. A place lies before any white space. paragraphs: cleaned.
    """
    each: tuple[list[int], list[int]] = ([], [])  # those with other characters than ASCII, and those without
    for number, paragraph in enumerate(paragraphs):
        each[paragraph.isascii()].append(number)
    owners, ends = [], []
    for numbers in filter(len, each):
        found, places = _ends([paragraphs[number] for number in numbers])
        owners.append(np.array(numbers)[found])
        ends.append(places)
    if not owners:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(owners), np.concatenate(ends)


def _ends(paragraphs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The same, paragraph by paragraph."""
    # one break before each, and in the end as many as a place can be asked for
    text = "\n".join(["", *paragraphs, "\n\n"])
    if text.isascii():
        data = text.encode("ascii")
        codes, kind = np.frombuffer(data, np.uint8), np.frombuffer(data.translate(_ascii), np.uint8)
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        kind = _all[codes]
    signs, ends = _signs(kind)
    after, unspaced = codes[ends], (kind[signs] & WITHOUT_SPACE) > 0
    wanted = (after == SPACE) | ((after != BREAK) & unspaced)
    signs, ends, after = signs[wanted], ends[wanted], after[wanted]
    spaced = after == SPACE
    following = ends + 1 + ((kind[ends + 1] & OPENS) > 0)
    wanted = ~(spaced & _is_lower(codes[following], kind[following]))
    signs, ends, spaced, following = signs[wanted], ends[wanted], spaced[wanted], following[wanted]
    firsts = np.cumsum([1, *(len(paragraph) + 1 for paragraph in paragraphs)])[:-1]
    owners = np.searchsorted(firsts, signs, side="right") - 1
    doubtful = np.flatnonzero(spaced & (codes[signs] == STOP) & (codes[signs + 1] != STOP))
    doubtful = doubtful[~_after_plain_words(codes, kind, signs[doubtful])]
    sure = np.ones(len(signs), bool)
    sure[doubtful] = False
    # where the sentence of each begins, as far as that is sure
    last = np.maximum.accumulate(np.where(sure, ends + spaced, 0))
    begins = np.maximum(firsts[owners], np.append(0, last[:-1]) if len(last) else last)
    begun = 0
    for number, begin, sign, next in zip(
        *(x.tolist() for x in (doubtful, begins[doubtful], signs[doubtful], following[doubtful]))
    ):
        begin = max(begin, begun)
        if _ends_sentence(text, begin, sign, next):
            sure[number] = True
            begun = int(ends[number]) + 1
    return owners[sure], (ends - firsts[owners])[sure]


def _signs(kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of each run of signs, and the place behind the run and the signs that close, i64 each."""
    places = np.flatnonzero((kind & SIGN).view(bool))  # SIGN is 1
    first = np.ones(len(places), bool)
    first[1:] = places[1:] != places[:-1] + 1
    ends = places[np.append(first[1:], True)] + 1 if len(places) else places
    closing = np.flatnonzero(kind[ends] & CLOSES)
    while len(closing):
        ends[closing] += 1
        closing = closing[(kind[ends[closing]] & CLOSES) > 0]
    return places[first], ends


def _after_plain_words(codes: np.ndarray, kind: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Where a full stop follows a word of 2 to 12 ASCII letters that is no abbreviation, bool[signs]."""
    plain = np.zeros(len(signs), bool)
    left, keys = np.arange(len(signs)), np.zeros(len(signs), np.int64)  # where there were only letters so far
    for size in range(LONGEST_PLAIN + 1):
        at = signs[left] - (size + 1)
        border = (codes[at] == SPACE) | (codes[at] == BREAK)
        if size > 1:
            plain[left[border]] = size > LONGEST_KNOWN or ~np.isin(keys[border], KNOWN)
        letters = (kind[at] & LETTER) > 0
        left, at, keys = left[letters], at[letters], keys[letters]
        if size < LONGEST_KNOWN:
            keys = keys | (codes[at] & 31).astype(np.int64) << 5 * size
    return plain


def _is_lower(codes: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Whether characters are lower-case letters, bool[n]."""
    lower = (kind & LOWER) > 0
    others = np.flatnonzero(codes >= 0x80)
    lower[others] = [chr(code).islower() for code in codes[others].tolist()]
    return lower


def _ends_sentence(text: str, start: int, sign: int, following: int) -> bool:
    """Whether a full stop at `sign` ends the sentence that began at `start`; what follows it begins at `following`."""
    space = text.rfind(" ", start, sign)
    verdict = _before_stop(text[max(start, space + 1) : sign])
    if verdict == NUMBER:
        return space >= start  # else it is the number of a list's item
    return not text[following].isdigit() if verdict == COUNTS else verdict == ENDS


@functools.lru_cache(maxsize=1 << 15)
def _before_stop(word: str) -> int:
    """What a word before a full stop says; NUMBER, COUNTS: it depends on what stands before the word, or follows."""
    word = word.lstrip(OPENERS)
    if word.isdigit():
        return NUMBER
    if len(word) < 2:
        return ENDS if word == "I" or not word.isalpha() else GOES_ON  # an initial
    lower = word.lower()
    if lower in BEFORE_NUMBERS:
        return COUNTS
    if word in OF_OTHER_SCRIPTS:
        return GOES_ON
    return GOES_ON if lower in ABBREVIATIONS or (word[1] == "." and word.replace(".", "").isalpha()) else ENDS
