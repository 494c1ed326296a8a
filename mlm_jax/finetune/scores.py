"""How good predictions are: the metrics that tasks are reported by, as plain functions of lists."""

import collections
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import SupportsFloat

import numpy as np

Numbers = Sequence[SupportsFloat] | np.ndarray

# ---- classes ----


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """Share of the examples that are right."""
    return float(np.mean([one == other for one, other in zip(gold, predicted, strict=True)]))


def counts_of(gold: Sequence, predicted: Sequence, label: object) -> tuple[int, int, int]:
    """Of one class: how many were found, how many were said, and how many there are."""
    found = sum(one == other == label for one, other in zip(gold, predicted, strict=True))
    return found, sum(one == label for one in predicted), sum(one == label for one in gold)


def ratio(part: int, whole: int) -> float:
    """0 where there is nothing to divide by."""
    return part / whole if whole else 0.0


def f1_of(found: int, said: int, there: int) -> float:
    """2 P R / (P + R) of precision found / said and recall found / there; 0 where nothing is found."""
    return ratio(2 * found, said + there)


def f1(gold: Sequence, predicted: Sequence, labels: Sequence) -> float:
    """F1 of the last one of two classes, the positive one, as GLUE reports it for MRPC and QQP."""
    return f1_of(*counts_of(gold, predicted, labels[-1]))


def precision(gold: Sequence, predicted: Sequence, labels: Sequence) -> float:
    """Of the last class: share of what was said that is right."""
    found, said, _ = counts_of(gold, predicted, labels[-1])
    return ratio(found, said)


def recall(gold: Sequence, predicted: Sequence, labels: Sequence) -> float:
    """Of the last class: share of what is there that was found."""
    found, _, there = counts_of(gold, predicted, labels[-1])
    return ratio(found, there)


def f1_macro(gold: Sequence, predicted: Sequence, labels: Sequence) -> float:
    """Mean of the F1 of all classes that are there or were said."""
    counts = [counts_of(gold, predicted, label) for label in labels]
    return float(np.mean([f1_of(*each) for each in counts if each[1] or each[2]]))


def matthews(gold: Sequence, predicted: Sequence, labels: Sequence) -> float:
    """Matthews' correlation coefficient of k classes (Gorodkin 2004, "Comparing two K-category assignments").

    0 where all examples, or all predictions, are of one class.
    """
    found, said, there = map(np.array, zip(*(counts_of(gold, predicted, label) for label in labels)))
    n = len(gold)
    covariance = float(found.sum()) * n - float(said @ there)
    spread = float(n * n - said @ said) * float(n * n - there @ there)
    return covariance / math.sqrt(spread) if spread else 0.0


# ---- numbers ----


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """Pearson's correlation coefficient; 0 where one side is constant."""
    sides = [np.asarray(side, np.float64) for side in (gold, predicted)]
    if any(np.ptp(side) == 0 for side in sides):  # the rounded mean of a constant may differ from it
        return 0.0
    x, y = (side - side.mean() for side in sides)
    spread = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / spread if spread else 0.0


def ranks(values: Numbers) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """Pearson's coefficient of the ranks."""
    return pearson(ranks(gold), ranks(predicted))


def mse(gold: Numbers, predicted: Numbers) -> float:
    """Mean of the squared errors."""
    return float(np.mean(np.square(np.asarray(gold, np.float64) - np.asarray(predicted, np.float64))))


