"""Long texts in overlapping windows, each token read where it has the most around it."""

import itertools
from typing import NamedTuple

OVERLAP = 4  # windows share one part in so many with the next one


class Window(NamedTuple):
    """Tokens start .. stop-1 are read together; those of first .. last-1 are looked at in this window alone."""

    start: int
    stop: int
    first: int
    last: int


def cut(length: int, room: int) -> list[Window]:
    """Windows of at most `room` tokens over a text of so many; their looked-at parts cut it without a gap.

    All but the only one are full; of what two of them share each looks at the half that is farther from its border.
    """
    if length <= room:
        return [Window(0, length, 0, length)]
    step = room - room // OVERLAP if room >= OVERLAP else room
    starts = [*range(0, length - room, step), length - room]
    borders = [0, *((one + room + other + 1) // 2 for one, other in itertools.pairwise(starts)), length]
    return [Window(start, start + room, *looked) for start, *looked in zip(starts, borders, borders[1:])]


def around(place: int, length: int, room: int) -> Window:
    """The window of at most `room` tokens in which a place has as much before it as after it, as far as there is."""
    start = max(0, min(place - room // 2, length - room))
    return Window(start, min(length, start + room), place, place + 1)
