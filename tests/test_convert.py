"""Hub checkpoints to parameters and back."""

import dataclasses
import re

import goldens
import jax
import ml_dtypes
import numpy as np
import pytest

from mlm_jax import convert, tree
from mlm_jax.config import ConfigError
from mlm_jax.models import build

CONFIG, VOCAB = goldens.CONFIGS["bert"], goldens.VOCABS["bert"]
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


def golden(family: str = "bert") -> dict[str, np.ndarray]:
    """The weights of a checkpoint as `transformers` names them."""
    return goldens.load(family)[0]


def golden_word(family: str) -> str:
    """Name of the word table."""
    return next(name for name in golden(family) if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")))


def untied(family: str) -> dict[str, np.ndarray]:
    """The same checkpoint with a decoder of its own, whose bias stands there under each of its names."""
    weights, form = golden(family), convert.FORMATS[family]
    decoder = np.random.default_rng(0).normal(size=weights[golden_word(family)].shape).astype(np.float32)
    return weights | {form.decoder: decoder} | {copy: weights[name] for copy, name in form.copies.items()}


def from_hub(tensors: dict[str, np.ndarray], **changes: object) -> dict:
    return convert.from_hub(tensors, dataclasses.replace(CONFIG, **changes), VOCAB)


def same(one: object, two: object) -> bool:
    return all(
        a[0] == b[0] and a[1].dtype == b[1].dtype and a[1].tobytes() == b[1].tobytes()
        for a, b in zip(tree.leaves(one), tree.leaves(two), strict=True)
    )


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", goldens.CONFIGS)
def test_there_and_back_is_bit_equal(family, tied):
    config, size = dataclasses.replace(goldens.CONFIGS[family], tied=tied), goldens.VOCABS[family]
    weights = golden(family) if tied else untied(family)
    params = convert.from_hub(weights, config, size)
    tensors = convert.to_hub(params, config, size)
    assert tensors.keys() == weights.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous, name
        np.testing.assert_array_equal(tensor, weights[name], name)
    assert same(convert.from_hub(tensors, config, size), params)


@pytest.mark.parametrize(
    "layers, switches", [(1, {}), (2, {}), (4, {"biases": True}), (8, {}), (3, {"local_window": 0})]
)
def test_any_depth_of_modernbert_there_and_back(layers, switches):
    config = dataclasses.replace(goldens.CONFIGS["modernbert"], layers=layers, **switches)
    params = jax.tree.map(
        lambda leaf: np.random.default_rng(leaf.size).normal(size=leaf.shape).astype(np.float32),
        jax.eval_shape(build(config, 128).init, jax.random.key(0, impl="threefry2x32")),
    )
    tensors = convert.to_hub(params, config, 128)
    assert ("model.layers.0.attn_norm.weight" in tensors, "model.final_norm.weight" in tensors) == (False, True)
    assert f"model.layers.{layers - 1}.mlp.Wi.weight" in tensors
    assert same(convert.from_hub(tensors, config, 128), params)


def test_queries_keys_and_values_are_thirds_of_one_array():
    """One matrix, of which torch takes the first third for the queries, and of Wi the first half for the activated."""
    params = convert.from_hub(golden("modernbert"), goldens.CONFIGS["modernbert"], 60)
    fused = golden("modernbert")["model.layers.4.attn.Wqkv.weight"].astype(np.float32)  # [48, 16]
    assert fused.shape == (48, 16)
    layer = params["last"]["0"]
    for i, name in enumerate(("query", "key", "value")):
        kernel = layer["attention"][name]["kernel"]  # [16, 2, 8]
        np.testing.assert_array_equal(kernel[:, 1], fused[16 * i + 8 : 16 * i + 16].T)
    fused = golden("modernbert")["model.layers.4.mlp.Wi.weight"]
    np.testing.assert_array_equal(layer["ffn"]["up"]["kernel"], fused[:24].T)
    np.testing.assert_array_equal(layer["ffn"]["gate"]["kernel"], fused[24:].T)


@pytest.mark.parametrize(
    "family, changes, says",
    [
        ("bert", {"norm": "pre"}, "config.model.norm = 'pre'.*'bert' is made for 'post'"),
        ("bert", {"ffn": "geglu"}, "config.model.ffn"),
        ("roberta", {"local_window": 8}, "config.model.local_window"),
        ("modernbert", {"positions": "learned"}, "config.model.positions"),
        ("modernbert", {"types": 2}, "config.model.types"),
    ],
)
def test_a_model_that_left_its_family_is_not_written_in_its_format(family, changes, says):
    config = dataclasses.replace(goldens.CONFIGS[family], **changes)
    params = jax.eval_shape(build(config, 100).init, jax.random.key(0, impl="threefry2x32"))
    with pytest.raises(ConfigError, match=says):
        convert.to_hub(params, config, 100)
    with pytest.raises(ConfigError, match=says):
        convert.from_hub(golden(family), config, 100)


@pytest.mark.parametrize("layers", [1, 2])
def test_fewer_layers_there_and_back(layers):
    config = dataclasses.replace(CONFIG, layers=layers)
    params = jax.tree.map(
        lambda leaf: np.random.default_rng(leaf.size).normal(size=leaf.shape).astype(np.float32),
        jax.eval_shape(build(config, 128).init, jax.random.key(0, impl="threefry2x32")),
    )
    assert same(convert.from_hub(convert.to_hub(params, config, 128), config, 128), params)


def test_axes_are_those_of_torch():
    """torch's linear layer is x W^T + b, and head i has the rows i*k .. (i+1)*k-1 of W."""
    params = from_hub(golden())
    weight = golden()[QUERY].astype(np.float32)
    kernel = params["body"]["0"]["attention"]["query"]["kernel"][1]
    x = np.random.default_rng(0).normal(size=24).astype(np.float32)
    np.testing.assert_allclose(np.einsum("d,dhk->hk", x, kernel)[2], (x @ weight.T)[16:24], rtol=1e-5)
    out = golden()["bert.encoder.layer.2.attention.output.dense.weight"].astype(np.float32)
    kernel = params["last"]["0"]["attention"]["out"]["kernel"]
    np.testing.assert_allclose(np.einsum("hk,hkd->d", x.reshape(3, 8), kernel), x @ out.T, rtol=1e-4, atol=1e-6)
    assert params["embeddings"]["word"]["table"].shape == (128, 24)
    np.testing.assert_array_equal(params["embeddings"]["word"]["table"][VOCAB:], 0)


def test_a_checkpoint_of_16_bits_becomes_float32():
    tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in golden().items()}
    assert {leaf.dtype for _, leaf in tree.leaves(from_hub(tensors))} == {np.dtype(np.float32)}


