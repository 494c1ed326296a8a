"""The tasks: what each is, where its examples are, and how it is measured, as rows of a table."""

import dataclasses
import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlm_jax.config import ConfigError, Task, TaskConfig
from mlm_jax.finetune import scores
from mlm_jax.finetune.examples import NOT_FOUND, Example
from mlm_jax.finetune.read import read
from mlm_jax.prepare.sources import tfds

Splits = dict[str, list[Example]]  # train, dev, and test where there is one


class Row(NamedTuple):
    """What a task brings: fields of a TaskConfig, the metrics that it is reported by, and its file for GLUE."""

    fields: Mapping[str, object]
    metrics: tuple[str, ...]
    # fields of a TaskConfig that tell how it is read: from its files, from the file of its test set (test*) where that
    # differs, and from its dataset of TensorFlow Datasets
    files: Mapping[str, object]
    test: Mapping[str, object] = {}
    features: Mapping[str, object] = {}
    submission: str = ""  # name of the file of GLUE's test set
    by_name: bool = False  # which has classes by their names there, not by their ids
    limits: tuple[float, float] | None = None  # of a number; one outside is no label


METRICS = {  # by kind, the first one chooses the epoch
    "classification": ("accuracy", "f1_macro"),
    "regression": ("pearson", "spearman", "mse"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "questions": ("f1", "exact"),
}
CHOICES = METRICS | {"classification": tuple(scores.OF_CLASSES), "regression": tuple(scores.OF_NUMBERS)}
OF_TWO = ("f1", "precision", "recall")  # of the second one of two classes


def completed(config: TaskConfig) -> TaskConfig:
    """With what the task of its name brings, where the config has the default.

    Raises ConfigError for no such name, for what contradicts the task, and for a metric that its kind does not have.
    """
    if config.name:
        if config.name not in TASKS:
            near = difflib.get_close_matches(config.name, TASKS, n=3, cutoff=0.0)
            raise ConfigError("config.task.name", config.name, f"there is no such task; nearest: {', '.join(near)}")
        fields = TASKS[config.name].fields
        for key in ("kind", "labels"):
            value = getattr(config, key)
            if key in fields and value not in (getattr(TaskConfig(), key), fields[key]):
                fix = f"the task {config.name} has {fields[key]!r}; leave it out, or the name"
                raise ConfigError(f"config.task.{key}", value, fix)
        config = filled(config, fields)
    choices = CHOICES.get(config.kind)
    if config.metric and choices and config.metric not in choices:
        fix = f"of kind={config.kind} there are {', '.join(choices)}"
        raise ConfigError("config.task.metric", config.metric, fix)
    return config


def filled(config: TaskConfig, fields: Mapping[str, object]) -> TaskConfig:
    """With these fields, where the config has the default."""
    plain = TaskConfig()
    brought = {key: value for key, value in fields.items() if getattr(config, key) == getattr(plain, key)}
    return dataclasses.replace(config, **brought)


def layout(config: TaskConfig, split: str) -> TaskConfig:
    """With what the task says of how its examples of a split are read."""
    if not config.name:
        return config
    row, source = TASKS[config.name], getattr(config, split)
    if source.startswith(tfds.PREFIX):
        return filled(config, row.features)
    own = row.test if split == "test" and Path(source).name.startswith("test") else {}
    return filled(config, {**row.files, **own})


def metrics_of(config: TaskConfig) -> tuple[str, ...]:
    """The metrics of a task, the one that chooses the epoch first."""
    metrics = TASKS[config.name].metrics if config.name else METRICS[config.kind]
    if not config.metric:
        return metrics
    return (config.metric, *(name for name in metrics if name != config.metric))


def read_splits(config: TaskConfig, say: Callable[[str], None]) -> Splits:
    """The examples of train, dev and, if there is one, test; says what is odd about them. Raises ConfigError."""

    def examples(split: str) -> list[Example]:
        return _within(read(getattr(config, split), layout(config, split), split != "test", say), config, split)

    splits = {"train": examples("train")}
    splits["train"] = _unrepeated(splits["train"], config, say)
    if config.dev:
        splits["dev"] = examples("dev")
    else:
        splits = divided(splits["train"], config.dev_share, by_context=config.kind == "questions")
    if config.test:
        splits["test"] = examples("test")
    for name, some in splits.items():
        if not some:
            raise ConfigError("config.task.dev_share", config.dev_share, f"leaves no {name} examples")
    splits["train"] = _unseen(_placed(splits["train"], say), splits, config, say)
    if not splits["train"]:
        raise ConfigError("config.task.train", config.train, "no example is left to learn from")
    return splits


def _within(examples: list[Example], config: TaskConfig, split: str) -> list[Example]:
    """A number outside the limits of the task is no label; outside the test set there may be none."""
    limits = TASKS[config.name].limits if config.name else None
    if not limits:
        return examples
    for i, example in enumerate(examples):
        if example.label is not None and not limits[0] <= example.label <= limits[1]:
            if split != "test":
                fix = f"{split} example {example.id} of {config.name}: must lie in {list(limits)}"
                raise ConfigError("label", example.label, fix)
            examples[i] = example._replace(label=None)
    return examples


def _placed(train: list[Example], say: Callable[[str], None]) -> list[Example]:
    """Without the questions of which no answer stands where it should."""
    kept = [one for one in train if not one.answers or any(answer.start != NOT_FOUND for answer in one.answers)]
    if len(kept) < len(train):
        say(f"warning: {len(train) - len(kept):,} of {len(train):,} questions are not trained on for that")
    return kept


def _unrepeated(train: list[Example], config: TaskConfig, say: Callable[[str], None]) -> list[Example]:
    """Says how many examples stand there before, and how many texts have several labels.

    With `drop_repeated` it returns the first ones alone.
    """
    labels: dict[tuple, set] = {}
    kept = []
    for example in train:
        label, seen = (example.label, example.answers, example.impossible), labels.setdefault(_key(example), set())
        if label not in seen:
            kept.append(example)
        seen.add(label)
    if len(kept) < len(train):
        done = "dropped" if config.drop_repeated else "kept (config.task.drop_repeated=True drops them)"
        again = len(train) - len(kept)
        say(f"warning: {again:,} of {len(train):,} training examples stand there before with the same label: {done}")
    several = sum(len(found) > 1 for found in labels.values())
    if several and config.kind != "questions":  # of which several answers may be right
        say(f"warning: {several:,} texts of the training examples have several labels")
    return kept if config.drop_repeated else train


def _unseen(train: list[Example], splits: Splits, config: TaskConfig, say: Callable[[str], None]) -> list[Example]:
    """Says how many dev and test examples stand in train, too; with `drop_seen` train is returned without those."""
    own, others = set(map(_key, train)), set()
    for name, examples in splits.items():
        if name == "train":
            continue
        others |= set(map(_key, examples))
        again = sum(_key(example) in own for example in examples)
        if again and not config.drop_seen:
            say(
                f"warning: {again:,} of the {len(examples):,} {name} examples stand in the training examples, too"
                " (config.task.drop_seen=True drops them there)"
            )
    if not config.drop_seen:
        return train
    kept = [example for example in train if _key(example) not in others]
    say(f"{len(train) - len(kept):,} of {len(train):,} training examples stand in dev or test, too: dropped")
    return kept


def _key(example: Example) -> tuple:
    return example.text, example.second, example.words


def divided(examples: Sequence[Example], dev_share: float, by_context: bool = False) -> Splits:
    """Training and dev examples by a hash of their texts, so that equal ones are on one side.

    by_context: of the second text alone, so that all questions about a paragraph are.
    """
    splits: Splits = {"train": [], "dev": []}
    for example in examples:
        key = example.second if by_context else _key(example)
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
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
    if config.kind == "classification" and config.metric in OF_TWO and len(labels) > 2:
        fix = f"is one of two classes, and there are {len(labels)}; take f1_macro, accuracy or matthews"
        raise ConfigError("config.task.metric", config.metric, fix)
    for name, examples in splits.items():
        for example in examples:
            given = example.label if config.kind == "tagging" else (example.label,)
            for label in given or ():
                if label is not None and label not in labels:
                    fix = f"{name} example {example.id}: must be one of {', '.join(labels)}"
                    raise ConfigError("label", label, fix)
    return Task(config.kind, labels)


def submission(config: TaskConfig, examples: Sequence[Example], predictions: Sequence[str | float]) -> tuple[str, str]:
    """Name and content of the file that GLUE takes for a test set; empty ones where the task is none of GLUE's.

    Numbers are kept within their limits, with three decimals; lines are in the order of the ids.
    """
    row = TASKS.get(config.name)
    if row is None or not row.submission:
        return "", ""
    name = row.submission + (("-mm" if "mismatched" in config.test else "-m") if row.submission == "MNLI" else "")

    def shown(value: str | float) -> str:
        if row.limits:
            return f"{min(max(value, row.limits[0]), row.limits[1]):.3f}"
        return value if row.by_name else str(config.labels.index(value))

    lines = [(example.id, shown(value)) for example, value in zip(examples, predictions, strict=True)]
    if all(id.isdecimal() for id, _ in lines):
        lines.sort(key=lambda line: int(line[0]))
    return f"{name}.tsv", "".join(f"{id}\t{value}\n" for id, value in [("index", "prediction"), *lines])


def _glue(
    name: str,
    files: tuple[str, str, str],
    features: tuple[str, str],
    labels: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
    **more: object,
) -> Row:
    """A task of GLUE (Wang et al., 2018). files, features: the columns of text, second text and label."""
    return Row(
        {"kind": "classification" if labels else "regression", **({"labels": labels} if labels else {})},
        metrics,
        files=dict(zip(("text", "second", "label"), files)) | more.pop("files_too", {}),
        features=dict(zip(("text", "second"), features)) | {"id": "idx"},
        submission=name,
        **more,
    )


BOTH = ("sentence1", "sentence2")
TEXTS_AND_LABEL = (*BOTH, "label")
ENTAILED = ("entailment", "not_entailment")
SQUAD = {"format": "squad"}

TASKS: dict[str, Row] = {
    "cola": _glue(
        "CoLA",
        ("3", "", "1"),  # source, label, star, sentence
        ("sentence", ""),
        ("unacceptable", "acceptable"),
        ("matthews",),
        files_too={"header": False},
        test={"header": True, "text": "sentence"},
    ),
    "sst2": _glue("SST-2", ("sentence", "", "label"), ("sentence", ""), ("negative", "positive")),
    "mrpc": _glue(
        "MRPC", ("#1 String", "#2 String", "Quality"), BOTH, ("not_equivalent", "equivalent"), ("accuracy", "f1")
    ),
    "stsb": _glue("STS-B", (*BOTH, "score"), BOTH, (), ("pearson", "spearman"), limits=(0.0, 5.0)),
    "qqp": _glue(
        "QQP",
        ("question1", "question2", "is_duplicate"),
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("accuracy", "f1"),
        files_too={"skip_broken": True},
    ),
    "mnli": _glue(
        "MNLI",
        (*BOTH, "gold_label"),
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        by_name=True,
    ),
    "qnli": _glue("QNLI", ("question", "sentence", "label"), ("question", "sentence"), ENTAILED, by_name=True),
    "rte": _glue("RTE", TEXTS_AND_LABEL, BOTH, ENTAILED, by_name=True),
    "wnli": _glue("WNLI", TEXTS_AND_LABEL, BOTH, ("not_entailment", "entailment")),
    "conll2003": Row(
        {"kind": "tagging"}, METRICS["tagging"], {"format": "conll"}, features={"text": "tokens", "label": "ner"}
    ),
    "wnut17": Row({"kind": "tagging"}, METRICS["tagging"], {"format": "conll"}),
    "squad": Row({"kind": "questions"}, METRICS["questions"], SQUAD),
    "squad2": Row({"kind": "questions", "unanswerable": True}, METRICS["questions"], SQUAD),
}
