"""Folders of the hub format: read, written, trained from. Weights and outputs are those of golden/make.py."""

import dataclasses
import functools
import json

import goldens
import jax
import numpy as np
import pytest
from test_train import SMALL, text  # noqa: F401  (a fixture)
from vocabularies import byte_pairs, word_pieces

from mlm_jax import checkpoint, convert, initial, train
from mlm_jax.cli import convert as verb
from mlm_jax.cli import fill_mask
from mlm_jax.config import Config, ConfigError, ModelConfig, check, hub, with_source
from mlm_jax.convert.files import INDEX, WEIGHTS, read_tensors, write_tensors
from mlm_jax.models import build
from mlm_jax.tokenizer import Tokenizer

FAMILIES = pytest.mark.parametrize("family", goldens.CONFIGS)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["the", "cat", "dog", "bird", "fish", "sleeps", "barks", "sings", "swims", "well", *ALPHABET]
LETTERS = [f"##{letter}" for letter in ALPHABET]


def vocab_txt(size: int, pad: int = 0) -> str:
    """A WordPiece vocabulary; the padding's id is that of the family."""
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", *LETTERS]
    tokens.insert(pad, "[PAD]")
    assert len(tokens) <= size or size < 70
    filling = [f"[unused{i}]" for i in range(size - len(tokens))]
    return "\n".join((tokens + filling)[:size]) + "\n"


@functools.cache
def hub_tensors(family: str) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float32) for name, array in goldens.load(family)[0].items()}


def hub_folder(path, family: str, tied: bool = True, **extra: np.ndarray):
    """A folder as the hub has it, with other or more tensors than those of the golden file."""
    path.mkdir()
    pad = 1 if family == "roberta" else 0
    ids = {"pad": pad, "cls": 2, "sep": 3}
    hub.write_config(
        path, hub.config_values(dataclasses.replace(goldens.CONFIGS[family], tied=tied), goldens.VOCABS[family], ids)
    )
    write_tensors(path / WEIGHTS, hub_tensors(family) | extra)
    (path / "vocab.txt").write_text(vocab_txt(goldens.VOCABS[family], pad))
    return path


# ---- config.json ----

