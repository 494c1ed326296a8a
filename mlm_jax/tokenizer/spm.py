"""The SentencePiece side of `Tokenizer`: a model, and for each of its ids what the word rule needs to know."""

from collections.abc import Mapping, Sequence

import numpy as np
import sentencepiece

from mlm_jax.config import ConfigError
from mlm_jax.text import ALONE, MARK, is_ideograph, kinds
from mlm_jax.tokenizer.words import Encoding

MODEL = "spm.model"
SPACE = "\u2581"  # how SentencePiece writes white space
# Scores of trained models are multiples of 1 / GRID: sums up to 2^18 are exact in float32, in which SentencePiece adds
# them, so that float64, as in `tokenizers`, finds the same pieces where two ways to cut a word are close or equal.
GRID = 64

LOWERCASE = "lowercase"  # how a model calls rules that make lower case and nothing else
# What the special tokens are called in models of different origin; the first name is what training gives.
NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


class SentencePiece:
    """A SentencePiece model and, for each of its ids, what the word rule of `text` needs to know.

    The pieces' own texts decide where words begin, so that the rule is a table look-up: a word begins at a piece that
    starts with white space, a punctuation sign or an ideograph, and at the piece after a sign or an ideograph. A piece
    of white space alone belongs to the piece after it, and a combining mark begins no word. A piece is never split:
    where a given model joins several signs in one piece, they are one word. Unknown characters, and bytes that are
    part of a character, count as letters.
    """

    def __init__(self, files: Mapping[str, bytes], origin: str = ""):
        """files: the model, under the name MODEL. Raises ConfigError, with `origin` as the value, for what is none."""
        model = files[MODEL]
        self.files, self.identity = {MODEL: model}, model
        self._processor, self.pieces, self.roles = _open(model, origin)
        self.shown, self.size, self.unk = self.pieces, len(self.pieces), self.roles["unk"]
        self._variants: dict[bool, sentencepiece.SentencePieceProcessor] = {}
        self._fill_tables()

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
        self._leading = np.zeros(self.size, np.int32)  # of these, white space that stands before what is visible
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
        self._leading[i] = len(piece) - len(body) if body else 0
        self._begins[i] = spaced or word[0] == ALONE
        self._ends[i] = closed or (bool(unmarked) and unmarked[-1] == ALONE)
        self._marks[i] = not spaced and word[0] == MARK
        self._bare_marks[i] = not spaced and not unmarked
        self.ideographs[i] = any(map(is_ideograph, body))

    def encode(self, texts: list[str], threads: int = 1) -> tuple[Encoding, np.ndarray]:
        """Ids and word starts of cleaned texts one after another, and how many ids each has, i64[texts]."""
        each = self._processor.encode(texts, return_type="numpy", num_threads=threads)
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        ids = np.concatenate([*each, np.zeros(0, np.int32)])
        return Encoding(ids, self._word_starts(ids, np.cumsum(lengths) - lengths)), lengths

    def around(self, parts: Sequence[str]) -> list[int]:
        """See `Tokenizer.encode_around`; parts: cleaned."""
        ids: list[int] = []
        for number, part in enumerate(parts):
            processor = self._prefixed(part.startswith((" ", SPACE))) if number else self._processor
            ids += [self.roles["mask"]] * (number > 0) + processor.encode(part.strip(" "))
        return ids

    def proto(self):
        """The model's content, a `ModelProto`; the special tokens are control symbols in it."""
        from sentencepiece import sentencepiece_model_pb2  # imports protobuf, which workers need not

        return sentencepiece_model_pb2.ModelProto.FromString(self._processor.serialized_model_proto())

    def _prefixed(self, wanted: bool) -> sentencepiece.SentencePieceProcessor:
        """The model with white space put before each text, or without."""
        if wanted not in self._variants:
            proto = self.proto()
            proto.normalizer_spec.add_dummy_prefix = wanted
            self._variants[wanted] = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        return self._variants[wanted]

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

    def tokens_at(
        self, texts: list[str], encoding: Encoding, lengths: np.ndarray, owners: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """See `Tokenizer.tokens_at`."""
        ends = np.cumsum(lengths)
        firsts = ends - lengths
        # characters before each token; pieces stand for the text as it is, with one white space before it
        before = np.concatenate([[0], np.cumsum(self.lengths[encoding.ids], dtype=np.int64)])
        plain = before[ends] - before[firsts] == np.fromiter(map(len, texts), np.int64, len(texts)) + 1
        easy = plain[owners]
        found = np.searchsorted(before[:-1], before[firsts[owners[easy]]] + places[easy] + 1)
        found = [found[found < ends[owners[easy]]]]
        for number in np.unique(owners[~easy]):
            found.append(firsts[number] + self._by_surface(texts[number], places[owners == number]))
        return np.concatenate(found)

    def places(self, texts: list[str], encoding: Encoding, lengths: np.ndarray) -> np.ndarray:
        """See `Tokenizer.places`."""
        ids = encoding.ids
        each, ends = self.lengths[ids].astype(np.int64), np.cumsum(lengths)
        before = np.concatenate([[0], np.cumsum(each)])
        firsts = ends - lengths
        found = before[:-1] - np.repeat(before[firsts], lengths) - 1  # a white space stands before the text
        continues = each == 0  # the bytes of a character after its first one
        found = np.where(continues, found - 1, found + self._leading[ids])
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        for number in np.flatnonzero(before[ends] - before[firsts] != sizes + 1):
            found[firsts[number] : ends[number]] = self._by_offsets(texts[number])
        return np.clip(found, 0, np.repeat(np.maximum(sizes - 1, 0), lengths))

    def _by_offsets(self, text: str) -> np.ndarray:
        """`places` of a text with unknown characters, or that the model's own rules change."""
        offsets = self._processor.encode_as_offset_mapping(text)["offsets"]
        spaced = [begin + 1 < end and text[begin] == " " for begin, end in offsets]
        return np.array([begin for begin, _ in offsets], np.int64) + np.array(spaced, np.int64)

    def normalize(self, text: str) -> str:
        """The text as the model's own rules change it before it is cut into pieces; a sign stands for white space."""
        return self._processor.normalize(text)

    def surfaces(self, text: str) -> list[str]:
        """What each token of a text stands for; unlike `pieces`, unknown characters as they are."""
        return self._processor.encode(text, out_type=str)

    def _by_surface(self, text: str, places: np.ndarray) -> np.ndarray:
        """Tokens at places of a text with unknown characters, or that the model's own rules change."""
        surfaces = self.surfaces(text)
        before = np.cumsum([0, *map(len, surfaces)])
        if before[-1] == len(text) + 1:
            places = places + 1
        else:
            places = [len(self.normalize(text[:place])) for place in places]
        tokens = np.searchsorted(before, places)
        return tokens[tokens < len(surfaces)]

    def decode(self, each: list[list[int]]) -> list[str]:
        """The texts of lists of ids; special tokens leave nothing behind, unknown ones a sign."""
        return self._processor.decode(each)


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
    return processor, pieces, specials | {"unk": processor.unk_id()}


def _hide(model: bytes, ids: list[int]) -> bytes:
    """The model with these pieces as control symbols: text that happens to read `[MASK]` must not become that id."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for i in ids:
        proto.pieces[i].type = proto.pieces[i].CONTROL
    return proto.SerializeToString()
