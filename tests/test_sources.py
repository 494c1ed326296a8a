"""Where text comes from: formats, compression, remote files, records that are none."""

import bz2
import functools
import gzip
import http.server
import json
import lzma
import os
import random
import re
import shutil
import struct
import threading
import time
from collections import Counter

import fsspec
import numpy as np
import pyarrow
import pytest
import zstandard
from array_record.python.array_record_module import ArrayRecordReader
from pyarrow import feather, parquet

from mlm_jax.config import Config, ConfigError, DataConfig, RunError, TokenizerConfig
from mlm_jax.prepare import prepare, sources
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.sources import remote
from mlm_jax.prepare.workers import Workers

FIELDS = sources.Fields("text", "id")


def read(source: object, fields: sources.Fields = FIELDS) -> list[sources.Document]:
    units = sources.units(sources.find_files(str(source)), fields)
    return [document for unit in units for document in sources.documents(unit, fields)]


def texts(source: object, fields: sources.Fields = FIELDS) -> list[str]:
    found = read(source, fields)
    assert not [document for document in found if document.problem]
    return [document.text for document in found]


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(sources.parts, "UNIT_BYTES", 400)
    monkeypatch.setattr(sources.parts, "BLOCK_BYTES", 100)
    monkeypatch.setattr(sources.parts, "LONGEST_BYTES", 1000)


# Compression

SKIPPED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00\x01\x02\x03\x04"  # a frame of 4 bytes to skip (RFC 8878, 3.1.2)
COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_members_of_a_compressed_file_are_read_to_the_last(tmp_path, suffix):
    compress = COMPRESS[suffix]
    members = [f"document {i} " + "x" * (50_000 * (i == 1)) + "\n\n" for i in range(3)]
    data = b"".join(compress(member.encode()) for member in members) + compress(b"")
    if suffix == "zst":
        data = SKIPPED + data + SKIPPED
    for name in (f"a.txt.{suffix}", "a.txt"):  # the bytes count, not the name
        (tmp_path / name).write_bytes(data)
        assert texts(tmp_path / name) == [member.strip() + " " * (i != 1) for i, member in enumerate(members)]


def test_plain_files_with_the_name_or_the_look_of_a_compressed_one(tmp_path):
    for name, text in {"a.txt.gz": "plain", "b.txt": "BZh is no archive", "c.txt.zst": ""}.items():
        (tmp_path / name).write_text(text)
        assert texts(tmp_path / name) == [text] * bool(text)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_cut_archive_is_an_error_that_names_it(tmp_path, suffix):
    draw = random.Random(0)
    whole = COMPRESS[suffix]("".join(draw.choices("aeiou \n", k=200_000)).encode())
    path = tmp_path / f"cut.txt.{suffix}"
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=rf"cut\.txt\.{suffix}.*cannot be read: .* end") as error:
            read(path)
        assert error.value.key == "config.data.sources"


def test_what_is_read_of_a_file_is_counted_as_it_is_stored(tmp_path, small_units):
    draw = random.Random(0)
    path = tmp_path / "a.jsonl.zst"
    lines = [json.dumps({"text": "".join(draw.choices("aeiou ", k=100))}) for _ in range(300)]
    path.write_bytes(COMPRESS["zst"]("\n".join(lines).encode()))
    (file,) = sources.find_files(str(path))
    found = list(sources.units([file], FIELDS))
    assert len(found) > 50 and sum(unit.stored for unit in found) == file.size == path.stat().st_size


# Records


def test_nested_fields(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"a": {"b": "one"}, "meta": {"key": 7}}, {"a": {"c": "x"}}, {"a": "x"}, {"a.b": "four"}]
    path.write_text("\n".join(map(json.dumps, records)))
    found = read(path, sources.Fields("a.b", "meta.key"))
    assert [(document.id, document.text, document.problem) for document in found] == [
        ("7", "one", ""),
        ("a.jsonl:2", "", "no text in the field 'a.b'"),
        ("a.jsonl:3", "", "no text in the field 'a.b'"),
        ("a.jsonl:4", "four", ""),
    ]


