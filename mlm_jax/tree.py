"""Parameter trees: paths as strings, and tables of regular expressions over them of which the first match counts."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

T = TypeVar("T")
PyTree = object


def path_string(path: tuple) -> str:
    """A jax key path as `body/0/attention/query/kernel`."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def leaves(tree: PyTree) -> list[tuple[str, object]]:
    """(path, leaf) of every leaf, in jax's order."""
    return [(path_string(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def map_with_path(function: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` whose function takes the path before the leaves."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaf: function(path_string(path), *leaf), tree, *rest)


def first_match(table: Sequence[tuple[str, T]], path: str, what: str) -> T:
    """The value of the first pattern that matches the whole path. Raises KeyError, naming `what`, where none does."""
    for pattern, value in table:
        if re.fullmatch(pattern, path):
            return value
    raise KeyError(f"{what}: no pattern matches {path!r}; patterns: {', '.join(pattern for pattern, _ in table)}")
