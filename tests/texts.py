"""What tests of text share: what cleaning makes of characters, packed rows, stages that are interrupted."""

import itertools

import pytest

from mlm_jax.prepare import packing

# by the rules of the original BERT (`mlm_jax.text`): text -> what is left of it
CLEANED = [
    ("co\u00adoperate", "cooperate"),
    ("zero\u200bwidth", "zerowidth"),
    ("\ufeffhello", "hello"),
    ("a\u00a0b", "a b"),
    ("a\u2028b", "a b"),
    ("a\u0085b", "ab"),
    ("x\u0000y", "xy"),
    ("x\ufffdy", "xy"),
    ("\U0001f468\u200d\U0001f469", "\U0001f468\U0001f469"),
]


def packed(*what):
    """The records of `packing.blocks`, one after another."""
    return list(itertools.chain.from_iterable(records for records, _ in packing.blocks(*what)))


def interrupted(monkeypatch, module, name, after, act):
    """Runs `act`, which a function of a module ends as an interrupt would: its call after so many."""
    real, calls = getattr(module, name), itertools.count()

    def failing(*args):
        if next(calls) == after:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
        with pytest.raises(KeyboardInterrupt):
            act()
