"""Models go to `transformers` and come from it with the same logits. Skipped where it is not installed."""

import batches
import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

from golden.make_bert import random_input, random_model  # noqa: E402

from mlm_jax import convert  # noqa: E402
from mlm_jax.config import ModelConfig  # noqa: E402
from mlm_jax.models import build  # noqa: E402
from mlm_jax.records import SECOND_OF_PAIR  # noqa: E402

VOCAB = 137
CONFIG = ModelConfig(layers=4, width=32, heads=4, hidden=48, max_positions=20, dropout=0.0, attention_dropout=0.0)
HUB_CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
}


def their_logits(model: object, given: dict) -> np.ndarray:
    with torch.no_grad():
        logits = model(**given).logits.numpy()
    return logits[given["attention_mask"].numpy() > 0]


def our_logits(params: dict, given: dict) -> np.ndarray:
    ids, mask, types = (given[name].numpy() for name in ("input_ids", "attention_mask", "token_type_ids"))
    batch = batches.batch(ids, mask, types * SECOND_OF_PAIR)
    model = build(CONFIG, VOCAB)

    @jax.jit
    def logits(params, batch):
        return model.logits(params, model.apply(params, batch).hidden)

    return np.asarray(logits(params, batch))[mask > 0][:, :VOCAB]


def test_a_model_of_theirs_here():
    model, given = random_model(seed=2, **HUB_CONFIG), random_input(seed=3, vocab_size=VOCAB)
    params = convert.from_hub({name: tensor.numpy() for name, tensor in model.state_dict().items()}, CONFIG, VOCAB)
    theirs, ours = their_logits(model, given), our_logits(params, given)
    assert np.abs(theirs).max() > 3
    assert np.abs(theirs - ours).max() < 1e-4


def test_a_model_of_ours_there(tmp_path):
    random = np.random.default_rng(4)
    names = convert.to_hub(build(CONFIG, VOCAB).init(jax.random.key(0, impl="threefry2x32")), CONFIG, VOCAB)
    tensors = {
        name: np.float32(random.normal(size=tensor.shape) * 0.2 + name.endswith("LayerNorm.weight"))
        for name, tensor in names.items()
    }
    params = convert.from_hub(tensors, CONFIG, VOCAB)
    exported = convert.to_hub(params, CONFIG, VOCAB)
    safetensors_numpy.save_file(exported, tmp_path / "model.safetensors", metadata={"format": "pt"})
    transformers.BertConfig(**HUB_CONFIG).save_pretrained(tmp_path)
    model, report = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    given = random_input(seed=5, vocab_size=VOCAB)
    theirs, ours = their_logits(model.eval(), given), our_logits(params, given)
    assert np.abs(theirs).max() > 3
    assert np.abs(theirs - ours).max() < 1e-4
    back = convert.from_hub({name: tensor.numpy() for name, tensor in model.state_dict().items()}, CONFIG, VOCAB)
    jax.tree.map(np.testing.assert_array_equal, back, params)