def rename(pattern: str, replacement: str) -> dict[str, np.ndarray]:
    return {re.sub(pattern, replacement, name): tensor for name, tensor in golden().items()}


@pytest.mark.parametrize(
    "tensors",
    [
        rename(r"^bert\.", ""),
        rename(r"LayerNorm\.weight$", "LayerNorm.gamma"),
        rename(r"LayerNorm\.bias$", "LayerNorm.beta"),
        rename(r"^cls\.predictions\.bias$", "cls.predictions.decoder.bias"),
        golden() | {"cls.predictions.decoder.weight": golden()["bert.embeddings.word_embeddings.weight"]},
        golden() | {"bert.pooler.dense.weight": np.zeros((24, 24)), "cls.seq_relationship.bias": np.zeros(2)},
        golden() | {"bert.embeddings.position_ids": np.arange(16)[None]},
    ],
    ids=["prefix", "gamma", "beta", "decoder bias", "decoder", "pooler", "position ids"],
)
def test_other_names_of_the_same(tensors):
    assert same(from_hub(tensors), from_hub(golden()))


@pytest.mark.parametrize(
    "family, pattern, replacement, extra",
    [
        ("roberta", r"^roberta\.", "", {}),
        ("roberta", r"(LayerNorm|layer_norm)\.bias$", r"\1.beta", {}),
        ("roberta", r"^lm_head\.bias$", "lm_head.decoder.bias", {}),
        ("roberta", "^$", "", {"roberta.pooler.dense.bias": np.zeros(18)}),
        ("modernbert", r"^model\.", "", {}),
    ],
)
def test_other_names_of_the_same_in_other_families(family, pattern, replacement, extra):
    config, size = goldens.CONFIGS[family], goldens.VOCABS[family]
    tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in golden(family).items()} | extra
    assert same(convert.from_hub(tensors, config, size), convert.from_hub(golden(family), config, size))
    copy, word = convert.FORMATS[family].decoder, golden_word(family)
    tied = golden(family) | {copy: golden(family)[word]}
    assert same(convert.from_hub(tied, config, size), convert.from_hub(golden(family), config, size))
    with pytest.raises(ValueError, match=f"{re.escape(copy)} differs"):
        convert.from_hub(tied | {copy: golden(family)[word] + 1}, config, size)


