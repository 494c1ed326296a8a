"""Fine-tuning as a whole: batches, losses, runs that learn, are stopped and go on, and what they leave."""

import dataclasses
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from vocabularies import word_pieces

from mlm_jax import convert, keys, optim, sharding, state
from mlm_jax.config import (
    Config,
    ConfigError,
    FinetuneConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    Task,
    TaskConfig,
    check_finetune,
    hub,
)
from mlm_jax.convert.files import WEIGHTS, write_tensors
from mlm_jax.finetune import step
from mlm_jax.finetune.batches import Batches, order
from mlm_jax.finetune.program import main
from mlm_jax.finetune.train import best_epoch
from mlm_jax.inference.rows import Item
from mlm_jax.models import build

SIZES = {"layers": 1, "width": 16, "heads": 2, "hidden": 32, "max_positions": 32}
MODEL = ModelConfig(**SIZES, dropout=0.1, attention_dropout=0.0, initializer_range=0.1)
GOOD, BAD, OTHER = ["good", "fine", "great"], ["bad", "poor", "sad"], ["the", "film", "was", "a", "story", "of", "love"]
V = 5 + len(GOOD + BAD + OTHER)


def items(count, kind="classification"):
    """Examples of 4 to 9 tokens, and their labels."""
    draws = np.random.default_rng(0)
    found, labels = [], []
    for _ in range(count):
        ids = draws.integers(5, V, draws.integers(4, 10)).astype(np.int32)
        at = {"classification": [0], "tagging": [1, 3], "questions": sorted(draws.integers(0, len(ids), 2))}[kind]
        found.append(Item(ids, at=np.array(at, np.int32)))
        labels.append(draws.integers(0, 2, len(at)).astype(np.int32))
    return found, labels


def batches(count=20, kind="classification", **changes):
    settings = {"seed": 1, "epochs": 2, "batch_size": 8, "row_length": 16, "accumulation": 1, "multiple": 1} | changes
    return Batches(*items(count, kind), **settings)


# ---- batches ----


def test_every_example_comes_once_an_epoch_with_its_label():
    found, labels = items(20)
    made = batches()
    assert len(made) == 6 and made.steps_per_epoch == 3
    for epoch in range(2):
        seen = []
        for number in range(3):
            examples = made[3 * epoch + number]
            assert set(examples.batch.visit.ravel().tolist()) == {epoch}
            for row in range(examples.at.shape[1]):
                for slot in np.flatnonzero(examples.weights[0, row]):
                    start = examples.at[0, row, slot]
                    own = examples.batch.segments[0, row] == examples.batch.segments[0, row, start]
                    ids, label = examples.batch.tokens[0, row, own], int(examples.labels[0, row, slot])
                    seen.append((ids.tobytes(), label))
        assert sorted(seen) == sorted((item.ids.tobytes(), int(label[0])) for item, label in zip(found, labels))
    assert not np.array_equal(order(1, 0, 20), order(1, 1, 20)) and np.array_equal(order(1, 0, 20), order(1, 0, 20))


