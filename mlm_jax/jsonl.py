"""Files of JSON lines, as a run writes and a crash leaves them."""

import json
from collections.abc import Iterator
from pathlib import Path


def objects(path: Path, every: int = 1) -> Iterator[dict]:
    """The objects of a file of JSON lines, one at a time; what is no whole object is left out.

    every: of the lines without an evaluation only each so-manieth is read, and the last.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below; only opening it may fail)
    except OSError:
        return
    skipped = b""
    with file:
        for i, line in enumerate(file):
            if i % every and b'"eval/' not in line:
                skipped = line
                continue
            skipped = b""
            yield from whole(line)
    yield from whole(skipped)


def whole(text: bytes) -> Iterator[dict]:
    """The object that a text is; none where it is not one, such as a line that a crash tore."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield value
