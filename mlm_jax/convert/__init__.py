"""Between hub checkpoints and parameters: the tables of names and axes, read in both directions.

The hub's side is a dict of numpy arrays under the names of `transformers`' `BertForMaskedLM`, `RobertaForMaskedLM`,
`ElectraForMaskedLM` or `ModernBertForMaskedLM`, by the config's family; a discriminator under those of
`ElectraForPreTraining`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from mlm_jax import tree
from mlm_jax.config import PRESETS, ConfigError, ModelConfig, ObjectivesConfig, ReplacedConfig, Task, resolve, round_up
from mlm_jax.convert.tables import FORMATS, OF_TEXTS, TASKS, Axes, Format, Shape
from mlm_jax.models import Model, build
from mlm_jax.models.layers import VOCAB_MULTIPLE

WORD, DECODER = "embeddings/word/table", "head/decoder/table"
GENERATOR_BIAS = "generator/head/bias"
PADDED = (WORD, DECODER, "head/bias", GENERATOR_BIAS)  # our rows from vocab_size on are zero and stay here


class NamesError(ValueError):
    """A checkpoint does not hold what the model needs; the message lists every name that is at fault."""


def from_hub(
    tensors: Mapping[str, np.ndarray],
    config: ModelConfig,
    vocab_size: int,
    headless: bool = False,
    task: Task | None = None,
) -> dict[str, object]:
    """Float32 parameters from the tensors of a checkpoint with `vocab_size` ids.

    Accepts gamma and beta for weight and bias of a normalisation, and names without the prefix of the encoder. Of
    ELECTRA, the names decide whether there is a `head`, a `discriminator`, or neither; with `headless` so they do of
    the others, where a checkpoint of an encoder alone has no name of the head. task: of a fine-tuned model. Raises
    NamesError for names that are missing, unexpected or given twice, ValueError for shapes other than the config's, and
    ConfigError for a model that the hub's format of its family cannot hold.
    """
    form = format_of(config, task)
    found = _canonical(tensors, form, config.tied)
    expected = _shapes(found, config, vocab_size, task)
    entries = _entries(form, expected)
    of_head = {name for path in entries if path.startswith("head/") for name, *_ in entries[path]}
    if headless and not found.keys() & of_head:
        expected = {part: leaves for part, leaves in expected.items() if part != "head"}
        entries = _entries(form, expected)
    names = {name for of_leaf in entries.values() for name, _, _ in of_leaf}
    missing, unexpected = sorted(names - found.keys()), sorted(found.keys() - names)
    if missing or unexpected:
        raise NamesError(f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(unexpected) or 'none'}")

    def leaf_of(path: str, _: jax.ShapeDtypeStruct) -> np.ndarray:
        parts = []
        for name, axes, shape in entries[path]:
            cut = (vocab_size, *shape[1:]) if path in PADDED else shape
            rows, *rest = axes.hub_shape(cut)
            if found[name].shape != (axes.parts * rows, *rest):
                raise ValueError(f"{name} has shape {found[name].shape}, the config makes {(axes.parts * rows, *rest)}")
            part = np.zeros(shape, np.float32)
            part[: cut[0]] = axes.from_hub(found[name][axes.part * rows : (axes.part + 1) * rows], cut)
            parts.append(part)
        return np.stack(parts) if path.startswith("body/") else parts[0]

    return tree.map_with_path(leaf_of, expected)


def _shapes(
    found: Mapping[str, np.ndarray], config: ModelConfig, vocab_size: int, task: Task | None
) -> dict[str, object]:
    """Abstract parameters of the model that a checkpoint holds."""
    key = jax.random.key(0, impl="threefry2x32")
    if task:
        return jax.eval_shape(build(config, vocab_size, task=task).init, key)
    if config.family != "electra":
        return jax.eval_shape(build(config, vocab_size).init, key)
    both = ObjectivesConfig(replaced=ReplacedConfig(weight=1.0))
    shapes = jax.eval_shape(build(config, vocab_size, both).init, key)
    absent = {"generator"}
    for part, prefix in (("head", "generator_predictions."), ("discriminator", "discriminator_predictions.")):
        absent |= set() if any(name.startswith(prefix) for name in found) else {part}
    return {name: part for name, part in shapes.items() if name not in absent}


def of_discriminator(model: Model, params: Mapping[str, object]) -> tuple[ModelConfig, dict[str, object]]:
    """The discriminator of a model as one of the family `electra`, without the parts that this has no place for."""
    names = ("embeddings", "first", "body", "last", "norm", "discriminator")
    config = dataclasses.replace(model.config, family="electra", tied=True)
    return config, {name: params[name] for name in names if name in params}


def of_generator(model: Model, params: Mapping[str, object]) -> tuple[ModelConfig, dict[str, object]]:
    """The generator of a model as a model of its own of the family `electra`, with the tables of both."""
    own, tables = params["generator"], {k: v for k, v in params["embeddings"].items() if k != "project"}
    config = dataclasses.replace(model.generator.config, family="electra")
    return config, {**own, "embeddings": tables | own.get("embeddings", {})}


def to_hub(
    params: Mapping[str, object], config: ModelConfig, vocab_size: int, task: Task | None = None
) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint with `vocab_size` ids: float32, contiguous, a tied one under its first name only.

    Without ties the bias stands under both of its names: transformers keeps two then, and computes with the second.
    Raises ConfigError for a model that the hub's format of its family cannot hold.
    """
    form = format_of(config, task)
    entries = _entries(form, params)
    joined: dict[str, dict[int, np.ndarray]] = {}
    for path, leaf in tree.leaves(params):
        leaf = np.asarray(leaf, np.float32)
        parts = leaf if path.startswith("body/") else [leaf]
        for part, (name, axes, _) in zip(parts, entries[path]):
            array = axes.to_hub(part[:vocab_size] if path in PADDED else part)
            joined.setdefault(name, {})[axes.part] = array
    tensors = {
        name: np.ascontiguousarray(np.concatenate([parts[i] for i in sorted(parts)])) for name, parts in joined.items()
    }
    return tensors | ({} if config.tied else {copy: tensors[name].copy() for copy, name in form.copies.items()})


