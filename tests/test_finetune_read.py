"""Examples of tasks: every format and its mistakes, the tasks of GLUE, datasets on disk, and what GLUE takes."""

import csv
import gzip
import json

import numpy as np
import pytest

from mlm_jax.config import ConfigError, FinetuneConfig, ModelConfig, Task, TaskConfig, check_finetune
from mlm_jax.finetune import answers, tasks
from mlm_jax.finetune.examples import NOT_FOUND, Answer, Example
from mlm_jax.finetune.read import read


def silent(line):
    raise AssertionError(line)


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def examples(folder, name, content, labelled=True, say=silent, **fields):
    return read(written(folder, name, content), TaskConfig(**fields), labelled, say)


# ---- formats ----


def test_tabs_part_columns_and_quotes_are_characters(tmp_path):
    text = '\ufefflabel\tid\ttext\r\npos\t7\t"He said\r\n\nneg\t9\tit\'s 5" long \u2028 so\n'
    expected = [Example("7", '"He said', label="pos"), Example("9", "it's 5\" long \u2028 so", label="neg")]
    assert examples(tmp_path, "a.tsv", text, id="id") == expected
    assert examples(tmp_path, "a.txt.gz", gzip.compress(text.encode()), id="id") == expected


def test_quoted_fields_and_a_column_without_a_name(tmp_path):
    text = ',spam,text\n0,1,"two\nlines, ""so"""\n1,0,plain\n'
    found = examples(tmp_path, "a.csv", text, label="spam")
    assert found == [Example("0", 'two\nlines, "so"', label="1"), Example("1", "plain", label="0")]
    named = examples(tmp_path, "a.csv", text, label="spam", labels=("ham", "spam"))
    assert [example.label for example in named] == ["spam", "ham"]
    kept = examples(tmp_path, "a.csv", text, label="spam", labels=("1", "0"))
    assert [example.label for example in kept] == ["1", "0"]


def test_columns_by_their_numbers(tmp_path):
    found = examples(
        tmp_path, "a.tsv", "2.5\ta\tb\n-1e1\tc\td\n", header=False, kind="regression", label="0", text="1", second="2"
    )
    assert found == [Example("0", "a", "b", label=2.5), Example("1", "c", "d", label=-10.0)]


def test_json_lines(tmp_path):
    lines = [{"text": "a\nb", "label": True}, {"text": "c", "label": 3}, {"text": "d", "label": None}]
    found = examples(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines)), labelled=False)
    assert [(one.text, one.label) for one in found] == [("a\nb", "True"), ("c", "3"), ("d", None)]
    line = {"tokens": ["New", "York", "is"], "tags": ["I-LOC", "I-LOC", "O"]}
    (found,) = examples(tmp_path, "b.jsonl", json.dumps(line), kind="tagging", text="tokens", label="tags")
    assert found.words == ("New", "York", "is") and found.label == ("B-LOC", "I-LOC", "O")


def test_tagged_words_and_how_entities_begin(tmp_path):
    text = "-DOCSTART- -X- O O\n\nAnn NNP I-NP I-PER\nBo NNP I-NP B-PER\nCy NNP I-NP I-PER\nin IN O O\n"
    text += "Rom NNP I-NP I-LOC\n\n \nUN\t_\t_\tI-ORG\nNew\u00a0York\t_\t_\tI-LOC\n"
    first, second = examples(tmp_path, "a.conll", text, kind="tagging")
    assert first.words == ("Ann", "Bo", "Cy", "in", "Rom") and (first.id, second.id) == ("0", "1")
    assert first.label == ("B-PER", "B-PER", "I-PER", "O", "B-LOC")
    assert second == Example("1", words=("UN", "New\u00a0York"), label=("B-ORG", "B-LOC"))
    bare = examples(tmp_path, "b.conll", "One\ntwo\n\nthree\n", labelled=False, kind="tagging")
    assert bare == [Example("0", words=("One", "two")), Example("1", words=("three",))]


def squad(context, *questions):
    """A file with one paragraph. questions: (answers as (text, start), more fields)."""
    qas = [
        {"id": f"q{i}", "question": "Who ?", "answers": [{"text": t, "answer_start": s} for t, s in given], **more}
        for i, (given, more) in enumerate(questions)
    ]
    return json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]})


