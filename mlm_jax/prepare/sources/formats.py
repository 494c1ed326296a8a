"""The kinds of files that hold text: how each is cut into units, and how a unit is read."""

import dataclasses
from collections.abc import Callable, Iterator

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources import arrow, compression, lines, tfds
from mlm_jax.prepare.sources.parts import KEY, Document, Fields, File, Meter, Piece, Unit, numbered
from mlm_jax.prepare.wiki import source as wiki


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of file: by which names it is known, how it is cut and read.

    cut: parts of about `parts.UNIT_BYTES` that hold whole documents; where it cuts depends on the file alone, and it
    holds no more than a few parts at a time. It runs in the process that hands out the work, so it should do little.
    read: the documents of a part, in order; it runs in the workers.
    """

    suffixes: tuple[str, ...]
    cut: Callable[[File, Fields], Iterator[Piece]]
    read: Callable[[Unit, Fields], Iterator[Document]]


def units(files: list[File], fields: Fields) -> Iterator[Unit]:
    """Cuts files between documents; where, depends on the files alone. Raises ConfigError for an unreadable file."""
    number = 0
    for file in files:
        meter, counted = Meter(), 0
        try:
            for piece in FORMATS[file.kind].cut(dataclasses.replace(file, meter=meter), fields):
                yield Unit(number, file, *piece, stored=meter.bytes - counted)
                number, counted = number + 1, meter.bytes
        except compression.ERRORS as error:
            raise ConfigError(KEY, file.path, f"cannot be read: {error}") from None


def documents(unit: Unit, fields: Fields) -> Iterator[Document]:
    """The documents of a unit, in order; a record that is none has its `problem` set."""
    if unit.problem:
        return iter([numbered(unit.file, unit.first, problem=unit.problem)])
    return FORMATS[unit.file.kind].read(unit, fields)


def kind_of(name: str, otherwise: str | None) -> str | None:
    """The kind of a file by its name; `otherwise` where that tells nothing."""
    name = wiki.without_range(compression.without_suffix(name).lower())
    if wiki.INDEX.search(name):
        return otherwise
    kinds = (kind for kind, format in FORMATS.items() if name.endswith(format.suffixes))
    return next(kinds, otherwise)


JSON, TEXT, PARQUET, ARROW, WIKI = "json", "text", "parquet", "arrow", "wiki"
FORMATS = {
    TEXT: Format((".txt", ".text"), lines.cut_text, lines.read_text),
    JSON: Format((".jsonl", ".ndjson", ".json"), lines.cut_json, lines.read_json),
    PARQUET: Format((".parquet", ".pq"), arrow.cut_parquet, arrow.read),
    ARROW: Format((".arrow", ".feather", ".ipc"), arrow.cut_arrow, arrow.read),
    WIKI: Format((".xml",), wiki.cut, wiki.read),
    tfds.ARRAY_RECORD: Format((), tfds.cut_array_record, tfds.read),  # found by the name of the dataset
    tfds.TFRECORD: Format((), tfds.cut_tfrecord, tfds.read),
}
