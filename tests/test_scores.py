import math

import numpy as np
import pytest

from mlm_jax.finetune import scores


def test_two_classes_by_hand():
    gold = ["no", "no", "no", "yes", "yes"]
    said = ["no", "yes", "no", "yes", "no"]
    labels = ("no", "yes")  # of yes: 1 found, 2 said, 2 there
    assert scores.accuracy(gold, said) == 0.6
    assert scores.f1(gold, said, labels) == scores.precision(gold, said, labels) == 0.5
    assert math.isclose(scores.f1_macro(gold, said, labels), (0.5 + 2 * 2 / (3 + 3)) / 2)
    # (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)) = (2 - 1) / sqrt(2 2 3 3)
    assert math.isclose(scores.matthews(gold, said, labels), 1 / 6)
    assert scores.matthews(gold, ["no"] * 5, labels) == 0 and scores.f1(gold, ["no"] * 5, labels) == 0


def test_numbers_by_hand():
    assert scores.ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    # deviations (-1, 0, 1) and (-2, 1, 1): 3 / sqrt(2 * 6)
    assert math.isclose(scores.pearson([1, 2, 3], [0, 3, 3]), 3 / math.sqrt(12))
    assert math.isclose(scores.spearman([1, 2, 3], [1, 10, 100]), 1) and scores.pearson([1, 2], [5, 5]) == 0
    assert scores.pearson([0.1] * 3, [0.1] * 3) == 0  # whose mean is 0.1 + 2**-56
    assert scores.mse([1, 2], [2, 4]) == 2.5


def test_entities_begin_and_end_as_conlleval_has_it():
    assert scores.entities(["B-x", "I-x", "O", "I-x", "I-y", "B-y"]) == [
        ("x", 0, 1),
        ("x", 3, 3),
        ("y", 4, 4),
        ("y", 5, 5),
    ]
    assert scores.entities([]) == []


def test_entity_f1_by_hand():
    gold = [["B-x", "I-x", "O", "B-y"], ["O"]]
    said = [["B-x", "I-x", "O", "B-x"], ["B-y"]]  # one of three that are said, one of two that are there
    found = scores.of_entities(gold, said)
    assert found == {"f1": 2 / 5, "precision": 1 / 3, "recall": 1 / 2, "accuracy": 3 / 5}
    assert scores.entity_counts(gold, said) == {"x": (1, 2, 1), "y": (0, 1, 1)}
    assert scores.of_entities([["O"]], [["O"]])["f1"] == 0


def test_answers_are_compared_without_case_articles_and_punctuation():
    assert scores.normalised("  The U.S.A.,  an  Answer ") == "usa answer"
    assert scores.of_answer(["The cat", "a dog"], "dog!") == (1.0, 1.0)
    # black cat | cat sat: one word in common of two and two
    assert scores.of_answer(["black cat"], "the cat sat") == (0.0, 0.5)
    assert scores.of_answer(["the"], "") == (1.0, 1.0) and scores.of_answer(["cat"], "") == (0.0, 0.0)


def test_answers_that_do_not_exist():
    golds, said = [["cat"], [], [], ["dog"]], ["cat", "", "cow", "bird"]
    found = scores.of_answers(golds, said, [-3.0, 4.0, 1.0, 2.0])
    assert found["exact"] == 50 and found["exact_answered"] == 50 and found["exact_unanswered"] == 50
    # two are right where nothing is answered; the first one makes three, the next one in order takes one away
    assert found["best_exact"] == 75 and found["best_exact_threshold"] == -3.0
    assert "best_f1" not in scores.of_answers([["cat"]], ["cat"], [0.0])


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "matthews"])
def test_what_is_right_throughout_scores_one(name):
    labels = list("abcba")
    assert math.isclose(scores.OF_CLASSES[name](labels, labels, ("a", "b", "c")), 1)


def test_a_class_that_is_neither_there_nor_said_does_not_count():
    assert np.isclose(scores.f1_macro(["a", "b"], ["a", "b"], ("a", "b", "never")), 1)
