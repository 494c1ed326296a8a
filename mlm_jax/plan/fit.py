"""The largest microbatch that fits: few compilations, an estimate between them, and one that verifies it."""

from collections.abc import Callable
from typing import NamedTuple

from mlm_jax.config import Config, Derived
from mlm_jax.plan.ahead import Compiled

MOST_COMPILATIONS = 3  # beside the first


class Largest(NamedTuple):
    """rows: of a device at a time, compiled and found to fit. `next_rows` do not: `next_needs` bytes, maybe a guess."""

    rows: int
    accumulation: int  # that gives the same batch_size
    needs: int
    next_rows: int | None  # None: rows is all that a device has of a batch
    next_needs: int
    next_compiled: bool


def with_rows(config: Config, derived: Derived, rows: int) -> int:
    """The accumulation with which a device has so many rows at a time, batch_size being the same."""
    return of_batch(config, derived) // rows


def of_batch(config: Config, derived: Derived) -> int:
    """Rows of a batch that fall on one device."""
    return derived.rows_per_device * config.accumulation


def largest(config: Config, first: Compiled, limit: int, compile_with: Callable[[int], Compiled]) -> Largest | None:
    """Finds the largest number of rows a device at a time; None where none was found to fit.

    Bytes are taken to be a constant plus a multiple of the rows: the constant is at first the state, the batch and one
    gradient, later the line through the two nearest of what was compiled. compile_with(accumulation) compiles.
    """
    derived = first.derived
    total = of_batch(config, derived)
    options = [rows for rows in range(1, total + 1) if total % rows == 0]
    memory = first.memory
    constant = 2 * memory.parameters + memory.optimizer + memory.batch
    known = {derived.rows_per_device: memory.needs}
    for _ in range(MOST_COMPILATIONS):
        guess = largest_of(options, known, constant, limit) or options[0]
        if guess in known:
            break
        known[guess] = compile_with(with_rows(config, derived, guess)).memory.needs
    fitting = [rows for rows, needs in known.items() if needs <= limit]
    if not fitting:
        return None
    rows = max(fitting)
    larger = next((option for option in options if option > rows), None)
    needs = 0 if larger is None else round(estimate(larger, known, constant))
    return Largest(rows, with_rows(config, derived, rows), known[rows], larger, needs, larger in known)


def largest_of(options: list[int], known: dict[int, int], constant: int, limit: int) -> int | None:
    """The largest of the numbers of rows that fits by what is known, or by estimate; None where none does."""
    fits = [rows for rows in options if estimate(rows, known, constant) <= limit]
    return max(fits, default=None)


def estimate(rows: int, known: dict[int, int], constant: int) -> float | int:
    """Bytes for so many rows, given those of some others."""
    if rows in known:
        return known[rows]
    if len(known) == 1:
        ((one, needs),) = known.items()
        return constant + (needs - constant) / one * rows
    near, far = sorted(known, key=lambda one: abs(one - rows))[:2]
    return known[near] + (known[far] - known[near]) / (far - near) * (rows - near)
