"""Where the verbs that use a model take their texts from: words on the command line, a file, or standard input."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from mlm_jax.config import ConfigError
from mlm_jax.flags import Arguments, Usage
from mlm_jax.prepare.sources.compression import ERRORS, decompressed, without_suffix
from mlm_jax.prepare.sources.lines import BOM
from mlm_jax.prepare.sources.records import field

STDIN = "-"
JSON = (".jsonl", ".json", ".ndjson")  # files of JSON lines; any other has one text a line


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "file", None, "texts, one a line, or .jsonl; may be compressed; - for standard input", flag_values=values
    )
    flags.DEFINE_string("field", "text", "field of JSON lines that holds the text", flag_values=values)
    flags.DEFINE_integer("step", None, "checkpoint to use; the newest by default", flag_values=values)


def read(arguments: Arguments) -> Iterator[str]:
    """The texts, one at a time. An empty line is an empty text, of which JSON lines have none.

    Raises Usage at once where there are none or two kinds; ConfigError, with file:line, where it comes to a bad line.
    """
    words, path = arguments.rest, STDIN if arguments.rest == [STDIN] else arguments.file
    if arguments.file is not None and words:
        raise Usage(f"either --file={arguments.file} or words, such as {words[0]!r}, not both")
    if path is None and not words:
        raise Usage('give a text, such as "A list is returned.", or --file=FILE, or - for standard input')
    if path is None:
        return map(_valid, words)
    if path != STDIN and not Path(path).expanduser().is_file():
        raise ConfigError("--file", path, "there is no such file")
    return _of_file(path, arguments.field)


def _of_file(path: str, name: str) -> Iterator[str]:
    as_json = path != STDIN and without_suffix(path).lower().endswith(JSON)
    for number, line in enumerate(_lines(path), start=1):
        place = f"{path}:{number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError("--file", place, "is not UTF-8") from None
        if as_json and not text.strip():
            continue
        yield _text_of(text, name, place) if as_json else text


def _text_of(line: str, name: str, place: str) -> str:
    try:
        found = field(json.loads(line), name)
    except (ValueError, RecursionError):
        raise ConfigError("--file", place, "is not valid JSON") from None
    if not isinstance(found, str):
        raise ConfigError("--file", place, f"has no text in the field {name!r} (--field)")
    return _valid(found)


def _valid(text: str) -> str:
    """Half a surrogate pair, which JSON and a command line may hold and UTF-8 may not, as signs that are dropped."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _lines(path: str) -> Iterator[bytes]:
    """Lines end at newlines alone; a carriage return directly before one is dropped, and a byte order mark."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(file):
                whole = line.removesuffix(b"\n")
                whole = whole.removesuffix(b"\r") if whole != line else whole
                yield whole if number else whole.removeprefix(BOM)
    except ERRORS as error:
        raise ConfigError("--file", path, f"cannot be read: {error}") from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[io.BufferedIOBase]:
    if path == STDIN:
        yield decompressed(sys.stdin.buffer)
        return
    with open(Path(path).expanduser(), "rb") as raw:
        yield decompressed(raw)