def test_questions_and_answers_that_are_not_where_they_should(tmp_path):
    content = squad(
        "Ann  Lee met Bo in Rome.",
        ([("Bo", 13), ("Rome", 19)], {}),
        ([("ann lee ", 0)], {}),  # case and white space
        ([("met", 11)], {}),  # two characters beside
        ([("Bo", 19)], {}),  # somewhere else
        ([("Rome!", 19), ("Rome", 19)], {}),
    )
    said = []
    found = examples(tmp_path, "a.json", content, kind="questions", say=said.append)
    assert found[0] == Example(
        "q0", "Who ?", "Ann  Lee met Bo in Rome.", answers=(Answer("Bo", 13), Answer("Rome", 19))
    )
    assert [one.answers for one in found[1:4]] == [
        (Answer("Ann  Lee", 0),),
        (Answer("met", 9),),
        (Answer("Bo", NOT_FOUND),),
    ]
    assert [line.split(": ")[2][:40] for line in said] == [
        "2 answers do not stand where they should",
        "2 answers stand beside where they should",
    ]
    path, said = str(tmp_path / "a.json"), []
    config = TaskConfig(kind="questions", train=path, dev=path)
    splits = tasks.read_splits(config, said.append)
    assert [one.id for one in splits["train"]] == ["q0", "q1", "q2", "q4"] and len(splits["dev"]) == 5
    assert "warning: 1 of 5 questions are not trained on for that" in said


def test_questions_without_an_answer(tmp_path):
    content = squad("Ann.", ([("Ann", 0)], {"is_impossible": False}), ([], {"is_impossible": True}))
    with pytest.raises(
        ConfigError, match=r"unanswerable = False: .*a.json: .* question q1 has no answer; set it to True"
    ):
        examples(tmp_path, "a.json", content, kind="questions")
    _, second = examples(tmp_path, "a.json", content, kind="questions", unanswerable=True)
    assert second.impossible and second.answers == ()
    unknown = squad("Ann.", ([], {}))
    with pytest.raises(ConfigError, match=r"a.json: question q0 has none, and is not marked as is_impossible"):
        examples(tmp_path, "a.json", unknown, kind="questions")
    (one,) = examples(tmp_path, "a.json", unknown, labelled=False, kind="questions")
    assert not one.impossible and one.answers == ()


def test_empty_texts_are_counted(tmp_path):
    said = []
    found = examples(tmp_path, "a.tsv", "text\tlabel\n\ta\n  \tb\nx\ta\n", say=said.append)
    assert len(found) == 3 and said == [f"warning: {tmp_path}/a.tsv: 2 examples have an empty text"]


