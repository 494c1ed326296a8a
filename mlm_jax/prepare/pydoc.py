"""`builtin:pydoc`: the docstrings of the standard library and of this package's runtime dependencies, as a corpus.

Real English prose without a download. Modules are read from their source files and parsed, never imported.
"""

import ast
import gc
import importlib.metadata
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from mlm_jax.prepare.sources import File

NAME = "builtin:pydoc"
MOST_BYTES = 20_000_000  # of text, in sorted order of the modules
BATCH_BYTES = 4_000_000  # of source files that a worker takes at a time

# The packages that training stands on; with what these need in turn. A list of its own, so that the corpus does not
# change with every library that the project takes for something else.
PACKAGES = (
    "jax",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "array-record",
    "tensorflow-datasets",
    "importlib_resources",
    "sentencepiece",
    "protobuf",
    "numpy",
    "ml_collections",
    "absl-py",
    "tqdm",
    "jaxtyping",
)
OUTSIDE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def module_files() -> list[File]:
    """The source files, sorted by their path inside the library; test suites are left out."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = {path.relative_to(library).as_posix(): path for path in library.rglob("*.py")}
    for distribution in _dependencies():
        for file in distribution.files or ():
            if file.suffix == ".py" and ".." not in file.parts:
                found[file.as_posix()] = Path(distribution.locate_file(file))
    modules = {module_name(name): name for name in sorted(found) if OUTSIDE.isdisjoint(name.split("/"))}
    return [File(str(found[name]), name, "python") for name in sorted(modules.values()) if found[name].is_file()]


def module_name(path: str) -> str:
    """The dotted path of a module."""
    return re.sub(r"(/__init__)?\.py$", "", path).replace("/", ".")


def _dependencies() -> list[importlib.metadata.Distribution]:
    """The installed ones of `PACKAGES` and what they need, directly or through others."""
    waiting, seen, found = list(PACKAGES), set(), []
    while waiting:
        name = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform or Python version
        found.append(distribution)
        waiting += _names(distribution.requires)
    return found


def _names(requirements: list[str] | None) -> list[str]:
    needed = [line for line in requirements or () if not re.search(r";.*\bextra\b", line)]
    return [re.match(r"[\w.-]+", line)[0] for line in needed]


def batches(files: list[File]) -> Iterator[list[File]]:
    """Files in groups of about equal work, in order."""
    batch, size = [], 0
    for file in files:
        batch.append(file)
        size += file.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def extract(files: list[File]) -> list[str]:
    """One JSON line per module that has docstrings: its dotted path, and the docstrings' paragraphs."""
    lines = []
    collecting = gc.isenabled()
    gc.disable()  # syntax trees have no cycles; looking for them takes a third of the time
    try:
        for file in files:
            paragraphs = list(module_paragraphs(Path(file.path).read_bytes()))
            if paragraphs:
                record = {"id": module_name(file.name), "text": "\n".join(paragraphs)}
                lines.append(json.dumps(record, ensure_ascii=True))
    finally:
        if collecting:
            gc.enable()
    return lines


def module_paragraphs(source: bytes) -> Iterator[str]:
    """The paragraphs of a module's docstrings, in the order of the source; nothing where it cannot be parsed."""
    try:
        with warnings.catch_warnings(action="ignore"):  # such as invalid escapes in other people's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for docstring in _docstrings(tree):
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
            if joined := " ".join(paragraph.split()):
                yield joined


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Of a module, class or function, then of what is defined inside of it."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield docstring
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, ()):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from _docstrings(child)
