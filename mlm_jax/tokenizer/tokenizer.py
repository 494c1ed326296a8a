"""`Tokenizer`: one interface for every kind of tokenizer."""

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.text import clean
from mlm_jax.tokenizer import hub
from mlm_jax.tokenizer.spm import MODEL, SentencePiece
from mlm_jax.tokenizer.vocabulary import Vocabulary
from mlm_jax.tokenizer.words import Encoding

KEY = "config.tokenizer.path"
# What a tokenizer is read from -> what reads it. Where a folder holds several, the first counts.
KINDS = {hub.JSON: hub.from_json, MODEL: SentencePiece, hub.VOCAB: hub.from_vocab}
SPACES = re.compile("  +")


class Tokenizer:
    """Text to ids, word starts and back.

    pieces: the token of each id as its file has it. shown: the same for a reader, with U+2581 for the white space
    before it, as SentencePiece writes. ideographs: bool[size], whether a piece holds one. pad, cls, sep, mask, unk: ids
    of the special tokens. special, ordinary: i32, as in `Vocabulary`. hash: of all that the ids depend on.
    """

    def __init__(self, files: bytes | Mapping[str, bytes], origin: str = ""):
        """files: a SentencePiece model, or files by name of which one is of a kind in KINDS.

        Raises ConfigError, with `origin` as the value, for what cannot be read or lacks a special token.
        """
        if isinstance(files, bytes):
            files = {MODEL: files}
        kind = next(name for name in KINDS if name in files)
        try:
            self._backend = backend = _opened(kind, tuple(sorted(files.items())))
        except ConfigError as error:
            raise ConfigError(error.key, origin, error.fix) from None
        self.kind, self.files = kind, backend.files
        self.hash = hashlib.blake2b(backend.identity, digest_size=16).hexdigest()
        self.pieces: list[str] = backend.pieces
        self.shown: list[str] = backend.shown
        self.size = len(self.pieces)
        self.special, self.ordinary, self.ideographs = backend.special, backend.ordinary, backend.ideographs
        self.pad, self.cls, self.sep, self.mask, self.unk = (
            backend.roles[name] for name in ("pad", "cls", "sep", "mask", "unk")
        )
        self.added: dict[int, np.ndarray] = {}  # ids that `add_terms` made -> the ids that stood for them before

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """From one of the files in KINDS, or a folder that holds one. Raises ConfigError.

        A file's kind is told by its name: `*.json`, `*.txt`, any other a SentencePiece model. The files of `hub.BESIDE`
        beside the first two are read too.
        """
        path, file = Path(path), _main_file(Path(path))
        kind = {".json": hub.JSON, ".txt": hub.VOCAB}.get(file.suffix, MODEL)
        beside = () if kind == MODEL else hub.BESIDE
        try:
            files = {kind: file.read_bytes()}
            files |= {name: (file.parent / name).read_bytes() for name in beside if (file.parent / name).exists()}
        except OSError as error:
            fix = f"must be one of {', '.join(KINDS)}, or a folder that holds one ({error.strerror})"
            raise ConfigError(KEY, str(path), fix) from None
        return cls(files, str(path))

    def save(self, folder: str | Path) -> None:
        """Writes the files that `load` reads back, and removes those of another tokenizer from the folder.

        Each file appears under its name only when it is whole, the tokenizer's own after those beside it.
        """
        _write(Path(folder), self.files, (*KINDS, *hub.BESIDE))

    def save_hub(self, folder: str | Path, max_length: int | None = None, types: bool = True) -> None:
        """Writes what `transformers.AutoTokenizer` loads: `tokenizer.json`, `tokenizer_config.json`.

        A text gives the same ids there, between CLS and SEP, and a MASK takes the white space before it. The cleaning
        of `text` is part of it; not so for what was read from a `tokenizer.json`, which is written back as it was. A
        special token that is spelled out in a text becomes that token there.

        max_length: tokens that the model can read. types: whether the model takes token types. Both are for a
        `tokenizer_config.json` that did not exist before. Raises ConfigError for a SentencePiece model that the format
        cannot express.
        """
        from mlm_jax.tokenizer import export  # imports protobuf, which workers need not

        _write(Path(folder), export.hub_files(self._backend, max_length, types), hub.BESIDE)

    @property
    def separators(self) -> int:
        """How many SEP stand between the texts of a pair: one, or as a `tokenizer.json` has it (RoBERTa: two)."""
        return getattr(self._backend, "separators", 1)

    def encode(self, text: str) -> Encoding:
        """Ids and word starts of one text, cleaned as `text.clean` says; nothing is added at its ends."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str], threads: int = 1, cleaned: bool = False) -> tuple[Encoding, np.ndarray]:
        """Many texts: their ids and word starts one after another, and how many ids each text has i64[texts].

        cleaned: whether they have gone through `text.clean` before.
        """
        return self._backend.encode(texts if cleaned else [clean(text) for text in texts], threads)

    def encode_around(self, parts: Sequence[str]) -> list[int]:
        """Ids of a text that was cut at its MASKs, with MASK between the parts; white space before a MASK is its own.

        What follows a MASK without white space continues its word, or is a sign after it, as in training text. A
        character that cleaning removes counts as white space there.
        """
        # what begins with white space, or with what vanishes
        spaced = [part != "" and not clean(part[0]).strip(" ") for part in parts]
        return self._backend.around([SPACES.sub(" ", " " * first + clean(part)) for first, part in zip(spaced, parts)])

    def tokens_at(
        self, texts: list[str], encoding: Encoding, lengths: np.ndarray, owners: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Indexes, into `encoding`, of the tokens that begin at places in texts, or next after them, i64.

        encoding, lengths: what `encode_batch` gave for the texts, cleaned ones. Place k is a character of
        texts[owners[k]]; white space there belongs to the token after it. A place after the last token is left out.
        """
        return self._backend.tokens_at(texts, encoding, lengths, owners, places)

    def places(self, texts: list[str], encoding: Encoding, lengths: np.ndarray) -> np.ndarray:
        """Place of each token's first visible character in its text, i64[n]; of white space alone, its own place.

        encoding, lengths: what `encode_batch` gave for the texts, cleaned ones with single white space inside. Tokens
        that are bytes of one character, or what a tokenizer makes of one, share its place.
        """
        return self._backend.places(texts, encoding, lengths)

    def decode(self, ids: Sequence | np.ndarray) -> str:
        """The text of ids; special tokens leave nothing behind, unknown ones a sign."""
        return self.decode_batch([[int(i) for i in ids]])[0]

    def decode_batch(self, each: list[list[int]]) -> list[str]:
        """The texts of several lists of ids."""
        return self._backend.decode(each) if each else []

    def show_words(self, ids: Sequence | np.ndarray, word_starts: Sequence | np.ndarray) -> str:
        """Pieces with the words in brackets: `[▁home land] [▁se curity] [.]`."""
        words: list[list[str]] = []
        for i, start in zip(ids, word_starts):
            if start or not words:
                words.append([])
            words[-1].append(self.shown[int(i)])
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

    def add_terms(self, terms: Iterable[str]) -> "Tokenizer":
        """A tokenizer in which each of these words is a piece of its own, with new ids from `size` on.

        Two pieces where the tokenizer has white space in its pieces: one after white space, one after a sign. Text that
        holds no term has the same ids as before; in a unigram model a term may also become a part of a longer word that
        holds it. What is one piece already stays so. Raises ConfigError for a term that cannot become a piece, with the
        reason.
        """
        from mlm_jax.tokenizer import extend

        files, texts = extend.with_terms(self._backend, list(dict.fromkeys(terms)))
        tokenizer = Tokenizer(files)
        for i, text in enumerate(texts, start=self.size):
            _, *found = tokenizer.encode_around(["", text])
            if found != [i]:
                pieces = " ".join(tokenizer.pieces[j] for j in found)
                raise ConfigError("terms", text.strip(), f"cannot become one piece; it would be cut into {pieces}")
            tokenizer.added[i] = np.array(self.encode_around(["", text])[1:], np.int32)
        return tokenizer

    def pieces_before(self, term: str) -> np.ndarray:
        """The ids that stood for a term, after white space, before `add_terms`, i32[n].

        The mean of their rows is a good start for the row of its own; `added` tells the same of every new id. Raises
        KeyError for what is no term that was added to this very object.
        """
        _, first, *_ = self.encode_around(["", f" {term}"])
        if first not in self.added:
            raise KeyError(f"{term!r} was not added to this tokenizer")
        return self.added[first]


@functools.lru_cache(maxsize=2)
def _opened(kind: str, files: tuple[tuple[str, bytes], ...]):
    """What reads the files, which nobody changes; kept, since `prepare` opens the same ones several times."""
    return KINDS[kind](dict(files), "")


def _main_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    return next((path / name for name in KINDS if (path / name).exists()), path / MODEL)


def _write(folder: Path, files: Mapping[str, bytes], replaced: Iterable[str]) -> None:
    """Writes files and removes those of `replaced` that are not among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in set(replaced) - files.keys():
        (folder / name).unlink(missing_ok=True)
    for name, content in sorted(files.items(), key=lambda file: file[0] in KINDS):
        partial = folder / f"{name}.partial"
        partial.write_bytes(content)
        partial.rename(folder / name)