@pytest.mark.parametrize(
    "name, content, fields, message",
    [
        (
            "a.xyz",
            "",
            {},
            r"config.task.format = .*a.xyz': cannot tell the format by the name; set .* to one of tsv, csv",
        ),
        ("a.tsv", "", {}, r"path = .*a.tsv': holds no example"),
        ("a.tsv", "text\tlabel\n", {}, r"path = .*a.tsv': holds no example"),
        ("a.tsv", "text\tlabel\nx\ta\n\ny\n", {}, r"path = .*a.tsv:4': has 1 columns, the header has 2"),
        (
            "a.tsv",
            "x\ta\ny\tb\tc\n",
            {"header": False, "text": "0", "label": "1"},
            r"path = .*a.tsv:2': has 3 columns, the first line has 2",
        ),
        ("a.tsv", "text\tkind\nx\ta\n", {}, r"column = 'label': .*a.tsv:2 has 'text', 'kind'"),
        ("a.tsv", "text\ttext\tlabel\nx\ty\ta\n", {}, r"column = 'text': .*a.tsv:1 has it 2 times"),
        ("a.tsv", "text\tlabel\nx\ta\ny\t\n", {}, r"label = '': .*a.tsv:3: is no label"),
        ("a.tsv", "text\tlabel\nx\tc\n", {"labels": ("a", "b")}, r"label = 'c': .*a.tsv:2: must be one of a, b"),
        ("a.tsv", "text\tlabel\nx\t2\n", {"labels": ("a", "b")}, r"label = '2': .*a.tsv:2: must be one of a, b"),
        ("a.tsv", "text\tlabel\nx\t1,5\n", {"kind": "regression"}, r"label = '1,5': .*a.tsv:2: must be a number"),
        ("a.tsv", "text\tlabel\nx\tnan\n", {"kind": "regression"}, r"label = 'nan': .*a.tsv:2: must be a finite"),
        ("a.tsv", b"text\tlabel\nx\ta\n\xff\ta\n", {}, r"a.tsv:3': is not UTF-8; convert it"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\n\xff\ta\n", mtime=0), {}, r"a.tsv.gz:2': is not UTF-8"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\nx\ta\n", mtime=0)[:-9], {}, r"a.tsv.gz': cannot be read: "),
        ("a.tsv", "x", {"kind": "questions"}, r"kind = 'questions': cannot be read from .*of the format 'tsv'"),
        ("a.csv", 'text,label\n"x" y,a\n', {}, r"path = .*a.csv:2': is no CSV: "),
        ("a.csv", 'text,label\n"x\ny",a\nz\n', {}, r"path = .*a.csv:4': has 1 columns, the header has 2"),
        ("a.jsonl", '{"text": "x", "label": "a"}\n{\n', {}, r"path = .*a.jsonl:2': is no JSON: "),
        ("a.jsonl", "[1]\n", {}, r"path = .*a.jsonl:1': is no object"),
        ("a.jsonl", '{"text": 5, "label": "a"}', {}, r"text = 5: .*a.jsonl:1: must be a text"),
        ("a.jsonl", '{"text": "x", "label": null}', {}, r"label = None: .*a.jsonl:1: is no label"),
        (
            "a.jsonl",
            '{"text": "x y", "label": ["O"]}',
            {"kind": "tagging"},
            r"text = 'x y': .*a.jsonl:1: must be a list",
        ),
        ("a.jsonl", '{"text": ["x"], "label": []}', {"kind": "tagging"}, r"a.jsonl:1': has 1 words and 0 tags"),
        ("a.conll", "a O\nb\n", {"kind": "tagging"}, r"path = .*a.conll:2': has no tag: 'b'"),
        ("a.conll", "a O\n\nb O\nc S-X\n", {"kind": "tagging"}, r"tag = 'S-X': .*a.conll:3, word 2: must be O, B-TYPE"),
        ("a.conll", "a x O\nb O\n", {"kind": "tagging"}, r"a.conll:2': has 2 columns, the first line has 3: 'b O'"),
        ("a.conll", "a\tO\n\tO\n", {"kind": "tagging"}, r"a.conll:2': has no word"),
        ("a.conll", "a O\n", {"kind": "tagging", "label": "2"}, r"task.label = '2': .*a.conll:1 has columns 0 to 1"),
        ("a.conll", "a O\n", {"kind": "tagging", "label": "ner"}, r"task.label = 'ner': .* a number, from 0"),
        (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "x", "qas": ['
            + ", ".join(['{"id": "a", "question": "q", "answers": [{"text": "x", "answer_start": 0}]}'] * 2)
            + "]}]}]}",
            {"kind": "questions"},
            r"id = 'a': .*a.json has two questions of it",
        ),
        ("a.json", "{}", {"kind": "questions"}, r"a.json': is not in the format of SQuAD: KeyError\('data'\)"),
        ("a.json", "{", {"kind": "questions"}, r"a.json': is not in the format of SQuAD: .*line 1 column 2"),
    ],
)
def test_mistakes_in_files(tmp_path, name, content, fields, message):
    with pytest.raises(ConfigError, match=message):
        examples(tmp_path, name, content, **fields)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"none.tsv': cannot be read: No such file"):
        read(str(tmp_path / "none.tsv"), TaskConfig(), True, silent)


# ---- splits and names ----


def test_examples_that_stand_on_both_sides(tmp_path):
    train = written(tmp_path, "train.tsv", "text\tlabel\na\tx\nb\ty\nc\tx\na\tx\n")
    dev = written(tmp_path, "dev.tsv", "text\tlabel\na\tx\nd\ty\n")
    test = written(tmp_path, "test.tsv", "text\na\nc\n")
    said, config = [], TaskConfig(train=train, dev=dev, test=test)
    assert len(tasks.read_splits(config, said.append)["train"]) == 4
    assert [line.split(" (")[0] for line in said] == [
        "warning: 1 of 4 training examples stand there before with the same label: kept",
        "warning: 1 of the 2 dev examples stand in the training examples, too",
        "warning: 2 of the 2 test examples stand in the training examples, too",
    ]
    said.clear()
    splits = tasks.read_splits(TaskConfig(train=train, dev=dev, test=test, drop_seen=True), said.append)
    assert [one.text for one in splits["train"]] == ["b"] and len(splits["dev"]) == len(splits["test"]) == 2
    assert said[1:] == ["3 of 4 training examples stand in dev or test, too: dropped"]
    with pytest.raises(ConfigError, match=r"config.task.train = .*: no example is left to learn from"):
        tasks.read_splits(TaskConfig(train=train, dev=train, drop_seen=True), said.append)


def test_examples_that_stand_there_before(tmp_path):
    train = written(tmp_path, "train.tsv", "text\tlabel\na\tx\nb\ty\na\tx\nb\tx\na\tx\n")
    config, said = TaskConfig(train=train, dev=train), []
    assert len(tasks.read_splits(config, said.append)["train"]) == 5
    assert said[1] == "warning: 1 texts of the training examples have several labels"
    config.drop_repeated = True
    splits = tasks.read_splits(config, said.append)
    assert [(one.text, one.label) for one in splits["train"]] == [("a", "x"), ("b", "y"), ("b", "x")]
    assert len(splits["dev"]) == 5
    assert "warning: 2 of 5 training examples stand there before with the same label: dropped" in said


def test_all_questions_about_a_paragraph_are_on_one_side():
    made = [Example(f"{i} {j}", f"q{j}", f"c{i}", answers=(Answer("c", 0),)) for i in range(50) for j in range(4)]
    splits = tasks.divided(made, 0.3, by_context=True)
    contexts = [{one.second for one in splits[name]} for name in ("train", "dev")]
    assert all(contexts) and not contexts[0] & contexts[1] and len(splits["train"] + splits["dev"]) == 200


def test_columns_of_tagged_words(tmp_path):
    """Tabs part words that hold spaces; a no-break space is no border; the columns may be chosen."""
    content = "1\tNew York\tB-LOC\tx\r\n2\tof\tO\ty\r\n\t\t\t\r\n1\ta\u00a0b\tO\tz\r\n"
    found = examples(tmp_path, "a.conll", content, kind="tagging", text="1", label="2")
    assert [(one.words, one.label) for one in found] == [(("New York", "of"), ("B-LOC", "O")), (("a\u00a0b",), ("O",))]
    (found,) = examples(tmp_path, "b.conll", "a\u00a0b  O\nc\u2028d O \n", kind="tagging")
    assert found.words == ("a\u00a0b", "c\u2028d") and found.label == ("O", "O")


def test_long_fields(tmp_path):
    assert len(examples(tmp_path, "a.csv", f"text,label\n{'x' * 200_000},a\n")[0].text) == 200_000


@pytest.mark.parametrize("kind", ["tagging", "questions"])
def test_a_second_text_where_there_is_none(kind):
    config = FinetuneConfig(model="m", row_length=32, task=TaskConfig(train="x", kind=kind, second="b"))
    with pytest.raises(ConfigError, match=f"config.task.second = 'b': kind={kind} has no second text"):
        check_finetune(config, ModelConfig(max_positions=32), 1)


def test_a_dev_set_is_a_share_with_equal_texts_on_one_side(tmp_path):
    lines = [f"text {i % 60}\t{'xy'[i % 2]}" for i in range(120)]
    train = written(tmp_path, "train.tsv", "\n".join(["text\tlabel", *lines]))
    splits = tasks.read_splits(TaskConfig(train=train, dev_share=0.4), [].append)
    assert len(splits["train"]) + len(splits["dev"]) == 120 and 24 < len(splits["dev"]) < 72
    with pytest.raises(ConfigError, match=r"config.task.dev_share = 1e-09: leaves no dev examples"):
        tasks.read_splits(TaskConfig(train=train, dev_share=1e-9), [].append)


def test_labels_are_those_of_the_training_examples():
    splits = {"train": [Example("0", "a", label="x"), Example("1", "b", label="x")]}
    with pytest.raises(ConfigError, match=r"labels = \('x',\): there must be two different ones"):
        tasks.task_of(TaskConfig(), splits)
    splits |= {"train": [*splits["train"], Example("2", "c", label="w")], "dev": [Example("0", "d", label="z")]}
    with pytest.raises(ConfigError, match="label = 'z': dev example 0: must be one of w, x"):
        tasks.task_of(TaskConfig(), splits)
    del splits["dev"]
    assert tasks.task_of(TaskConfig(), splits) == Task("classification", ("w", "x"))
    with pytest.raises(ConfigError, match=r"config.task.metric = 'f1': is one of two classes, and there are 3"):
        tasks.task_of(TaskConfig(metric="f1", labels=("w", "x", "z")), splits)
    tagged = {
        "train": [Example("0", words=("a", "b"), label=("B-y", "I-y")), Example("1", words=("c",), label=("B-x",))]
    }
    assert tasks.task_of(TaskConfig(kind="tagging"), tagged).labels == ("O", "B-x", "I-x", "B-y", "I-y")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"name": "sst"}, "config.task.name = 'sst': there is no such task; nearest: sst2"),
        ({"name": "sst2", "kind": "tagging"}, "kind = 'tagging': the task sst2 has 'classification'; leave it out"),
        ({"name": "rte", "labels": ("a", "b")}, r"labels = \('a', 'b'\): the task rte has \('entailment', 'not_ent"),
        ({"metric": "f2"}, "metric = 'f2': of kind=classification there are accuracy, f1, f1_macro, .*matthews"),
        ({"name": "stsb", "metric": "f1"}, "metric = 'f1': of kind=regression there are pearson, spearman, mse"),
        ({"name": "squad", "metric": "em"}, "metric = 'em': of kind=questions there are f1, exact"),
    ],
)
def test_mistakes_in_tasks(fields, message):
    with pytest.raises(ConfigError, match=message):
        tasks.completed(TaskConfig(**fields))


