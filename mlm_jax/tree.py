"""Parameter trees: paths as strings, and tables of regular expressions over them of which the first match counts."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

T = TypeVar("T")
PyTree = object
GENERATOR = "generator"  # the key of an encoder within the parameters of another, whose embeddings it shares


def path_string(path: tuple) -> str:
    """A jax key path as `body/0/attention/query/kernel`."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def leaves(tree: PyTree) -> list[tuple[str, object]]:
    """(path, leaf) of every leaf, in jax's order."""
    return [(path_string(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def size(tree: PyTree) -> int:
    """Numbers in all leaves."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def map_with_path(function: Callable, tree: PyTree, *rest: PyTree) -> PyTree:
    """`jax.tree.map` whose function takes the path before the leaves."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaf: function(path_string(path), *leaf), tree, *rest)


def first_match(table: Sequence[tuple[str, T]], path: str, what: str) -> T:
    """The value of the first pattern that matches the whole path. Raises KeyError, naming `what`, where none does."""
    for pattern, value in table:
        if re.fullmatch(pattern, path):
            return value
    raise KeyError(f"{what}: no pattern matches {path!r}; patterns: {', '.join(pattern for pattern, _ in table)}")


@dataclasses.dataclass(frozen=True)
class LayerPaths:
    """The layer paths of one leaf: one, or one per layer along the leading axis of a stacked leaf."""

    paths: tuple[str, ...]
    stacked: bool


def layer_paths(params: dict) -> dict[str, LayerPaths]:
    """By path of a leaf in memory, what it is called by depth: `embeddings/word/table`, `layers/3/ffn/up/kernel`.

    In memory most layers are stacked; such a leaf has as many layer paths as it has layers. The depth of a layer is
    len(first) + group x size + place. Those of a generator stand behind `generator/`: `generator/layers/0/ffn/up/bias`.
    """
    found = {}
    if GENERATOR in params:
        for path, of_path in layer_paths(params[GENERATOR]).items():
            names = tuple(f"{GENERATOR}/{name}" for name in of_path.paths)
            found[f"{GENERATOR}/{path}"] = LayerPaths(names, of_path.stacked)
        params = {name: part for name, part in params.items() if name != GENERATOR}
    first, size, groups = _layer_sizes(params)

    def of(path: str) -> LayerPaths:
        part, *rest = path.split("/")
        if part not in ("first", "body", "last"):
            return LayerPaths((path,), False)
        place, name = int(rest[0]), "/".join(rest[1:])
        start = {"first": 0, "body": first, "last": first + groups * size}[part] + place
        depths = [start + group * size for group in range(groups)] if part == "body" else [start]
        return LayerPaths(tuple(f"layers/{depth}/{name}" for depth in depths), part == "body")

    return {path: of(path) for path, _ in leaves(params)} | found


def layer_count(params: dict) -> int:
    """Number of layers, without those of a generator."""
    first, size, groups = _layer_sizes(params)
    return first + groups * size + len(params["last"])


def _layer_sizes(params: dict) -> tuple[int, int, int]:
    """Layers in `first`, layers of a group of `body`, and groups."""
    size = len(params["body"])
    return len(params["first"]), size, leaves(params["body"])[0][1].shape[0] if size else 0
