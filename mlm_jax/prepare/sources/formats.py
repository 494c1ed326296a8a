"""The kinds of files that hold text: how each is cut into units, and how a unit is read."""

import dataclasses
import zlib
from collections.abc import Callable, Iterator

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources import lines
from mlm_jax.prepare.sources.parts import KEY, Document, File, Unit


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of file: by which names it is known, how it is cut and read.

    cut: (number of the first line or record, bytes) of parts of about `parts.UNIT_BYTES` that hold whole documents;
    where it cuts depends on the file alone, and it holds no more than a few parts at a time. It runs in the process
    that hands out the work, so it should do little.
    read: the documents of a part, in order; it runs in the workers. text_field, id_field: as in the config.
    """

    suffixes: tuple[str, ...]
    cut: Callable[[File], Iterator[tuple[int, bytes]]]
    read: Callable[[Unit, str, str], Iterator[Document]]  # (unit, text_field, id_field)


def units(files: list[File]) -> Iterator[Unit]:
    """Cuts files between documents; where, depends on the files alone. Raises ConfigError for an unreadable file."""
    number = 0
    for file in files:
        try:
            for first_line, data in FORMATS[file.kind].cut(file):
                yield Unit(number, file, first_line, data)
                number += 1
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(KEY, file.path, f"cannot be read: {error}") from None


def documents(unit: Unit, text_field: str, id_field: str) -> Iterator[Document]:
    """The documents of a unit, in order; a record that is none has its `problem` set."""
    return FORMATS[unit.file.kind].read(unit, text_field, id_field)


def kind_of(name: str, otherwise: str | None) -> str | None:
    """The kind of a file by its name; `otherwise` where that tells nothing."""
    name = name.lower().removesuffix(".gz")
    kinds = (kind for kind, format in FORMATS.items() if name.endswith(format.suffixes))
    return next(kinds, otherwise)


JSON, TEXT = "json", "text"
FORMATS = {
    TEXT: Format((".txt", ".text"), lines.cut_text, lines.read_text),
    JSON: Format((".jsonl", ".ndjson", ".json"), lines.cut_json, lines.read_json),
}