def test_the_metric_that_chooses_comes_first():
    assert tasks.metrics_of(TaskConfig(name="mrpc")) == ("accuracy", "f1")
    assert tasks.metrics_of(TaskConfig(name="mrpc", metric="f1")) == ("f1", "accuracy")
    assert tasks.metrics_of(TaskConfig(kind="regression", metric="mse")) == ("mse", "pearson", "spearman")


# ---- GLUE ----

STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
QQP += "1\t2\t3\tWhy ?\tWhy so ?\t1\n4\t5\t6\tbroken\n7\t8\t9\ta\tb\t0\n"
GLUE = {  # name -> train.tsv, test.tsv, training examples as (text, second, label), texts of the test set
    "cola": (
        "gj04\t1\t\tHe ran.\ngj04\t0\t*\tRan he the.\n",
        "index\tsentence\n0\tShe sat.\n",
        [("He ran.", None, "acceptable"), ("Ran he the.", None, "unacceptable")],
        ("She sat.", None),
    ),
    "sst2": (
        "sentence\tlabel\nhide new secretions \t0\nfine\t1\n",
        "index\tsentence\n0\tuneasy mishmash\n",
        [("hide new secretions ", None, "negative"), ("fine", None, "positive")],
        ("uneasy mishmash", None),
    ),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t"A, " he said\tB\n',
        "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tC\tD\n",
        [('"A, " he said', "B", "equivalent")],
        ("C", "D"),
    ),
    "stsb": (
        f"{STSB}\tscore\n0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane .\tAn air plane .\t4.750\n",
        f"{STSB}\n0\tmain\tMSR\t2012\t1\tnone\tnone\tA girl .\tA boy .\n",
        [("A plane .", "An air plane .", 4.75)],
        ("A girl .", "A boy ."),
    ),
    "qqp": (
        QQP,
        "id\tquestion1\tquestion2\n0\tHow ?\tHow so ?\n",
        [("Why ?", "Why so ?", "duplicate"), ("a", "b", "not_duplicate")],
        ("How ?", "How so ?"),
    ),
    "mnli": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA\tB\tneutral\tcontradiction\n",
        "index\tsentence1\tsentence2\n0\tC\tD\n",
        [("A", "B", "contradiction")],
        ("C", "D"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWhat ?\tThat.\tnot_entailment\n",
        "index\tquestion\tsentence\n0\tWho ?\tHe.\n",
        [("What ?", "That.", "not_entailment")],
        ("Who ?", "He."),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n",
        "index\tsentence1\tsentence2\n0\tC\tD\n",
        [("A", "B", "entailment")],
        ("C", "D"),
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n",
        "index\tsentence1\tsentence2\n0\tC\tD\n",
        [("A", "B", "entailment")],
        ("C", "D"),
    ),
}


