import dataclasses
import runpy
from pathlib import Path

import pytest

from mlm_jax.config import (
    PRESETS,
    Config,
    ConfigError,
    DataConfig,
    MaskConfig,
    MeshConfig,
    MlmConfig,
    ModelConfig,
    ObjectiveConfig,
    ObjectivesConfig,
    OptimizerConfig,
    check,
    from_json,
    resolve,
    to_json,
)

MANIFEST = {
    "row_length": 512,
    "tokenizer": {"vocab_size": 8000, "pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
    "corpora": [{"source": "a", "splits": {"train": {"rows": 1000, "tokens": 500_000}, "eval": {"rows": 10}}}],
}


NO_TOKENS = ObjectivesConfig(mlm=MlmConfig(weight=0.0, z_loss=0.1), sop=ObjectiveConfig(weight=1.0))


def changed(config, **changes):
    for key, value in changes.items():
        owner, _, name = key.rpartition("__")
        target = getattr(config, owner) if owner else config
        setattr(target, name, value)
    return config


def test_pairs_need_room():
    check(changed(Config(), row_length=32, data__pairs="next"), 1)
    check(changed(Config(), row_length=16), 1)
    with pytest.raises(ConfigError, match=r"config\.row_length = 31: must be at least 32 with .*'order'"):
        check(changed(Config(), row_length=31, data__pairs="order"), 1)


def test_rows_have_the_pairs_that_are_asked_for():
    check(changed(Config(), batch_size=8), 8, 1, {**MANIFEST, "pairs": "next"})
    check(changed(Config(), batch_size=8, data__pairs="next"), 8, 1, {**MANIFEST, "pairs": "next"})
    with pytest.raises(ConfigError, match=r"config\.data\.pairs = 'next': the rows were prepared with 'order'"):
        check(changed(Config(), batch_size=8, data__pairs="next"), 8, 1, {**MANIFEST, "pairs": "order"})


def test_derived_numbers_by_hand():
    derived = check(changed(Config(), batch_size=256, accumulation=4, steps=1000, mesh__fsdp=2), 8, 1, MANIFEST)
    assert derived.mesh == {"data": 4, "fsdp": 2, "tensor": 1}
    assert (derived.microbatch, derived.rows_per_device, derived.tokens_per_step) == (64, 8, 131072)
    assert (derived.capacity, derived.warmup_steps) == (96, 60)
    assert (derived.vocab_size, derived.vocab_rows, derived.epochs) == (8000, 8064, 256.0)


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("steps", 0, "at least 1"),
        ("steps", "100", "type int"),
        ("mask__rate", 1.5, r"in \[0, 1\]"),
        ("mask__rate", "0.15", "type float"),
        ("mask__unit", "letter", "token, word"),
        ("mask__corruption", (0.8, 0.1, 0.2), "sum to 1"),
        ("mask__corruption", (0.8, 0.2), "type tuple"),
        ("mask__max_rate", 0.1, "at least config.mask.rate"),
        ("model__heads", 7, "must divide config.model.width"),
        ("model__max_positions", 256, "at least config.row_length"),
        ("model__family", "gpt", "one of bert, modernbert, roberta"),
        ("model__embedding_width", 0, "at least 1, or None"),
        ("model__family", "roberta", r"512 \+ config.model.padding_id \+ 1 = 514: positions begin at 2"),
        ("model__norm", "rms", "one of post, pre, or None"),
        ("model__positions", 5, "type str"),
        ("model__biases", 0, "type bool"),
        ("model__types", -1, "at least 0"),
        ("model__local_window", 127, "even.*126 or 128"),
        ("model__global_every", 2, "local_window = 0 makes none"),
        ("model__rotary_base", 1e4, "config.model.positions = 'learned'"),
        ("optimizer__warmup", 1.0, r"in \[0, 1\)"),
        ("optimizer__warmup", 0.9999999, "leaves none"),
        ("optimizer__learning_rate", float("nan"), "at least"),
        ("optimizer__schedule", "poly", "linear, cosine"),
        ("data__sources", (), "at least one source"),
        ("data__pairs", "nsp", "one of none, next, order"),
        ("data__weights", (1.0, 2.0), "one weight for each"),
        ("data__weights", (1.0, 2), "type tuple|one weight"),
        ("data__exponent", 1.5, r"in \[0, 1\]"),
        ("data__exponent", float("nan"), r"in \[0, 1\]"),
        ("data__collocations", -1, "at least 0"),
        ("data__collocation_longest", 1, "at least 2"),
        ("data__collocation_longest", 17, "at most 16"),
        ("data__collocation_count", 0, "at least 1"),
        ("data__collocation_tokens", 10, "at least 1000"),
        ("mask__unit", "phrase", "needs rows that mark phrases: set config.data.collocations"),
        ("objectives__mlm", MlmConfig(z_loss=-1.0), "mlm.z_loss = -1.0: must be at least 0"),
        ("objectives", NO_TOKENS, "mlm.z_loss = 0.1: .*neither objective is on"),
        ("mesh__tensor", 3, "do not divide"),
        ("mesh__data", 4, "hold 4 devices, 8 are present"),
    ],
)
def test_contradictions_name_key_value_and_what_would_be_right(key, value, says):
    with pytest.raises(ConfigError, match=says) as error:
        check(changed(Config(), **{key: value}), 8)
    assert str(error.value).startswith("config." + key.replace("__", ".").split(".")[0])


