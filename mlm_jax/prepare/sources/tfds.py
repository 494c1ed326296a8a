"""Datasets that TensorFlow Datasets has prepared on this disk: `tfds:NAME[/CONFIG][:VERSION]:SPLIT`.

Such as `tfds:wikipedia/20230601.en:train[:10%]`; slices and sums of splits are those of the library. Data is looked for
in TFDS_DATA_DIR, else ~/tensorflow_datasets, and nothing is ever downloaded. Its records are read from the shards as
they lie there, ArrayRecord or TFRecord, without TensorFlow. A nested feature is `a.b`; one that holds several values is
no text. Documents are named by shard and number of the record, from 1.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.parts import KEY, Document, Fields, File, Piece, Unit, numbered
from mlm_jax.prepare.sources.records import document_of

PREFIX = "tfds:"
FORM = "tfds:NAME[/CONFIG][:VERSION]:SPLIT, such as tfds:wikipedia/20230601.en:train[:10%]"
ARRAY_RECORD, TFRECORD = "tfds in array_record", "tfds in tfrecord"
AT_A_TIME = 64  # records
LENGTH = struct.Struct("<I")


def find(source: str, key: str = KEY) -> list[File]:
    """The shards of a dataset, each with the records that the split takes of it.

    Raises ConfigError, which names `key`.
    """
    builder, split = _builder(source, key)
    try:
        instructions = builder.info.splits[split].file_instructions
    except ValueError as error:
        raise ConfigError(key, source, " ".join(str(error).split())) from None
    kind = f"tfds in {builder.info.file_format.value}"
    if kind not in (ARRAY_RECORD, TFRECORD):
        fix = f"is stored as {builder.info.file_format.value}; prepare it with --file_format=array_record"
        raise ConfigError(key, source, fix)
    return [
        File(each.filename, Path(each.filename).name, kind, records=(each.skip, each.skip + each.take))
        for each in instructions
    ]


def _builder(source: str, key: str) -> tuple[Any, str]:
    """What the library knows of a dataset on this disk, and the name of the split."""
    from tensorflow_datasets.core import read_only_builder, registered

    parsed = re.fullmatch(r"tfds:([^:]+(?::[\d.]+)?):([A-Za-z_].*)", source)
    if not parsed:
        raise ConfigError(key, source, f"must be of the form {FORM}")
    name, split = parsed.groups()
    folder = os.environ.get("TFDS_DATA_DIR") or None
    try:
        return read_only_builder.builder_from_files(name, data_dir=folder), split
    except registered.DatasetNotFoundError:
        fix = f"is not prepared in {folder or '~/tensorflow_datasets'} (or set TFDS_DATA_DIR); nothing is downloaded "
        fix += f"here: tfds build {name.partition(':')[0]} --file_format=array_record --data_dir=DIR prepares it"
        raise ConfigError(key, source, fix) from None
    except ValueError as error:
        raise ConfigError(key, source, " ".join(str(error).split())) from None


def classes(source: str, key: str = KEY) -> dict[str, list[str]]:
    """The names of the classes, by their ids, of each feature that is a class or a sequence of them."""
    builder, _ = _builder(source, key)
    found = {}
    for name, feature in builder.info.features.items():
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if names:
            found[name] = list(names)
    return found


def values(source: str, key: str = KEY) -> Iterator[tuple[str, dict[str, list]]]:
    """Shard and number of each record, and the values of its features: bytes or numbers. Raises ConfigError."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    for file in find(source, key):
        records = _array_record(file) if file.kind == ARRAY_RECORD else _tfrecord(file)
        try:
            for number, record in enumerate(records, file.records[0] + 1):
                features = tf_example_pb2.Example.FromString(record).features.feature
                yield numbered(file, number).place, {name: _values(features[name]) for name in sorted(features)}
        except (EOFError, OSError, DecodeError) as error:
            raise ConfigError(key, source, f"{file.path} cannot be read: {error}") from None


def _values(feature: Any) -> list:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def cut_array_record(file: File, fields: Fields) -> Iterator[Piece]:
    return _pieces(file, _array_record(file))


def cut_tfrecord(file: File, fields: Fields) -> Iterator[Piece]:
    return _pieces(file, _tfrecord(file))


def _array_record(file: File) -> Iterator[bytes]:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(file.path)
    first, stop = file.records
    if not reader.ok() or reader.num_records() < stop:
        raise EOFError(f"the file is damaged: it should hold {stop:,} records")
    try:
        for start in range(first, stop, AT_A_TIME):
            yield from reader.read(start, min(stop, start + AT_A_TIME))
    except RuntimeError as error:
        raise OSError(str(error)) from None
    finally:
        reader.close()


def _tfrecord(file: File) -> Iterator[bytes]:
    """A record is its length u64 and the length's checksum u32, the bytes, their checksum u32; sums are not checked."""
    first, stop = file.records
    with open(file.path, "rb") as handle:
        for number in range(stop):
            header = handle.read(12)
            size = int.from_bytes(header[:8], "little")
            if len(header) < 12 or handle.tell() + size + 4 > file.size:
                raise EOFError(f"the file ends before the end of record {number + 1:,} of {stop:,}")
            if number >= first:
                yield handle.read(size)
                handle.seek(4, os.SEEK_CUR)
            else:
                handle.seek(size + 4, os.SEEK_CUR)


def _pieces(file: File, records: Iterator[bytes]) -> Iterator[Piece]:
    """Units of records, each after its length u32."""
    first, stop = file.records
    number, kept = first + 1, bytearray()
    for place, record in enumerate(records, number):
        if len(record) > parts.LONGEST_BYTES:
            if kept:
                yield Piece(number, bytes(kept))
            yield Piece(place, b"", parts.TOO_LONG)
            number, kept = place + 1, bytearray()
            continue
        kept += LENGTH.pack(len(record)) + record
        if file.meter:  # a slice may take but a part of the file
            file.meter.bytes = file.size * (place - first) // (stop - first)
        if len(kept) >= parts.UNIT_BYTES:
            yield Piece(number, bytes(kept))
            number, kept = place + 1, bytearray()
    if kept:
        yield Piece(number, bytes(kept))


def read(unit: Unit, fields: Fields) -> Iterator[Document]:
    """The documents of a unit of serialized `tf.train.Example`s."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    at, number = 0, unit.first
    while at < len(unit.data):
        (size,) = LENGTH.unpack_from(unit.data, at)
        unnamed = numbered(unit.file, number)
        try:
            example = tf_example_pb2.Example.FromString(unit.data[at + LENGTH.size : at + LENGTH.size + size])
        except DecodeError:
            yield numbered(unit.file, number, problem="not a valid tf.train.Example")
        else:
            features = example.features.feature
            name = _value(features, fields.id) if fields.id else None
            yield document_of(_value(features, fields.text), name, fields, unnamed)
        at, number = at + LENGTH.size + size, number + 1


def _value(features: object, name: str) -> object:
    """The one value of a feature, bytes or a number; None where it has none, or several."""
    key = name if name in features else name.replace(".", "/")
    if key not in features:
        return None
    found = _values(features[key])
    return found[0] if len(found) == 1 else None
