"""Metrics against scikit-learn, seqeval and the evaluation of SQuAD, on the same random predictions."""

import importlib.util
import logging
import os
import sys
import types
import warnings

import numpy as np
import pytest
import scipy.stats

from mlm_jax.finetune import scores

metrics = pytest.importorskip("sklearn.metrics")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    seqeval = pytest.importorskip("seqeval.metrics")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("labels", [("no", "yes"), ("a", "b", "c", "d")])
def test_classes(labels, seed):
    draws = np.random.default_rng(seed)
    gold, said = (draws.choice(labels, 30, p=draws.dirichlet(np.ones(len(labels)))).tolist() for _ in range(2))
    assert np.isclose(scores.accuracy(gold, said), metrics.accuracy_score(gold, said))
    assert np.isclose(scores.matthews(gold, said, labels), metrics.matthews_corrcoef(gold, said))
    assert np.isclose(scores.f1_macro(gold, said, labels), metrics.f1_score(gold, said, average="macro"))
    if len(labels) == 2:
        for name in ("f1", "precision", "recall"):
            peer = getattr(metrics, f"{name}_score")(gold, said, pos_label="yes", zero_division=0)
            assert np.isclose(scores.OF_CLASSES[name](gold, said, labels), peer)


@pytest.mark.parametrize("seed", range(20))
def test_numbers(seed):
    draws = np.random.default_rng(seed)
    gold, said = draws.integers(0, 6, 40), draws.normal(size=40).round(1)
    assert np.isclose(scores.pearson(gold, said), scipy.stats.pearsonr(gold, said).statistic)
    assert np.isclose(scores.spearman(gold, said), scipy.stats.spearmanr(gold, said).statistic)
    assert np.isclose(scores.mse(gold, said), metrics.mean_squared_error(gold, said))


@pytest.mark.parametrize("seed", range(50))
def test_entities(seed):
    draws = np.random.default_rng(seed)
    tags = ["O", "O", "B-x", "I-x", "B-y", "I-y"]
    lengths = draws.integers(1, 12, 20)
    gold, said = ([draws.choice(tags, n).tolist() for n in lengths] for _ in range(2))
    found = scores.of_entities(gold, said)
    assert np.isclose(found["f1"], seqeval.f1_score(gold, said, zero_division=0))
    assert np.isclose(found["precision"], seqeval.precision_score(gold, said, zero_division=0))
    assert np.isclose(found["recall"], seqeval.recall_score(gold, said, zero_division=0))
    assert np.isclose(found["accuracy"], seqeval.accuracy_score(gold, said))


WORDS = ["the", "a", "An", "cat", "Cat,", "dog's", "naïve", "U.S.", "42", "–", "東京", "."]


class Question:
    """What the evaluation reads of a question."""

    def __init__(self, qas_id: str, answers: list[str]):
        self.qas_id, self.answers = qas_id, [{"text": answer} for answer in answers]


@pytest.fixture(scope="module")
def squad():
    """The evaluation script of SQuAD 2.0, as `transformers` had it before version 5: a file of its wheel."""
    if "SQUAD_EVALUATION" not in os.environ:
        pytest.skip("SQUAD_EVALUATION does not name the file squad_metrics.py")
    for name, part in {"models.bert": "BasicTokenizer", "utils": "logging"}.items():  # what it imports beside
        sys.modules[f"before5.{name}"] = types.SimpleNamespace(**{part: logging})
        logging.get_logger = logging.getLogger
    spec = importlib.util.spec_from_file_location("before5.data.metrics", os.environ["SQUAD_EVALUATION"])
    spec.submodule_search_locations = []
    module = importlib.util.module_from_spec(spec)
    module.__package__ = "before5.data.metrics"
    for name in ("before5", "before5.data", "before5.models"):
        sys.modules[name] = types.ModuleType(name)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(50))
def test_answers(seed, squad):
    draws = np.random.default_rng(seed)

    def text(least: int) -> str:
        return " ".join(draws.choice(WORDS, draws.integers(least, 5)))

    golds = [[text(1) for _ in range(draws.integers(0, 3))] for _ in range(30)]
    said = [text(0) for _ in golds]
    odds = draws.normal(size=len(golds)).tolist()
    names = [str(i) for i in range(len(golds))]
    exact, f1 = squad.get_raw_scores(list(map(Question, names, golds)), dict(zip(names, said)))
    ours = np.array([scores.of_answer(of, one) for of, one in zip(golds, said)])
    np.testing.assert_allclose(ours[:, 0], [exact[name] for name in names])
    np.testing.assert_allclose(ours[:, 1], [f1[name] for name in names])

    found, best = scores.of_answers(golds, said, odds), {}
    has_answer = {name: bool(of) for name, of in zip(names, golds)}
    squad.find_all_best_thresh(best, dict(zip(names, said)), exact, f1, dict(zip(names, odds)), has_answer)
    for name in ("exact", "f1"):
        assert np.isclose(found[f"best_{name}"], best[f"best_{name}"])
        assert np.isclose(found[f"best_{name}_threshold"], best[f"best_{name}_thresh"])
