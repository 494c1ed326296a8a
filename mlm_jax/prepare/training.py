"""A tokenizer from text: one of the kinds of `fitting`, the same bytes in every process.

The libraries are given words with their counts, not lines of text: no line can be too long for them, no piece crosses a
word border (so a piece is a part of one word, in every kind), the order of the documents does not matter, and a sample
of 10 MB takes seconds.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

from mlm_jax.prepare.fitting import FITS, Kind
from mlm_jax.prepare.spelling import rules
from mlm_jax.text import clean, split_token
from mlm_jax.tokenizer import SPACE, Tokenizer

# Characters that get a piece of their own; the others become UNK, or bytes. Most frequent first: those that make up
# COVERAGE of the text, as far as ALPHABET_SHARE of the vocabulary goes; then, where they leave most of the vocabulary
# free, all that are not rare (a Latin alphabet keeps its Q and X). A vocabulary of characters may be full of them.
COVERAGE, ALPHABET_SHARE = 0.9995, 0.9
RARE, FREE_SHARE = 1e-6, 0.25
WORD_CHARACTERS = 64  # longer words are cut before training
DISTINCT_CHARACTERS = 1_500_000  # most characters of different words: bounds memory and time
LONG_RUN = 1000  # characters without white space that deserve a warning
LONG = "the longest run without white space has {:,} characters; is this text?"


@dataclasses.dataclass
class Report:
    """What training read, used and gave. Characters outside the alphabet and skipped words count as skipped bytes."""

    kind: Kind = dataclasses.field(default_factory=Kind)
    texts: int = 0
    bytes_read: int = 0
    bytes_skipped: int = 0
    words: int = 0  # different ones
    longest_run: int = 0  # characters without white space, in writing that puts spaces between words
    alphabet: int = 0
    characters: int = 0  # different ones that were met
    full: bool = False  # not all of them fit
    asked: int = 0
    pieces: int = 0

    @property
    def bytes_used(self) -> int:
        return self.bytes_read - self.bytes_skipped

    def messages(self) -> list[str]:
        """What the user should know, one line each; empty where all is as asked."""
        lines = []
        if self.pieces < self.asked:
            lines.append(f"training gives {self.pieces} pieces; {self.asked} were asked for")
        if self.longest_run > LONG_RUN:
            lines.append(LONG.format(self.longest_run))
        if self.full:
            others = "are written as bytes" if self.kind.byte_fallback else "become UNK"
            lines.append(f"only {self.alphabet} of {self.characters} different characters fit; the others {others}")
        return lines

    @property
    def largest_alphabet(self) -> int:
        return int((1 if self.kind.name == "char" else ALPHABET_SHARE) * (self.asked - self.kind.specials))


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, kind: Kind | None = None, say: Callable[[str], None] = lambda line: None
) -> tuple[Tokenizer, Report]:
    """A tokenizer of at most `vocab_size` ids, [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4 included.

    kind: None: unigram. The order of the texts does not matter. Raises ValueError where they hold no word.
    """
    kind = kind or Kind()
    report = Report(kind, asked=vocab_size)
    words = _count_words(texts, report)
    words = _within_alphabet(words, report)
    words = _bounded(words, report)
    sign = "" if kind.name == "wordpiece" else SPACE  # of white space; a text may be made of it
    if not any(word.strip(sign) for word, _ in words):
        raise ValueError("no word to train a tokenizer on")
    report.words = len(words)
    if report.longest_run > LONG_RUN:
        say(f"tokenizer: {LONG.format(report.longest_run)}")
    say(f"tokenizer: {report.words:,} different words, {report.alphabet:,} characters")
    tokenizer = Tokenizer(FITS[kind.name](words, vocab_size, kind))
    report.pieces = tokenizer.size
    return tokenizer, report


def _count_words(texts: Iterable[str], report: Report) -> Counter:
    """Words, but in WordPiece with a sign for the white space before them, and how often each is met."""
    tokens: Counter = Counter()
    spelled = _spelling(report.kind)
    for text in texts:
        report.texts += 1
        report.bytes_read += len(text.encode("utf-8", "replace"))
        tokens.update(spelled(clean(text)).split())
    words: Counter = Counter()
    space = "" if report.kind.name == "wordpiece" else SPACE
    for token, count in tokens.items():
        parts = split_token(token)
        report.longest_run = max(report.longest_run, max(map(len, parts)))
        parts[0] = space + parts[0]
        for part in parts:
            for start in range(0, len(part), WORD_CHARACTERS):
                words[part[start : start + WORD_CHARACTERS]] += count
    return words


def _spelling(kind: Kind) -> Callable[[str], str]:
    """What the tokenizer will make of a text before it looks for pieces."""
    if kind.name == "wordpiece":
        from tokenizers import normalizers

        return normalizers.BertNormalizer(
            clean_text=False, lowercase=kind.lowercase, strip_accents=kind.strip_accents
        ).normalize_str
    changed = {ord(char): by for char, by in rules(kind.lowercase, kind.strip_accents).items()}
    return (lambda text: text.translate(changed)) if changed else str


def _within_alphabet(words: Counter, report: Report) -> Counter:
    """The words without characters that are too rare for the vocabulary: cut there; in WordPiece left out, as UNK."""
    characters: Counter = Counter()
    for word, count in words.items():
        for char in word:
            characters[char] += count
    # in WordPiece a character may need two pieces, to begin words and to continue them
    whole = report.kind.name == "wordpiece"
    inside = {char for word in words for char in word[1:]} if whole else set()
    begins = {word[0] for word in words} if whole else set(characters)
    free, rare = (1, 0) if report.kind.name == "char" else (FREE_SHARE, RARE)
    alphabet, pieces = (set(), 0) if whole else ({SPACE}, 1)
    total, largest, covered = characters.total(), report.largest_alphabet, 0
    for char, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        cheap = pieces < free * report.asked and count > max(2, rare * total)
        needs = (char in begins) + (char in inside) if char not in alphabet else 0
        report.full = pieces + max(needs, 1) > largest
        if report.full or not (covered < COVERAGE * total or cheap):
            break
        alphabet.add(char)
        pieces += needs
        covered += count
    alphabet.discard("\u2585")  # the library's own sign for the unknown
    report.alphabet, report.characters = len(alphabet), len(characters)
    kept: Counter = Counter()
    for word, count in words.items():
        if alphabet.issuperset(word):
            kept[word] += count
            continue
        unknown = word if whole else [char for char in word if char not in alphabet]
        report.bytes_skipped += count * sum(len(char.encode()) for char in unknown)
        if not whole:
            for part in "".join(char if char in alphabet else " " for char in word).split():
                kept[part] += count
    return kept


def _bounded(words: Counter, report: Report) -> list[tuple[str, int]]:
    """The most frequent words, as many as `DISTINCT_CHARACTERS` allows, in an order that depends on nothing else."""
    room, kept = DISTINCT_CHARACTERS, []
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        if len(word) > room:
            report.bytes_skipped += count * len(word.replace(SPACE, " ").encode())
            continue
        room -= len(word)
        kept.append((word, count))
    return kept
