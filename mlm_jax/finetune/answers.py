"""The predictions of a model for a split: made, scored and written."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlm_jax.config import Task, TaskConfig
from mlm_jax.finetune import encode, scores, tasks
from mlm_jax.finetune.evaluate import outputs, softmax
from mlm_jax.finetune.examples import Example
from mlm_jax.finetune.train import Evaluated
from mlm_jax.models import Model

SMALLER_IS_BETTER = ("mse",)
DIGITS = 6  # of probabilities and numbers in files


def evaluated(model: Model, params: dict, data, task: Task, config: TaskConfig, split: str) -> Evaluated:
    """What the model says of the examples of a split, and its scores; none where their labels are not known.

    data: a `seeds.Data`.
    """
    metrics = tasks.metrics_of(config)
    found = OF_KIND[task.kind](outputs(model, params, data.pieces, task), data, task, config)
    known = [i for i, example in enumerate(data.examples) if is_known(example, task)]
    ordered = {}
    if known:
        scored = SCORES[task.kind]([data.examples[i] for i in known], [found[i] for i in known], task, metrics)
        ordered = {name: scored[name] for name in (*metrics, *scored) if name in scored}
    return Evaluated(ordered, lambda folder: write(folder, data.examples, found, task, split, config))


def is_known(example: Example, task: Task) -> bool:
    if task.kind == "questions":
        return bool(example.answers) or example.impossible
    return example.label is not None


# ---- predictions: a dict for each example, as the lines of the file have them ----


def _of_classes(given: list[np.ndarray], data, task: Task, config: TaskConfig) -> list[dict]:
    found = []
    for numbers in given:
        chances = softmax(numbers[0].astype(np.float64))
        named = {name: round(float(chance), DIGITS) for name, chance in zip(task.labels, chances)}
        found.append({"prediction": task.labels[int(chances.argmax())], "probabilities": named})
    return found


def _of_numbers(given: list[np.ndarray], data, task: Task, config: TaskConfig) -> list[dict]:
    return [{"prediction": round(float(numbers[0, 0]), DIGITS)} for numbers in given]


def _of_words(given: list[np.ndarray], data, task: Task, config: TaskConfig) -> list[dict]:
    tags = encode.tags_of([numbers.argmax(-1) for numbers in given], data.pieces, data.examples, task)
    return [{"prediction": list(each)} for each in tags]


def _of_questions(given: list[np.ndarray], data, task: Task, config: TaskConfig) -> list[dict]:
    return encode.answers_of(given, data.pieces, data.examples, config.unanswerable)


OF_KIND = {"classification": _of_classes, "regression": _of_numbers, "tagging": _of_words, "questions": _of_questions}


# ---- scores ----


def _both(examples: Sequence[Example], found: Sequence[dict]) -> tuple[list, list]:
    return [example.label for example in examples], [one["prediction"] for one in found]


def _score_classes(examples: Sequence[Example], found: Sequence[dict], task: Task, metrics: Sequence[str]) -> dict:
    return {name: scores.OF_CLASSES[name](*_both(examples, found), task.labels) for name in metrics}


def _score_numbers(examples: Sequence[Example], found: Sequence[dict], task: Task, metrics: Sequence[str]) -> dict:
    return {name: scores.OF_NUMBERS[name](*_both(examples, found)) for name in metrics}


def _score_words(examples: Sequence[Example], found: Sequence[dict], task: Task, metrics: Sequence[str]) -> dict:
    return scores.of_entities(*_both(examples, found))


def _score_answers(examples: Sequence[Example], found: Sequence[dict], task: Task, metrics: Sequence[str]) -> dict:
    golds = [[answer.text for answer in example.answers] for example in examples]
    return scores.of_answers(golds, [one["prediction"] for one in found], [one["null_odds"] for one in found])


SCORES = {
    "classification": _score_classes,
    "regression": _score_numbers,
    "tagging": _score_words,
    "questions": _score_answers,
}


# ---- files ----


def write(
    folder: Path, examples: Sequence[Example], found: Sequence[dict], task: Task, split: str, config: TaskConfig
) -> None:
    """SPLIT.jsonl, an object for each example; and the forms that the tools of the tasks read.

    These are SPLIT.conll (word, tag, predicted tag), predictions.json and null_odds.json by the question's id, and of a
    test set of GLUE the file that is handed in.
    """
    with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
        for example, one in zip(examples, found):
            gold = {"label": example.label} if example.label is not None else {}
            if example.answers or example.impossible:
                gold = {"answers": [answer.text for answer in example.answers]}
            file.write(json.dumps({"id": example.id, **one, **gold}, ensure_ascii=False) + "\n")
    if task.kind == "tagging":
        with open(folder / f"{split}.conll", "w", encoding="utf-8") as file:
            for example, one in zip(examples, found):
                words = ["_".join(word.split()) or "_" for word in example.words]  # white space would begin a column
                columns = [words, *([example.label] if example.label is not None else []), one["prediction"]]
                file.writelines(" ".join(line) + "\n" for line in zip(*columns))
                file.write("\n")
    if split == "test" and task.kind in ("classification", "regression"):
        name, content = tasks.submission(config, examples, [one["prediction"] for one in found])
        if name:
            (folder / name).write_text(content, encoding="utf-8")
    if task.kind == "questions":
        for name, key in (("predictions.json", "prediction"), ("null_odds.json", "null_odds")):
            content = {example.id: one[key] for example, one in zip(examples, found)}
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
