"""A tokenizer from text: SentencePiece's unigram model on counted words, the same bytes in every process.

The library is given words with their counts and the candidate pieces, not lines of text: no line can be too long for
it, no piece crosses a word border (so a piece is a part of one word, as in WordPiece), the order of the documents
does not matter, and a sample of 10 MB takes seconds.
"""

import dataclasses
import io
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import sentencepiece

from mlm_jax.text import clean, split_token
from mlm_jax.tokenizer import GRID, NAMES, SPACE, Tokenizer

# Characters that get a piece of their own; the others become UNK. Most frequent first: those that make up COVERAGE of
# the text, as far as ALPHABET_SHARE of the vocabulary goes; then, where they leave most of the vocabulary free, all
# that are not rare (a Latin alphabet keeps its Q and X).
COVERAGE, ALPHABET_SHARE = 0.9995, 0.9
RARE, FREE_SHARE = 1e-6, 0.25
PIECE_CHARACTERS = 16  # longest piece
WORD_CHARACTERS = 64  # longer words are cut before training
DISTINCT_CHARACTERS = 1_500_000  # most characters of different words: bounds memory and time
CANDIDATES = 20  # times the vocabulary's size: candidate pieces to begin with
LONG_RUN = 1000  # characters without white space that deserve a warning
THREADS = 2  # fixed: sums of floats depend on it, and so would the model
SPECIALS = 5


@dataclasses.dataclass
class Report:
    """What training read, used and gave. Characters outside the alphabet and skipped words count as skipped bytes."""

    texts: int = 0
    bytes_read: int = 0
    bytes_skipped: int = 0
    words: int = 0  # different ones
    longest_run: int = 0  # characters without white space, in writing that puts spaces between words
    alphabet: int = 0
    characters: int = 0  # different ones that were met
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
            lines.append(f"the longest run without white space has {self.longest_run:,} characters; is this text?")
        if self.largest_alphabet <= self.alphabet < self.characters:
            lines.append(f"only {self.alphabet} of {self.characters} different characters fit; the others become UNK")
        return lines

    @property
    def largest_alphabet(self) -> int:
        return int(ALPHABET_SHARE * (self.asked - SPECIALS))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> tuple[Tokenizer, Report]:
    """A unigram model of at most `vocab_size` ids, [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4 included.

    The order of the texts does not matter. Raises ValueError where they hold no word.
    """
    report = Report(asked=vocab_size)
    words = _count_words(texts, report)
    words = _within_alphabet(words, report)
    words = _bounded(words, report)
    if not words:
        raise ValueError("no word to train a tokenizer on")
    report.words = len(words)
    tokenizer = Tokenizer(_fit(words, vocab_size))
    report.pieces = tokenizer.size
    return tokenizer, report


def _count_words(texts: Iterable[str], report: Report) -> Counter:
    """Words, with a sign for the white space before them, and how often each is met."""
    tokens: Counter = Counter()
    for text in texts:
        report.texts += 1
        report.bytes_read += len(text.encode("utf-8", "replace"))
        tokens.update(clean(text).split())
    words: Counter = Counter()
    for token, count in tokens.items():
        parts = split_token(token)
        report.longest_run = max(report.longest_run, max(map(len, parts)))
        parts[0] = SPACE + parts[0]
        for part in parts:
            for start in range(0, len(part), WORD_CHARACTERS):
                words[part[start : start + WORD_CHARACTERS]] += count
    return words


def _within_alphabet(words: Counter, report: Report) -> Counter:
    """The words cut at characters that are too rare for the vocabulary; those become UNK."""
    characters: Counter = Counter()
    for word, count in words.items():
        for char in word:
            characters[char] += count
    total, largest, covered = characters.total(), report.largest_alphabet, 0
    alphabet = {SPACE}
    for char, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        cheap = len(alphabet) < FREE_SHARE * report.asked and count > max(2, RARE * total)
        if len(alphabet) >= largest or not (covered < COVERAGE * total or cheap):
            break
        alphabet.add(char)
        covered += count
    alphabet.discard("\u2585")  # the library's own sign for the unknown
    report.alphabet, report.characters = len(alphabet), len(characters)
    kept: Counter = Counter()
    for word, count in words.items():
        if alphabet.issuperset(word):
            kept[word] += count
            continue
        for part in "".join(char if char in alphabet else " " for char in word).split():
            kept[part] += count
        report.bytes_skipped += count * sum(len(char.encode()) for char in word if char not in alphabet)
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


def candidates(words: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Every part of a word of 2 to 16 characters that is met at least twice, with its count, best first."""
    text = "".join(word for word, _ in words)
    lengths = np.array([len(word) for word, _ in words])
    counts = np.repeat(np.array([count for _, count in words], np.int64), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(text))  # characters up to the end of the word
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    _, codes = np.unique(codes, return_inverse=True)
    found = []
    # strings of one length that are equal share a number; those of the next length are pairs (number, next character)
    starts, numbers = np.arange(len(text)), codes.astype(np.int64)
    for length in range(2, PIECE_CHARACTERS + 1):
        inside = left[starts] >= length
        starts, numbers = starts[inside], numbers[inside]
        pairs = numbers * (int(codes.max()) + 1) + codes[starts + length - 1]
        _, first, numbers = np.unique(pairs, return_index=True, return_inverse=True)
        total = np.bincount(numbers, weights=counts[starts], minlength=len(first)).astype(np.int64)
        found += [(text[starts[at] : starts[at] + length], int(total[k])) for k, at in enumerate(first) if total[k] > 1]
        often = total[numbers] > 1
        starts, numbers = starts[often], numbers[often]
    return sorted(found, key=lambda item: (-item[1] * len(item[0]), item[0]))


def _fit(words: list[tuple[str, int]], vocab_size: int) -> bytes:
    (pad, *_), (cls, *_), (sep, *_), (mask, *_) = NAMES.values()
    output = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder, "candidates.tsv")
        # the library wants at least one candidate
        rows = candidates(words)[: CANDIDATES * vocab_size] or [(words[0][0][:2], 1)]
        seeds.write_text("".join(f"{piece}\t{count}\n" for piece, count in rows), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([f"{word}\t{count}" for word, count in words]),
            input_format="tsv",
            seed_sentencepieces_file=str(seeds),
            model_writer=output,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            max_sentencepiece_length=PIECE_CHARACTERS,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            num_threads=THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece="[UNK]",
            bos_piece=cls,
            eos_piece=sep,
            control_symbols=[mask],
            minloglevel=2,
        )
    return _finished(output.getvalue())


def _finished(model: bytes) -> bytes:
    """The model with white space put before each text, as the words given to it had, and its scores on the grid."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.add_dummy_prefix = True
    for piece in proto.pieces:
        piece.score = round(piece.score * GRID) / GRID
    proto.trainer_spec.seed_sentencepieces_file = ""  # a temporary path
    return proto.SerializeToString(deterministic=True)


def peak_memory_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
