"""Heads of fine-tuned models: what they compute, what they begin with, and their folders of the hub format."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_hub import vocab_txt

from mlm_jax import checkpoint, convert, initial, sharding, tree
from mlm_jax.cli import convert as verb
from mlm_jax.cli import fill_mask
from mlm_jax.config import (
    ConfigError,
    FinetuneConfig,
    MeshConfig,
    ModelConfig,
    ObjectiveConfig,
    ObjectivesConfig,
    Task,
    hub,
    read_task,
    resolve,
    task_values,
)
from mlm_jax.convert.files import WEIGHTS, read_tensors, write_tensors
from mlm_jax.finetune import seeds
from mlm_jax.inference import Loaded, embed, load
from mlm_jax.kernels.dropout import keep_mask
from mlm_jax.models import build
from mlm_jax.models.heads import TaskHead
from mlm_jax.models.layers import Draws
from mlm_jax.optim.updates import matrix

FAMILIES = ("bert", "roberta", "electra", "modernbert")
LABELS = ("contradiction", "entailment", "neutral")
TASKS = {task.kind: task for task in (Task("classification", LABELS), Task("regression"), Task("questions"))}
TASKS["tagging"] = Task("tagging", ("O", "B-place", "I-place", "B-name"))
SIZES = {"layers": 2, "width": 12, "heads": 2, "hidden": 20, "max_positions": 24}
V = 100
KEY = jax.random.key(0, impl="threefry2x32")


def config_of(family: str, **changes: object) -> ModelConfig:
    return ModelConfig(family=family, **{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **changes})


def random_params(model, seed: int = 0) -> dict:
    """No bias is 0, no norm's scale 1; rows that only fill up are 0."""
    draws = np.random.default_rng(seed)

    def leaf(path, shape):
        values = np.float32(draws.normal(size=shape.shape) * 0.4 + path.endswith("scale"))
        return values * (np.arange(len(values)) < V)[:, None] if path == convert.WORD else values

    return tree.map_with_path(leaf, jax.eval_shape(model.init, KEY))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def normed(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)


def by_hand(family: str, kind: str, part: dict, x: np.ndarray, before=1.0, after=1.0) -> np.ndarray:
    """The heads as `transformers` has them; before, after: what dropout makes of the values before dense and after."""
    if kind == "classification" or family == "modernbert":
        x = x * before @ part["dense"]["kernel"] + part["dense"].get("bias", 0.0)
        x = np.tanh(x) if family in ("bert", "roberta") else gelu(x)
    if family == "modernbert":
        x = normed(x) * part["norm"]["scale"]
    return x * after @ part["classifier"]["kernel"] + part["classifier"]["bias"]


@pytest.mark.parametrize(
    "family, kind",
    [
        ("bert", "classification"),
        ("bert", "questions"),
        ("roberta", "classification"),
        ("electra", "classification"),
        ("electra", "tagging"),
        ("modernbert", "questions"),
    ],
)
def test_a_head_and_its_dropout_by_hand(family, kind):
    """Every row is dropped by its own key, wherever it stands; the head computes in float32.

    As in `transformers`, nothing is dropped before the linear layer of questions, but in ModernBERT, whose head is that
    of tokens.
    """
    model = build(config_of(family, dropout=0.5, dtype="bfloat16"), V, task=TASKS[kind])
    params = random_params(model)
    assert "head" not in params and ("dense" in params["task"]) == (kind == "classification" or family == "modernbert")
    hidden = np.random.default_rng(1).normal(size=(3, 4, 12)).astype(np.float32)
    rows = jax.random.split(KEY, 3)
    classify = jax.jit(model.classify)
    plain, dropped = classify(params, hidden), np.asarray(classify(params, hidden, rows))
    assert plain.shape == (3, 4, TASKS[kind].outputs) and plain.dtype == jnp.float32
    np.testing.assert_allclose(plain, by_hand(family, kind, params["task"], hidden), atol=1e-4)

    def kept(place: int) -> np.ndarray:
        keys = [jax.random.fold_in(jax.random.fold_in(row, 2**31), place) for row in rows]
        return np.asarray(keep_mask(jnp.stack(keys), (4, 12), 0.5)) * 2.0

    before = kept(0) if kind == "classification" and family in ("roberta", "electra") else 1.0
    after = 1.0 if (family, kind) == ("bert", "questions") else kept(1)
    wanted = by_hand(family, kind, params["task"], hidden, before, after)
    np.testing.assert_allclose(dropped, wanted, atol=1e-4)
    order = jnp.array([2, 0, 1])
    np.testing.assert_array_equal(classify(params, hidden[order], rows[order]), dropped[order])


