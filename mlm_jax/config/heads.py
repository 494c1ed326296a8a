"""The head of a fine-tuned model, as its folder of the hub format tells of it."""

import json
from pathlib import Path
from typing import NamedTuple

from mlm_jax.config.hub import CONFIG, FIELDS, Values
from mlm_jax.config.schema import ConfigError

# kind -> how `transformers` ends the name of its class
CLASSES = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "questions": "ForQuestionAnswering",
}
PREFIXES = {"bert": "Bert", "roberta": "Roberta", "electra": "Electra", "modernbert": "ModernBert"}
REGRESSION = "regression"


class Task(NamedTuple):
    """What the head of a fine-tuned model says: so many numbers of a text, of a token, or of an answer's two ends."""

    kind: str  # classification | regression | tagging | questions
    labels: tuple[str, ...] = ()  # names of the classes or tags, by their ids; none of the other kinds

    @property
    def outputs(self) -> int:
        return {"regression": 1, "questions": 2}.get(self.kind, len(self.labels))

    @property
    def of_texts(self) -> bool:
        """Whether it reads the state of CLS, and of no other token."""
        return self.kind in ("classification", "regression")


def task_values(task: Task, family: str, dropout: float) -> Values:
    """What `config.json` says of the head."""
    values: Values = {"architectures": [PREFIXES[family] + CLASSES[task.kind]]}
    if task.labels:
        values |= {
            "id2label": dict(enumerate(task.labels)),
            "label2id": {name: i for i, name in enumerate(task.labels)},
        }
    if task.kind == REGRESSION:
        values |= {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": REGRESSION}
    if task.kind == "classification":
        values["problem_type"] = "single_label_classification"
    if family == "modernbert":
        values |= {"classifier_pooling": "cls", "classifier_dropout": dropout}
    return values


def read_task(folder: str | Path) -> Task | None:
    """The head of the model in a folder of the hub format; None where it is one of pretraining, or none.

    Raises ConfigError for a head that this package does not have.
    """
    path = Path(folder) / CONFIG
    values = json.loads(path.read_text(encoding="utf-8"))
    name = next(iter(values.get("architectures") or ()), "")
    kind = next((kind for kind, end in CLASSES.items() if name.endswith(end)), None)
    if kind is None or values.get("model_type") not in FIELDS:
        return None
    if values.get("problem_type") == "multi_label_classification":
        raise ConfigError("problem_type", values["problem_type"], f"{path}: this package has heads for one label only")
    if values.get("model_type") == "modernbert" and kind in ("classification", "regression"):
        pooling = values.get("classifier_pooling", "cls")
        if pooling != "cls":
            raise ConfigError("classifier_pooling", pooling, f"{path}: this package has heads that read CLS only")
    if kind == "questions":
        return Task(kind)
    labels = _labels(values, path)
    if kind == "classification" and (values.get("problem_type") == REGRESSION or len(labels) == 1):
        return Task(REGRESSION)
    return Task(kind, labels)


def _labels(values: Values, path: Path) -> tuple[str, ...]:
    """The names in the order of their ids; LABEL_0 and so on where there are none, as `transformers` has it."""
    given = values.get("id2label") or {i: f"LABEL_{i}" for i in range(values.get("num_labels", 2))}
    ids = [str(i) for i in range(len(given))]
    if sorted(map(str, given)) != sorted(ids):
        raise ConfigError("id2label", given, f"{path}: the ids must be 0 to {len(given) - 1}")
    names = {str(i): str(label) for i, label in given.items()}
    return tuple(names[i] for i in ids)