def test_weights_and_an_exponent_rule_each_other_out():
    data = DataConfig(sources=("a", "b"), weights=(0.5, 0.5), exponent=0.3)
    with pytest.raises(ConfigError, match=r"config.data.exponent = 0.3: must be 1 where config.data.weights is set"):
        check(changed(Config(), data=data), 8)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"global_every": 1}, "config.model.global_every = 1: makes every layer global"),
        ({"heads": 256}, "config.model.heads = 256: rotary.*width / heads = 3 is odd"),
        ({"padding_id": 0}, "config.model.padding_id = 0: .*set -1"),
        ({"rotary_base": 0.5}, "greater than 1"),
        ({"local_window": 0, "rotary_local_base": 1e4}, "config.model.rotary_local_base = 10000.0: is of local layers"),
    ],
)
def test_switches_that_another_one_rules_out(changes, says):
    with pytest.raises(ConfigError, match=says):
        check(changed(Config(), model=ModelConfig(family="modernbert", **changes)), 8)


def test_a_family_presets_the_switches_that_are_not_given():
    modern = resolve(ModelConfig(family="modernbert", local_window=64))
    assert (modern.norm, modern.positions, modern.types, modern.ffn, modern.biases) == (
        "pre",
        "rotary",
        0,
        "geglu",
        False,
    )
    assert (modern.local_window, modern.global_every) == (64, 3)
    assert (modern.rotary_base, modern.rotary_local_base) == (160_000, 10_000)
    assert resolve(modern) == modern
    assert resolve(ModelConfig(family="roberta", types=2)).types == 2
    for family in PRESETS:
        check(changed(Config(), model=ModelConfig(family=family, max_positions=514)), 8)


def test_roberta_has_room_for_the_positions_behind_the_padding_id():
    """512 tokens: padding 1 takes 514 rows, 3 takes 516, 0 takes 513."""
    for padding_id, rows in ((1, 514), (3, 516), (0, 513)):
        model = ModelConfig(family="roberta", padding_id=padding_id, max_positions=rows)
        check(changed(Config(), model=model), 8)
        with pytest.raises(ConfigError, match=rf"config.model.max_positions = {rows - 1}: .* = {rows}"):
            check(changed(Config(), model=dataclasses.replace(model, max_positions=rows - 1)), 8)
    with pytest.raises(ConfigError, match=r"config.model.padding_id = 1: \[PAD\] of the tokenizer has the id 0"):
        check(changed(Config(), model=ModelConfig(family="roberta", max_positions=514)), 8, 1, MANIFEST)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "configs").glob("*.py")), ids=lambda path: path.stem
)
def test_shipped_configs_hold_on_eight_devices(path):
    config = runpy.run_path(str(path))["get_config"]()
    assert check(config, 8).rows_per_device >= 8
    assert f"configs/{path.name}" in path.read_text(encoding="utf-8")