def test_a_line_that_is_too_long_costs_itself(tmp_path, small_units):
    lines = [json.dumps({"text": "x" * size}) for size in (10, 985, 990, 20, 50_000, 30, 5000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = read(tmp_path / "a.jsonl")
    assert [(document.id, len(document.text)) for document in found if not document.problem] == [
        ("a.jsonl:1", 10),
        ("a.jsonl:2", 985),
        ("a.jsonl:4", 20),
        ("a.jsonl:6", 30),
    ]
    assert {document.problem for document in found if document.problem} == {"longer than 16 MiB"}
    assert [document.id for document in found if document.problem] == ["a.jsonl:3", "a.jsonl:5", "a.jsonl:7"]


def test_a_text_that_is_too_long_is_cut_at_the_ends_of_lines(tmp_path, small_units):
    long = ["word " * 20 + str(i) for i in range(40)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(["first", "", *long, "y" * 5000, "last"]))
    found = read(path)
    assert [document.problem for document in found[-2:]] == ["longer than 16 MiB", ""]
    kept = [document.text for document in found if not document.problem]
    assert kept[0] == "first" and kept[-1] == "last"
    assert "\n".join(kept[1:-1]).split("\n") == long
    assert all(len(text) <= 1100 for text in kept)
    assert found[-1].id == f"a.txt:{3 + 40 + 1}" and found[-2].id == f"a.txt:{3 + 40}"


# Columns


def write_columns(path, table, rows: int) -> None:
    """`table` in batches of so many rows, in the format that the name tells."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rows)
    elif path.suffix == ".feather":
        feather.write_feather(table, str(path), compression="lz4", chunksize=rows)
    else:  # as the datasets of the hub are cached
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=rows)


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
@pytest.mark.parametrize("rows", [7, 1000])
def test_columns(tmp_path, small_units, name, rows):
    wanted = [f"text {i} " + "x" * (i % 60) for i in range(300)]
    table = pyarrow.table({"url": ["u"] * 300, "text": wanted, "meta": [{"key": f"k{i}", "n": i} for i in range(300)]})
    write_columns(tmp_path / name, table, rows)
    fields = sources.Fields("text", "")
    assert texts(tmp_path / name, fields) == wanted
    assert [document.id for document in read(tmp_path / name, fields)] == [f"{name}:{i}" for i in range(1, 301)]
    assert [document.id for document in read(tmp_path, sources.Fields("text", "meta.n"))] == [*map(str, range(300))]
    assert texts(tmp_path / name, sources.Fields("meta.key", "text")) == [f"k{i}" for i in range(300)]
    found = list(sources.units(sources.find_files(str(tmp_path)), fields))
    assert len(found) > 30 and all(len(unit.data) < 2000 for unit in found)
    assert sum(unit.stored for unit in found) >= 0.9 * (tmp_path / name).stat().st_size


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "dictionary"])
def test_texts_of_every_type(tmp_path, kind):
    types = {"dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string())}
    column = pyarrow.array(["one", None, "", "größer", "one"]).cast(types.get(kind) or getattr(pyarrow, kind)())
    write_columns(tmp_path / "a.arrow", pyarrow.table({"text": column}), 2)
    found = [(document.text, document.problem) for document in read(tmp_path, sources.Fields())]
    expected = [("one", ""), ("", "no text in the field 'text'"), ("", ""), ("größer", ""), ("one", "")]
    assert found == expected


def test_bad_values_of_a_column_cost_themselves(tmp_path, small_units):
    broken = pyarrow.array([b"good", b"\xff", b"x" * 5000, b"y" * 900]).view(pyarrow.string())
    names = pyarrow.array([1, 2, 3, None])
    write_columns(tmp_path / "a.parquet", pyarrow.table({"text": broken, "id": names}), 4)
    found = [(document.id, document.text[:4], document.problem) for document in read(tmp_path)]
    assert found == [
        ("1", "good", ""),
        ("a.parquet:2", "", "not UTF-8"),
        ("a.parquet:3", "", "longer than 16 MiB"),
        ("a.parquet:4", "yyyy", ""),
    ]
    write_columns(tmp_path / "a.parquet", pyarrow.table({"text": [1, 2], "id": [1.5, 2.5]}), 4)
    assert {document.problem for document in read(tmp_path)} == {"no text in the field 'text'"}
    fields = sources.Fields("id", "text")
    assert {document.problem for document in read(tmp_path, fields)} == {"no text in the field 'id'"}


@pytest.mark.parametrize("name", ["a.parquet", "a.feather"])
def test_a_column_that_is_not_there_is_named(tmp_path, name):
    write_columns(tmp_path / name, pyarrow.table({"body": ["x"], "meta": [{"n": 1}]}), 4)
    for fields, key in [(("text", ""), "text"), (("meta.text", ""), "text"), (("body", "meta.m"), "id")]:
        with pytest.raises(ConfigError, match="has the columns body, meta") as error:
            read(tmp_path, sources.Fields(*fields))
        assert error.value.key == f"config.data.{key}_field"


@pytest.mark.parametrize("name", ["a.parquet", "a.feather"])
def test_a_damaged_file_of_columns_is_named(tmp_path, name):
    path = tmp_path / name
    write_columns(path, pyarrow.table({"text": ["x" * 50] * 1000}), 100)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"nothing of that kind"):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=rf"{name}.*cannot be read"):
            read(path, sources.Fields())


# Remote files


@pytest.fixture
def store():
    """A file system in memory, as remote as one can be."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def put(store, path: str, data: bytes) -> None:
    with store.open(path, "wb") as handle:
        handle.write(data)


def test_remote_files_folders_and_patterns(store):
    put(store, "/b/a.txt", b"a")
    put(store, "/b/sub/c.jsonl.gz", gzip.compress(b'{"text": "c"}'))
    put(store, "/b/sub/d.bin", b"d")
    put(store, "/b/sub/.trash/e.txt", b"e")
    put(store, "/.hidden/f.txt", b"f")
    names = {source: [file.name for file in sources.find_files(f"memory://{source}")] for source in SOURCES}
    assert names == SOURCES
    assert texts("memory://b") == ["a", "c"]
    found = read("memory://b/sub/*.gz")
    assert [(document.id, document.place) for document in found] == [
        ("c.jsonl.gz:1", "memory:///b/sub/c.jsonl.gz:1"),
    ]


SOURCES = {
    "b": ["a.txt", "sub/c.jsonl.gz"],
    "b/": ["a.txt", "sub/c.jsonl.gz"],
    "b/**": ["a.txt", "sub/.trash/e.txt", "sub/c.jsonl.gz", "sub/d.bin"],  # as the store takes it
    ".hidden": ["f.txt"],
    "b/*/c*": ["sub/c.jsonl.gz"],
    "b/sub/d.bin": ["d.bin"],
}


@pytest.fixture
def server(tmp_path):
    """The address under which the files of a folder are served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said):
            pass

    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_files_of_a_server(tmp_path, server):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub/b.txt.gz").write_bytes(gzip.compress(b"b"))
    (tmp_path / "c.jsonl").write_text('{"text": "c"}')
    (found,) = read(f"{server}/c.jsonl?download=1")
    assert (found.id, found.text, found.place) == ("c.jsonl:1", "c", f"{server}/c.jsonl?download=1:1")
    assert texts(f"{server}/") == ["a", "c", "b"]
    assert texts(f"{server}/sub/*.gz") == ["b"]
    with pytest.raises(ConfigError, match="no such file"):
        read(f"{server}/none.txt")


def test_remote_columns(store):
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), sink)
    put(store, "/b/a.parquet", sink.getvalue().to_pybytes())
    assert texts("memory://b", sources.Fields()) == ["one", "two"]


def test_a_remote_file_is_known_by_what_its_store_says(store, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    put(store, "/b/a.txt", b"one")
    by_content = sources.identify(sources.find_files("memory://b"))
    put(store, "/b/a.txt", b"two")
    assert by_content != sources.identify(sources.find_files("memory://b")) and by_content["bytes"] == 3
    whole, tag = MemoryFileSystem.info, ["e1"]
    monkeypatch.setattr(MemoryFileSystem, "info", lambda self, path: {**whole(self, path), "ETag": tag[0]})
    by_tag = sources.identify(sources.find_files("memory://b"))
    put(store, "/b/a.txt", b"six")
    assert sources.identify(sources.find_files("memory://b")) == by_tag  # the content is not read
    tag[0] = "e2"
    assert sources.identify(sources.find_files("memory://b")) != by_tag


def test_a_remote_read_that_fails_is_tried_again(store, monkeypatch):
    from fsspec.implementations.memory import MemoryFile

    put(store, "/b/a.txt", b"one\n\ntwo")
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.0)
    failures, whole = [3], MemoryFile.read
    files = sources.find_files("memory://b")

    def flaky(self, size=-1):
        failures[0] -= 1
        if failures[0] >= 0:
            raise TimeoutError("no answer")
        return whole(self, size)

    monkeypatch.setattr(MemoryFile, "read", flaky, raising=False)
    (unit,) = sources.units(files, FIELDS)
    assert unit.data == b"one\n\ntwo"
    failures[0] = 100
    with pytest.raises(ConfigError, match=r"memory:///b/a\.txt.*TimeoutError: no answer"):
        list(sources.units(files, FIELDS))


@pytest.mark.parametrize(
    "source, message",
    [
        ("memory://nowhere/a.txt", "no such file; a folder is searched for"),
        ("memory://nowhere/*.txt", "no such file; a folder is searched for"),
        ("none://bucket/a.txt", "cannot be read: ValueError: Protocol not known: none"),
        ("gs://bucket/a.txt", r"pip install gcsfs"),
        ("s3://bucket/a.txt", r"pip install s3fs"),
        ("zip://a.txt::memory://b.zip", "chain of file systems"),
    ],
)
def test_remote_sources_that_cannot_be_read(store, source, message, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=message) as error:
        sources.find_files(source)
    assert error.value.key == "config.data.sources" and source in str(error.value)


# TensorFlow Datasets


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of 30 and 5 records as the library writes it; its folder."""
    import tensorflow_datasets as tfds

    class Little(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="en"),)

        def _info(self):
            text = tfds.features.Text()
            features = {
                "text": text,
                "n": tfds.features.Scalar(np.int64),
                "meta": {"url": text},
                "many": tfds.features.Sequence(text),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, downloads):
            return {"train": self._generate_examples(30), "test": self._generate_examples(5)}

        def _generate_examples(self, count):
            for i in range(count):
                yield i, {"text": f"größer {i}\nx", "n": i, "meta": {"url": f"u{i}"}, "many": ["a", "b"]}

    folder = tmp_path_factory.mktemp("tfds")
    Little(data_dir=folder, config="en", file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture(params=["array_record", "tfrecord"])
def data_dir(request, dataset, tmp_path, monkeypatch):
    """The dataset in one of the formats."""
    if request.param == "tfrecord":
        shutil.copytree(dataset, tmp_path, dirs_exist_ok=True)
        folder = tmp_path / "little/en/1.0.0"
        info = folder / "dataset_info.json"
        info.write_text(info.read_text().replace("array_record", "tfrecord"))
        for path in folder.glob("*.array_record-*"):
            reader = ArrayRecordReader(str(path))
            with open(str(path).replace("array_record", "tfrecord"), "wb") as out:
                for record in reader.read_all():  # sums are not checked
                    out.write(struct.pack("<Q4s", len(record), b"sum.") + record + b"sum.")
            reader.close()
            path.unlink()
        dataset = tmp_path
    monkeypatch.setenv("TFDS_DATA_DIR", str(dataset))
    return dataset / "little/en/1.0.0"


def test_a_dataset_on_disk(data_dir, small_units):
    texts_of = lambda split: texts(f"tfds:little/en:{split}", sources.Fields())  # noqa: E731
    whole = texts_of("train")
    assert sorted(whole) == sorted(f"größer {i}\nx" for i in range(30))
    assert texts_of("train[10%:50%]") == whole[3:15]  # as the library counts: 30 records from 10 to 50 percent
    assert texts_of("train[:2]+test") == texts_of("test") + whole[:2]  # in order of the files' names
    assert texts("tfds:little/en:1.0.0:test", sources.Fields()) == texts("tfds:little:test", sources.Fields())
    found = read("tfds:little/en:train[3:5]", sources.Fields("meta.url", "n"))
    assert [(document.id, document.text) for document in found] == [
        (str(i), f"u{i}") for i in [int(text.split()[1]) for text in whole[3:5]]
    ]
    (first, _) = read("tfds:little/en:train[3:5]", sources.Fields())
    assert re.fullmatch(r"little-train\.\w+-00000-of-00001:4", first.id)
    units = list(sources.units(sources.find_files("tfds:little/en:train[:50%]"), FIELDS))
    assert len(units) > 2 and sum(unit.stored for unit in units) == units[0].file.size
    problems = {field: read("tfds:little:test", sources.Fields(field))[0].problem for field in ("n", "many", "none")}
    assert problems == {field: f"no text in the field {field!r}" for field in problems}


@pytest.mark.parametrize(
    "source, message",
    [
        ("tfds:little/en", "must be of the form tfds:NAME"),
        ("tfds:little/en:1.0.0", "must be of the form tfds:NAME"),
        ("tfds:c4/en:train", "is not prepared in .*nothing is downloaded here: tfds build c4/en"),
        ("tfds:little/en:training", r"Unknown split 'training'. Should be one of \['train', 'test'\]"),
        ("tfds:little/en:train[:x%]", "Error parsing split"),
    ],
)
def test_datasets_that_are_not_there(dataset, monkeypatch, source, message):
    monkeypatch.setenv("TFDS_DATA_DIR", str(dataset))
    with pytest.raises(ConfigError, match=message) as error:
        sources.find_files(source)
    assert error.value.key == "config.data.sources" and source in str(error.value)


def test_a_damaged_shard_is_named(data_dir, tmp_path, monkeypatch):
    shutil.copytree(data_dir.parents[2], tmp_path / "copy")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "copy"))
    (shard,) = (tmp_path / "copy/little/en/1.0.0").glob("little-train.*")
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"little-train.*cannot be read: .*(end|damaged)"):
        read("tfds:little/en:train")