@pytest.mark.parametrize("name", GLUE)
def test_the_files_of_glue(tmp_path, name):
    train, test, expected, (text, second) = GLUE[name]
    paths = {"train": written(tmp_path, "train.tsv", train), "test": written(tmp_path, "test.tsv", test)}
    said, config = [], tasks.completed(TaskConfig(name=name, dev=paths["train"], **paths))
    splits = tasks.read_splits(config, said.append)
    assert (
        [(one.text, one.second, one.label) for one in splits["dev"]]
        == expected
        == [(one.text, one.second, one.label) for one in splits["train"]]
    )
    assert splits["test"] == [Example("0", text, second)]
    skipped = [line for line in said if "skipped" in line]
    assert skipped == [f"warning: {paths['train']}: 1 lines skipped that have not 6 columns"] * 2 * (name == "qqp")
    assert tasks.task_of(config, splits).labels == config.labels


def test_a_labelled_file_may_be_the_test_set(tmp_path):
    files = {split: written(tmp_path, f"{split}.tsv", GLUE["cola"][0]) for split in ("train", "dev")}
    config = tasks.completed(TaskConfig(name="cola", train=files["train"], dev=files["train"], test=files["dev"]))
    assert [one.label for one in tasks.read_splits(config, print)["test"]] == ["acceptable", "unacceptable"]
    broken = tasks.completed(
        TaskConfig(name="qqp", train=written(tmp_path, "q.tsv", QQP), test=str(tmp_path / "q.tsv"))
    )
    with pytest.raises(ConfigError, match=r"q.tsv:3': has 4 columns, the header has 6"):
        tasks.read_splits(broken, print)
    outside = GLUE["stsb"][0].replace("4.750", "7")
    scored = TaskConfig(name="stsb", kind="regression", train=written(tmp_path, "s.tsv", outside), dev=files["dev"])
    with pytest.raises(ConfigError, match=r"label = 7.0: train example 0 of stsb: must lie in \[0.0, 5.0\]"):
        tasks.read_splits(scored, print)