def test_what_a_head_begins_with():
    """ModernBERT's as in `transformers`: deviations 0.02 / sqrt(2 layers) of the dense layer, 1 / sqrt(d) at last."""
    for family, dense, last in (("bert", 0.02, 0.02), ("modernbert", 0.02 / math.sqrt(2 * 2), 12**-0.5)):
        draws = Draws(jnp.full(12 * (12 + 3), 0.02))
        head = TaskHead(resolve(config_of(family)), TASKS["classification"], draws)
        np.testing.assert_allclose(head.dense.kernel[...], dense, rtol=1e-6)
        np.testing.assert_allclose(head.classifier.kernel[...], last, rtol=1e-6)
        assert not np.asarray(head.classifier.bias[...]).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_its_places(family):
    """On a mesh, in the optimizers, and in the hub's format, there and back bit by bit."""
    for kind in ("classification", "tagging", "questions"):
        # without a decoder, whether it is tied makes no difference
        task, config = TASKS[kind], config_of(family, layers=1, tied=kind != "tagging")
        params = random_params(build(config, V, task=task))
        for path, leaf in tree.leaves(params):
            sharding.spec_of(path, leaf.ndim, MeshConfig().rules)
            assert not path.startswith("task/") or matrix(path, leaf.shape, False) is None
        tensors = convert.to_hub(params, config, V, task)
        outputs = {name: len(tensors[name]) for name in tensors if name.startswith(("classifier", "qa_"))}
        last = "qa_outputs" if kind == "questions" and family != "modernbert" else "classifier"
        if task.of_texts and family in ("roberta", "electra"):
            last = "classifier.out_proj"
        assert outputs[f"{last}.weight"] == outputs[f"{last}.bias"] == task.outputs
        back = convert.from_hub(tensors, config, V, task=task)
        jax.tree.map(np.testing.assert_array_equal, back, params)
        if family == "roberta" and task.of_texts:  # some published ones have a pooler that nothing reads
            more = tensors | {"roberta.pooler.dense.bias": np.zeros(12), "roberta.embeddings.position_ids": np.zeros(1)}
            jax.tree.map(np.testing.assert_array_equal, convert.from_hub(more, config, V, task=task), params)
    with pytest.raises(convert.NamesError, match=rf"missing: {last}.weight"):
        convert.from_hub({name: x for name, x in tensors.items() if name != f"{last}.weight"}, config, V, task=task)


# ---- where a task begins ----


def begun(params, had, task, family="bert", source="SOURCE", seed=0):
    """(parameters, what was said)."""
    said, model = [], build(config_of(family), V, task=task)
    return initial.with_task(params, had, model, task, seed, source, said.append), "\n".join(said)


def accuracy(params: dict, task: Task, hidden: np.ndarray, names: list[str]) -> float:
    found = by_hand("bert", "classification", params["task"], hidden).argmax(-1)
    return float(np.mean([task.labels[i] == name for i, name in zip(found, names)]))


