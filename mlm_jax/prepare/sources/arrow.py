"""Formats made of columns: Parquet, and Arrow's own (IPC files, which are Feather files, and IPC streams).

Only the columns that `Fields` names are read, a record batch at a time; a nested one is `a.b`. A text is a string, or
bytes in UTF-8; a record without one, such as null, is counted as a problem. Documents are named by the record's number,
from 1, or by the column of names.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.needs import needed
from mlm_jax.prepare.sources.parts import Document, Fields, File, Piece, Unit, numbered
from mlm_jax.prepare.sources.records import document_of

MOST_RECORDS = 1 << 14  # of a unit
BUFFER_BYTES = 1 << 20  # of each column that is read
FILE_MAGIC = b"ARROW1\0\0"  # an IPC file is this, a stream, and a footer with the magic once more


def cut_parquet(file: File, fields: Fields) -> Iterator[Piece]:
    """Record batches of about a unit. Holds a few pages of each column, and no more of a row group than a batch."""
    parquet = needed("pyarrow.parquet", file.path)
    with _errors(file.path), dataclasses.replace(file, meter=None).stored() as handle:
        table = parquet.ParquetFile(handle, pre_buffer=False, buffer_size=BUFFER_BYTES)
        columns = _columns(table.schema_arrow, fields, file.path)
        done = 0
        for group in range(table.num_row_groups):
            rows = _rows_at_a_time(table.metadata.row_group(group), fields.text)
            for batch in table.iter_batches(rows, [group], columns, use_threads=False):
                yield from _pieces(batch, fields, done)
                done += len(batch)
                if file.meter:  # other columns are not read: what is left goes by the rows
                    file.meter.bytes = file.size * done // table.metadata.num_rows


def cut_arrow(file: File, fields: Fields) -> Iterator[Piece]:
    """Parts of record batches. Holds one of the file's record batches: it has no smaller part that can be read."""
    arrow = needed("pyarrow", file.path)
    with _errors(file.path), file.open() as handle:
        footed = handle.peek(len(FILE_MAGIC))[: len(FILE_MAGIC)] == FILE_MAGIC
        if footed:
            handle.read(len(FILE_MAGIC))
        with arrow.ipc.open_stream(handle) as stream:
            _columns(stream.schema, fields, file.path)
            done = 0
            for batch in stream:
                yield from _pieces(batch, fields, done)
                done += len(batch)
        if footed and not handle.read().endswith(FILE_MAGIC.rstrip(b"\0")):
            raise EOFError("the file ends before its footer")


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """The library's errors as the ones that reading a damaged file raises."""
    arrow = needed("pyarrow", path)
    try:
        yield
    except arrow.ArrowException as error:
        raise OSError(str(error)) from None


def _columns(schema: object, fields: Fields, path: str) -> list[str]:
    """The columns of a file that are wanted. Raises ConfigError for one that it does not have."""
    for key, name in (("text", fields.text), ("id", fields.id)):
        if name and not _has(schema, name):
            fix = f"{path} has the columns {', '.join(schema.names)}"
            raise ConfigError(f"config.data.{key}_field", name, fix)
    return [name for name in (fields.text, fields.id) if name]


def _has(schema: object, name: str) -> bool:
    from pyarrow import types

    if name in schema.names:
        return True
    kind, *rest = name.split(".")
    if kind not in schema.names:
        return False
    kind = schema.field(kind).type
    for key in rest:
        if not types.is_struct(kind) or kind.get_field_index(key) < 0:
            return False
        kind = kind.field(key).type
    return True


def _rows_at_a_time(group: object, column: str) -> int:
    """Rows that hold about a unit of text, by the mean of a row group."""
    found = (group.column(i) for i in range(group.num_columns))
    size = sum(each.total_uncompressed_size for each in found if each.path_in_schema == column)
    return max(1, min(MOST_RECORDS, parts.UNIT_BYTES * group.num_rows // max(1, size)))


def _pieces(batch: object, fields: Fields, done: int) -> Iterator[Piece]:
    """A record batch as units: the wanted columns of a run of records, in Arrow's stream format."""
    import pyarrow

    names = {"text": fields.text, "id": fields.id}
    wanted = {key: _column(batch, name) for key, name in names.items() if name}
    yield from _halves(pyarrow.RecordBatch.from_pydict(wanted), done + 1)


def _column(batch: object, name: str) -> object:
    """The values of a column; texts as bytes, so that a broken one costs itself alone."""
    import pyarrow
    from pyarrow import compute, types

    if name in batch.schema.names:
        array = batch.column(name)
    else:
        first, *rest = name.split(".")
        array = compute.struct_field(batch.column(first), rest)
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_string(array.type):
        return array.cast(pyarrow.binary())
    if types.is_large_string(array.type) or types.is_string_view(array.type):
        return array.cast(pyarrow.large_binary())
    return array


def _halves(batch: object, first: int) -> Iterator[Piece]:
    """The batch, or its halves' halves, small enough for a unit."""
    import pyarrow

    if len(batch) == 1 and batch.nbytes > parts.LONGEST_BYTES:
        yield Piece(first, b"", parts.TOO_LONG)
    elif len(batch) > 1 and batch.nbytes > parts.UNIT_BYTES:
        half = len(batch) // 2
        yield from _halves(batch[:half], first)
        yield from _halves(batch[half:], first + half)
    elif len(batch):
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield Piece(first, sink.getvalue().to_pybytes())


def read(unit: Unit, fields: Fields) -> Iterator[Document]:
    """The documents of a unit of either format."""
    import pyarrow

    with pyarrow.ipc.open_stream(unit.data) as stream:
        batch = stream.read_next_batch()
    texts = batch.column("text").to_pylist()
    names = batch.column("id").to_pylist() if fields.id else [None] * len(texts)
    for number, (text, name) in enumerate(zip(texts, names), unit.first):
        yield document_of(text, name, fields, numbered(unit.file, number))
