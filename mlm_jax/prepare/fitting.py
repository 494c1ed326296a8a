"""Tokenizers of each kind from words with their counts: `FITS`."""

import dataclasses
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import sentencepiece

from mlm_jax.prepare.spelling import names_of, rules
from mlm_jax.tokenizer import GRID, MODEL, NAMES

PIECE_CHARACTERS = 16  # longest piece
CANDIDATES = 20  # times the vocabulary's size: candidate pieces to begin with
THREADS = 2  # fixed: sums of floats depend on it, and so would the model
PREFIX = "##"  # of word pieces that continue a word
CHUNK = 10_000  # repetitions of a word that are given to the library together

Words = list[tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What tokenizer is asked for; see `config.TokenizerConfig`."""

    name: str = "unigram"
    byte_fallback: bool = False
    lowercase: bool = False
    strip_accents: bool = False

    @property
    def specials(self) -> int:
        """Ids that are there whatever the text."""
        return 5 + 256 * self.byte_fallback


def candidates(words: Words) -> Words:
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


# ---- SentencePiece ----


def _sentencepiece(words: Words, vocab_size: int, kind: Kind) -> dict[str, bytes]:
    (pad, *_), (cls, *_), (sep, *_), (mask, *_) = NAMES.values()
    output, more = io.BytesIO(), {}
    with tempfile.TemporaryDirectory() as folder:
        if kind.name == "unigram":
            # the library wants at least one candidate
            rows = candidates(words)[: CANDIDATES * vocab_size] or [(words[0][0][:2], 1)]
            more["seed_sentencepieces_file"] = _file(folder, "candidates", (f"{piece}\t{n}" for piece, n in rows))
        if changed := rules(kind.lowercase, kind.strip_accents):
            lines = (f"{ord(char):x}\t{' '.join(f'{ord(each):x}' for each in by)}" for char, by in changed.items())
            more["normalization_rule_tsv"] = _file(folder, "rules", lines)
        else:
            more["normalization_rule_name"] = "identity"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([f"{word}\t{count}" for word, count in words]),
            input_format="tsv",
            model_writer=output,
            model_type=kind.name,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            max_sentencepiece_length=PIECE_CHARACTERS,
            byte_fallback=kind.byte_fallback,
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
            **more,
        )
    return {MODEL: _finished(output.getvalue(), kind)}


def _file(folder: str, name: str, lines: Iterator[str]) -> str:
    path = Path(folder, f"{name}.tsv")
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def _finished(model: bytes, kind: Kind) -> bytes:
    """The model with white space put before each text, as the words given to it had, and its scores on the grid."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.name = names_of(kind.lowercase, kind.strip_accents)
    proto.normalizer_spec.normalization_rule_tsv = ""  # temporary paths
    proto.trainer_spec.seed_sentencepieces_file = ""
    for piece in proto.pieces:
        piece.score = round(piece.score * GRID) / GRID
    return proto.SerializeToString(deterministic=True)


# ---- WordPiece ----


def _word_piece(words: Words, vocab_size: int, kind: Kind) -> dict[str, bytes]:
    """By the `tokenizers` library, which merges the most frequent pair again and again.

    Of equal pairs it takes that of the lower ids, and it numbers the letters as it happens to meet them, differently in
    every process. So they are given to it beforehand, as if they were special tokens.
    """
    import json

    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    from mlm_jax.tokenizer.hub import CONFIG, VOCAB, parallel

    (pad, *_), (cls, *_), (sep, *_), (mask, *_) = NAMES.values()
    letters = {word[0] for word, _ in words} | {PREFIX + char for word, _ in words for char in word[1:]}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[pad, "[UNK]", cls, sep, mask, *sorted(letters)],
        continuing_subword_prefix=PREFIX,
    )
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with parallel(True):
        made.train_from_iterator(_repeated(words), trainer)
    vocab: Mapping[str, int] = made.get_vocab()
    options = {"do_lower_case": kind.lowercase, "strip_accents": kind.strip_accents}
    lines = "".join(f"{token}\n" for token in sorted(vocab, key=vocab.get))
    return {VOCAB: lines.encode(), CONFIG: json.dumps(options).encode()}


def _repeated(words: Words) -> Iterator[str]:
    """Each word as often as it was met: the library counts by itself."""
    for word, count in words:
        for start in range(0, count, CHUNK):
            yield " ".join([word] * min(CHUNK, count - start))


FITS: dict[str, Callable[[Words, int, Kind], dict[str, bytes]]] = {
    "unigram": _sentencepiece,
    "bpe": _sentencepiece,
    "char": _sentencepiece,
    "wordpiece": _word_piece,
}
