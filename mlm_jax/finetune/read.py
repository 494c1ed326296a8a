"""Examples from files (columns as TSV or CSV, JSON lines, CoNLL, SQuAD), and from datasets of TensorFlow Datasets."""

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from mlm_jax.config import ConfigError, TaskConfig
from mlm_jax.finetune.examples import NOT_FOUND, Answer, Example
from mlm_jax.prepare.sources import tfds

FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".conll": "conll", ".json": "squad"}
OUTSIDE = "O"
DOCUMENT = "-DOCSTART-"  # of CoNLL-2003: a line that is no sentence

Row = tuple[str, dict[str, object]]  # file:line, and the values by the names of the columns
Notes = Counter[str]  # what is odd about how many of the examples


def read(source: str, task: TaskConfig, labelled: bool, say: Callable[[str], None]) -> list[Example]:
    """The examples of a file, plain or .gz, or of tfds:NAME/CONFIG:SPLIT; says what is odd about them.

    labelled: whether each must have its label. Raises ConfigError, naming file, line and column, for what is not as the
    format or the task has it.
    """
    notes: Notes = Counter()
    reader = _of_dataset if source.startswith(tfds.PREFIX) else _of_file
    examples = list(reader(source, task, labelled, notes))
    if not examples:
        raise ConfigError("path", source, "holds no example")
    notes["examples have an empty text"] += sum(map(_is_empty, examples))
    for what, count in notes.items():
        if count:
            say(f"warning: {source}: {count:,} {what}")
    return examples


def _is_empty(example: Example) -> bool:
    texts = [*example.words] if example.words else [example.text, *([] if example.second is None else [example.second])]
    return not all(text.strip() for text in texts)


