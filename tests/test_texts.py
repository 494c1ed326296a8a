"""Texts from words, files and standard input."""

import gzip
import io
import json
import subprocess
import sys
import types

import pytest

from mlm_jax.cli import texts
from mlm_jax.config import ConfigError
from mlm_jax.flags import Usage, parse


def read(*argv):
    return list(texts.read(parse(list(argv), "", needs_config=False, define=texts.define, words=True)))


def test_words_and_standard_input(monkeypatch):
    assert read("one text", "another") == ["one text", "another"]
    for argv in (["-"], ["--file=-"]):
        for compress in (bytes, gzip.compress):
            given = io.BytesIO(compress("\ufeffone\r\n\ntwo\u2028x\rc\nlast".encode()))
            monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BufferedReader(given)))
            assert read(*argv) == ["one", "", "two\u2028x\rc", "last"]


def test_half_a_surrogate_pair_is_text_that_can_be_written(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud800 b"}\n')
    for found in (read(f"--file={tmp_path / 'a.jsonl'}"), read("a \udcff b")):
        assert found == ["a \ufffd\ufffd\ufffd b"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_files(tmp_path, compress):
    lines = tmp_path / "a.txt.gz"
    lines.write_bytes(compress(b"l1\nl2\xe2\x80\xa8x\nl3\x0by\nl4\xc2\x85z\nl5\x1cq\n"))
    assert read(f"--file={lines}") == ["l1", "l2\u2028x", "l3\x0by", "l4\x85z", "l5\x1cq"]
    records = tmp_path / "b.jsonl.gz"
    rows = [{"text": "one\ntwo"}, {"text": "", "a": {"b": "deep"}}]
    records.write_bytes(compress(b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, rows)).encode() + b"\n\n"))
    assert read(f"--file={records}") == ["one\ntwo", ""]
    with pytest.raises(ConfigError, match=r"b\.jsonl\.gz:1'?: has no text in the field 'a\.b' \(--field\)"):
        read(f"--file={records}", "--field=a.b")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', r"a\.jsonl:2'?: is not valid JSON"),
        ("A.JSONL.GZ", gzip.compress(b"{", mtime=0), r"A\.JSONL\.GZ:1'?: is not valid JSON"),
        ("a.txt", b"x\n\xff\n", r"a\.txt:2'?: is not UTF-8"),
        ("a.txt.gz", gzip.compress(b"x\n" * 999, mtime=0)[:-12], r"a\.txt\.gz'?: cannot be read"),
    ],
)
def test_bad_lines_are_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read(f"--file={tmp_path / name}")


def test_none_or_two_kinds(tmp_path):
    with pytest.raises(Usage, match="give a text"):
        read()
    with pytest.raises(Usage, match="not both"):
        read("--file=a.txt", "word")
    with pytest.raises(ConfigError, match="there is no such file"):
        read(f"--file={tmp_path / 'a.txt'}")


def test_who_reads_the_output_may_have_enough():
    """As `head` has: no traceback, and no exit code of success."""
    code = (
        "import sys; from mlm_jax.flags import command; write = lambda _: [print('x' * 99999) for _ in range(99)] and 0"
    )
    code += "; sys.exit(command(write, [], '', needs_config=False))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    assert process.wait(timeout=60) == 1 and process.stderr.read() == b""
    process.stderr.close()
