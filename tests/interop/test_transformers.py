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

from mlm_jax import convert, tree  # noqa: E402
from mlm_jax.config import MlmConfig, ModelConfig, ObjectiveConfig, ObjectivesConfig, ReplacedConfig, hub  # noqa: E402
from mlm_jax.convert.files import write_tensors  # noqa: E402
from mlm_jax.models import build  # noqa: E402

VOCAB = 137
LENGTHS = {"bert": (20, 11, 5), "roberta": (20, 11, 5), "electra": (20, 11, 5), "modernbert": (150, 61, 5)}
SPECIALS = dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 0)
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
KINDS = ("full_attention", "sliding_attention")
OURS = {
    "bert": {"max_positions": 20},
    "roberta": {"max_positions": 22, "norm_epsilon": 1e-5},
    "electra": {"max_positions": 20, "embedding_width": 24},
    # longer than the window, which reaches 8 to either side
    "modernbert": {"layers": 9, "local_window": 16, "norm_epsilon": 1e-5, "max_positions": 150},
}
THEIRS = {
    "bert": {"max_position_embeddings": 20},
    "roberta": {"max_position_embeddings": 22, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "electra": {"max_position_embeddings": 20, "embedding_size": 24},
    "modernbert": {"num_hidden_layers": 9, "local_attention": 16, "max_position_embeddings": 150, "pad_token_id": 0}
    | SPECIALS,
}
# name of a case: its family, what else is ours and theirs
UNTIED = {f"{family}, untied": (family, {"tied": False}, {"tie_word_embeddings": False}) for family in MODELS}
CASES = (
    {family: (family, {}, {}) for family in MODELS}
    | UNTIED
    | {
        "embeddings as wide as the layers": ("electra", {"embedding_width": None}, {"embedding_size": 32}),
        "biases": ("modernbert", {"biases": True}, BIASES),
        "other rotary bases, every second layer global": (
            "modernbert",
            {"layers": 5, "global_every": 2, "rotary_base": 3000.0, "rotary_local_base": 50.0},
            {
                "num_hidden_layers": 5,
                "layer_types": [KINDS[depth % 2] for depth in range(5)],
                "rope_parameters": {
                    kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(KINDS, (3000.0, 50.0))
                },
            },
        ),
        "all layers global": (
            "modernbert",
            {"layers": 3, "local_window": 0},
            {"num_hidden_layers": 3, "layer_types": [KINDS[0]] * 3},
        ),
        "two types, padding 0": (
            "roberta",
            {"types": 2, "padding_id": 0, "max_positions": 21},
            {"type_vocab_size": 2, "pad_token_id": 0, "max_position_embeddings": 21},
        ),
    }
)
BOTH = pytest.mark.parametrize("case", CASES)


def config_of(case: str) -> ModelConfig:
    family, ours, _ = CASES[case]
    sizes = {"layers": 4, "width": 32, "heads": 4, "hidden": 48} | OURS[family] | ours
    return ModelConfig(family=family, dropout=0.0, attention_dropout=0.0, **sizes)


def hub_config_of(case: str) -> dict:
    family, _, theirs = CASES[case]
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
    return {"vocab_size": VOCAB} | sizes | THEIRS[family] | theirs


def given_of(case: str, seed: int) -> dict:
    family = CASES[case][0]
    given = random_input(seed, family, VOCAB, LENGTHS[family])
    if config_of(case).padding_id == 0:  # RoBERTa finds the padding by its id
        given["input_ids"] = torch.where(given["attention_mask"] > 0, given["input_ids"], 0)
    return given


def assert_the_logits_agree(case: str, model: object, params: dict, given: dict) -> None:
    """Ours from rows with padding, and from one row that holds all texts."""
    with torch.no_grad():
        theirs = model(**given).logits.numpy()[given["attention_mask"].numpy() > 0]
    assert np.abs(theirs).max() > 3
    given = {name: array.numpy().astype(np.int32) for name, array in given.items()}
    network = build(config_of(case), VOCAB)

    @jax.jit
    def logits(params, batch):
        return network.logits(params, network.apply(params, batch).hidden)

    for batch in (goldens.padded(given), goldens.packed(given)):
        ours = np.asarray(logits(params, batch))[np.asarray(batch.segments) > 0][:, :VOCAB]
        assert np.abs(theirs - ours).max() < 1e-4


@BOTH
def test_a_model_of_theirs_here(case):
    model = random_model(2, CASES[case][0], **hub_config_of(case))
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    params = convert.from_hub(tensors, config_of(case), VOCAB)
    assert_the_logits_agree(case, model, params, given_of(case, 3))


@BOTH
def test_a_model_of_ours_there(case, tmp_path):
    random, config = np.random.default_rng(4), config_of(case)
    there_and_back = functools.partial(convert.from_hub, config=config, vocab_size=VOCAB)
    names = convert.to_hub(build(config, VOCAB).init(jax.random.key(0, impl="threefry2x32")), config, VOCAB)
    tensors = {
        name: np.float32(random.normal(size=tensor.shape) * 0.2 + name.lower().endswith("norm.weight"))
        for name, tensor in names.items()
    }
    params = there_and_back(tensors)
    exported = convert.to_hub(params, config, VOCAB)
    safetensors_numpy.save_file(exported, tmp_path / "model.safetensors", metadata={"format": "pt"})
    hub_config, hub_model = MODELS[CASES[case][0]]
    hub_config(**hub_config_of(case)).save_pretrained(tmp_path)
    model, report = hub_model.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_the_logits_agree(case, model.eval(), params, given_of(case, 5))
    back = there_and_back({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_the_head_of_pairs_there(tmp_path):
    """Column 0 is "follows" in both: BERT's labels of next sentences."""
    config, objectives = config_of("bert"), ObjectivesConfig(nsp=ObjectiveConfig(weight=1.0))
    network, random = build(config, VOCAB, objectives), np.random.default_rng(6)
    shapes = jax.eval_shape(network.init, jax.random.key(0, impl="threefry2x32"))
    params = tree.map_with_path(  # norm scales around 1, or all texts would look alike
        lambda path, leaf: np.float32(random.normal(size=leaf.shape) * 0.2 + path.endswith("/scale")), shapes
    )
    exported = convert.to_hub(params, config, VOCAB)
    safetensors_numpy.save_file(exported, tmp_path / "model.safetensors", metadata={"format": "pt"})
    transformers.BertConfig(**hub_config_of("bert")).save_pretrained(tmp_path)
    model, report = transformers.BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    given = given_of("bert", 7)
    with torch.no_grad():
        theirs = model.eval()(**given).seq_relationship_logits.numpy()
    batch = goldens.padded({name: array.numpy().astype(np.int32) for name, array in given.items()})
    first = jax.numpy.zeros((len(theirs), 1), "int32")
    ours = jax.jit(lambda params: network.pair(params, network.apply(params, batch, at=first).hidden))(params)
    assert np.abs(theirs).max() > 0.5 and np.abs(theirs - np.asarray(ours)[:, 0]).max() < 1e-4


def test_a_discriminator_and_its_generator_there(tmp_path):
    """ELECTRA: both models of one run, of which the generator is narrower and shares the tables."""
    objectives = ObjectivesConfig(mlm=MlmConfig(weight=0.0), replaced=ReplacedConfig(weight=50.0, generator_heads=1))
    config = config_of("electra")
    network, random = build(config, VOCAB, objectives), np.random.default_rng(6)
    params = tree.map_with_path(
        lambda path, leaf: np.float32(random.normal(size=leaf.shape) * 0.2 + path.endswith("norm/scale")),
        jax.eval_shape(network.init, jax.random.key(0, impl="threefry2x32")),
    )
    given = given_of("electra", 7)
    batch = goldens.padded({name: array.numpy().astype(np.int32) for name, array in given.items()})
    real = np.asarray(batch.segments) > 0

    @jax.jit
    def both(params, batch):
        words = network.generator.logits(params, network.generator.apply(params, batch).hidden)[..., :VOCAB]
        return {"generator": words, "discriminator": network.discriminate(params, network.apply(params, batch).hidden)}

    logits = both(params, batch)
    kinds = {
        "generator": (convert.of_generator, transformers.ElectraForMaskedLM, None),
        "discriminator": (convert.of_discriminator, transformers.ElectraForPreTraining, hub.DISCRIMINATOR),
    }
    for name, (part, kind, architecture) in kinds.items():
        alone, own = part(network, params)
        exported = convert.to_hub(own, alone, VOCAB)
        (tmp_path / name).mkdir()
        write_tensors(tmp_path / name / "model.safetensors", exported)
        ids = {"pad": 0, "cls": 1, "sep": 2}
        hub.write_config(tmp_path / name, hub.config_values(alone, VOCAB, ids, architecture))
        model, report = kind.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values()), report
        assert model.config.architectures == [kind.__name__]
        with torch.no_grad():
            theirs = model.eval()(**given).logits.numpy()
        assert np.abs(theirs[real]).max() > 0.5
        assert np.abs(theirs - np.asarray(logits[name]))[real].max() < 1e-4
        tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        back = convert.from_hub(tensors, hub.read_config(tmp_path / name)[0], VOCAB)
        own = tree.map_with_path(lambda path, x: x[:VOCAB] if path in convert.PADDED else x, own)
        back = tree.map_with_path(lambda path, x: x[:VOCAB] if path in convert.PADDED else x, back)
        jax.tree.map(np.testing.assert_array_equal, back, own)
