"""Examples from files: columns (TSV, CSV), JSON lines, CoNLL, SQuAD."""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mlm_jax.config import ConfigError, TaskConfig
from mlm_jax.finetune.examples import Answer, Example

FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".conll": "conll", ".json": "squad"}
OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"  # of CoNLL-2003: a line that is no sentence

Row = tuple[int, dict[str, object]]  # number of the line, and its values by the names of the columns


def read_file(path: str | Path, task: TaskConfig, labelled: bool = True) -> list[Example]:
    """The examples of a file, plain or .gz. labelled: whether each must have its label.

    Raises ConfigError, naming file, line and column, for what is not as the format or the task has it.
    """
    path = Path(path).expanduser()
    name = path.name.lower().removesuffix(".gz")
    form = task.format or FORMATS.get(Path(name).suffix)
    if form not in READERS:
        fix = f"cannot tell the format by the name; set config.task.format to one of {', '.join(READERS)}"
        raise ConfigError("config.task.format", task.format or str(path), fix)
    kinds = {"conll": ("tagging",), "squad": ("questions",), "jsonl": ("classification", "regression", "tagging")}
    if task.kind not in kinds.get(form, ("classification", "regression")):
        raise ConfigError("config.task.kind", task.kind, f"cannot be read from {path}, which is of the format {form!r}")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError("path", f"{path}:{line}", "is not UTF-8; convert it (iconv -f latin1 -t utf-8)") from None
    except OSError as error:
        raise ConfigError("path", str(path), f"cannot be read: {error.strerror or error}") from None
    examples = list(READERS[form](text, path, task, labelled))
    if not examples:
        raise ConfigError("path", str(path), "holds no example")
    return examples


# ---- columns ----


