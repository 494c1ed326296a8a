"""Where text comes from: formats, compression, remote files, records that are none."""

import bz2
import gzip
import json
import lzma
import random

import pytest
import zstandard

from mlm_jax.config import ConfigError
from mlm_jax.prepare import sources

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