def left_out(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint that the model has no place for, such as a pooler, under the table's kind of name."""
    form, found = format_of(config), {}
    for name, tensor in tensors.items():
        new = _renamed(name, form)
        if any(re.fullmatch(pattern, new) for pattern in form.left_out):
            found[new] = np.asarray(tensor)
    return found


def pooler_of(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray] | None:
    """The dense layer, f32, that a checkpoint of BERT has for texts beside any other head; None without.

    The pooler of RoBERTa's checkpoints is of no use: its head for texts has a dense layer of its own.
    """
    if config.family != "bert":
        return None
    beside, found = left_out(tensors, config), {}
    for pattern, name, axes in TASKS["bert"][OF_TEXTS]:
        if pattern.startswith("task/dense/") and name in beside:
            array = np.asarray(beside[name], np.float32)
            found[pattern.removeprefix("task/dense/")] = np.ascontiguousarray(axes.from_hub(array, array.shape[::-1]))
    return found if len(found) == 2 else None


def with_rows(params: Mapping[str, object], vocab_size: int, sources: Sequence[Sequence[int]]) -> dict[str, object]:
    """The parameters of a model with `vocab_size` ids for another vocabulary, whose id i stood for the ids sources[i].

    Its row of the word table, that of a decoder of its own, and its bias in the head are the mean of theirs: the very
    same numbers where it is one id, and the mean of the whole table where it is none (Hewitt 2021, "Initializing new
    word embeddings for pretrained language models"). So the logits of ids that are kept do not change.
    """
    size = round_up(len(sources), VOCAB_MULTIPLE)

    def change(path: str, leaf: np.ndarray) -> np.ndarray:
        if path not in PADDED:
            return leaf
        old = np.asarray(leaf, np.float32)
        new = np.zeros((size, *old.shape[1:]), np.float32)
        rest = old[:vocab_size].mean(0)
        for i, ids in enumerate(sources):
            new[i] = old[ids[0]] if len(ids) == 1 else old[list(ids)].mean(0) if len(ids) else rest
        return new

    return tree.map_with_path(change, params)


def without_place(params: Mapping[str, object], config: ModelConfig) -> list[str]:
    """Heads that the hub's format of the family does not have, such as `contrast`; `to_hub` takes none of them."""
    form = format_of(config)
    named = {path for of in tree.layer_paths(params).values() for path in of.paths}
    lost = [path for path in named if not _found(form, path)]
    return sorted({path.partition("/")[0] for path in lost} & {"pair", "contrast"})


def format_of(config: ModelConfig, task: Task | None = None) -> Format:
    """The hub's format of a model, or of one that is fine-tuned for a task.

    Raises ConfigError where a switch is not the family's and the hub has no other.
    """
    form, model = FORMATS[config.family], resolve(config)
    for key, value in (PRESETS[config.family] | {"embedding_width": model.width}).items():
        if getattr(model, key) != value and key not in form.free:
            fix = f"the hub's format of {config.family!r} is made for {value!r} and cannot hold this model"
            raise ConfigError(f"config.model.{key}", getattr(model, key), fix)
    if not task:
        return form
    own = TASKS[config.family][OF_TEXTS if task.of_texts else task.kind]
    kept = tuple(left for left in form.left_out if not any(re.fullmatch(left, name) for _, name, _ in own))
    return form._replace(table=form.table + own, left_out=kept, copies={})


def _entries(form: Format, params: Mapping[str, object]) -> dict[str, list[tuple[str, Axes, Shape]]]:
    """By path of a leaf, (hub name, axes, our shape) of every array in it: one for each layer stacked there."""
    named, leaves = tree.layer_paths(params), dict(tree.leaves(params))
    return {
        path: [(*_hub_name(form, name), leaves[path].shape[1 if of.stacked else 0 :]) for name in of.paths]
        for path, of in named.items()
    }


def _hub_name(form: Format, path: str) -> tuple[str, Axes]:
    if found := _found(form, path):
        return found
    raise KeyError(f"convert: no pattern matches {path!r}")


def _found(form: Format, path: str) -> tuple[str, Axes] | None:
    """The name and axes of a layer path in the table; None where it has no place."""
    for pattern, name, axes in form.table:
        match = re.fullmatch(pattern, path)
        if match:
            return match.expand(name), axes
    return None


def _renamed(name: str, form: Format) -> str:
    """The name in the table for one that another version may have used."""
    for pattern, replacement in form.old_names:
        name = re.sub(rf"^{pattern}$", replacement, name)
    return name


def _canonical(tensors: Mapping[str, np.ndarray], form: Format, tied: bool) -> dict[str, np.ndarray]:
    """The tensors under the names of the table, without copies and what the model does not have."""
    found, given = {}, {}
    for name, tensor in tensors.items():
        new = _renamed(name, form)
        if any(re.fullmatch(pattern, new) for pattern in form.left_out):
            continue
        if new in found:
            raise NamesError(f"{given[new]} and {name} are one tensor")
        found[new], given[new] = np.asarray(tensor), name
    word = _hub_name(form, WORD)[0]
    for copy, name in form.copies.items() | ({(form.decoder, word)} if tied else set()):
        if copy in found:
            tensor = found.pop(copy)
            if not tied:
                found[name] = tensor
            elif not np.array_equal(found.setdefault(name, tensor), tensor):
                fix = "config.json ties them; where they are two arrays it must say that tie_word_embeddings is false"
                raise ValueError(f"{copy} differs from {name}: {fix}")
    return found
