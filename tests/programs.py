"""Compiled programs that several runs of one process share."""

import contextlib
from collections.abc import Callable, Hashable, Iterator

import pytest

from mlm_jax import evaluate, feedback, samples, step
from mlm_jax.models import Model
from mlm_jax.tokenizer import Vocabulary

FACTORIES = [
    (step, "make_train_step"),
    (evaluate, "make_evaluation_step"),
    (feedback, "make_mask"),
    (samples, "make_guess"),
    (samples, "make_mask"),
]


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within it, runs of the same config, vocabulary and mesh share what they jit, and it is compiled once.

    These are pure functions, which alone decide what is compiled: a run that goes on does so from its files only.
    """
    with pytest.MonkeyPatch.context() as patched:
        for module, name in FACTORIES:
            patched.setattr(module, name, _once(getattr(module, name)))
        yield


def _once(make: Callable) -> Callable:
    kept = {}

    def made(*args: object, **options: object) -> object:
        key = tuple(map(_key, (*args, *options, *options.values())))
        if key not in kept:
            kept[key] = make(*args, **options)
        return kept[key]

    return made


def _key(value: object) -> Hashable:
    if isinstance(value, Vocabulary):
        return tuple(x if isinstance(x, int | None) else x.tobytes() for x in vars(value).values())
    if isinstance(value, Model):
        return value.config, value.vocab_size, _key(value.generator)
    # an optimizer is a function of the config, and the only argument that is a pair of functions
    return None if hasattr(value, "update") else value