@pytest.mark.parametrize(
    "name, said, file, lines",
    [
        ("cola", ["acceptable", "unacceptable"], "CoLA", ["1", "0"]),
        ("sst2", ["negative", "positive"], "SST-2", ["0", "1"]),
        ("mrpc", ["equivalent", "not_equivalent"], "MRPC", ["1", "0"]),
        ("qqp", ["duplicate", "not_duplicate"], "QQP", ["1", "0"]),
        ("stsb", [5.2, -0.1], "STS-B", ["5.000", "0.000"]),
        ("stsb", [1.23456, 3.0], "STS-B", ["1.235", "3.000"]),
        ("mnli", ["neutral", "contradiction"], "MNLI-m", ["neutral", "contradiction"]),
        ("qnli", ["not_entailment", "entailment"], "QNLI", ["not_entailment", "entailment"]),
        ("rte", ["entailment", "not_entailment"], "RTE", ["entailment", "not_entailment"]),
        ("wnli", ["entailment", "not_entailment"], "WNLI", ["1", "0"]),
    ],
)
def test_what_glue_takes(tmp_path, name, said, file, lines):
    config = tasks.completed(TaskConfig(name=name, test="test_matched.tsv"))
    given, found = [Example(str(i), "t") for i in range(2)], [{"prediction": value} for value in said]
    answers.write(tmp_path, given, found, Task(config.kind, config.labels), "test", config)
    with open(tmp_path / f"{file}.tsv", newline="") as handle:
        rows = list(csv.reader(handle, delimiter="\t"))
    assert rows == [["index", "prediction"], ["0", lines[0]], ["1", lines[1]]]


def test_files_of_glue_are_in_the_order_of_the_ids_and_of_test_sets_alone(tmp_path):
    config = tasks.completed(TaskConfig(name="mnli", test="tfds:glue/mnli:test_mismatched"))
    given = [Example(id, "t") for id in ("10", "9")]
    said = ["neutral", "entailment"]
    assert tasks.submission(config, given, said) == ("MNLI-mm.tsv", "index\tprediction\n9\tentailment\n10\tneutral\n")
    task, found = Task("classification", config.labels), [{"prediction": value} for value in said]
    answers.write(tmp_path, given, found, task, "dev", config)
    answers.write(tmp_path, given, found, task, "test", TaskConfig())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev.jsonl", "test.jsonl"]


