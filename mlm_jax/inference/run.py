"""Programs over items: packed into rows, run on the device, answers in the order of the items."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import jax
import numpy as np

from mlm_jax.inference.rows import Item, Place, Rows, batches

TEXTS_AT_A_TIME = 1024  # that are packed together: a stream is answered in pieces of so many
TOKENS_ON_CPU, TOKENS = 4096, 65536  # places of a batch

Answer = dict[str, np.ndarray]
Program = Callable[[dict, Rows], dict[str, jax.Array]]  # jitted: (params, rows) -> arrays [b,q,...] or [b,p,...]
T = TypeVar("T")


def at_places(program: Program, params: dict, items: Sequence[Item]) -> list[Answer]:
    """For each item what a program says of the places asked for: arrays [q,...] out of its [b,q,...]."""
    return _run(program, params, items, lambda place: (place.row, place.slots))


def of_segments(program: Program, params: dict, items: Sequence[Item]) -> list[Answer]:
    """For each item what a program says of it: arrays [...] out of its [b,p,...]."""
    return _run(program, params, items, lambda place: (place.row, place.segment))


def _run(
    program: Program, params: dict, items: Sequence[Item], index: Callable[[Place], tuple[int, int | slice]]
) -> list[Answer]:
    answers: list[Answer] = [{} for _ in items]
    before = None

    def collect(found: dict[str, jax.Array], places: list[tuple[int, Place]]) -> None:
        arrays = jax.device_get(found)
        for number, place in places:
            answers[number] = {name: value[index(place)] for name, value in arrays.items()}

    for rows, places in batches(items, batch_tokens()):
        running = program(params, rows), places
        if before:  # read while the next one runs
            collect(*before)
        before = running
    if before:
        collect(*before)
    return answers


def batch_tokens() -> int:
    return TOKENS_ON_CPU if jax.default_backend() == "cpu" else TOKENS


def in_pieces(texts: Iterable[T]) -> Iterator[list[T]]:
    """So many at a time as are packed together."""
    texts = iter(texts)
    while piece := list(itertools.islice(texts, TEXTS_AT_A_TIME)):
        yield piece
