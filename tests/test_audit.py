import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import MASK, SEP, batch, random_batch, vocabulary
from test_train import SMALL, text  # noqa: F401  (a fixture)

from mlm_jax import keys, sharding
from mlm_jax.audit import Audit, auditor
from mlm_jax.batch import Masked
from mlm_jax.cli import audit as verb
from mlm_jax.config import Config, MaskConfig
from mlm_jax.masking import mask
from mlm_jax.records import SECOND_OF_PAIR

CONFIG = MaskConfig(rate=0.2)
WORDS = vocabulary(400)


def made(config=CONFIG, rows=64, rate=0.2):
    """Rows and their masks, as numpy arrays that can be written to."""
    made = random_batch(seed=1, b=rows, t=64, size=400)
    masked = jax.jit(lambda rows: mask(jax.random.key(0), rows, WORDS, config, rate))(made)
    return jax.tree.map(np.array, made), jax.tree.map(np.array, masked)


def audited(rows, masked, config=CONFIG, rate=0.2):
    audit = Audit(WORDS, config, rate)
    audit.add(rows, masked)
    return audit


@pytest.mark.parametrize("config", [CONFIG, MaskConfig(rate=0.2, unit="token", corruption=(0.2, 0.5, 0.3))])
def test_good_masks_break_nothing(config):
    audit = audited(*made(config), config)
    assert audit.breaches() == audit.doubts() == []
    found = audit.findings()
    assert found["rate"]["realised"] == pytest.approx(0.2, abs=0.01)
    for share, asked in zip(found["corruption"].values(), config.corruption):
        assert share == pytest.approx(asked, abs=0.06)


@pytest.mark.parametrize(
    "options",
    [
        {"random_ids": "unigram", "corruption": (0.2, 0.5, 0.3)},
        {"unit": "sentence", "corruption_per": "unit"},
        {"unit": "hierarchical", "min_per_segment": 2},
        {"unit": "span", "priority": "frequency", "stratify": True},
        {"regime": "static"},
        {"rate": 1.0},
        {"rate": 0.0},
        {"rate": 0.02},
    ],
)
def test_no_strategy_is_in_doubt(options):
    config = MaskConfig(**{"rate": 0.2, **options})
    audit = audited(*made(config, rows=256, rate=config.rate), config, config.rate)
    assert audit.breaches() == audit.doubts() == []


def test_texts_of_pairs_are_told_apart():
    """CLS a SEP b c SEP, then CLS d SEP; a and c are selected."""
    second = np.array([[0, 0, 0, 1, 1, 1, 0, 0, 0]]) * SECOND_OF_PAIR
    segments = [[1, 1, 1, 1, 1, 1, 2, 2, 2]]
    rows = batch([[2, 7, 3, 8, 9, 3, 2, 6, 3]], segments, second)
    rows = dataclasses.replace(rows, pair_labels=np.array([[1, -1, -1, -1]]))
    selected = np.array([[0, 1, 0, 0, 1, 0, 0, 0, 0]], bool)
    masked = Masked(
        inputs=np.where(selected, MASK, rows.tokens),
        indices=np.array([[1, 4]]),
        targets=np.array([[7, 9]]),
        weights=np.ones((1, 2), np.float32),
        selected=selected,
        dropped=np.zeros(1, np.int32),
    )
    found = audited(jax.tree.map(np.asarray, rows), masked).findings()
    assert found["pairs"] == {"0": 0, "1": 1}
    assert found["rate by"]["text of a pair"] == {"none": 0.0, "first": 1.0, "second": 0.5}
    assert "pairs        0 with label 0, 1 with label 1" in verb.show(found)


def test_numbers_by_hand():
    """CLS a b | c SEP, where | starts a word; b and c are selected."""
    rows = batch([[2, 7, 8, 9, 3]], word_starts=[[0, 1, 0, 1, 0]])
    masked = Masked(
        inputs=np.array([[2, 7, MASK, 9, 3]]),
        indices=np.array([[2, 3, 0]]),
        targets=np.array([[8, 9, 0]]),
        weights=np.array([[1.0, 1.0, 0.0]]),
        selected=np.array([[False, False, True, True, False]]),
        **extra(1),
    )
    audit = audited(jax.tree.map(np.array, rows), masked)
    found = audit.findings()
    assert (found["rows"], found["maskable"], found["selected"]) == (1, 3, 2)
    assert found["corruption"] == {"mask": 0.5, "random": 0.0, "kept": 0.5}
    assert found["rate by"]["tokens of the word"] == {"1": 1.0, "2": 0.5}
    assert found["rate by"]["tokens of the segment"] == {"to 8": pytest.approx(2 / 3)}
    assert found["rate by"]["position in the segment"] == {"00%": 0.0, "30%": 1.0, "60%": 1.0}
    assert audit.breaches() == []  # too few rows for a statement on rates


def extra(rows):
    """Fields of Masked beyond those of a mask by hand."""
    names = {field.name for field in dataclasses.fields(Masked)}
    return {"dropped": np.zeros(rows, np.int32)} if "dropped" in names else {}


def tampered(change):
    rows, masked = made()
    change(rows, masked)
    return audited(rows, masked).breaches()


