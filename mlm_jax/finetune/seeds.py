"""What each seed is trained with and measured by, made of a config, a task and a model."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from mlm_jax import convert, keys, sharding
from mlm_jax.checkpoint import load_model
from mlm_jax.config import FinetuneConfig, ModelConfig, Task, as_run, hub, positions, read_task, task_values
from mlm_jax.convert.files import WEIGHTS, write_tensors
from mlm_jax.finetune import answers, encode, tasks
from mlm_jax.finetune.batches import Batches
from mlm_jax.finetune.card import card
from mlm_jax.finetune.examples import Example
from mlm_jax.finetune.train import MODEL, PREDICTIONS, Seed, replace_folder
from mlm_jax.inference import Loaded
from mlm_jax.initial import order_of, with_task
from mlm_jax.models import Model, build
from mlm_jax.tree import PyTree


class Data(NamedTuple):
    """The examples of a split, and how a model reads them."""

    examples: Sequence[Example]
    pieces: Sequence[encode.Piece]


def check_start(config: FinetuneConfig, task: Task, loaded: Loaded) -> None:
    """Raises ConfigError, before anything is read or trained, for what would come up late.

    That is a head whose labels are not those of the task, or a model that the hub's format cannot hold.
    """
    convert.format_of(loaded.model.config, task)
    _hub_values(loaded.model.config, task, loaded)
    had = _head_to_keep(config, loaded)
    if had and had.kind == task.kind:
        order_of(had, task, loaded.path)


def _head_to_keep(config: FinetuneConfig, loaded: Loaded) -> Task | None:
    """The head that the model has, if it begins with that."""
    return read_task(loaded.path) if hub.is_hub(loaded.path) and not (config.new_head or config.scratch) else None


def _hub_values(model: ModelConfig, task: Task, loaded: Loaded) -> hub.Values:
    """What `config.json` says of the model with its head."""
    ids = {role: getattr(loaded.tokenizer, role) for role in ("pad", "cls", "sep")}
    values = hub.config_values(model, loaded.model.vocab_size, ids)
    return values | task_values(task, model.family, model.dropout)


def encoded(
    splits: tasks.Splits, task: Task, loaded: Loaded, config: FinetuneConfig, say: Callable[[str], None]
) -> dict[str, Data]:
    """The examples of all splits as the model reads them; says how many there are and what does not fit."""
    found = {}
    for name, examples in splits.items():
        pieces, told = encode.encode(examples, task.kind, loaded.tokenizer, config)
        tokens = sum(len(piece.ids) for piece in pieces)
        say(f"{name:11} {len(examples):,} examples, {tokens:,} tokens{''.join(f'; {line}' for line in told)}")
        found[name] = Data(examples, pieces)
    if task.labels:
        say(f"{'labels':11} {len(task.labels)}: {', '.join(task.labels[:20])}{' ...' if len(task.labels) > 20 else ''}")
    return found


def batches_of(config: FinetuneConfig, task: Task, train: Data, mesh: Mesh) -> dict[int, Batches]:
    """The batches of each seed, all of one shape, so that one program serves them."""
    labels = encode.labels_of(train.pieces, train.examples, task)
    trained = [i for i, piece in enumerate(train.pieces) if len(piece.at)]
    with sharding.activate(mesh, config.mesh):
        multiple = sharding.parts("batch")
    found = {
        seed: Batches(
            [train.pieces[i].item for i in trained],
            [labels[i] for i in trained],
            seed=seed,
            epochs=config.epochs,
            batch_size=config.batch_size,
            row_length=config.row_length,
            accumulation=config.accumulation,
            multiple=multiple,
        )
        for seed in config.seeds
    }
    shape = tuple(map(max, zip(*(batches.shape for batches in found.values()))))
    for batches in found.values():
        batches.shape = shape
    return found


@functools.lru_cache(maxsize=2)
def _model(config: ModelConfig, vocab_size: int, task: Task) -> Model:
    return build(config, vocab_size, task=task)


def prepared(
    config: FinetuneConfig,
    seed: int,
    batches: Batches,
    workdir: Path,
    task: Task,
    data: dict[str, Data],
    loaded: Loaded,
    say: Callable[[str], None],
) -> Seed:
    """All that one seed needs."""
    run = as_run(config, loaded.model.config, len(batches), batches.shape[0], seed)
    model = _model(run.model, loaded.model.vocab_size, task)
    metrics = tasks.metrics_of(config.task)
    say(
        f"seed {seed}      {len(batches):,} steps of {config.batch_size} examples in {batches.shape[0]} rows of"
        f" {config.row_length}, {batches.fill:.0%} full"
    )

    def start() -> PyTree:
        if config.scratch:
            say("  scratch: all parameters are drawn by the seed")
            return jax.device_get(jax.jit(model.init)(keys.root(seed, keys.INIT)))
        had = _head_to_keep(config, loaded)
        say(f"  begins with {loaded.path}")
        return with_task(jax.device_get(loaded.params), had, model, task, seed, loaded.path, say)

    def export(params: PyTree, folder: Path, epoch: int, scores: dict[str, float]) -> None:
        hub.write_config(folder, _hub_values(model.config, task, loaded))
        write_tensors(folder / WEIGHTS, convert.to_hub(jax.device_get(params), model.config, model.vocab_size, task))
        loaded.tokenizer.save_hub(folder, positions(model.config), types=model.config.types > 1)
        text = card(config, task, len(data["train"].examples), seed, epoch, scores)
        (folder / "README.md").write_text(text, encoding="utf-8")

    return Seed(
        seed=seed,
        workdir=workdir,
        run=run,
        model=model,
        kind=task.kind,
        batches=batches,
        epochs=config.epochs,
        metric=metrics[0],
        larger_is_better=metrics[0] not in answers.SMALLER_IS_BETTER,
        start=start,
        evaluate=lambda params: answers.evaluated(model, params, data["dev"], task, config.task, "dev"),
        export=export,
    )


def tested(workdir: Path, task: Task, data: dict[str, Data], config: FinetuneConfig) -> dict | None:
    """Predicts the test examples by the model of the best epoch; their scores, if their labels are known."""
    model, params, _ = load_model(workdir / MODEL, headless=True)
    found = answers.evaluated(model, params, data["test"], task, config.task, "test")
    replace_folder(workdir / f"{PREDICTIONS}-test", found.write)
    return found.scores or None