def test_labels_are_matched_by_their_names():
    """A head permuted 0 -> 2, 1 -> 0, 2 -> 1, with its names, is as accurate; without names nothing tells how."""
    had, hidden = TASKS["classification"], np.random.default_rng(3).normal(size=(200, 12))
    params = random_params(build(config_of("bert"), V, task=had))
    names = [had.labels[i] for i in by_hand("bert", "classification", params["task"], hidden).argmax(-1)]
    names[:40] = [LABELS[0]] * 40  # some are wrong
    before = accuracy(params, had, hidden, names)
    assert 0.8 <= before < 1 and len(set(names[40:])) == 3
    permuted = Task("classification", (LABELS[1], LABELS[2], LABELS[0]))
    after, said = begun(params, had, permuted)
    assert accuracy(after, permuted, hidden, names) == before and "goes on with its head" in said
    assert accuracy(params, permuted, hidden, names) < 0.5  # by their places it would have been lost
    capitals = had._replace(labels=tuple(map(str.upper, had.labels)))
    assert accuracy(begun(params, capitals, permuted)[0], permuted, hidden, names) == before
    for labels, says in (
        (("yes", "no", "maybe"), "SOURCE has the labels yes, no, maybe; name the same ones"),
        (LABELS[:2], "has the labels contradiction, entailment; name"),
        (("LABEL_0", "LABEL_1", "LABEL_2"), "says nothing of what they mean; put their names into id2label"),
    ):
        with pytest.raises(ConfigError, match=f"{says}.*--config.new_head=True"):
            begun(params, Task("classification", labels), permuted)


def test_what_is_kept_and_what_is_drawn():
    pairs = random_params(build(config_of("bert"), V, ObjectivesConfig(nsp=ObjectiveConfig(weight=1.0))))
    drawn, said = begun(pairs, None, TASKS["classification"])
    assert drawn.keys() == {"embeddings", "first", "body", "last", "task"}
    assert drawn["embeddings"] is pairs["embeddings"] and drawn["task"]["dense"] is pairs["pair"]["dense"]
    assert "does not need its head and pair" in said and "new: the head for classification, but for the pooler" in said
    # other families have no pooler, tokens none either
    for task, family in ((TASKS["classification"], "electra"), (TASKS["tagging"], "bert")):
        other, said = begun(pairs, None, task, family)
        assert said.endswith(f"new: the head for {task.kind}")
    # a head for another kind of task is drawn anew, by the seed; one for numbers and one for questions have no names
    again, said = begun(drawn, TASKS["classification"], TASKS["tagging"])
    assert "does not need its fine-tuned head" in said and again["task"].keys() == {"classifier"}
    jax.tree.map(np.testing.assert_array_equal, again["task"], other["task"])
    apart = begun(drawn, None, TASKS["tagging"], seed=1)[0]["task"]["classifier"]["kernel"]
    assert (apart != again["task"]["classifier"]["kernel"]).all()
    for kind in ("regression", "questions"):
        had = random_params(build(config_of("bert"), V, task=TASKS[kind]))
        jax.tree.map(np.testing.assert_array_equal, begun(had, TASKS[kind], TASKS[kind])[0], had)


# ---- folders ----


def folder(path, family: str = "bert", task: Task | None = TASKS["classification"], **extra: np.ndarray):
    """A folder of the hub format with the tokenizer of test_hub; without a task, of an encoder that fills masks."""
    config, values = config_of(family), {}
    if task:
        values = task_values(task, family, 0.0)
    path.mkdir()
    hub.write_config(path, hub.config_values(config, V, {"pad": 0, "cls": 2, "sep": 3}) | values)
    params = random_params(build(config, V, task=task))
    write_tensors(path / WEIGHTS, convert.to_hub(params, config, V, task) | extra)
    (path / "vocab.txt").write_text(vocab_txt(V))
    return path


def check_what_a_fine_tuning_begins_with(loaded: Loaded) -> None:
    """What would come up after the first epoch, or in the midst of it, is found before."""
    given, other = FinetuneConfig(model=loaded.path), Task("classification", ("yes", "no"))
    for config, task in (
        (given, Task("classification", LABELS[::-1])),
        (given, TASKS["tagging"]),
        (dataclasses.replace(given, new_head=True), other),
        (dataclasses.replace(given, scratch=True), other),
    ):
        seeds.check_start(config, task, loaded)
    with pytest.raises(ConfigError, match="has the labels contradiction, entailment, neutral; name the same ones"):
        seeds.check_start(given, other, loaded)
    for changes in ({"norm": "pre"}, {"types": 0}):
        model = loaded.model._replace(config=dataclasses.replace(loaded.model.config, **changes))
        with pytest.raises(ConfigError, match="the hub's format"):
            seeds.check_start(given, TASKS["tagging"], loaded._replace(model=model))


