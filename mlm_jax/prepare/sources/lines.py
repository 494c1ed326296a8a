"""Formats made of lines: text, and JSON lines.

Text files: empty lines separate documents, lines are paragraphs. JSON lines: one document a line, paragraphs separated
by newlines. Lines end at `\\n` alone; one carriage return directly before it is dropped, and a byte order mark at the
start of a file.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator

from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.parts import Document, File, Unit

BOM = b"\xef\xbb\xbf"


def cut_json(file: File) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, bytes) of parts that end between lines."""
    return _cut(file, lambda data, start: data.rfind(b"\n", start) + 1)


def cut_text(file: File) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, bytes) of parts that end at empty lines."""
    return _cut(file, _last_empty_line)


def _cut(file: File, last_border: Callable[[bytearray, int], int]) -> Iterator[tuple[int, bytes]]:
    """last_border: where the last whole document ends, looked for from a place on; 0: nowhere.

    A border may lie unseen, but never inside of a document.
    """
    with file.open() as handle:
        line, kept = 1, bytearray(handle.read(len(BOM)).removeprefix(BOM))
        searched = 0  # no border lies before this place
        while block := handle.read(parts.BLOCK_BYTES):
            kept += block
            if len(kept) < parts.UNIT_BYTES:
                continue
            end = last_border(kept, searched)
            if end:
                data = bytes(kept[:end])
                del kept[:end]
                yield line, data
                line += data.count(b"\n")
            searched = max(0, len(kept) - 3)
        if kept:
            yield line, bytes(kept)


def _last_empty_line(data: bytearray, start: int) -> int:
    return max((at + len(sign) for sign in (b"\n\n", b"\n\r\n") if (at := data.rfind(sign, start)) >= 0), default=0)


def lines_of(data: bytes) -> list[bytes]:
    """Lines, cut at newlines and at nothing else, without one carriage return directly before the newline."""
    lines = data.split(b"\n")
    last = lines.pop()  # no newline follows it
    lines = [line.removesuffix(b"\r") for line in lines]
    return [*lines, last] if last else lines


def read_text(unit: Unit, text_field: str, id_field: str) -> Iterator[Document]:
    """The documents of a unit of text, which has no fields."""
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


def read_json(unit: Unit, text_field: str, id_field: str) -> Iterator[Document]:
    """The documents of a unit of JSON lines."""
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