def test_batch_that_does_not_divide_names_the_nearest():
    """A batch of 100 on 8 devices."""
    with pytest.raises(ConfigError, match="nearest: 96 or 120"):
        check(changed(Config(), batch_size=100, accumulation=3), 8)
    assert check(changed(Config(), batch_size=96, accumulation=3), 8).rows_per_device == 4
    with pytest.raises(ConfigError, match=r"mesh.data x mesh.fsdp = 4 x 2 = 8; nearest: 96 or 104"):
        check(changed(Config(), batch_size=100, rows_per_device=4, mesh__fsdp=2), 8)
    with pytest.raises(ConfigError, match=r"nearest: 8$"):
        check(changed(Config(), batch_size=6, rows_per_device=4), 8)


@pytest.mark.parametrize(
    "batch_size, most, devices, mesh, accumulation, rows",
    [
        (64, 4, 8, {"fsdp": 2}, 2, 4),  # 64 = 2 x 4 rows x 8
        (64, 4, 4, {"tensor": 2}, 8, 4),  # = 8 x 4 x 2: two devices have the same rows
        (64, 4, 1, {}, 16, 4),
        (96, 8, 8, {}, 2, 6),  # a device's 12 rows in parts of 6, since 8 is no part of them
        (96, 100, 8, {}, 1, 12),
        (104, 8, 8, {}, 13, 1),  # 13 is a prime
    ],
)
def test_accumulation_follows_from_the_rows_of_a_device(batch_size, most, devices, mesh, accumulation, rows):
    config = Config(batch_size=batch_size, rows_per_device=most, mesh=MeshConfig(**mesh))
    for given in (1, accumulation):
        derived = check(dataclasses.replace(config, accumulation=given), devices)
        assert (derived.accumulation, derived.rows_per_device) == (accumulation, rows)
        assert derived.microbatch * accumulation == batch_size
    with pytest.raises(
        ConfigError, match=rf"accumulation = 7: contradicts .* = {most}, by which it is {accumulation} "
    ):
        check(dataclasses.replace(config, accumulation=7), devices)
    assert check(Config(batch_size=64, accumulation=2), 8).accumulation == 2  # without it, as it is given


def test_shards_must_divide_the_model():
    with pytest.raises(ConfigError, match=r"config.model.heads = 12: must be a multiple of config.mesh.tensor = 8"):
        check(changed(Config(), mesh__tensor=8, batch_size=8), 8)
    with pytest.raises(ConfigError, match="mesh axes are"):
        check(changed(Config(), mesh=MeshConfig(rules=(("width", "model"),))), 8)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"row_length": 128}, "rows are 128"),
        ({"tokenizer": {**MANIFEST["tokenizer"], "mask": -1}}, r"no \[MASK\]"),
        ({"tokenizer": {**MANIFEST["tokenizer"], "mask": 8000}}, r"no \[MASK\]"),
        ({"tokenizer": {**MANIFEST["tokenizer"], "mask": 1}}, r"id of \[UNK\]"),
        ({"tokenizer": {**MANIFEST["tokenizer"], "mask": 0}}, r"id of \[PAD\]"),
        (
            {"corpora": [{"source": "a", "splits": {"train": {"rows": 0, "tokens": 0}, "eval": {"rows": 0}}}]},
            "no text to train on",
        ),
    ],
)
def test_rows_that_do_not_fit(change, says):
    with pytest.raises(ConfigError, match=says):
        check(changed(Config(), batch_size=8), 8, 1, {**MANIFEST, **change})


def test_vocabulary_larger_than_the_table():
    with pytest.raises(ConfigError, match=r"config.model.vocab_size = 7999: the tokenizer has 8000 ids"):
        check(changed(Config(), model__vocab_size=7999), 8, 1, MANIFEST)
    assert check(changed(Config(), model__vocab_size=9000), 8, 1, MANIFEST).vocab_rows == 9088


def test_json_round_trip():
    config = Config(
        mask=MaskConfig(max_rate=0.3),
        optimizer=OptimizerConfig(groups=(("embeddings/.*", 1e-5), (".*", 3e-5))),
        model=ModelConfig(vocab_size=None),
    )
    again = from_json(to_json(config))
    assert again == config and hash(again) == hash(config)
    with pytest.raises(ConfigError, match=r"config.mask.rat = 1: there is no such key"):
        from_json('{"mask": {"rat": 1}}')


def test_layer_decay_and_groups_exclude_each_other():
    with pytest.raises(ConfigError, match="must be 1 where"):
        check(Config(optimizer=OptimizerConfig(groups=((".*", 1e-4),), layer_decay=0.9)), 8)
    assert dataclasses.replace(Config(), steps=5).steps == 5