# Records that are none

NO_TEXT, NO_JSON, NO_UTF8, EMPTY = "no text in the field 'text'", "not valid JSON", "not UTF-8", "empty"
BAD_TEXTS = {  # bytes of a text -> why it is none; "" where something stays of it
    b"good words. And a sentence.": "",
    b"a \xff byte": NO_UTF8,
    b"\xed\xa0\x80 surrogate": NO_UTF8,
    b"cut \xe2\x82": NO_UTF8,
    b"NUL \x00 inside \x07\x1b": "",
    b"\x00\x01\x02": EMPTY,
    b"\xef\xbf\xbd\xe2\x80\x8b": EMPTY,
    b"\xf3\xa0\x80\x81 tag \xef\xb7\x90": "",
    "e\u0301".encode() * 300: "",
    b"x" * 20_000: "",
}
BAD_LINES = {
    b'{"text": "good words. And a sentence."}': "",
    b'{"text": "cut': NO_JSON,
    b'{"text": "raw \x01 control"}': NO_JSON,
    b"\x00\x00\x00": NO_JSON,
    b"[" * 100_000: NO_JSON,
    b'{"a":' * 50_000: NO_JSON,
    b'{"text": "good", "n": ' + b"9" * 5000 + b"}": NO_JSON,
    b'{"text": "\xff"}': NO_UTF8,
    b'{"text": "lone \\ud800 half"}': "",
    b'{"text": "\\udfff\\ud800"}': EMPTY,
    b'{"text": "a\\u0000b"}': "",
    b'{"text": ""}': EMPTY,
    b'{"text": " \\n\\t\\u200b"}': EMPTY,
    b'{"text": null}': NO_TEXT,
    b'{"text": {"text": "x"}}': NO_TEXT,
    b'{"text": ["x"]}': NO_TEXT,
    b'{"text": 1e999}': NO_TEXT,
    b'{"body": "x"}': NO_TEXT,
    b'"text"': NO_TEXT,
    b"NaN": NO_TEXT,
}