def _of_file(source: str, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    path = Path(source).expanduser()
    name = path.name.lower().removesuffix(".gz")
    form = task.format or FORMATS.get(Path(name).suffix)
    if form not in READERS:
        fix = f"cannot tell the format by the name; set config.task.format to one of {', '.join(READERS)}"
        raise ConfigError("config.task.format", task.format or source, fix)
    kinds = {"conll": ("tagging",), "squad": ("questions",), "jsonl": ("classification", "regression", "tagging")}
    if task.kind not in kinds.get(form, ("classification", "regression")):
        raise ConfigError("config.task.kind", task.kind, f"cannot be read from {path}, which is of the format {form!r}")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError("path", f"{path}:{line}", "is not UTF-8; convert it (iconv -f latin1 -t utf-8)") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("path", str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return READERS[form](text, path, task, labelled, notes)


# ---- columns ----


def _tsv(text: str, path: Path, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    """As GLUE's files are: tabs part the columns, and a quote is a character like any other."""
    lines = ((n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r"))
    return _of_rows(_columns(lines, path, task, labelled, notes), task, labelled)


def _csv(text: str, path: Path, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))  # 131,072 characters otherwise
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def lines() -> Iterator[tuple[int, list[str]]]:
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise ConfigError("path", f"{path}:{reader.line_num}", f"is no CSV: {error}") from None

    return _of_rows(_columns(lines(), path, task, labelled, notes), task, labelled)


def _columns(
    lines: Iterator[tuple[int, list[str]]], path: Path, task: TaskConfig, labelled: bool, notes: Notes
) -> Iterator[Row]:
    """The lines after the header. One that has another number of columns is an error, or is skipped and noted.

    None is skipped where labels may be missing: there must be a prediction for each of the lines.
    """
    names = next(lines, (0, []))[1] if task.header else None
    for column in (task.text, task.second, task.label, task.id):
        if names and column and names.count(column) > 1:
            raise ConfigError("column", column, f"{path}:1 has it {names.count(column)} times")
    for number, values in lines:
        if names is None:
            names = [str(i) for i in range(len(values))]
        if len(values) == len(names):
            yield f"{path}:{number}", dict(zip(names, values))
        elif task.skip_broken and labelled:
            notes[f"lines skipped that have not {len(names)} columns"] += 1
        else:
            what = "the header" if task.header else "the first line"
            fix = f"has {len(values)} columns, {what} has {len(names)}"
            raise ConfigError("path", f"{path}:{number}", fix)


def _jsonl(text: str, path: Path, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    def rows() -> Iterator[Row]:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise ConfigError("path", f"{path}:{number}", f"is no JSON: {error}") from None
                if not isinstance(value, dict):
                    raise ConfigError("path", f"{path}:{number}", "is no object")
                yield f"{path}:{number}", value

    return _of_rows(rows(), task, labelled)


def _of_rows(rows: Iterator[Row], task: TaskConfig, labelled: bool) -> Iterator[Example]:
    for count, (where, row) in enumerate(rows):

        def value(column: str, row: dict = row, where: str = where) -> object:
            if column not in row:
                raise ConfigError("column", column, f"{where} has {', '.join(map(repr, row))}")
            return row[column]

        name = str(value(task.id)) if task.id else str(count)
        label = value(task.label) if labelled else row.get(task.label)
        if label is None or label == "":
            if labelled:
                raise ConfigError(task.label, label, f"{where}: is no label")
            label = None
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
        return _class(str(value), task, where)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(task.label, value, f"{where}: must be a number") from None
    if not abs(number) < float("inf"):
        raise ConfigError(task.label, value, f"{where}: must be a finite number")
    return number


def _class(name: str, task: TaskConfig, where: str) -> str:
    """The name of a class. Where the config has names that are no numbers, it may stand there by its number, from 0."""
    labels = task.labels
    if not labels or name in labels:
        return name
    if name.isdecimal() and int(name) < len(labels) and not any(label.isdecimal() for label in labels):
        return labels[int(name)]
    raise ConfigError(task.label, name, f"{where}: must be one of {', '.join(labels)}")


# ---- tagged words ----


def _conll(text: str, path: Path, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    """A word a line, tabs or else spaces between its columns; an empty line after each sentence.

    The word stands in the first column and the tag in the last one, if the config has no others. Where not all must
    have tags, the first line decides: with a single column there are none.
    """
    word, tag = _place(task, "text", 0), _place(task, "label", -1)
    count, begin, words, tags, known, width = 0, 1, [], [], labelled, 0
    for line, content in enumerate([*text.split("\n"), ""], 1):
        columns = _parted(content)
        if columns and columns[0] != DOCUMENT:
            if not width:
                width, known = len(columns), labelled or len(columns) > 1
                _check_places(task, (word, tag) if known else (word,), width, f"{path}:{line}")
            if known and len(columns) < 2:
                raise ConfigError("path", f"{path}:{line}", f"has no tag: {content!r}")
            if len(columns) != width:
                fix = f"has {len(columns)} columns, the first line has {width}: {content!r}"
                raise ConfigError("path", f"{path}:{line}", fix)
            if not columns[word]:
                raise ConfigError("path", f"{path}:{line}", f"has no word: {content!r}")
            begin = begin if words else line
            words.append(columns[word])
            tags.append(columns[tag])
        elif words:
            label = _tags(tuple(tags), len(words), f"{path}:{begin}") if known else None
            yield Example(str(count), words=tuple(words), label=label)
            count, words, tags = count + 1, [], []


def _parted(line: str) -> list[str]:
    """The columns of a line; none where it is empty. Words may hold any other white space, and with tabs spaces."""
    parts = [part.strip(" \r") for part in line.split("\t")]
    if not any(parts):
        return []
    return parts if len(parts) > 1 else [part for part in parts[0].split(" ") if part]


def _place(task: TaskConfig, key: str, default: int) -> int:
    """The number of a column that the config names, in a file without a header."""
    value = getattr(task, key)
    if value == getattr(TaskConfig(), key):
        return default
    if not value.isdecimal():
        raise ConfigError(f"config.task.{key}", value, "columns of the format conll have no names: a number, from 0")
    return int(value)


def _check_places(task: TaskConfig, places: tuple[int, ...], width: int, where: str) -> None:
    for key, place in zip(("text", "label"), places):
        if place >= width:
            raise ConfigError(f"config.task.{key}", getattr(task, key), f"{where} has columns 0 to {width - 1}")


def _tags(tags: tuple[str, ...], words: int, where: str) -> tuple[str, ...]:
    """BIO tags, in which every entity begins with B; I after anything but its own type begins one, too."""
    if len(tags) != words:
        raise ConfigError("path", where, f"has {words} words and {len(tags)} tags")
    found, before = [], OUTSIDE
    for number, tag in enumerate(tags, 1):
        if tag != OUTSIDE and not re.fullmatch(r"[BI]-.+", tag):
            raise ConfigError("tag", tag, f"{where}, word {number}: must be {OUTSIDE}, B-TYPE or I-TYPE")
        if tag.startswith("I-") and before[2:] != tag[2:]:
            tag = f"B-{tag[2:]}"
        found.append(tag)
        before = tag
    return tuple(found)


# ---- questions ----

MOVED = "answers stand beside where they should, or differ there by white space or case: taken as the context has them"
LOST = "answers do not stand where they should: they count for the scores alone"


def _squad(text: str, path: Path, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    """SQuAD 1.1 and 2.0: articles, of these paragraphs, of these questions with their answers."""
    ids = set()
    try:
        articles = json.loads(text)["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    example = _question(question, paragraph["context"], str(path), task, labelled, notes)
                    if example.id in ids:  # by which predictions are written
                        raise ConfigError("id", example.id, f"{path} has two questions of it")
                    ids.add(example.id)
                    yield example
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("path", str(path), f"is not in the format of SQuAD: {error!r}") from None


def _question(question: dict, context: str, path: str, task: TaskConfig, labelled: bool, notes: Notes) -> Example:
    name, impossible = str(question["id"]), bool(question.get("is_impossible", False))
    if impossible and not task.unanswerable:
        fix = f"{path}: the context of question {name} has no answer; set it to True, or config.task.name to squad2"
        raise ConfigError("config.task.unanswerable", False, fix)
    answers = []
    for answer in () if impossible else question.get("answers") or ():
        found = _answer(str(answer["text"]), int(answer["answer_start"]), context)
        notes[LOST] += found.start == NOT_FOUND
        notes[MOVED] += found.start != NOT_FOUND and found != (answer["text"], answer["answer_start"])
        answers.append(found)
    if labelled and not answers and not impossible:
        raise ConfigError("answers", [], f"{path}: question {name} has none, and is not marked as is_impossible")
    return Example(name, str(question["question"]), context, answers=tuple(answers), impossible=impossible)


def _answer(text: str, start: int, context: str) -> Answer:
    """The answer as it stands in the context there, or up to two characters beside it, but for white space and case.

    A few answers of the published data are off so. Else it is NOT_FOUND.
    """
    if text and context[start : start + len(text)] == text:
        return Answer(text, start)
    pattern = re.compile(r"\s+".join(map(re.escape, text.split())), re.IGNORECASE)
    start += len(text) - len(text.lstrip())
    for place in (start, start - 1, start + 1, start - 2, start + 2):
        if place >= 0 and (found := pattern.match(context, place)) and found.group():
            return Answer(found.group(), place)
    return Answer(text, NOT_FOUND)


# ---- datasets ----


def _of_dataset(source: str, task: TaskConfig, labelled: bool, notes: Notes) -> Iterator[Example]:
    """Features stand for columns, those of a class by the name of the class; -1 is no label.

    Questions have the features that SQuAD has there: id, question, context, answers of text and answer_start, and
    is_impossible.
    """
    names = tfds.classes(source, "path")
    rows = ((where, _decoded(record, names, where)) for where, record in tfds.values(source, "path"))
    if task.kind != "questions":
        return _of_rows(((where, _single(row, task)) for where, row in rows), task, labelled)
    return (_question_of(row, where, task, labelled, notes) for where, row in rows)


def _decoded(record: dict[str, list], names: dict[str, list[str]], where: str) -> dict[str, list]:
    found = {}
    for key, values in record.items():
        if key in names:
            values = [names[key][value] if value >= 0 else None for value in values]
        try:
            found[key] = [value.decode() if isinstance(value, bytes) else value for value in values]
        except UnicodeDecodeError:
            raise ConfigError(key, record[key], f"{where}: is not UTF-8") from None
    return found


def _single(row: dict[str, list], task: TaskConfig) -> dict[str, object]:
    """Of features that hold one value that value; words and tags are lists."""
    lists = (task.text, task.label) if task.kind == "tagging" else ()
    return {key: values[0] if len(values) == 1 and key not in lists else values for key, values in row.items()}


def _question_of(row: dict[str, list], where: str, task: TaskConfig, labelled: bool, notes: Notes) -> Example:
    try:
        pairs = zip(row["answers/text"], row["answers/answer_start"], strict=True)
        question = {"answers": [{"text": text, "answer_start": start} for text, start in pairs]}
        question |= {key: row[key][0] for key in ("id", "question", "is_impossible") if key in row}
        return _question(question, row["context"][0], where, task, labelled, notes)
    except KeyError as error:
        raise ConfigError("column", error.args[0], f"{where} has {', '.join(map(repr, row))}") from None


READERS: dict[str, Callable[[str, Path, TaskConfig, bool, Notes], Iterator[Example]]] = {
    "tsv": _tsv,
    "csv": _csv,
    "jsonl": _jsonl,
    "conll": _conll,
    "squad": _squad,
}