def _tsv(text: str, path: Path, task: TaskConfig, labelled: bool) -> Iterator[Example]:
    """As GLUE's files are: tabs part the columns, and a quote is a character like any other."""
    lines = ((n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r"))
    return _of_columns(lines, path, task, labelled)


def _csv(text: str, path: Path, task: TaskConfig, labelled: bool) -> Iterator[Example]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def lines() -> Iterator[tuple[int, list[str]]]:
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise ConfigError("path", f"{path}:{reader.line_num}", f"is no CSV: {error}") from None

    return _of_columns(lines(), path, task, labelled)


def _of_columns(
    lines: Iterator[tuple[int, list[str]]], path: Path, task: TaskConfig, labelled: bool
) -> Iterator[Example]:
    names = next(lines, (0, []))[1] if task.header else None

    def rows() -> Iterator[Row]:
        nonlocal names
        for number, values in lines:
            if names is None:
                names = [str(i) for i in range(len(values))]
            if len(values) != len(names):
                what = "the header" if task.header else "the first line"
                fix = f"has {len(values)} columns, {what} has {len(names)}"
                raise ConfigError("path", f"{path}:{number}", fix)
            yield number, dict(zip(names, values))

    return _of_rows(rows(), path, task, labelled)


def _jsonl(text: str, path: Path, task: TaskConfig, labelled: bool) -> Iterator[Example]:
    def rows() -> Iterator[Row]:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise ConfigError("path", f"{path}:{number}", f"is no JSON: {error}") from None
                if not isinstance(value, dict):
                    raise ConfigError("path", f"{path}:{number}", "is no object")
                yield number, value

    return _of_rows(rows(), path, task, labelled)


def _of_rows(rows: Iterator[Row], path: Path, task: TaskConfig, labelled: bool) -> Iterator[Example]:
    for count, (line, row) in enumerate(rows):

        def value(column: str, row: dict = row, line: int = line) -> object:
            if column not in row:
                raise ConfigError("column", column, f"{path}:{line} has {', '.join(map(repr, row))}")
            return row[column]

        where = f"{path}:{line}"
        name = str(value(task.id)) if task.id else str(count)
        known = labelled or row.get(task.label) not in (None, "")
        label = value(task.label) if known else None
        if task.kind == "tagging":
            words = _texts(value(task.text), task.text, where)
            tags = None if label is None else _tags(_texts(label, task.label, where), len(words), where)
            yield Example(name, words=words, label=tags)
            continue
        text = _text(value(task.text), task.text, where)
        second = _text(value(task.second), task.second, where) if task.second else None
        yield Example(name, text, second, label=None if label is None else _label(label, task, where))


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(column, value, f"{where}: must be a text")
    return value


def _texts(value: object, column: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(column, value, f"{where}: must be a list of texts")
    return tuple(value)


def _label(value: object, task: TaskConfig, where: str) -> str | float:
    if task.kind == "classification":
        name = str(value)
        if task.labels and name not in task.labels:
            raise ConfigError(task.label, name, f"{where}: must be one of {', '.join(task.labels)}")
        return name
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(task.label, value, f"{where}: must be a number") from None
    if not abs(number) < float("inf"):
        raise ConfigError(task.label, value, f"{where}: must be a finite number")
    return number


# ---- tagged words ----


def _conll(text: str, path: Path, task: TaskConfig, labelled: bool) -> Iterator[Example]:
    """A word a line, its tag in the last column; an empty line after each sentence.

    Where not all must have tags, the first line decides: with a single column there are none.
    """
    count, begin, words, tags, known = 0, 1, [], [], labelled
    for line, content in enumerate([*text.split("\n"), ""], 1):
        columns = content.split()
        if columns and columns[0] != DOCUMENT:
            if not words and not count:
                known = labelled or len(columns) > 1
            if known and len(columns) < 2:
                raise ConfigError("path", f"{path}:{line}", f"has no tag: {content!r}")
            begin = begin if words else line
            words.append(columns[0])
            tags.append(columns[-1])
        elif not columns and words:
            label = _tags(tuple(tags), len(words), f"{path}:{begin}") if known else None
            yield Example(str(count), words=tuple(words), label=label)
            count, words, tags = count + 1, [], []


def _tags(tags: tuple[str, ...], words: int, where: str) -> tuple[str, ...]:
    """BIO tags, in which every entity begins with B; I after anything but its own type begins one, too."""
    if len(tags) != words:
        raise ConfigError("path", where, f"has {words} words and {len(tags)} tags")
    found, before = [], OUTSIDE
    for tag in tags:
        if tag != OUTSIDE and not re.fullmatch(r"[BI]-.+", tag):
            raise ConfigError("tag", tag, f"{where}: must be {OUTSIDE}, B-TYPE or I-TYPE")
        if tag.startswith("I-") and before[2:] != tag[2:]:
            tag = f"B-{tag[2:]}"
        found.append(tag)
        before = tag
    return tuple(found)


# ---- questions ----


def _squad(text: str, path: Path, task: TaskConfig, labelled: bool) -> Iterator[Example]:
    """SQuAD 1.1 and 2.0: articles, of these paragraphs, of these questions with their answers."""
    try:
        articles = json.loads(text)["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield _question(question, paragraph["context"], path)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("path", str(path), f"is not in the format of SQuAD: {error!r}") from None


def _question(question: dict, context: str, path: Path) -> Example:
    impossible = bool(question.get("is_impossible", False))
    answers = []
    for answer in () if impossible else question.get("answers") or ():
        text, start = answer["text"], answer["answer_start"]
        if context[start : start + len(text)] != text:
            found = context[start : start + len(text)]
            raise ConfigError("answer_start", start, f"{path}: question {question['id']}: {found!r} is not {text!r}")
        answers.append(Answer(text, start))
    return Example(str(question["id"]), question["question"], context, answers=tuple(answers), impossible=impossible)


READERS: dict[str, Callable[[str, Path, TaskConfig, bool], Iterator[Example]]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _jsonl,
    "conll": _conll,
    "squad": _squad,
}
