"""Text to ids and back, and what the rest of the project knows about ids (`Vocabulary`)."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from mlm_jax.config import ConfigError
from mlm_jax.text import ALONE, MARK, clean, is_ideograph, kinds

DECILES = 10


@dataclasses.dataclass(eq=False)
class Vocabulary:
    """What masking and losses need to know about ids. Compared by identity, so that it can be a static argument.

    `special` are the ids that are never selected and never drawn (padding, CLS, SEP, MASK, UNK, added specials);
    `ordinary` those that a random replacement is drawn from: real pieces only, neither special nor holes.
    """

    size: int  # largest id + 1
    special: np.ndarray  # i32[n], sorted
    ordinary: np.ndarray  # i32[n], sorted
    pad: int
    cls: int
    sep: int
    mask: int
    unk: int
    counts: np.ndarray | None = None  # i64[size], how often each id stands in the training rows

    def __post_init__(self):
        self.special = np.unique(np.asarray(self.special, np.int32))
        self.ordinary = np.unique(np.asarray(self.ordinary, np.int32))
        if self.mask not in self.special:
            raise ValueError(f"the MASK id {self.mask} is not among the special ids {self.special.tolist()}")
        if self.mask in (self.unk, self.pad):
            raise ValueError(f"MASK has the id {self.mask} of UNK or PAD")
        if np.intersect1d(self.special, self.ordinary).size:
            raise ValueError("an id is both special and ordinary")
        for name, ids in (("special", self.special), ("ordinary", self.ordinary)):
            if not ids.size or ids[0] < 0 or ids[-1] >= self.size:
                raise ValueError(f"{name} ids must lie in [0, {self.size})")


def unigram_losses(vocabulary: Vocabulary) -> np.ndarray:
    """-log p(id) in nats, f32[size]; p from the counts of the training rows plus 1, over the ordinary ids."""
    counts = np.zeros(vocabulary.size)
    counts[vocabulary.ordinary] = vocabulary.counts[vocabulary.ordinary] + 1.0
    with np.errstate(divide="ignore"):
        losses = np.log(counts.sum()) - np.log(counts)
    return np.where(np.isfinite(losses), losses, 0.0).astype(np.float32)


def frequency_deciles(vocabulary: Vocabulary) -> np.ndarray:
    """The frequency decile of each id, 1 to 10, i32[size]: each decile holds about a tenth of the training tokens.

    The ordinary ids in order of their counts, the most frequent first, are cut where their cumulative count passes a
    tenth; an id belongs where its middle falls, so a decile is empty where one id holds more than two tenths.
    """
    counts = np.asarray(vocabulary.counts, np.float64)[vocabulary.ordinary]
    order = np.argsort(-counts, kind="stable")
    ends = np.cumsum(counts[order])
    middle = (ends - counts[order] / 2) / max(ends[-1], 1.0)
    deciles = np.ones(vocabulary.size, np.int32)
    deciles[np.asarray(vocabulary.ordinary)[order]] = np.minimum(middle * DECILES, DECILES - 1).astype(np.int32) + 1
    return deciles


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """Ids of a text, without CLS and SEP, and where its words begin."""

    ids: np.ndarray  # i32[n]
    word_starts: np.ndarray  # bool[n]; the first token is always a start


MODEL = "spm.model"
SPACE = "\u2581"  # how SentencePiece writes white space

# What the special tokens are called in models of different origin; the first name is what training gives.
NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


class Tokenizer:
    """A SentencePiece model and, for each of its ids, what the word rule of `text` needs to know.

    The pieces' own texts decide where words begin, so that the rule is a table look-up: a word begins at a piece that
    starts with white space, a punctuation sign or an ideograph, and at the piece after a sign or an ideograph. A piece
    of white space alone belongs to the piece after it, and a combining mark begins no word. A piece is never split:
    where a given model joins several signs in one piece, they are one word. Unknown characters, and bytes that are
    part of a character, count as letters.
    """

    def __init__(self, model: bytes, origin: str = ""):
        """Raises ConfigError, with `origin` as the value, for bytes that are no such model or lack a special token."""
        self.model = model
        self.hash = hashlib.blake2b(model, digest_size=16).hexdigest()
        self._processor, self.pieces, specials = _open(model, origin)
        self.size = len(self.pieces)
        self.unk: int = self._processor.unk_id()
        self.pad, self.cls, self.sep, self.mask = (specials[name] for name in NAMES)
        self._fill_tables()

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """From a folder that holds `spm.model`, or from a model file. Raises ConfigError."""
        file = Path(path)
        file = file / MODEL if file.is_dir() else file
        try:
            model = file.read_bytes()
        except OSError as error:
            fix = f"must be a SentencePiece model, or a folder that holds {MODEL} ({error.strerror})"
            raise ConfigError("config.tokenizer.path", str(path), fix) from None
        return cls(model, str(path))

    def save(self, folder: str | Path) -> None:
        """Writes `spm.model` into a folder; the file appears under its name only when it is whole."""
        file = Path(folder) / MODEL
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{MODEL}.partial")
        partial.write_bytes(self.model)
        partial.rename(file)

    def _fill_tables(self) -> None:
        processor, ids = self._processor, range(self.size)
        control = {i for i in ids if processor.is_control(i)}
        hidden = control | {self.unk} | {i for i in ids if processor.is_unused(i)}
        self.special = np.array(sorted(control | {self.unk}), np.int32)
        self.ordinary = np.array([i for i in ids if i not in hidden], np.int32)
        # per id: begins a word; ends one; lets the next piece join; starts with a mark; is all marks; has an ideograph
        tables = np.zeros((6, self.size), bool)
        self._begins, self._ends, self._joins, self._marks, self._bare_marks, self.ideographs = tables
        # characters of the text that an id stands for, white space before a word included; 0: unknown
        self.lengths = np.zeros(self.size, np.int32)
        for i, piece in enumerate(self.pieces):
            if i in control:
                self._begins[i] = self._ends[i] = True
            elif processor.is_byte(i):
                value = int(piece[3:5], 16)
                self.lengths[i] = value < 0x80 or value >= 0xC0  # the others continue a character
                self._begins[i] = self._ends[i] = 0x20 < value < 0x7F and kinds[chr(value)] == ALONE
            elif i != self.unk:
                self.lengths[i] = len(piece)
                self._describe(i, piece)

    def _describe(self, i: int, piece: str) -> None:
        body = piece.lstrip(SPACE)
        spaced, closed = len(body) < len(piece), body.endswith(SPACE)  # some models put white space after the word
        word = [kinds[char] for char in body]
        unmarked = [kind for kind in word if kind != MARK]
        self._joins[i] = not body
        self._begins[i] = spaced or word[0] == ALONE
        self._ends[i] = closed or (bool(unmarked) and unmarked[-1] == ALONE)
        self._marks[i] = not spaced and word[0] == MARK
        self._bare_marks[i] = not spaced and not unmarked
        self.ideographs[i] = any(map(is_ideograph, body))

    def encode(self, text: str) -> Encoding:
        """Ids and word starts of one text, cleaned as `text.clean` says; nothing is added at its ends."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str], threads: int = 1) -> tuple[Encoding, np.ndarray]:
        """Many texts: their ids and word starts one after another, and how many ids each text has i64[texts]."""
        each = self._processor.encode([clean(text) for text in texts], return_type="numpy", num_threads=threads)
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        ids = np.concatenate([*each, np.zeros(0, np.int32)])
        return Encoding(ids, self._word_starts(ids, np.cumsum(lengths) - lengths)), lengths

    def encode_around(self, parts: Sequence[str]) -> list[int]:
        """Ids of a text that was cut at its MASKs, with MASK between the parts; white space before a MASK is its own.

        What follows a MASK without white space continues its word, or is a sign after it, as in training text.
        """
        ids: list[int] = []
        for number, part in enumerate(parts):
            glued = number > 0 and not part[:1].isspace()
            processor = self._glued if glued else self._processor
            ids += [self.mask] * (number > 0) + processor.encode(" ".join(clean(part).split()))
        return ids

    @functools.cached_property
    def _glued(self) -> sentencepiece.SentencePieceProcessor:
        """The model without the white space that it puts before a text."""
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(self._processor.serialized_model_proto())
        proto.normalizer_spec.add_dummy_prefix = False
        return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())

    def _word_starts(self, ids: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Where words begin, bool[n]. firsts: where texts begin; n for empty texts at the end."""
        starts, closed, marks = self._begins[ids], self._ends[ids], self._marks[ids]
        bare = self._bare_marks[ids]
        if bare.any():
            # what stands before the marks decides whether a word begins after them
            closed = closed[np.maximum.accumulate(np.where(bare, 0, np.arange(len(ids))))]
        starts[1:] |= closed[:-1] & ~marks[1:]
        starts[1:] &= ~self._joins[ids[:-1]]
        starts[firsts[firsts < len(ids)]] = True
        return starts

    def normalize(self, text: str) -> str:
        """The text as the model's own rules change it before it is cut into pieces; a sign stands for white space."""
        return self._processor.normalize(text)

    def surfaces(self, text: str) -> list[str]:
        """What each token of a text stands for; unlike `pieces`, unknown characters as they are."""
        return self._processor.encode(text, out_type=str)

    def decode(self, ids: Sequence | np.ndarray) -> str:
        """The text of ids; special tokens leave nothing behind, unknown ones a sign."""
        return self._processor.decode([int(i) for i in ids])

    def show_words(self, ids: Sequence | np.ndarray, word_starts: Sequence | np.ndarray) -> str:
        """Pieces with the words in brackets: `[▁home land] [▁se curity] [.]`."""
        words: list[list[str]] = []
        for i, start in zip(ids, word_starts):
            if start or not words:
                words.append([])
            words[-1].append(self.pieces[int(i)])
        return " ".join(f"[{' '.join(word)}]" for word in words)

    def vocabulary(self, counts: np.ndarray | None = None) -> Vocabulary:
        """What masking and losses need. counts: i64[size], how often each id stands in the training rows."""
        return Vocabulary(
            size=self.size,
            special=self.special,
            ordinary=self.ordinary,
            pad=self.pad,
            cls=self.cls,
            sep=self.sep,
            mask=self.mask,
            unk=self.unk,
            counts=counts,
        )


def _open(model: bytes, origin: str) -> tuple[sentencepiece.SentencePieceProcessor, list[str], dict[str, int]]:
    """The library's processor, its pieces, and the ids of the special tokens. Raises ConfigError."""
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    except (RuntimeError, ValueError):
        raise ConfigError("config.tokenizer.path", origin, "is not a SentencePiece model") from None
    specials = {}
    for key, names in NAMES.items():
        specials[key] = next((pieces.index(name) for name in names if name in pieces), None)
        if specials[key] in (None, processor.unk_id()):
            fix = f"the model has no {' or '.join(names)}; train one that reserves it, or leave the path empty"
            raise ConfigError("config.tokenizer.path", origin, fix)
    visible = [i for i in specials.values() if not processor.is_control(i)]
    if visible:
        processor = sentencepiece.SentencePieceProcessor(model_proto=_hide(model, visible))
    return processor, pieces, specials


def _hide(model: bytes, ids: list[int]) -> bytes:
    """The model with these pieces as control symbols: text that happens to read `[MASK]` must not become that id."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for i in ids:
        proto.pieces[i].type = proto.pieces[i].CONTROL
    return proto.SerializeToString()