def test_rows_divide_among_microbatches_and_devices():
    made = batches(accumulation=2, multiple=3)
    assert made.shape[0] % 6 == 0 and made[0].batch.tokens.shape == (2, made.shape[0] // 2, 16)
    with pytest.raises(ConfigError, match=r"config.row_length = 8: there is an example of 9 tokens"):
        batches(row_length=8)


# ---- losses ----


def test_losses_by_hand():
    examples = jax.tree.map(lambda x: jnp.asarray(x[0]), batches()[0])
    b, q = examples.at.shape
    outputs = jnp.broadcast_to(jnp.log(jnp.array([1.0, 3.0])), (b, q, 2))
    labelled = dataclasses.replace(examples, labels=jnp.zeros((b, q), jnp.int32).at[0, 0].set(1))
    losses = np.asarray(step.of_labels(outputs, labelled))
    np.testing.assert_allclose([losses[0, 0], losses[1, 1]], -np.log([0.75, 0.25]), rtol=1e-6)
    numbers = dataclasses.replace(examples, labels=jnp.full((b, q), -1.5))
    np.testing.assert_allclose(step.of_numbers(outputs[..., :1], numbers), np.full((b, q), 2.25))


def test_an_answers_ends_are_told_from_the_tokens_of_its_segment_alone():
    examples = jax.tree.map(lambda x: jnp.asarray(x[0]), batches(kind="questions")[0])
    outputs = jax.random.normal(jax.random.key(0), (*examples.batch.tokens.shape, 2))
    losses = np.asarray(step.of_spans(outputs, examples))
    for row, slot in np.argwhere(np.asarray(examples.weights) > 0):
        place = int(examples.at[row, slot])
        own = np.asarray(examples.batch.segments[row] == examples.batch.segments[row, place])
        scores = np.exp(np.asarray(outputs[row, :, slot % 2], np.float64))
        np.testing.assert_allclose(losses[row, slot], -np.log(scores[place] / scores[own].sum()), rtol=1e-5)


def trained(kind, accumulation, mesh, drops=0.0, steps=2):
    made = batches(24, kind, accumulation=accumulation, multiple=8 // accumulation)
    outputs = {"tagging": ("O", "B-x"), "classification": ("a", "b"), "questions": ()}[kind]
    config = Config(
        steps=steps,
        batch_size=made.shape[0],
        accumulation=accumulation,
        row_length=16,
        model=dataclasses.replace(MODEL, dropout=drops),
        optimizer=OptimizerConfig(learning_rate=1e-2, layer_decay=0.9),
        mesh=mesh,
    )
    model = build(config.model, V, task=Task(kind, outputs))
    devices = sharding.make_mesh(
        {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": 1}, jax.devices()[: mesh.data * mesh.fsdp]
    )
    optimizer = optim.optimizer(config.optimizer, steps)
    losses = []
    with sharding.activate(devices, config.mesh):
        now = state.create(model, optimizer, devices, config.mesh, keys.root(0, keys.INIT), settings=config.optimizer)
        train_step = step.make_train_step(model, optimizer, config, devices, kind)
        for number in range(steps):
            placed = jax.device_put(made[number], sharding.batch_sharding(devices, leading=1))
            now, metrics = train_step(now, placed, keys.roots(0))
            losses.append(float(metrics["loss"]))
    return losses, jax.device_get(now.params)


def test_one_device_is_eight_and_one_batch_is_four():
    alone, params = trained("questions", 1, MeshConfig(1, 1, 1), drops=0.1)
    several, others = trained("questions", 4, MeshConfig(2, 1, 1), drops=0.1)
    np.testing.assert_allclose(alone, several, rtol=2e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=2e-4), params, others)


# ---- runs ----


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of the hub format, with drawn parameters, that reads words as its tokens."""
    folder = tmp_path_factory.mktemp("source")
    tokenizer = word_pieces(folder, [*GOOD, *BAD, *OTHER])
    model = build(MODEL, tokenizer.size)
    params = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
    hub.write_config(folder, hub.config_values(model.config, tokenizer.size, {"pad": 0, "cls": 2, "sep": 3}))
    write_tensors(folder / WEIGHTS, convert.to_hub(params, model.config, tokenizer.size))
    return folder


def reviews(path, count, seed=0):
    draw = random.Random(seed)
    lines = ["label\ttext"]
    for _ in range(count):
        name, kind = draw.choice([("good", GOOD), ("bad", BAD)])
        words = draw.choices(OTHER, k=draw.randint(3, 8))
        words[draw.randrange(len(words))] = draw.choice(kind)
        lines.append(f"{name}\t{' '.join(words)}")
    path.write_text("\n".join(lines) + "\n")
    return path


CONFIG = """
from mlm_jax.config import FinetuneConfig, OptimizerConfig, TaskConfig
def get_config():
    return FinetuneConfig(seeds=(3, 4), epochs=2, batch_size=8, row_length=32,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup=0.1))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, source):
    """A whole run with two seeds and a test set: its folder and its command line."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.py").write_text(CONFIG)
    files = {"train": reviews(folder / "train.tsv", 200), "test": reviews(folder / "test.tsv", 40, seed=1)}
    argv = [f"--config={folder / 'config.py'}", f"--config.model={source}", f"--workdir={folder / 'run'}"]
    argv += [f"--config.task.{name}={path}" for name, path in files.items()]
    assert main(argv) == 0
    return folder, argv


def test_a_run_learns_and_leaves_scores_predictions_and_a_model(run, capsys):
    folder, argv = run
    results = json.loads((folder / "run" / "results.json").read_text())
    assert results["metric"] == "accuracy" and [one["seed"] for one in results["seeds"]] == [3, 4]
    assert results["mean"]["test"]["accuracy"] > 0.95 and set(results["deviation"]) == {"dev", "test"}
    for one in results["seeds"]:
        made = folder / "run" / f"seed-{one['seed']}"
        assert one["dev"] == max(one["epochs"], key=lambda scores: scores["accuracy"])
        config = json.loads((made / "model" / "config.json").read_text())
        assert config["architectures"] == ["BertForSequenceClassification"]
        assert config["id2label"] == {"0": "bad", "1": "good"}
        card = (made / "model" / "README.md").read_text()
        assert "pipeline_tag: text-classification" in card and f"| accuracy | {one['dev']['accuracy']:.4f} |" in card
        lines = [json.loads(line) for line in (made / "predictions-test" / "test.jsonl").read_text().splitlines()]
        right = [line["prediction"] == line["label"] for line in lines]
        assert len(lines) == 40 and np.isclose(np.mean(right), one["test"]["accuracy"])
        steps = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
        assert sum("train/loss" in line for line in steps) == max(line["step"] for line in steps)
        assert not (made / "checkpoints").exists()
    assert main(argv) == 0  # there is nothing left to do
    assert "seed 3  is done" in capsys.readouterr().err


def test_what_defines_the_results_may_not_change_under_way(run, capsys):
    _, argv = run
    assert main([*argv, "--config.batch_size=16"]) == 2
    assert "config.batch_size = 16: the runs in " in capsys.readouterr().err
    reviews(run[0] / "other.tsv", 150, seed=5)
    assert main([*argv, f"--config.task.test={run[0] / 'other.tsv'}"]) == 2


def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(run, source, tmp_path, monkeypatch):
    folder, argv = run
    argv = [*argv[:2], f"--workdir={tmp_path / 'again'}", *argv[3:], "--config.seeds=(3,)"]
    seen = []

    class StopAtOnce:
        def now(self):
            seen.append(0)
            return len(seen) in (7, 31)

        def close(self):
            pass

    monkeypatch.setattr("mlm_jax.runtime.Stop", StopAtOnce)
    assert [main(argv) for _ in range(3)] == [3, 3, 0]
    ours, theirs = (
        json.loads((path / "seed-3" / "result.json").read_text()) for path in (tmp_path / "again", folder / "run")
    )
    assert ours == theirs
    ours, theirs = ((path / "seed-3" / "metrics.jsonl").read_text() for path in (tmp_path / "again", folder / "run"))
    assert ours == theirs
    weights = ((path / "seed-3" / "model" / WEIGHTS).read_bytes() for path in (tmp_path / "again", folder / "run"))
    assert next(weights) == next(weights)


def test_scratch_takes_the_architecture_alone(run, source, tmp_path, capsys):
    _, argv = run
    argv = [
        *argv[:2],
        f"--workdir={tmp_path}",
        *argv[3:],
        "--config.seeds=(0,)",
        "--config.epochs=1",
        "--config.scratch=True",
    ]
    assert main(argv) == 0
    assert "scratch: all parameters are drawn by the seed" in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text())["scratch"] is True


def test_the_first_of_the_best_epochs_is_kept():
    history = [{"mse": 3.0}, {"mse": 1.0}, {"mse": 1.0}]
    assert best_epoch(history, "mse", larger_is_better=False) == 1
    assert best_epoch(history, "mse", larger_is_better=True) == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"epochs": 0}, "config.epochs = 0: must be at least 1"),
        ({"seeds": (1, 1)}, r"config.seeds = \(1, 1\): must be one or more different"),
        ({"row_length": 64}, "config.row_length = 64: m has positions for 32"),
        ({"task": TaskConfig(kind="pairs", train="x")}, "config.task.kind = 'pairs': must be one of classification"),
        ({"task": TaskConfig()}, "config.task.train = '': names no examples"),
        ({"optimizer": OptimizerConfig(warmup_length="9 steps")}, "config.optimizer.warmup_length = '9 steps': fine-"),
        ({"optimizer": OptimizerConfig(name="sgd")}, "config.optimizer.name = 'sgd': must be one of adamw"),
    ],
)
def test_mistakes(changes, message):
    config = FinetuneConfig(**{"model": "m", "row_length": 32, "task": TaskConfig(train="x"), **changes})
    with pytest.raises(ConfigError, match=message):
        check_finetune(config, MODEL, 1)
