"""Fine-tuned models against `transformers`: the same logits from the same folder, and the folder again from them."""

import jax
import numpy as np
import pytest
import torch
import transformers

from mlm_jax import convert, tree
from mlm_jax.config import ModelConfig, Task, hub, read_task, task_values
from mlm_jax.convert.files import read_tensors, write_tensors
from mlm_jax.inference.rows import Item, lay
from mlm_jax.models import build

TASKS = [Task("classification", ("a", "b", "c")), Task("regression"), Task("tagging", ("O", "B-x")), Task("questions")]
V = 40


def made(family, task):
    """A model whose biases are not 0 and whose scales are not 1, and its parameters."""
    narrow = {"embedding_width": 8} if family == "electra" else {}
    sizes = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "max_positions": 32}
    model = build(ModelConfig(family=family, dropout=0.0, attention_dropout=0.0, **sizes, **narrow), V, task=task)
    draws = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: np.asarray(x) + 0.3 * draws.standard_normal(x.shape).astype(np.float32),
        jax.jit(model.init)(jax.random.key(0)),
    )
    params["embeddings"]["word"]["table"][V:] = 0  # rows that only fill up
    return model, params


@pytest.mark.parametrize("task", TASKS, ids=[task.kind for task in TASKS])
@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "modernbert"])
def test_logits_of_a_fine_tuned_model(family, task, tmp_path):
    model, params = made(family, task)
    values = hub.config_values(model.config, V, {"pad": 0, "cls": 2, "sep": 3}) | task_values(task, family, 0.0)
    hub.write_config(tmp_path, values)
    write_tensors(tmp_path / "model.safetensors", convert.to_hub(params, model.config, V, task))

    assert read_task(tmp_path) == task
    back = convert.from_hub(read_tensors(tmp_path), hub.read_config(tmp_path)[0], V, task=task)
    for (path, leaf), (again, other) in zip(tree.leaves(params), tree.leaves(back), strict=True):
        assert path == again and np.array_equal(leaf, other), path

    kind = getattr(transformers, values["architectures"][0])
    theirs, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    if task.labels:
        assert theirs.config.id2label == dict(enumerate(task.labels))
    ids = np.random.default_rng(1).integers(4, V, (3, 10)).astype(np.int32)
    with torch.no_grad():
        out = theirs.eval()(torch.tensor(ids).long(), attention_mask=torch.ones(3, 10))
    if task.kind == "questions":
        wanted = np.stack([out.start_logits.numpy(), out.end_logits.numpy()], -1)
    else:
        wanted = out.logits.numpy()
    batch = lay([Item(i) for i in ids], [[0], [1], [2]], (3, 16, 8, 1))[0].batch
    params, batch = jax.device_put((params, batch))
    ours = np.asarray(model.classify(params, model.apply(params, batch).hidden))
    np.testing.assert_allclose(ours[:, 0] if task.of_texts else ours[:, :10], wanted, atol=1e-4)
