"""Models go to `transformers` and come from it with the same logits. Skipped where it is not installed."""

import functools

import goldens
import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

from golden.make import MODELS, random_input, random_model  # noqa: E402

from mlm_jax import convert  # noqa: E402
from mlm_jax.config import ModelConfig  # noqa: E402
from mlm_jax.models import build  # noqa: E402

VOCAB = 137
LENGTHS = {"bert": (20, 11, 5), "roberta": (20, 11, 5), "modernbert": (150, 61, 5)}
OURS = {
    "bert": {"max_positions": 20},
    "roberta": {"max_positions": 22, "norm_epsilon": 1e-5},
    # longer than the window, which reaches 8 to either side
    "modernbert": {"layers": 9, "local_window": 16, "norm_epsilon": 1e-5, "max_positions": 150},
}
THEIRS = {
    "bert": {"max_position_embeddings": 20},
    "roberta": {"max_position_embeddings": 22, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "modernbert": {"num_hidden_layers": 9, "local_attention": 16, "max_position_embeddings": 150, "pad_token_id": 0}
    | dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 0),
}
FAMILIES = pytest.mark.parametrize("family", MODELS)


def config_of(family: str) -> ModelConfig:
    sizes = {"layers": 4, "width": 32, "heads": 4, "hidden": 48} | OURS[family]
    return ModelConfig(family=family, dropout=0.0, attention_dropout=0.0, **sizes)


def hub_config_of(family: str) -> dict:
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
    return {"vocab_size": VOCAB} | sizes | THEIRS[family]


def assert_the_logits_agree(family: str, model: object, params: dict, given: dict) -> None:
    """Ours from rows with padding, and from one row that holds all texts."""
    with torch.no_grad():
        theirs = model(**given).logits.numpy()[given["attention_mask"].numpy() > 0]
    assert np.abs(theirs).max() > 3
    given = {name: array.numpy().astype(np.int32) for name, array in given.items()}
    network = build(config_of(family), VOCAB)

    @jax.jit
    def logits(params, batch):
        return network.logits(params, network.apply(params, batch).hidden)

    for batch in (goldens.padded(given), goldens.packed(given)):
        ours = np.asarray(logits(params, batch))[np.asarray(batch.segments) > 0][:, :VOCAB]
        assert np.abs(theirs - ours).max() < 1e-4


@FAMILIES
def test_a_model_of_theirs_here(family):
    model = random_model(2, family, **hub_config_of(family))
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    params = convert.from_hub(tensors, config_of(family), VOCAB)
    assert_the_logits_agree(family, model, params, random_input(3, family, VOCAB, LENGTHS[family]))


@FAMILIES
def test_a_model_of_ours_there(family, tmp_path):
    random, config = np.random.default_rng(4), config_of(family)
    there_and_back = functools.partial(convert.from_hub, config=config, vocab_size=VOCAB)
    names = convert.to_hub(build(config, VOCAB).init(jax.random.key(0, impl="threefry2x32")), config, VOCAB)
    tensors = {
        name: np.float32(random.normal(size=tensor.shape) * 0.2 + name.lower().endswith("norm.weight"))
        for name, tensor in names.items()
    }
    params = there_and_back(tensors)
    exported = convert.to_hub(params, config, VOCAB)
    safetensors_numpy.save_file(exported, tmp_path / "model.safetensors", metadata={"format": "pt"})
    hub_config, hub_model = MODELS[family]
    hub_config(**hub_config_of(family)).save_pretrained(tmp_path)
    model, report = hub_model.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_the_logits_agree(family, model.eval(), params, random_input(5, family, VOCAB, LENGTHS[family]))
    back = there_and_back({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    jax.tree.map(np.testing.assert_array_equal, back, params)