def test_every_name_at_fault_is_in_the_message():
    tensors = {name: tensor for name, tensor in golden("modernbert").items() if "layers.2.attn.Wqkv" not in name}
    with pytest.raises(
        convert.NamesError,
        match=r"missing: model.layers.2.attn.Wqkv.weight; unexpected: model.layers.0.attn_norm.weight, x$",
    ):
        convert.from_hub(
            tensors | {"x": np.zeros(1), "model.layers.0.attn_norm.weight": np.ones(16)},
            goldens.CONFIGS["modernbert"],
            60,
        )
    cut = golden("modernbert") | {"model.layers.2.attn.Wqkv.weight": np.zeros((47, 16))}
    with pytest.raises(ValueError, match=r"Wqkv.weight has shape \(47, 16\), the config makes \(48, 16\)"):
        convert.from_hub(cut, goldens.CONFIGS["modernbert"], 60)


def test_a_missing_name_is_named():
    tensors = {name: tensor for name, tensor in golden().items() if name != QUERY}
    with pytest.raises(convert.NamesError, match=rf"missing: {re.escape(QUERY)}; unexpected: none"):
        from_hub(tensors)


def test_an_unexpected_name_is_named():
    with pytest.raises(convert.NamesError, match=r"missing: none; unexpected: bert.encoder.rotary.weight"):
        from_hub(golden() | {"bert.encoder.rotary.weight": np.zeros(2)})


def test_another_number_of_layers_is_refused():
    with pytest.raises(convert.NamesError, match=r"unexpected: bert\.encoder\.layer\.2\."):
        from_hub(golden(), layers=2)
    with pytest.raises(convert.NamesError, match=r"missing: bert\.encoder\.layer\.3\."):
        from_hub(golden(), layers=4)


def test_one_tensor_under_two_names_is_refused():
    name = "bert.embeddings.LayerNorm.weight"
    with pytest.raises(
        convert.NamesError, match=r"bert\.embeddings\.LayerNorm\.weight and embeddings\.LayerNorm\.gamma"
    ):
        from_hub(golden() | {"embeddings.LayerNorm.gamma": golden()[name]})


def test_an_untied_decoder_is_refused_where_the_config_ties():
    says = r"decoder\.weight differs from bert\.embeddings\.word_embeddings\.weight: .* tie_word_embeddings is false"
    with pytest.raises(ValueError, match=says):
        from_hub(untied("bert"))
    with pytest.raises(convert.NamesError, match=r"missing: cls\.predictions\.decoder\.weight; unexpected: none"):
        from_hub(golden(), tied=False)


@pytest.mark.parametrize("name", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_the_bias_of_an_untied_decoder(name):
    """An older transformers writes the first name alone; where there are two it computes with the second."""
    second = "cls.predictions.decoder.bias"
    bias = np.arange(100, dtype=np.float32)
    tensors = {other: tensor for other, tensor in untied("bert").items() if other != second} | {name: bias}
    np.testing.assert_array_equal(from_hub(tensors, tied=False)["head"]["bias"][:100], bias)


def test_another_shape_is_refused_with_both_shapes():
    name = "bert.embeddings.word_embeddings.weight"
    with pytest.raises(
        ValueError, match=r"word_embeddings\.weight has shape \(101, 24\), the config makes \(100, 24\)"
    ):
        from_hub(golden() | {name: np.zeros((101, 24))})
    with pytest.raises(ValueError, match=r"\(24, 40\), the config makes \(24, 48\)"):
        from_hub(golden(), hidden=48)


def test_a_parameter_that_the_table_does_not_know_is_an_error():
    params = from_hub(golden()) | {"pooler": {"kernel": np.zeros(2)}}
    with pytest.raises(KeyError, match="pooler/kernel"):
        convert.to_hub(params, CONFIG, VOCAB)
