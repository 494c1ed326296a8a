"""Fine-tuned models against `transformers`: the same logits from the same folder, both ways, and the folder again."""

import functools
import json

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mlm_jax import convert, tree  # noqa: E402
from mlm_jax.config import ModelConfig, Task, hub, read_task, task_values  # noqa: E402
from mlm_jax.convert.files import read_tensors, write_tensors  # noqa: E402
from mlm_jax.inference.rows import Item, lay  # noqa: E402
from mlm_jax.models import build  # noqa: E402

TASKS = [Task("classification", ("a", "b", "c")), Task("regression"), Task("tagging", ("O", "B-x")), Task("questions")]
FAMILIES = ["bert", "roberta", "electra", "modernbert"]
V = 40
LENGTHS = (10, 7, 4)


@functools.cache
def encoder(family: str):
    """Its config, and what gives the last states of a batch."""
    narrow = {"embedding_width": 8} if family == "electra" else {}
    sizes = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "max_positions": 32, "norm_epsilon": 1e-5}
    config = ModelConfig(family=family, dropout=0.0, attention_dropout=0.0, **sizes, **narrow)
    apply = build(config, V).apply
    return config, jax.jit(lambda params, batch: apply(params, batch).hidden)


def random_params(config: ModelConfig, task: Task, seed: int) -> dict:
    """Parameters in which no bias is 0 and no norm's scale 1, and those of rows that only fill up are."""
    draws = np.random.default_rng(seed)

    def leaf(path, shape):
        values = np.float32(draws.normal(size=shape.shape) * 0.3 + path.endswith("scale"))
        return values * (np.arange(len(values)) < V)[:, None] if path == convert.WORD else values

    shapes = jax.eval_shape(build(config, V, task=task).init, jax.random.key(0, impl="threefry2x32"))
    return tree.map_with_path(leaf, shapes)


def assert_the_same(params: dict, others: dict) -> None:
    for (path, leaf), (again, other) in zip(tree.leaves(params), tree.leaves(others), strict=True):
        assert path == again and np.array_equal(leaf, other), path


def their_logits(model, task: Task, ids: list[np.ndarray], padding: int) -> list[np.ndarray]:
    """f32[outputs] of each text, or f32[n,outputs] of its tokens; from rows with padding."""
    given, mask = np.full((len(ids), max(LENGTHS)), padding), np.zeros((len(ids), max(LENGTHS)), int)
    for row, own in enumerate(ids):
        given[row, : len(own)], mask[row, : len(own)] = own, 1
    with torch.no_grad():
        out = model.eval()(torch.tensor(given).long(), attention_mask=torch.tensor(mask))
    if task.kind == "questions":
        found = np.stack([out.start_logits.numpy(), out.end_logits.numpy()], -1)
    else:
        found = out.logits.numpy()
    return [own if task.of_texts else own[:n] for own, n in zip(found, LENGTHS)]


def our_logits(params: dict, family: str, task: Task, ids: list[np.ndarray]) -> list[np.ndarray]:
    """The same; all texts stand in one row."""
    config, hidden = encoder(family)
    batch = lay([Item(own) for own in ids], [list(range(len(ids)))], (1, 32, 8, 4))[0].batch
    # one program of the encoder for all tasks
    of_encoder = {name: part for name, part in params.items() if name != "task"}
    states, classify = hidden(of_encoder, batch), jax.jit(build(config, V, task=task).classify)
    found = np.asarray(classify({"task": params["task"]}, states))[0]
    starts = np.asarray(batch.firsts)[0]
    return [found[i] if task.of_texts else found[i : i + n] for i, n in zip(starts, LENGTHS)]


@pytest.mark.parametrize("task", TASKS, ids=[task.kind for task in TASKS])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_fine_tuned_model(family, task, tmp_path):
    config, padding = encoder(family)[0], 1 if family == "roberta" else 0
    params = random_params(config, task, 0)
    kept = {"pad": padding, "cls": 2, "sep": 3}
    hub.write_config(tmp_path, hub.config_values(config, V, kept) | task_values(task, family, 0.0))
    write_tensors(tmp_path / "model.safetensors", convert.to_hub(params, config, V, task))
    assert read_task(tmp_path) == task
    assert_the_same(params, convert.from_hub(read_tensors(tmp_path), hub.read_config(tmp_path)[0], V, task=task))

    # ours there
    kind = getattr(transformers, json.loads((tmp_path / "config.json").read_text())["architectures"][0])
    theirs, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    if task.labels:
        assert theirs.config.id2label == dict(enumerate(task.labels))
    ids = [np.random.default_rng(n).integers(4, V, n).astype(np.int32) for n in LENGTHS]
    wanted = their_logits(theirs, task, ids, padding)
    assert max(np.abs(own).max() for own in wanted) > 0.1
    for own, others in zip(our_logits(params, family, task, ids), wanted):
        np.testing.assert_allclose(own, others, atol=1e-4)

    # theirs here: other numbers, in a folder that they have written
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=draws)
    theirs.save_pretrained(tmp_path / "theirs")
    assert read_task(tmp_path / "theirs") == task
    read, size = hub.read_config(tmp_path / "theirs")
    assert size == V
    back = convert.from_hub(read_tensors(tmp_path / "theirs"), read, V, task=task)
    for own, others in zip(our_logits(back, family, task, ids), their_logits(theirs, task, ids, padding)):
        np.testing.assert_allclose(own, others, atol=1e-4)
