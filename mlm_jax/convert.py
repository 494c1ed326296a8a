"""Between hub checkpoints and parameters: one table of names and axes, read in both directions.

The hub's side is a dict of numpy arrays under the names of `transformers`' `BertForMaskedLM`.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from mlm_jax import tree
from mlm_jax.config import ModelConfig
from mlm_jax.models import build

Shape = tuple[int, ...]


class Axes(NamedTuple):
    """How one array is laid out on either side; shapes are ours."""

    to_hub: Callable[[np.ndarray], np.ndarray]
    from_hub: Callable[[np.ndarray, Shape], np.ndarray]
    hub_shape: Callable[[Shape], Shape]


SAME = Axes(lambda x: x, lambda x, shape: x, lambda shape: shape)
# Torch's linear layers hold [out, in], and the axes (heads, head size) of ours are one axis of theirs.
FLAT = Axes(lambda x: x.reshape(-1), lambda x, shape: x.reshape(shape), lambda shape: (math.prod(shape),))
FROM_ONE = Axes(  # [in, *out] <-> [out, in]
    lambda x: x.reshape(x.shape[0], -1).T,
    lambda x, shape: x.T.reshape(shape),
    lambda shape: (math.prod(shape[1:]), shape[0]),
)
TO_ONE = Axes(  # [*in, out] <-> [out, in]
    lambda x: x.reshape(-1, x.shape[-1]).T,
    lambda x, shape: x.T.reshape(shape),
    lambda shape: (shape[-1], math.prod(shape[:-1])),
)

# Layer path of a parameter (see `tree.layer_paths`) -> hub name, axes.
BERT: tuple[tuple[str, str, Axes], ...] = (
    (r"embeddings/word/table", r"bert.embeddings.word_embeddings.weight", SAME),
    (r"embeddings/position/table", r"bert.embeddings.position_embeddings.weight", SAME),
    (r"embeddings/type/table", r"bert.embeddings.token_type_embeddings.weight", SAME),
    (r"embeddings/norm/scale", r"bert.embeddings.LayerNorm.weight", SAME),
    (r"embeddings/norm/bias", r"bert.embeddings.LayerNorm.bias", SAME),
    (r"layers/(\d+)/attention/(query|key|value)/kernel", r"bert.encoder.layer.\1.attention.self.\2.weight", FROM_ONE),
    (r"layers/(\d+)/attention/(query|key|value)/bias", r"bert.encoder.layer.\1.attention.self.\2.bias", FLAT),
    (r"layers/(\d+)/attention/out/kernel", r"bert.encoder.layer.\1.attention.output.dense.weight", TO_ONE),
    (r"layers/(\d+)/attention/out/bias", r"bert.encoder.layer.\1.attention.output.dense.bias", SAME),
    (r"layers/(\d+)/attention/norm/scale", r"bert.encoder.layer.\1.attention.output.LayerNorm.weight", SAME),
    (r"layers/(\d+)/attention/norm/bias", r"bert.encoder.layer.\1.attention.output.LayerNorm.bias", SAME),
    (r"layers/(\d+)/ffn/up/kernel", r"bert.encoder.layer.\1.intermediate.dense.weight", FROM_ONE),
    (r"layers/(\d+)/ffn/up/bias", r"bert.encoder.layer.\1.intermediate.dense.bias", SAME),
    (r"layers/(\d+)/ffn/down/kernel", r"bert.encoder.layer.\1.output.dense.weight", FROM_ONE),
    (r"layers/(\d+)/ffn/down/bias", r"bert.encoder.layer.\1.output.dense.bias", SAME),
    (r"layers/(\d+)/ffn/norm/scale", r"bert.encoder.layer.\1.output.LayerNorm.weight", SAME),
    (r"layers/(\d+)/ffn/norm/bias", r"bert.encoder.layer.\1.output.LayerNorm.bias", SAME),
    (r"head/dense/kernel", r"cls.predictions.transform.dense.weight", FROM_ONE),
    (r"head/dense/bias", r"cls.predictions.transform.dense.bias", SAME),
    (r"head/norm/scale", r"cls.predictions.transform.LayerNorm.weight", SAME),
    (r"head/norm/bias", r"cls.predictions.transform.LayerNorm.bias", SAME),
    (r"head/bias", r"cls.predictions.bias", SAME),
)
TABLES = {"bert": BERT}

# Names that other versions of the layout use, as (pattern, the name above).
OLD_NAMES = (
    (r"(.*LayerNorm)\.gamma", r"\1.weight"),
    (r"(.*LayerNorm)\.beta", r"\1.bias"),
    (r"((?:embeddings|encoder|pooler)\..*)", r"bert.\1"),
)
# Second names of one array; where both are present they must be equal.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# Parts of a BERT checkpoint that this model does not have. They are left out on import.
LEFT_OUT = (
    r"bert\.embeddings\.position_ids",
    r"bert\.pooler\.dense\.(weight|bias)",
    r"cls\.seq_relationship\.(weight|bias)",
)
PADDED = ("embeddings/word/table", "head/bias")  # our rows from vocab_size on are zero and stay here


class NamesError(ValueError):
    """A checkpoint does not hold what the model needs; the message lists every name that is at fault."""


def from_hub(tensors: Mapping[str, np.ndarray], config: ModelConfig, vocab_size: int) -> dict[str, object]:
    """Float32 parameters from the tensors of a checkpoint with `vocab_size` ids.

    Accepts gamma and beta for weight and bias of a normalisation, and names without the prefix `bert.`. Raises
    NamesError for names that are missing, unexpected or given twice, and ValueError for shapes other than the config's.
    """
    found = _canonical(tensors)
    expected = jax.eval_shape(build(config, vocab_size).init, jax.random.key(0, impl="threefry2x32"))
    entries = [entry for path, leaf in tree.leaves(expected) for entry in _entries(config, path, leaf.shape, expected)]
    names = {name for name, _, _ in entries}
    missing, unexpected = sorted(names - found.keys()), sorted(found.keys() - names)
    if missing or unexpected:
        raise NamesError(f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(unexpected) or 'none'}")

    def leaf_of(path: str, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        parts = []
        for name, axes, shape in _entries(config, path, leaf.shape, expected):
            cut = (vocab_size, *shape[1:]) if path in PADDED else shape
            if found[name].shape != axes.hub_shape(cut):
                raise ValueError(f"{name} has shape {found[name].shape}, the config makes {axes.hub_shape(cut)}")
            part = np.zeros(shape, np.float32)
            part[: cut[0]] = axes.from_hub(found[name], cut)
            parts.append(part)
        return np.stack(parts) if path.startswith("body/") else parts[0]

    return tree.map_with_path(leaf_of, expected)


def to_hub(params: Mapping[str, object], config: ModelConfig, vocab_size: int) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint with `vocab_size` ids: float32, contiguous, a tied one under its first name only."""
    tensors = {}
    for path, leaf in tree.leaves(params):
        leaf = np.asarray(leaf, np.float32)
        parts = leaf if path.startswith("body/") else [leaf]
        for part, (name, axes, _) in zip(parts, _entries(config, path, leaf.shape, params)):
            tensors[name] = np.ascontiguousarray(axes.to_hub(part[:vocab_size] if path in PADDED else part))
    return tensors