def test_a_folder_of_a_fine_tuned_model(tmp_path, capfd):
    task = TASKS["classification"]
    path = folder(tmp_path / "hub")
    values = json.loads((path / "config.json").read_text())
    assert values["architectures"] == ["BertForSequenceClassification"]
    assert values["id2label"] == dict(zip("012", LABELS)) and values["label2id"] == {n: i for i, n in enumerate(LABELS)}
    assert values["problem_type"] == "single_label_classification"
    model, params, _ = checkpoint.load_model(path, headless=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), random_params(model))
    assert read_task(path) == task
    check_what_a_fine_tuning_begins_with(load(path))
    assert embed(load(path), ["the cat sleeps well."]).shape == (1, 12)
    assert fill_mask.main([f"--workdir={path}", "the cat [MASK] well."]) == 2
    assert "has no head that fills masks, only that of a fine-tuned model" in capfd.readouterr().err
    assert verb.main([str(path), str(tmp_path / "run")]) == 2
    assert "is fine-tuned for classification, and has no head that fills masks" in capfd.readouterr().err
    with pytest.raises(ConfigError, match=r"config\.init_from = .* is fine-tuned for classification"):
        initial.check_source(str(path))


@pytest.mark.parametrize(
    "family, changes, wanted",
    [
        ("bert", {"id2label": {"1": "b", "0": "a"}}, Task("classification", ("a", "b"))),
        ("bert", {"id2label": None}, Task("classification", ("LABEL_0", "LABEL_1"))),
        ("bert", {"id2label": None, "num_labels": 3}, Task("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))),
        ("bert", {"id2label": {"0": "LABEL_0"}, "problem_type": None}, Task("regression")),
        ("electra", {"architectures": ["ElectraForPreTraining"]}, None),
        ("bert", {"architectures": None}, None),
        ("bert", {"id2label": {"0": "a", "2": "b"}}, "id2label = .* the ids must be 0 to 1"),
        ("bert", {"id2label": {"a": "0"}}, "id2label = .* the ids must be 0 to 0"),
        ("bert", {"problem_type": "multi_label_classification"}, "heads for one label only"),
        ("modernbert", {"classifier_pooling": "mean"}, "classifier_pooling = 'mean'.* CLS only"),
    ],
)
def test_what_a_config_says_of_its_head(family, changes, wanted, tmp_path):
    hub.write_config(tmp_path, {"model_type": family} | task_values(TASKS["classification"], family, 0.1) | changes)
    if isinstance(wanted, str):
        with pytest.raises(ConfigError, match=wanted):
            read_task(tmp_path)
    else:
        assert read_task(tmp_path) == wanted


def test_the_pooler_of_a_published_bert_is_where_a_task_begins(tmp_path):
    """It lies beside the head that fills masks, and in a run that was imported."""
    pooler = {"bert.pooler.dense.weight": np.random.default_rng(7).normal(size=(12, 12)).astype(np.float32)}
    path = folder(tmp_path / "hub", task=None, **pooler, **{"bert.pooler.dense.bias": np.ones(12, np.float32)})
    assert verb.main([str(path), str(tmp_path / "run")]) == 0
    params = random_params(build(config_of("bert"), V))
    for source in (path, tmp_path / "run", tmp_path / "run" / "checkpoints" / "0"):
        after, said = begun(params, None, TASKS["classification"], source=str(source))
        assert said.endswith("but for the pooler")
        np.testing.assert_array_equal(after["task"]["dense"]["kernel"], pooler["bert.pooler.dense.weight"].T)
        np.testing.assert_array_equal(after["task"]["dense"]["bias"], 1)
    tensors = convert.to_hub(after, config_of("bert"), V, TASKS["classification"])
    np.testing.assert_array_equal(tensors["bert.pooler.dense.weight"], pooler["bert.pooler.dense.weight"])
    assert read_tensors(path).keys() >= pooler.keys()
