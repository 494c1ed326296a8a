"""The tasks: what each is, where its examples are, and how it is measured, as rows of a table."""

import dataclasses
import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mlm_jax.config import ConfigError, Task, TaskConfig
from mlm_jax.finetune.examples import Example
from mlm_jax.finetune.read import read_file

Splits = dict[str, list[Example]]  # train, dev, and test where there is one


class Row(NamedTuple):
    """What a task brings: fields of a TaskConfig, and the metrics that it is reported by."""

    fields: Mapping[str, object]
    metrics: tuple[str, ...]


METRICS = {  # by kind, the first one chooses the epoch
    "classification": ("accuracy", "f1_macro"),
    "regression": ("pearson", "spearman", "mse"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "questions": ("f1", "exact"),
}


def completed(config: TaskConfig) -> TaskConfig:
    """With what the task of its name brings, where the config has the default. Raises ConfigError for no such name."""
    if not config.name:
        return config
    if config.name not in TASKS:
        near = difflib.get_close_matches(config.name, TASKS, n=3, cutoff=0.0)
        raise ConfigError("config.task.name", config.name, f"there is no such task; nearest: {', '.join(near)}")
    plain = TaskConfig()
    brought = {
        key: value for key, value in TASKS[config.name].fields.items() if getattr(config, key) == getattr(plain, key)
    }
    return dataclasses.replace(config, **brought)


def metrics_of(config: TaskConfig) -> tuple[str, ...]:
    """The metrics of a task, the one that chooses the epoch first."""
    metrics = TASKS[config.name].metrics if config.name else METRICS[config.kind]
    if not config.metric:
        return metrics
    return (config.metric, *(name for name in metrics if name != config.metric))


def read_splits(config: TaskConfig, say: Callable[[str], None]) -> Splits:
    """The examples of train, dev and, if there is one, test; says what is odd about them. Raises ConfigError."""
    splits = {"train": read_file(config.train, config)}
    if config.dev:
        splits["dev"] = read_file(config.dev, config)
    else:
        splits = divided(splits["train"], config.dev_share)
    if config.test:
        splits["test"] = read_file(config.test, config, labelled=False)
    for name, examples in splits.items():
        if not examples:
            raise ConfigError("config.task.dev_share", config.dev_share, f"leaves no {name} examples")
    seen = {_key(example) for example in splits["train"]}
    for name, examples in splits.items():
        again = sum(_key(example) in seen for example in examples)
        if name != "train" and again:
            say(f"warning: {again:,} of the {len(examples):,} {name} examples stand in the training examples, too")
    return splits


def _key(example: Example) -> tuple:
    return example.text, example.second, example.words


def divided(examples: Sequence[Example], dev_share: float) -> Splits:
    """Training and dev examples by a hash of their texts, so that equal ones are on one side."""
    splits: Splits = {"train": [], "dev": []}
    for example in examples:
        digest = hashlib.blake2b(repr(_key(example)).encode(), digest_size=8).digest()
        is_dev = int.from_bytes(digest, "big") < dev_share * 2**64
        splits["dev" if is_dev else "train"].append(example)
    return splits


def task_of(config: TaskConfig, splits: Splits) -> Task:
    """What the head says: the labels of the config, or those of the training examples, sorted. Raises ConfigError.

    Of tagging: O, then B-TYPE and I-TYPE of each type.
    """
    if config.kind in ("regression", "questions"):
        return Task(config.kind)
    if config.kind == "classification":
        labels = config.labels or tuple(sorted({example.label for example in splits["train"]}))
    else:
        types = config.labels or sorted({tag[2:] for example in splits["train"] for tag in example.label} - {""})
        labels = ("O", *(f"{start}-{name}" for name in types for start in "BI"))
    if len(labels) < 2:
        raise ConfigError("config.task.labels", labels, "there must be two different ones at least")
    for name, examples in splits.items():
        for example in examples:
            given = example.label if config.kind == "tagging" else (example.label,)
            for label in given or ():
                if label is not None and label not in labels:
                    fix = f"{name} example {example.id}: must be one of {', '.join(labels)}"
                    raise ConfigError("label", label, fix)
    return Task(config.kind, labels)


TASKS: dict[str, Row] = {
    "conll2003": Row({"kind": "tagging", "format": "conll"}, METRICS["tagging"]),
    "wnut17": Row({"kind": "tagging", "format": "conll"}, METRICS["tagging"]),
    "squad": Row({"kind": "questions", "format": "squad"}, METRICS["questions"]),
    "squad2": Row({"kind": "questions", "format": "squad", "unanswerable": True}, METRICS["questions"]),
}
