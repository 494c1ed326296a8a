"""Small random models learn tasks of invented sentences, through the whole program and to its files.

Names: any of a few first names and then one of a few last names is a person, and a town after `in` a place, though both
stand elsewhere with no tag. Numbers: half the sum of what the words of a text are worth. Questions: after one person,
town or year, of which a context has one each among other words.
"""

import json
import random

import jax
import pytest
from vocabularies import word_pieces

from mlm_jax import convert
from mlm_jax.config import ModelConfig, hub
from mlm_jax.convert.files import WEIGHTS, write_tensors
from mlm_jax.finetune.program import main
from mlm_jax.models import build

pytestmark = pytest.mark.learning

FIRST, LAST, TOWNS = ["ann", "bo", "cy"], ["lee", "kay", "orr"], ["rome", "bonn", "oslo"]
OTHER = ["the", "film", "was", "a", "story", "of", "love", "in"]
WORTH = {"great": 2, "good": 1, "bad": -1, "awful": -2}
ASKED = {"who": FIRST, "where": TOWNS, "when": ["1900", "1950", "2000"]}
MODEL = ModelConfig(
    layers=2, width=32, heads=4, hidden=64, max_positions=32, dropout=0.0, attention_dropout=0.0, initializer_range=0.1
)
CONFIG = """
from mlm_jax.config import FinetuneConfig, OptimizerConfig
def get_config():
    return FinetuneConfig(seeds=(0,), epochs={epochs}, batch_size=32, row_length=32, window_overlap=4,
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup=0.1))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of the hub format, with drawn parameters, that reads words as its tokens."""
    folder = tmp_path_factory.mktemp("source")
    tokenizer = word_pieces(folder, [*FIRST, *LAST, *TOWNS, *OTHER, *WORTH, *ASKED, *ASKED["when"]])
    model = build(MODEL, tokenizer.size)
    params = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
    hub.write_config(folder, hub.config_values(model.config, tokenizer.size, {"pad": 0, "cls": 2, "sep": 3}))
    write_tensors(folder / WEIGHTS, convert.to_hub(params, model.config, tokenizer.size))
    return folder


def learned(folder, source, kind, name, made, epochs, **task):
    """Test scores and predictions after training on `made(draw)` as files of 800 and 200 examples."""
    (folder / "config.py").write_text(CONFIG.format(epochs=epochs))
    argv = [f"--config={folder / 'config.py'}", f"--config.model={source}", f"--workdir={folder / 'run'}"]
    for split, count in (("train", 800), ("test", 200)):
        (folder / f"{split}.{name}").write_text(made(random.Random(split), count))
        argv.append(f"--config.task.{split}={folder / split}.{name}")
    argv += [f"--config.task.{key}={value}" for key, value in {"kind": kind, **task}.items()]
    assert main(argv) == 0
    lines = (folder / "run/seed-0/predictions-test/test.jsonl").read_text().splitlines()
    (result,) = json.loads((folder / "run/results.json").read_text())["seeds"]
    return result["test"], [json.loads(line) for line in lines]


def tagged(draw, count):
    sentences = []
    for _ in range(count):
        tokens = [(draw.choice(OTHER[:-1] + FIRST + LAST + TOWNS), "O") for _ in range(draw.randint(4, 10))]
        tokens = [token for i, token in enumerate(tokens) if not (i and tokens[i - 1][0] in FIRST and token[0] in LAST)]
        tokens.insert(draw.randint(0, len(tokens)), ("in", "O"))
        place = tokens.index(("in", "O")) + 1
        tokens.insert(place, (draw.choice(TOWNS), "B-place"))
        tokens[0:0] = [(draw.choice(FIRST), "B-person"), (draw.choice(LAST), "I-person")]
        sentences.append("".join(f"{word} {tag}\n" for word, tag in tokens))
    return "\n".join(sentences)


def test_tags(tmp_path, source):
    scores, lines = learned(tmp_path, source, "tagging", "conll", tagged, 20)
    assert scores["f1"] > 0.9, scores
    assert {tag for line in lines for tag in line["prediction"]} == {"O", "B-person", "I-person", "B-place"}


def rated(draw, count):
    lines = ["text\tlabel"]
    for _ in range(count):
        words = draw.choices(OTHER, k=draw.randint(2, 6)) + draw.choices([*WORTH], k=draw.randint(1, 4))
        draw.shuffle(words)
        lines.append(f"{' '.join(words)}\t{sum(WORTH.get(word, 0) for word in words) / 2}")
    return "\n".join(lines)


def test_numbers(tmp_path, source):
    scores, lines = learned(tmp_path, source, "regression", "tsv", rated, 6)
    assert scores["pearson"] > 0.95 and scores["mse"] < 0.15, scores
    assert {round(line["label"] * 2) for line in lines} > {-3, 0, 3}


def asked(draw, count):
    paragraphs = []
    for number in range(count):
        values = [draw.choice(some) for some in ASKED.values()]
        words = draw.choices(OTHER, k=draw.randint(3, 8)) + values
        draw.shuffle(words)
        context, which = " ".join(words), draw.randrange(3)
        start = len(" ".join(words[: words.index(values[which])])) + (words[0] != values[which])
        answers = [{"text": values[which], "answer_start": start}]
        questions = [{"id": f"q{number}", "question": [*ASKED][which], "answers": answers}]
        paragraphs.append({"context": context, "qas": questions})
    return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})


def test_questions(tmp_path, source):
    scores, lines = learned(tmp_path, source, "questions", "json", asked, 8)
    assert scores["exact"] > 90, scores  # one who answers something else that is asked at times is right in a third
    assert all(line["prediction"] for line in lines)
