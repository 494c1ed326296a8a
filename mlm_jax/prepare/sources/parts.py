"""What a source is made of: files, units of work, documents."""

import dataclasses
import gzip
import hashlib
import io
import os

KEY = "config.data.sources"
UNIT_BYTES = 2 << 20  # text of a work unit; a longer document is a unit of its own
BLOCK_BYTES = 1 << 18  # that are read at a time


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a source. name: how its documents are called, a path relative to the source."""

    path: str
    name: str
    kind: str  # of `FORMATS`

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return os.stat(self.path).st_size

    @property
    def compressed(self) -> bool:
        return self.path.endswith(".gz")

    def open(self) -> io.BufferedIOBase:
        """Its bytes, decompressed."""
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


def document_hash(source: str, id: str, salt: bytes = b"") -> int:
    """BLAKE2b-64 of the source's name, NUL, the document's id."""
    name = f"{source}\0{id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, salt=salt).digest(), "big")
