"""What every tokenizer and every stage agree on: which characters vanish, and where a word begins."""

import unicodedata

# One table for the corpus, for training a tokenizer and for use of the model (the cleaning of the original BERT):
#   tab, newline, carriage return, every space and line separator (Zs, Zl, Zp) -> one space each
#   control, format, surrogate and private-use characters (Cc, Cf, Cs, Co), U+FFFD -> dropped
#   all else -> kept
SPACES = ("Zs", "Zl", "Zp")
DROPPED = ("Cc", "Cf", "Cs", "Co")


def cleaned(char: str) -> str:
    """What stands for a character: a space, nothing, or itself."""
    category = unicodedata.category(char)
    if char in "\t\n\r" or category in SPACES:
        return " "
    return "" if category in DROPPED or char == "\ufffd" else char


class _Cleaning(dict):
    """Code point -> what stands for it, filled as characters are met."""

    def __missing__(self, code: int) -> str:
        self[code] = cleaned(chr(code))
        return self[code]


_cleaning = _Cleaning()


def clean(text: str) -> str:
    """Text without the characters that no model should see; every kind of white space becomes a space."""
    # a printable character is neither a control nor a space other than " "; U+FFFD alone is printable and dropped
    if text.isprintable() and "\ufffd" not in text:
        return text
    return text.translate(_cleaning)


# A word begins at white space, and each punctuation sign and each CJK ideograph is a word of its own (as the basic
# tokenizer of BERT splits). A combining mark belongs to the character before it and begins no word.
LETTER, ALONE, MARK = 0, 1, 2

IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
    (0x30000, 0x323AF),
)


def is_ideograph(char: str) -> bool:
    """Whether a character is a CJK ideograph; kana and hangul are letters."""
    code = ord(char)
    return code >= IDEOGRAPHS[0][0] and any(first <= code <= last for first, last in IDEOGRAPHS)


def is_sign(char: str) -> bool:
    """Whether a character is punctuation: Unicode's P categories, and all of ASCII that is neither letter nor digit."""
    if char < "\x7f":
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


class _Kinds(dict):
    def __missing__(self, char: str) -> int:
        if is_sign(char) or is_ideograph(char):
            kind = ALONE
        else:
            kind = MARK if unicodedata.category(char).startswith("M") else LETTER
        self[char] = kind
        return kind


kinds = _Kinds()  # character -> LETTER | ALONE | MARK


def split_token(token: str) -> list[str]:
    """Cuts text without white space into its words."""
    words, start, closed = [], 0, False
    for place, char in enumerate(token):
        kind = kinds[char]
        if place and (kind == ALONE or (closed and kind == LETTER)):
            words.append(token[start:place])
            start = place
        if kind != MARK:
            closed = kind == ALONE
    words.append(token[start:])
    return words


def split_words(text: str) -> list[str]:
    """The words of a text: the rule in full, whatever the tokenizer."""
    return [word for token in clean(text).split() for word in split_token(token)]