# ---- datasets on disk ----


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    import tensorflow_datasets as tfds

    features = tfds.features
    text, kinds = features.Text(), ["O", "B-PER", "I-PER"]
    known = {
        "labelled": {"sentence": text, "label": features.ClassLabel(names=["negative", "positive"]), "idx": np.int32},
        "scored": {"sentence1": text, "sentence2": text, "label": np.float32, "idx": np.int32},
        "tagged": {"tokens": features.Sequence(text), "ner": features.Sequence(features.ClassLabel(names=kinds))},
        "asked": {
            "id": text,
            "question": text,
            "context": text,
            "answers": features.Sequence({"text": text, "answer_start": np.int32}),
            "is_impossible": np.bool_,
        },
    }
    answer = {"text": "Bo", "answer_start": 4}
    records = {
        "labelled": {
            "train": [{"sentence": "größer", "label": "positive", "idx": 7}],
            "test": [{"sentence": "b", "label": -1, "idx": 5}],
        },
        "scored": {
            "train": [{"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 3}],
            "test": [{"sentence1": "a", "sentence2": "b", "label": -1.0, "idx": 0}],
        },
        "tagged": {
            "train": [{"tokens": ["Bo", "Li", "ran"], "ner": ["B-PER", "I-PER", "O"]}],
            "test": [{"tokens": ["Bo"], "ner": ["B-PER"]}],
        },
        "asked": {
            "train": [{"id": "k", "question": "q", "context": "Was Bo", "answers": [answer], "is_impossible": False}],
            "test": [{"id": "l", "question": "q", "context": "Was Bo", "answers": [], "is_impossible": True}],
        },
    }

    class Judged(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=name) for name in known)

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features.FeaturesDict(known[self.builder_config.name]))

        def _split_generators(self, downloads):
            return {name: enumerate(each) for name, each in records[self.builder_config.name].items()}

        def _generate_examples(self):
            raise NotImplementedError

    folder = tmp_path_factory.mktemp("tfds")
    for name in known:
        Judged(data_dir=folder, config=name, file_format="array_record").download_and_prepare()
    return folder


@pytest.mark.parametrize(
    "config, task, train, test",
    [
        ("labelled", "sst2", Example("7", "größer", label="positive"), Example("5", "b")),
        ("scored", "stsb", Example("3", "a", "b", label=2.5), Example("0", "a", "b")),
        (
            "tagged",
            "conll2003",
            Example("0", words=("Bo", "Li", "ran"), label=("B-PER", "I-PER", "O")),
            Example("0", words=("Bo",), label=("B-PER",)),
        ),
        (
            "asked",
            "squad2",
            Example("k", "q", "Was Bo", answers=(Answer("Bo", 4),)),
            Example("l", "q", "Was Bo", impossible=True),
        ),
    ],
)
def test_a_dataset_on_disk(datasets, monkeypatch, config, task, train, test):
    monkeypatch.setenv("TFDS_DATA_DIR", str(datasets))
    source = f"tfds:judged/{config}"
    given = tasks.completed(
        TaskConfig(name=task, train=f"{source}:train", dev=f"{source}:train", test=f"{source}:test")
    )
    splits = tasks.read_splits(given, lambda line: None)
    assert splits == {"train": [train], "dev": [train], "test": [test]}


@pytest.mark.parametrize(
    "source, fields, message",
    [
        ("labelled:train", {}, r"column = 'text': .*judged-train.*:1 has 'idx', 'label', 'sentence'"),
        ("labelled:test", {"text": "sentence"}, r"label = None: .*judged-test.*:1: is no label"),
        ("labelled:dev", {}, r"path = 'tfds:judged/labelled:dev': Unknown split 'dev'"),
        ("labelled:train", {"kind": "questions"}, r"column = 'answers/text': .*has 'idx', 'label', 'sentence'"),
        ("none:train", {}, r"path = 'tfds:judged/none:train': is not prepared in "),
    ],
)
def test_mistakes_in_datasets(datasets, monkeypatch, source, fields, message):
    monkeypatch.setenv("TFDS_DATA_DIR", str(datasets))
    with pytest.raises(ConfigError, match=message):
        read(f"tfds:judged/{source}", TaskConfig(**fields), True, silent)