# ---- entities ----


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, last word) of each entity, by the rules of conlleval, which seqeval follows by default.

    An entity begins with B, or with I after O or after another type; it ends before O, B, and another type.
    """
    found: list[tuple[str, int, int]] = []
    before, begin = "O", 0
    for i, tag in enumerate([*tags, "O"]):
        begins = tag.startswith("B-") or (tag != "O" and (before == "O" or before[2:] != tag[2:]))
        if before != "O" and (tag == "O" or begins):
            found.append((before[2:], begin, i - 1))
        begin = i if begins else begin
        before = tag
    return found


def entity_counts(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """By type: entities found, said, and there, over all sentences."""
    totals: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for ours, theirs in zip(map(entities, predicted), map(entities, gold), strict=True):
        for place, some in enumerate((set(ours) & set(theirs), ours, theirs)):
            for kind, *_ in some:
                totals[kind][place] += 1
    return {kind: tuple(each) for kind, each in sorted(totals.items())}


def of_entities(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of whole entities over all sentences (micro), and the accuracy of single tags."""
    found, said, there = np.sum([*entity_counts(gold, predicted).values(), (0, 0, 0)], 0).tolist()
    right = accuracy([tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags])
    return {
        "f1": f1_of(found, said, there),
        "precision": ratio(found, said),
        "recall": ratio(found, there),
        "accuracy": right,
    }


# ---- answers ----

ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Lower case, without punctuation and articles, single spaces: as the evaluation of SQuAD compares answers."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def answer_f1(gold: str, predicted: str) -> float:
    """F1 over the words of both, as bags; of an empty one: whether both are (SQuAD 2.0's script)."""
    ours, theirs = normalised(predicted).split(), normalised(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return f1_of(common, len(ours), len(theirs))


def of_answer(golds: Sequence[str], predicted: str) -> tuple[float, float]:
    """(exact match, F1) with the answer that fits best; no answers: whether nothing was said.

    Answers of which normalising leaves nothing do not count, and where none is left the empty one is right.
    """
    golds = [gold for gold in golds if normalised(gold)] or [""]
    exact = max(float(normalised(gold) == normalised(predicted)) for gold in golds)
    return exact, max(answer_f1(gold, predicted) for gold in golds)


def of_answers(
    golds: Sequence[Sequence[str]], predicted: Sequence[str], null_odds: Numbers | None = None
) -> dict[str, float]:
    """Exact match and F1 in percent. SQuAD (Rajpurkar et al., 2016 and 2018) and their evaluation scripts.

    golds: the answers of each question, none where it has none. null_odds: how much more the model says that there is
    no answer; then also the best of both over all thresholds above which nothing is answered, and those thresholds.
    """
    each = np.array([of_answer(gold, said) for gold, said in zip(golds, predicted, strict=True)])
    found = {"exact": 100 * float(each[:, 0].mean()), "f1": 100 * float(each[:, 1].mean())}
    answered = np.array([bool(gold) for gold in golds])
    if answered.all():
        return found
    for name, some in (("answered", answered), ("unanswered", ~answered)):
        if some.any():
            found |= {
                f"exact_{name}": 100 * float(each[some, 0].mean()),
                f"f1_{name}": 100 * float(each[some, 1].mean()),
            }
    if null_odds is not None:
        for column, name in enumerate(("exact", "f1")):
            best, threshold = best_threshold(golds, predicted, each[:, column], null_odds)
            found |= {f"best_{name}": 100 * best, f"best_{name}_threshold": threshold}
    return found


def best_threshold(
    golds: Sequence[Sequence[str]], predicted: Sequence[str], scores: np.ndarray, null_odds: Numbers
) -> tuple[float, float]:
    """The largest mean score over thresholds of the null odds, above which nothing is answered; and the threshold.

    From all unanswered on, questions are answered in order of their odds.
    """
    unanswerable = sum(not gold for gold in golds)
    score = best = float(unanswerable)
    threshold = 0.0
    for i in np.argsort(np.asarray(null_odds), kind="stable"):
        if golds[i]:
            score += float(scores[i])
        elif predicted[i]:
            score -= 1.0
        if score > best:
            best, threshold = score, float(null_odds[i])
    return best / len(golds), threshold


OF_CLASSES: Mapping[str, Callable[[Sequence, Sequence, Sequence], float]] = {
    "accuracy": lambda gold, predicted, labels: accuracy(gold, predicted),
    "f1": f1,
    "f1_macro": f1_macro,
    "precision": precision,
    "recall": recall,
    "matthews": matthews,
}
OF_NUMBERS: Mapping[str, Callable[[Numbers, Numbers], float]] = {
    "pearson": pearson,
    "spearman": spearman,
    "mse": mse,
}