def mangled(folder, kind: str, count: int) -> Counter:
    """Writes so many records of a kind, among them one of 50 MB; returns how many are to be dropped and why."""
    draw = random.Random(kind)
    cases = BAD_LINES if kind == "jsonl" else BAD_TEXTS
    if kind in ("parquet", "arrow"):
        cases = {**cases, None: NO_TEXT, b"": EMPTY, b"y" * 200_000: ""}
    small = [record for record in cases if len(record or b"") < 1000]
    records = [*cases, *draw.choices(small, k=count - len(cases))]
    draw.shuffle(records)
    dropped = Counter(cases[record] for record in records)
    long = b"long" * 12_500_000
    if kind in ("parquet", "arrow"):
        column = pyarrow.array([*records, long], pyarrow.binary()).view(pyarrow.string())
        write_columns(folder / f"a.{kind}", pyarrow.table({"text": column}), 999)
        write_columns(folder / f"none.{kind}", pyarrow.table({"text": pyarrow.nulls(10)}), 999)
        dropped[NO_TEXT] += 10
    else:
        between = b"\n" if kind == "jsonl" else b"\n\n"
        records.insert(count // 2, long)
        (folder / f"a.{kind}.gz").write_bytes(gzip.compress(between.join(records), 1))
    return dropped + Counter({"longer than 16 MiB": 1})


def test_ten_thousand_mangled_records_cost_themselves(tmp_path):
    expected = {}
    for kind in ("txt", "jsonl", "parquet", "arrow"):
        folder = tmp_path / kind
        folder.mkdir()
        expected[folder] = mangled(folder, kind, 2500)
    config = Config(
        row_length=64,
        data=DataConfig(sources=tuple(map(str, expected)), workers=1, pack_groups=2),
        tokenizer=TokenizerConfig(vocab_size=60, sample_bytes=50_000),
    )
    manifest = prepare(config, tmp_path / "rows", progress=False)
    for corpus, dropped in zip(manifest["corpora"], expected.values(), strict=True):
        kept = dropped.pop("")
        assert corpus["counts"]["dropped"] == dropped and corpus["counts"]["kept"] == kept


def test_a_source_of_nothing_but_bad_records_is_told_by_the_first(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\n\n\xfe")
    with pytest.raises(ConfigError, match=r"a\.txt:1': not UTF-8; and no other record holds text"):
        prepare(Config(data=DataConfig(sources=(str(tmp_path),), workers=1)), tmp_path / "rows", progress=False)


# Workers and progress


def die(number: int) -> int:
    os._exit(9) if number == 3 else None
    return number


def test_a_worker_that_is_killed_is_told():
    with Workers(2) as workers, pytest.raises(RunError, match=r"a worker process was killed.*config\.data\.workers"):
        list(workers.map(die, range(10)))


def test_time_left_goes_by_what_is_read_of_the_files(capsys, monkeypatch):
    clock = iter([0.0, 30.0, 30.0, 30.0, 30.0, 60.0, 60.0, 60.0, 60.0, 90.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock, 90.0))
    with Stage("encode", True, total=1000) as stage:
        stage.add(50_000_000, 10, stored=100)
        stage.add(50_000_000, 10, stored=300)
    first, second, last = capsys.readouterr().err.strip().split("\n")
    assert "10% of the files, 0:04:30 left" in first and "40% of the files, 0:01:30 left" in second
    assert last == "encode: 100.0 MB, 20 documents in 90.0 s (1.1 MB/s, 0 documents/s)"