PUBLISHED = {  # what the hub says of three well-known models, without keys that say nothing of the shape
    "bert": (
        {"model_type": "bert", "hidden_act": "gelu", "vocab_size": 30522, "hidden_size": 768, "pad_token_id": 0}
        | {"num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "type_vocab_size": 2}
        | {"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1},
        ModelConfig(types=2, dropout=0.1, attention_dropout=0.1),
        30522,
        109_514_298,
    ),
    "roberta": (
        {"model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
        | {"layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        ModelConfig(
            family="roberta",
            types=1,
            padding_id=1,
            max_positions=514,
            norm_epsilon=1e-5,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        50265,
        124_697_433,
    ),
    "modernbert": (
        {"model_type": "modernbert", "vocab_size": 50368, "num_hidden_layers": 22, "intermediate_size": 1152}
        | {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
        | {"local_attention": 128, "norm_bias": False, "attention_bias": False, "mlp_bias": False, "norm_eps": 1e-5},
        ModelConfig(
            family="modernbert",
            layers=22,
            hidden=1152,
            max_positions=8192,
            local_window=128,
            global_every=3,
            biases=False,
            rotary_base=160_000.0,
            rotary_local_base=10_000.0,
            norm_epsilon=1e-5,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        50368,
        149_655_232,
    ),
}


@FAMILIES
def test_published_configs_give_the_published_sizes(family, tmp_path):
    values, config, vocab_size, parameters = PUBLISHED[family]
    hub.write_config(tmp_path, values)
    assert hub.read_config(tmp_path) == (config, vocab_size)
    shapes = dict(convert.tree.leaves(jax.eval_shape(build(config, vocab_size).init, jax.random.key(0))))
    filling = -vocab_size % 128  # rows of the word table and of the bias that only fill up
    assert sum(leaf.size for leaf in shapes.values()) == parameters + filling * (768 + 1)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@FAMILIES
def test_what_is_written_is_read_back(family, tied, tmp_path):
    config = dataclasses.replace(goldens.CONFIGS[family], tied=tied)
    hub.write_config(tmp_path, hub.config_values(config, 77, {"pad": 0, "cls": 1, "sep": 2}))
    found, size = hub.read_config(tmp_path)
    assert size == 77 and build(found, 9).config == build(config, 9).config
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is tied


def test_the_new_way_to_write_rotary_positions(tmp_path):
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    ropes = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(kinds, (5e5, 2e4))}
    values = {"model_type": "modernbert", "num_hidden_layers": 4, "layer_types": kinds, "rope_parameters": ropes}
    hub.write_config(tmp_path, values)
    config, _ = hub.read_config(tmp_path)
    assert (config.global_every, config.rotary_base, config.rotary_local_base) == (2, 5e5, 2e4)
    hub.write_config(tmp_path, values | {"layer_types": ["full_attention"] * 4})
    config, _ = hub.read_config(tmp_path)
    assert (config.local_window, config.global_every) == (0, None)


@pytest.mark.parametrize(
    "values, says",
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2': .*models of bert, roberta, electra, modernbert"),
        ({"model_type": "bert", "hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"model_type": "modernbert", "norm_bias": True}, "norm_bias = True"),
        ({"model_type": "modernbert", "mlp_dropout": 0.1}, "embedding_dropout = 0.0"),
        ({"model_type": "modernbert", "layer_types": ["sliding_attention"] * 22}, "layer_types"),
        ({"model_type": "modernbert", "rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type"),
    ],
)
def test_models_that_this_package_does_not_have(values, says, tmp_path):
    hub.write_config(tmp_path, values)
    with pytest.raises(ConfigError, match=says):
        hub.read_config(tmp_path)


# ---- the verb ----


@FAMILIES
def test_there_and_back_is_bit_equal(family, tmp_path, capfd):
    folder = hub_folder(tmp_path / "hub", family)
    assert verb.main([str(folder), str(tmp_path / "run")]) == 0
    assert verb.main([str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    assert f"{goldens.VOCABS[family]} ids" in capfd.readouterr().out
    there, back = hub_tensors(family), read_tensors(tmp_path / "back")
    assert there.keys() == back.keys()
    jax.tree.map(np.testing.assert_array_equal, there, back)
    assert json.loads((folder / "config.json").read_text()) == json.loads((tmp_path / "back/config.json").read_text())
    before, after = Tokenizer.load(folder), Tokenizer.load(tmp_path / "back")
    for line in ("the cat [MASK] well.", "a fish  swims", "xyz"):
        np.testing.assert_array_equal(before.encode(line).ids, after.encode(line).ids)
    card = (tmp_path / "back/README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers") and "as it was imported" in card
    # what was imported is a config that can be trained from
    begun = with_source(Config(init_from=str(tmp_path / "run"), row_length=8))
    assert (
        check(begun, 1).vocab_size is None and build(begun.model, 9).config == build(goldens.CONFIGS[family], 9).config
    )
    (model, params, _), (_, others, _) = map(checkpoint.load_model, (folder, tmp_path / "run"))
    jax.tree.map(np.testing.assert_array_equal, params, others)
    batch = goldens.padded(goldens.load(family)[1])
    logits = jax.jit(lambda p, b: model.logits(p, model.apply(p, b).hidden))(params, batch)
    real = np.asarray(batch.segments) > 0
    wanted = goldens.load(family)[2]["logits"][real]
    assert np.abs(np.asarray(logits)[real][:, : model.vocab_size] - wanted).max() < 1e-4


def test_heads_that_this_package_does_not_have_come_back(tmp_path, capfd):
    pooler = {"bert.pooler.dense.weight": np.ones((24, 24), np.float32), "bert.pooler.dense.bias": np.ones(24)}
    folder = hub_folder(tmp_path / "hub", "bert", **pooler)
    assert verb.main([str(folder), str(tmp_path / "run")]) == 0
    assert "kept beside, for an export: bert.pooler.dense." in capfd.readouterr().out
    assert verb.main([str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    assert read_tensors(tmp_path / "back").keys() == hub_tensors("bert").keys() | pooler.keys()


def decoder(**changes: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of a decoder of its own, of 100 ids."""
    table = np.random.default_rng(1).normal(size=(100, 24)).astype(np.float32)
    bias = hub_tensors("bert")["cls.predictions.bias"]
    return {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias} | changes


@pytest.mark.parametrize("size, tied", [(103, True), (150, True), (103, False), (150, False)])
def test_another_number_of_ids(size, tied, tmp_path):
    """100 ids to 103 or 150: rows and logits of those that were there do not change, others begin with the mean."""
    folder = hub_folder(tmp_path / "hub", "bert", tied, **({} if tied else decoder()))
    assert verb.main([str(folder), str(tmp_path / "run"), f"--vocab_size={size}"]) == 0
    (model, params, _), (larger, others, _) = map(checkpoint.load_model, (folder, tmp_path / "run"))
    assert larger.vocab_size == size
    batch = goldens.padded(goldens.load("bert")[1])
    one, two = (
        np.asarray(jax.jit(lambda p, b, m=m: m.logits(p, m.apply(p, b).hidden))(p, batch))
        for m, p in ((model, params), (larger, others))
    )
    np.testing.assert_array_equal(one[..., :100], two[..., :100])
    bias, tables = np.asarray(others["head"]["bias"]), [others["embeddings"]["word"]["table"]]
    tables += [] if tied else [others["head"]["decoder"]["table"]]
    assert ("decoder" in others["head"]) is not tied
    for table in map(np.asarray, tables):
        np.testing.assert_allclose(table[100:size], np.tile(table[:100].mean(0), (size - 100, 1)), rtol=1e-5, atol=1e-6)
        assert not table[size:].any()
    np.testing.assert_allclose(bias[100:size], bias[:100].mean(), rtol=1e-5, atol=1e-6)
    assert verb.main([str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    written = {name: tensor.shape for name, tensor in read_tensors(tmp_path / "back").items() if "cls.pred" in name}
    assert written["cls.predictions.bias"] == (size,)
    both = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    assert [written.get(name) for name in both] == ([None, None] if tied else [(size, 24), (size,)])
    assert json.loads((tmp_path / "back/config.json").read_text())["tie_word_embeddings"] is tied


def test_several_files_of_weights(tmp_path):
    folder, tensors = hub_folder(tmp_path / "hub", "bert"), hub_tensors("bert")
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, inside in parts.items():
        write_tensors(folder / file, {name: tensors[name] for name in inside})
    weight_map = {name: file for file, inside in parts.items() for name in inside}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    jax.tree.map(np.testing.assert_array_equal, read_tensors(folder), tensors)


def test_half_precision_is_read_as_float32(tmp_path):
    folder = hub_folder(tmp_path / "hub", "bert")
    half = {name: array.astype("bfloat16") for name, array in hub_tensors("bert").items()}
    write_tensors(folder / WEIGHTS, half)
    _, params, _ = checkpoint.load_model(folder)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    np.testing.assert_array_equal(
        params["embeddings"]["word"]["table"][:100], half["bert.embeddings.word_embeddings.weight"].astype(np.float32)
    )


def test_what_the_user_can_mend(tmp_path, capfd):
    folder = hub_folder(tmp_path / "hub", "bert")

    def says(*argv):
        assert verb.main(list(map(str, argv))) == 2
        return capfd.readouterr().err

    assert "give SOURCE and TARGET" in says(folder)
    assert "exists and is not empty" in says(folder, folder)
    assert "exists and is not empty" in says(folder, ".")
    assert "holds no config.json" in says(tmp_path, tmp_path / "x")
    assert "must be at least 100" in says(folder, tmp_path / "x", "--vocab_size=99")
    assert "which has one state" in says(folder, tmp_path / "x", "--step=3")
    tensors = dict(hub_tensors("bert"))
    lost = tensors.pop("cls.predictions.bias")
    write_tensors(folder / WEIGHTS, tensors | {"bert.extra": lost})
    assert "missing: cls.predictions.bias; unexpected: bert.extra" in says(folder, tmp_path / "x")
    write_tensors(folder / WEIGHTS, hub_tensors("bert") | decoder())  # and config.json says that they are tied
    assert "tie_word_embeddings is false" in says(folder, tmp_path / "x")
    (folder / WEIGHTS).write_bytes(b"no")
    assert "cannot be read" in says(folder, tmp_path / "x")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert "pickle" in says(folder, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]  # no half of a folder is left


# ---- a run that begins with a model ----


def test_rows_of_an_extended_vocabulary(tmp_path):
    folder = hub_folder(tmp_path / "hub", "bert")
    old = Tokenizer.load(folder)
    new = old.add_terms(["catfish", "dog"])
    assert new.size == old.size + 1  # dog is a piece already
    sources = initial.sources_of(old, new)
    assert sources[: old.size] == [[i] for i in range(old.size)]
    assert sources[old.size] == old.encode("catfish").ids.tolist() and len(sources[old.size]) > 1
    model, params, _ = checkpoint.load_model(folder)
    changed = convert.with_rows(jax.device_get(params), model.vocab_size, sources)
    table = np.asarray(params["embeddings"]["word"]["table"])
    np.testing.assert_allclose(
        changed["embeddings"]["word"]["table"][old.size], table[sources[old.size]].mean(0), rtol=1e-6
    )


def test_rows_follow_their_token_to_another_id(tmp_path):
    """Another order of the same tokens, the mask as the last one: each keeps its row."""
    old = Tokenizer.load(hub_folder(tmp_path / "hub", "bert"))
    tokens = vocab_txt(100).split()
    other = [token for token in tokens if token != "[MASK]"] + ["[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(other) + "\n")
    new = Tokenizer.load(tmp_path / "vocab.txt")
    assert new.mask == 99 and initial.sources_of(old, new) == [[tokens.index(token)] for token in other]


def test_pieces_of_another_family_are_found_by_what_they_say(tmp_path):
    """A byte-level `the` continues a word and its other form begins one; so do `##the` and `the` of WordPiece."""
    old = byte_pairs(tmp_path / "bytes", ["t h", "th e", "\u0120 th", "\u0120th e"])
    new = word_pieces(tmp_path / "words", ["the", "##the", "##e"])
    sources = initial.sources_of(old, new)
    assert [[old.shown[i] for i in ids] for ids in sources[-3:]] == [["\u2581the"], ["the"], ["e"]]
    roles = ("pad", "unk", "cls", "sep", "mask")
    assert [sources[getattr(new, role)] for role in roles] == [[getattr(old, role)] for role in roles]


def test_architecture_and_tokenizer_of_the_source(tmp_path):
    folder = hub_folder(tmp_path / "hub", "modernbert")
    given = Config(init_from=str(folder), row_length=64, model=ModelConfig(layers=1, dropout=0.2))
    config = with_source(given)
    assert config.model.family == "modernbert" and config.model.layers == 6 and config.model.dropout == 0.2
    assert config.model.attention_dropout == 0.0 and config.tokenizer.path == str(folder)
    with pytest.raises(ConfigError, match=r"config\.row_length = 600: .* has positions for 512"):
        with_source(dataclasses.replace(given, row_length=600))
    assert verb.main([str(folder), str(tmp_path / "run")]) == 0
    of_run = with_source(Config(init_from=str(tmp_path / "run"), row_length=64))
    assert of_run.model.local_window == 4 and of_run.tokenizer.path == str(tmp_path / "run" / "tokenizer")
    with pytest.raises(ConfigError, match=r"config\.init_from = '/nowhere'"):
        with_source(Config(init_from="/nowhere"))


def test_training_begins_with_the_model(text, tmp_path, capfd):  # noqa: F811
    folder = hub_folder(tmp_path / "hub", "bert")
    terms = tmp_path / "terms.txt"
    terms.write_text("catfish\n\nthe\n")
    sizes = [flag for flag in SMALL if "model" not in flag and "tokenizer" not in flag and "row_length" not in flag]
    argv = ["--config=configs/tiny.py", f"--config.data.sources={text}", f"--workdir={tmp_path / 'run'}", *sizes]
    argv += [f"--config.init_from={folder}", f"--config.tokenizer.terms={terms}", "--config.row_length=16"]
    # nothing is learned: the model at the end is the one at the beginning
    argv += ["--config.optimizer.learning_rate=0", "--config.steps=4", "--config.checkpoint.every_steps=2"]
    argv += ["--config.data.holdout=0"]
    assert train.main(argv) == 0
    said = capfd.readouterr().err
    assert "1 new pieces for 2 terms" in said and "100 rows of the word table are kept, 1 are means of pieces" in said
    (_, before, old), (model, after, new) = map(checkpoint.load_model, (folder, tmp_path / "run"))
    assert model.vocab_size == new.size == 101
    jax.tree.map(np.testing.assert_array_equal, before["last"], after["last"])
    table = np.asarray(before["embeddings"]["word"]["table"])
    np.testing.assert_array_equal(after["embeddings"]["word"]["table"][:100], table[:100])
    pieces = old.encode("catfish").ids
    np.testing.assert_allclose(after["embeddings"]["word"]["table"][100], table[pieces].mean(0), rtol=1e-6)
    # the source is needed no more, and the words are those of before; a line of the metrics that was cut is no matter
    folder.rename(tmp_path / "moved")
    terms.write_text("other\n")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "train/lo')
    assert fill_mask.main([f"--workdir={tmp_path / 'run'}", "the catfish [MASK] well."]) == 0
    assert verb.main([str(tmp_path / "run"), str(tmp_path / "exported")]) == 0
    assert "beginning with the weights of `hub`" in (tmp_path / "exported" / "README.md").read_text()
    assert train.main([*argv, "--config.steps=6"]) == 0  # goes on, and does not begin anew
    said = capfd.readouterr().err
    assert "goes on after step 4" in said and "made before this changed: terms" in said
    (tmp_path / "moved").rename(folder)
    # an imported model is no run that can go on
    assert verb.main([str(folder), str(tmp_path / "imported")]) == 0
    argv[2] = f"--workdir={tmp_path / 'imported'}"
    assert train.main(argv) == 2
    assert "holds an imported model" in capfd.readouterr().err


def test_parameters_of_another_shape_are_named():
    wanted, other = (build(ModelConfig(layers=2, width=width, heads=2, hidden=8), 9) for width in (4, 6))
    params = jax.device_get(jax.jit(other.init)(jax.random.key(0)))
    with pytest.raises(ConfigError, match="holds another model:") as error:
        initial.check_shapes(params, wanted, "there")
    # heads of 2 values here, of 3 there
    assert "body/0/attention/key/bias: float32[1,2,2] here, float32[1,2,3] in the checkpoint" in str(error.value)
    assert "more" in str(error.value)
