"""Where text comes from: a source of the config becomes files, files become work units, units become documents.

Text files: empty lines separate documents, lines are paragraphs. JSON lines: one document a line, paragraphs separated
by newlines. Lines end at `\\n` alone; one carriage return directly before it is dropped, and a byte order mark at the
start of a file.
"""

import dataclasses
import glob
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from mlm_jax.config import ConfigError

JSON, TEXT = "json", "text"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text")
UNIT_BYTES = 2 << 20  # text of a work unit; a longer document is a unit of its own
BLOCK_BYTES = 1 << 18
BOM = b"\xef\xbb\xbf"
KEY = "config.data.sources"


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a source. name: how its documents are called, a path relative to the source."""

    path: str
    name: str
    kind: str  # JSON | TEXT

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return os.stat(self.path).st_size

    @property
    def compressed(self) -> bool:
        return self.path.endswith(".gz")

    def open(self) -> io.BufferedIOBase:
        return gzip.open(self.path, "rb") if self.compressed else open(self.path, "rb")


@dataclasses.dataclass(frozen=True)
class Unit:
    """Whole documents of one file, as bytes: what one worker takes at a time, whatever the number of workers."""

    number: int  # within the source
    file: File
    first_line: int  # counts from 1
    data: bytes


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and its name, or the reason why a record gives none."""

    id: str
    text: str
    place: str  # file:line
    problem: str = ""


def find_files(source: str) -> list[File]:
    """The files of a source (a file, a folder, a glob pattern), sorted by name. Raises ConfigError where none is."""
    if "://" in source or re.match(r"[a-z]\w+:", source):
        raise ConfigError(KEY, source, "known sources are builtin:pydoc, and local files, folders and glob patterns")
    path = Path(source).expanduser()
    if path.is_dir():
        root, found = path, [entry for entry in path.rglob("*") if _kind(entry, None)]
    elif path.is_file():
        root, found = path.parent, [path]
    else:
        fixed = re.split(r"[*?\[]", str(path), maxsplit=1)[0]
        root = Path(fixed + "x").parent
        found = [Path(match) for match in glob.glob(str(path), recursive=True)]
    files = [File(str(p), p.relative_to(root).as_posix(), _kind(p, TEXT)) for p in found if p.is_file()]
    if not files:
        wanted = ", ".join(f"*{suffix}" for suffix in TEXT_SUFFIXES + JSON_SUFFIXES)
        found_nothing = "the folder holds none of" if path.is_dir() else "no such file; a folder is searched for"
        raise ConfigError(KEY, source, f"{found_nothing} {wanted}, plain or with .gz")
    return sorted(files, key=lambda file: file.name)


def _kind(path: Path, otherwise: str | None) -> str | None:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in JSON_SUFFIXES:
        return JSON
    return TEXT if suffix in TEXT_SUFFIXES else otherwise


def identify(files: list[File]) -> dict[str, object]:
    """What the files hold: their number, their bytes, and one hash of names, sizes and contents."""
    digest, total = hashlib.blake2b(digest_size=16), 0
    for file in files:
        try:
            with open(file.path, "rb") as handle:
                content = hashlib.file_digest(handle, "blake2b").hexdigest()
                size = handle.tell()
        except OSError as error:
            raise ConfigError(KEY, file.path, f"cannot be read: {error.strerror}") from None
        digest.update(f"{file.name}\0{size}\0{content}\n".encode("utf-8", "surrogateescape"))
        total += size
    return {"files": len(files), "bytes": total, "hash": digest.hexdigest()}


def units(files: list[File]) -> Iterator[Unit]:
    """Cuts files between documents; where, depends on the files alone. Raises ConfigError for an unreadable file."""
    number = 0
    for file in files:
        try:
            with file.open() as handle:
                for first_line, data in _pieces(handle, file.kind):
                    yield Unit(number, file, first_line, data)
                    number += 1
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(KEY, file.path, f"cannot be read: {error}") from None


def _pieces(handle: io.BufferedIOBase, kind: str) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, bytes) of parts that end between documents."""
    line, kept = 1, bytearray(handle.read(len(BOM)).removeprefix(BOM))
    searched = 0  # no border lies before this place
    while block := handle.read(BLOCK_BYTES):
        kept += block
        if len(kept) < UNIT_BYTES:
            continue
        end = _last_border(kept, kind, searched)
        if end:
            data = bytes(kept[:end])
            del kept[:end]
            yield line, data
            line += data.count(b"\n")
        searched = max(0, len(kept) - 3)
    if kept:
        yield line, bytes(kept)


def _last_border(data: bytearray, kind: str, start: int) -> int:
    """Where the last whole document ends; 0: nowhere. A border may lie unseen, but never inside of a document."""
    if kind == JSON:
        return data.rfind(b"\n", start) + 1
    return max((at + len(sign) for sign in (b"\n\n", b"\n\r\n") if (at := data.rfind(sign, start)) >= 0), default=0)


def lines_of(data: bytes) -> list[bytes]:
    """Lines, cut at newlines and at nothing else, without one carriage return directly before the newline."""
    lines = data.split(b"\n")
    last = lines.pop()  # no newline follows it
    lines = [line.removesuffix(b"\r") for line in lines]
    return [*lines, last] if last else lines


def documents(unit: Unit, text_field: str, id_field: str) -> Iterator[Document]:
    """The documents of a unit, in order; a record that is none has its `problem` set."""
    if unit.file.kind == JSON:
        return _json_documents(unit, text_field, id_field)
    return _text_documents(unit)


def _text_documents(unit: Unit) -> Iterator[Document]:
    lines: list[bytes] = []
    first = 0
    for number, line in enumerate([*lines_of(unit.data), b""], unit.first_line):
        if line.strip():
            first = first if lines else number
            lines.append(line)
        elif lines:
            yield _decoded(unit.file, first, b"\n".join(lines))
            lines = []


def _decoded(file: File, line: int, data: bytes) -> Document:
    name, place = f"{file.name}:{line}", f"{file.path}:{line}"
    try:
        return Document(name, data.decode("utf-8"), place)
    except UnicodeDecodeError:
        return Document(name, "", place, "not UTF-8")


def _json_documents(unit: Unit, text_field: str, id_field: str) -> Iterator[Document]:
    for number, line in enumerate(lines_of(unit.data), unit.first_line):
        if not line.strip():
            continue
        raw = _decoded(unit.file, number, line)
        try:
            record = None if raw.problem else json.loads(raw.text)
        except (ValueError, RecursionError):
            yield dataclasses.replace(raw, text="", problem="not valid JSON")
            continue
        if raw.problem:
            yield raw
        elif not isinstance(record, dict) or not isinstance(record.get(text_field), str):
            yield dataclasses.replace(raw, text="", problem=f"no text in the field {text_field!r}")
        else:
            name = record.get(id_field)
            yield Document(raw.id if name is None else str(name), record[text_field], raw.place)


def document_hash(source: str, id: str, salt: bytes = b"") -> int:
    """BLAKE2b-64 of the source's name, NUL, the document's id."""
    name = f"{source}\0{id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, salt=salt).digest(), "big")
