"""What a source is made of: files, units of work, documents."""

import contextlib
import dataclasses
import hashlib
import io
import os
from collections.abc import Iterator
from typing import NamedTuple

from mlm_jax.prepare.sources import remote
from mlm_jax.prepare.sources.compression import decompressed

KEY = "config.data.sources"
UNIT_BYTES = 2 << 20  # text of a work unit; a longer document is a unit of its own
BLOCK_BYTES = 1 << 18  # that are read at a time
LONGEST_BYTES = 16 << 20  # of a record; a longer one is no document: bounds what a unit of work can hold
TOO_LONG = f"longer than {LONGEST_BYTES >> 20} MiB"


@dataclasses.dataclass
class Meter:
    """How many bytes of a file have been read, compressed as they are."""

    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a source. name: how its documents are called, a path relative to the source."""

    path: str  # local, or an address such as s3://bucket/key
    name: str
    kind: str  # of `FORMATS`
    facts: remote.Facts | None = None  # of a remote file
    records: tuple[int, int] | None = None  # the first one that is wanted and the first that is not; None: all
    meter: Meter | None = dataclasses.field(default=None, compare=False, repr=False)  # counts what is read, if given

    @property
    def size(self) -> int:
        """Bytes as they are stored; 0 where a server does not tell."""
        return os.stat(self.path).st_size if self.facts is None else self.facts.size or 0

    @contextlib.contextmanager
    def stored(self) -> Iterator[io.BufferedReader]:
        """Its bytes as they are."""
        with (
            remote.open(self.path) if self.facts else open(self.path, "rb") as raw,
            io.BufferedReader(_Metered(raw, self.meter or Meter()), BLOCK_BYTES) as file,
        ):
            yield file

    @contextlib.contextmanager
    def open(self) -> Iterator[io.BufferedIOBase]:
        """Its bytes, decompressed. Reading a damaged file raises one of `compression.ERRORS`."""
        with self.stored() as raw:
            yield decompressed(raw)


class _Metered(remote.Around):
    """A file that counts what is read of it."""

    def __init__(self, raw: io.IOBase, meter: Meter):
        super().__init__(raw)
        self._meter = meter

    def readinto(self, buffer: bytearray | memoryview) -> int:
        data = self._handle.read(len(buffer))
        buffer[: len(data)] = data
        self._meter.bytes += len(data)
        return len(data)


class Piece(NamedTuple):
    """What a format cuts off a file: whole documents as bytes, or one that is none and why."""

    first: int  # number of the first line or record, from 1
    data: bytes
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Unit:
    """Whole documents of one file, as bytes: what one worker takes at a time, whatever the number of workers."""

    number: int  # within the source
    file: File
    first: int  # number of the first line or record, from 1
    data: bytes
    problem: str = ""  # why it holds no document, as one record
    stored: int = 0  # bytes of the file, as they are stored, that were read for it


@dataclasses.dataclass(frozen=True)
class Fields:
    """What the config says of records: which of their fields hold what. `a.b` is field b of the record in field a."""

    text: str = "text"
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and its name, or the reason why a record gives none."""

    id: str
    text: str
    place: str  # file:line
    problem: str = ""


def numbered(file: File, number: int, text: str = "", problem: str = "") -> Document:
    """The document at a line or record of a file, named by that."""
    return Document(f"{file.name}:{number}", text, f"{file.path}:{number}", problem)


def document_hash(source: str, id: str, salt: bytes = b"") -> int:
    """BLAKE2b-64 of the source's name, NUL, the document's id."""
    name = f"{source}\0{id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, salt=salt).digest(), "big")
