"""Formats made of lines: text, and JSON lines.

Text files: empty lines separate documents, lines are paragraphs. JSON lines: one document a line, paragraphs separated
by newlines. Lines end at `\\n` alone; one carriage return directly before it is dropped, and a byte order mark at the
start of a file.

A line longer than `parts.LONGEST_BYTES` is no document, and counted as one that is too long. A text that is longer, of
shorter lines, is cut into several at the ends of lines.
"""

import io
import json
from collections.abc import Callable, Iterator

from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.parts import Document, Fields, File, Piece, Unit, numbered
from mlm_jax.prepare.sources.records import document_of, field

BOM = b"\xef\xbb\xbf"


def cut_json(file: File, fields: Fields) -> Iterator[Piece]:
    """Parts that end between lines."""
    return _cut(file, lambda data, start: data.rfind(b"\n", start) + 1)


def cut_text(file: File, fields: Fields) -> Iterator[Piece]:
    """Parts that end at empty lines."""
    return _cut(file, _last_empty_line)


def _cut(file: File, last_border: Callable[[bytearray, int], int]) -> Iterator[Piece]:
    """last_border: where the last whole document ends, looked for from a place on; 0: nowhere.

    A border may lie unseen, but never inside of a document. Holds `LONGEST_BYTES` and a block at most.
    """
    with file.open() as handle:
        line, kept = 1, bytearray(handle.read(len(BOM)).removeprefix(BOM))
        searched = 0  # no border lies before this place
        while block := handle.read(parts.BLOCK_BYTES):
            kept += block
            if len(kept) < parts.UNIT_BYTES:
                continue
            end = last_border(kept, searched)
            if not end and len(kept) > parts.LONGEST_BYTES:
                end = kept.rfind(b"\n") + 1
                if not end:
                    yield Piece(line, b"", parts.TOO_LONG)
                    kept, line = bytearray(_after_line(handle)), line + 1
            if end:
                data = bytes(kept[:end])
                del kept[:end]
                yield Piece(line, data)
                line += data.count(b"\n")
            searched = max(0, len(kept) - 3)
        if kept:
            yield Piece(line, bytes(kept))


def _after_line(handle: io.BufferedIOBase) -> bytes:
    """What follows the end of the line, as far as the block goes where that lies."""
    while block := handle.read(parts.BLOCK_BYTES):
        if end := block.find(b"\n") + 1:
            return block[end:]
    return b""


def _last_empty_line(data: bytearray, start: int) -> int:
    return max((at + len(sign) for sign in (b"\n\n", b"\n\r\n") if (at := data.rfind(sign, start)) >= 0), default=0)


def lines_of(data: bytes) -> list[bytes]:
    """Lines, cut at newlines and at nothing else, without one carriage return directly before the newline."""
    lines = data.split(b"\n")
    last = lines.pop()  # no newline follows it
    lines = [line.removesuffix(b"\r") for line in lines]
    return [*lines, last] if last else lines


def read_text(unit: Unit, fields: Fields) -> Iterator[Document]:
    """The documents of a unit of text, which has no fields."""
    lines: list[bytes] = []
    first = 0
    for number, line in enumerate([*lines_of(unit.data), b""], unit.first):
        if line.strip():
            first = first if lines else number
            lines.append(line)
        elif lines:
            yield _decoded(unit.file, first, b"\n".join(lines))
            lines = []


def _decoded(file: File, line: int, data: bytes) -> Document:
    try:
        return numbered(file, line, data.decode("utf-8"))
    except UnicodeDecodeError:
        return numbered(file, line, problem="not UTF-8")


def read_json(unit: Unit, fields: Fields) -> Iterator[Document]:
    """The documents of a unit of JSON lines."""
    for number, line in enumerate(lines_of(unit.data), unit.first):
        if not line.strip():
            continue
        raw = numbered(unit.file, number, problem=parts.TOO_LONG)
        if len(line) <= parts.LONGEST_BYTES:
            raw = _decoded(unit.file, number, line)
        yield raw if raw.problem else _parsed(raw, fields)


def _parsed(raw: Document, fields: Fields) -> Document:
    unnamed = Document(raw.id, "", raw.place)
    try:
        record = json.loads(raw.text)
    except (ValueError, RecursionError):
        return Document(raw.id, "", raw.place, "not valid JSON")
    name = field(record, fields.id) if fields.id else None
    return document_of(field(record, fields.text), name, fields, unnamed)