def _entries(
    config: ModelConfig, path: str, shape: Shape, params: Mapping[str, object]
) -> list[tuple[str, Axes, Shape]]:
    """(hub name, axes, our shape) of every array that the leaf at `path` holds: one for each layer stacked in it."""
    named = tree.layer_paths(params)[path]
    return [(*_hub_name(config, name), shape[1:] if named.stacked else shape) for name in named.paths]


def _hub_name(config: ModelConfig, path: str) -> tuple[str, Axes]:
    for pattern, name, axes in TABLES[config.family]:
        match = re.fullmatch(pattern, path)
        if match:
            return match.expand(name), axes
    raise KeyError(f"convert: no pattern matches {path!r}")


def _canonical(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under the names of the table, without tied copies and what the model does not have."""
    found, given = {}, {}
    for name, tensor in tensors.items():
        new = name
        for pattern, replacement in OLD_NAMES:
            new = re.sub(rf"^{pattern}$", replacement, new)
        if any(re.fullmatch(pattern, new) for pattern in LEFT_OUT):
            continue
        if new in found:
            raise NamesError(f"{given[new]} and {name} are one tensor")
        found[new], given[new] = np.asarray(tensor), name
    for copy, name in TIED.items():
        if copy in found:
            tensor = found.pop(copy)
            if not np.array_equal(found.setdefault(name, tensor), tensor):
                raise ValueError(f"{copy} differs from {name}: this model ties them")
    return found
