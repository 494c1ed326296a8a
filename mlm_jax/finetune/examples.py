"""What a task is learned from."""

from typing import NamedTuple

NOT_FOUND = -1


class Answer(NamedTuple):
    text: str
    start: int  # character of the context at which it begins, or NOT_FOUND


class Example(NamedTuple):
    """One example of any task."""

    id: str
    text: str = ""  # a single text, the first one of a pair, or a question
    second: str | None = None  # the second text of a pair, or the context of a question
    words: tuple[str, ...] = ()  # kind=tagging: in the place of the texts
    # name of a class, a number, or a tag for each word; None: not known
    label: str | float | tuple[str, ...] | None = None
    answers: tuple[Answer, ...] = ()  # kind=questions; none of them where `impossible` is not set: not known
    impossible: bool = False  # kind=questions: the context does not answer it