def select(masked, row, place):
    masked.selected[row, place] = True


def first_unselected(rows, masked):
    return tuple(np.argwhere((rows.tokens > MASK) & ~masked.selected)[0])


def test_each_rule_is_named_when_it_is_broken():
    def special(rows, masked):
        masked.selected[tuple(np.argwhere(rows.tokens == SEP)[0])] = True

    def changed(rows, masked):
        masked.inputs[first_unselected(rows, masked)] = 99

    def not_ordinary(rows, masked):
        masked.inputs[tuple(np.argwhere(masked.selected)[0])] = SEP

    def wrong_target(rows, masked):
        masked.targets[0, 0] += 1

    def lost_slot(rows, masked):
        masked.weights[0, 0] = 0.0

    assert "special tokens or padding selected" in tampered(special)[0]
    assert tampered(changed) == ["1 tokens changed that are not selected"]
    assert tampered(not_ordinary) == ["1 random replacements that are no ordinary id"]
    assert tampered(wrong_target) == ["1 slots whose target is not the token that stood there"]
    assert tampered(lost_slot) == ["1 rows with another number of slots than selected tokens"]


def test_rates_that_are_off_are_named():
    rows, masked = made()
    assert "were asked for" in audited(rows, masked, rate=0.25).doubts()[0]
    other = dataclasses.replace(CONFIG, corruption=(1.0, 0.0, 0.0))
    assert [line.split(" are ")[1].split(",")[0] for line in audited(rows, masked, other).doubts()] == [
        "masked",
        "random",
        "kept",
    ]


def test_one_mask_for_all_rows_is_found():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 400, (64, 64))
    rows = jax.tree.map(np.array, batch(tokens))
    same = dataclasses.replace(rows, row=np.zeros(64, np.int32), visit=np.zeros(64, np.int32))
    masked = jax.jit(lambda rows: mask(jax.random.key(0), rows, WORDS, CONFIG, 0.2))(jax.tree.map(jnp.asarray, same))
    masked = jax.tree.map(np.array, masked)
    assert any("correlated" in line for line in audited(rows, masked).doubts())


def placed_on_four_devices(rows):
    """Rows [64,t] as [2,32,t] over the data axis of a mesh, and where they lie."""
    mesh = sharding.make_mesh({"data": 4, "fsdp": 1, "tensor": 2})
    placed = sharding.batch_sharding(mesh, leading=1)
    return jax.tree.map(lambda x: jax.device_put(x.reshape(2, 32, *x.shape[1:]), placed), rows), placed


def test_the_rows_of_this_process_are_audited_wherever_they_lie():
    def make(step, key, batch, params, feedback):
        return mask(key, batch, WORDS, CONFIG, 0.2)

    rows, placed = placed_on_four_devices(made()[0])
    audit = auditor(make, WORDS, Config(mask=CONFIG), keys.roots(0), placed)(rows, 3, {}, {})
    assert audit.breaches() == audit.doubts() == [] and len(audit.rows) == 64 and len(audit.device_pairs) > 40


def test_devices_with_one_mask_are_found():
    def make(step, key, batch, params, feedback):
        at_device = jnp.broadcast_to(jnp.arange(32) % 8, batch.row.shape)  # instead of the row's number
        return mask(key, dataclasses.replace(batch, row=at_device), WORDS, CONFIG, 0.2)

    tokens = np.random.default_rng(0).integers(5, 400, (64, 64))
    rows, placed = placed_on_four_devices(batch(tokens))
    audit = auditor(make, WORDS, Config(mask=CONFIG), keys.roots(0), placed)(rows, 3, {}, {})
    assert audit.findings()["correlation between devices"] == pytest.approx(1)
    assert audit.doubts() == ["the masks of rows on two devices are correlated by 1.000"]


def test_the_verb(text, tmp_path, capfd):  # noqa: F811
    argv = ["--config=configs/tiny.py", f"--config.data.sources={text}", f"--workdir={tmp_path}", *SMALL]
    assert verb.main([*argv, "--visits=3", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["breaches"] == found["doubts"] == [] and found["rows"] % 3 == 0
    assert found["rate"]["realised"] == pytest.approx(0.15, abs=0.01)
    assert verb.main([*argv, "--rows=40"]) == 0
    assert "selected by frequency decile" in capfd.readouterr().out
    assert verb.main([*argv, "--rows=0"]) == 2
    levels = "--config.mask.levels=(('word', 1.0), ('phrase', 1.0))"
    argv.append(f"--config.data.rows={tmp_path}/rows")  # as they are
    for flags, says in [
        (["--config.mask.unit=phrase"], "config.mask.unit = 'phrase': the rows mark no phrases"),
        (["--config.mask.unit=hierarchical", levels], "config.mask.levels = 'phrase': the rows mark no phrases"),
    ]:
        capfd.readouterr()
        assert verb.main([*argv, *flags]) == 2
        assert says in capfd.readouterr().err
    for unit in ("sentence", "hierarchical"):
        assert verb.main([*argv, f"--config.mask.unit={unit}", "--config.mask.rate=0.3"]) == 0
