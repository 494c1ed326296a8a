"""The files of predictions, by hand: what a line holds, and the forms that conlleval and SQuAD's script read."""

import json

from mlm_jax.config import Task, TaskConfig
from mlm_jax.finetune import answers
from mlm_jax.finetune.examples import Answer, Example


def test_classes_with_their_probabilities(tmp_path):
    examples = [Example("a", "naïve", label="yes"), Example("b", "text")]  # the second one's label is not known
    found = [
        {"prediction": "no", "probabilities": {"no": 0.75, "yes": 0.25}},
        {"prediction": "yes", "probabilities": {"no": 0.5, "yes": 0.5}},
    ]
    answers.write(tmp_path, examples, found, Task("classification", ("no", "yes")), "dev", TaskConfig())
    assert (tmp_path / "dev.jsonl").read_text(encoding="utf-8").splitlines() == [
        '{"id": "a", "prediction": "no", "probabilities": {"no": 0.75, "yes": 0.25}, "label": "yes"}',
        '{"id": "b", "prediction": "yes", "probabilities": {"no": 0.5, "yes": 0.5}}',
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["dev.jsonl"]


def test_columns_as_conlleval_reads_them(tmp_path):
    # it parts columns by white space, and stops where their number changes
    examples = [
        Example("0", words=("New York", "is", ""), label=("B-x", "O", "O")),
        Example("1", words=("a\u2028b", "東京"), label=("O", "B-x")),
    ]
    found = [{"prediction": ["B-x", "O", "I-x"]}, {"prediction": ["O", "O"]}]
    task = Task("tagging", ("O", "B-x", "I-x"))
    answers.write(tmp_path, examples, found, task, "test", TaskConfig(kind="tagging"))
    expected = "New_York B-x B-x\nis O O\n_ O I-x\n\na_b O O\n東京 B-x O\n\n"
    assert (tmp_path / "test.conll").read_text(encoding="utf-8") == expected
    line = json.loads((tmp_path / "test.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert line == {"id": "0", "prediction": ["B-x", "O", "I-x"], "label": ["B-x", "O", "O"]}

    bare = [example._replace(label=None) for example in examples]
    answers.write(tmp_path, bare, found, task, "test", TaskConfig(kind="tagging"))
    assert (tmp_path / "test.conll").read_text(encoding="utf-8").splitlines()[0] == "New_York B-x"


def test_answers_and_odds_by_the_ids_of_the_questions(tmp_path):
    examples = [
        Example("q1", "?", "a naïve cat", answers=(Answer("cat", 8), Answer("naïve cat", 2))),
        Example("q2", "?", "a dog", impossible=True),
        Example("q3", "?", "a cow"),  # not known
    ]
    found = [
        {"prediction": "naïve cat", "null_odds": -1.5},
        {"prediction": "", "null_odds": 2.0, "best_answer": "dog"},
        {"prediction": "cow", "null_odds": -0.5},
    ]
    answers.write(tmp_path, examples, found, Task("questions"), "dev", TaskConfig(kind="questions"))
    said = json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8"))
    assert said == {"q1": "naïve cat", "q2": "", "q3": "cow"}
    odds = json.loads((tmp_path / "null_odds.json").read_text(encoding="utf-8"))
    assert odds == {"q1": -1.5, "q2": 2.0, "q3": -0.5}
    lines = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line.get("answers") for line in lines] == [["cat", "naïve cat"], [], None]
    assert lines[1]["best_answer"] == "dog"
