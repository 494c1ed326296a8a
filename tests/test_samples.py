"""Samples on hand-made rows, against a separate mask and a softmax in numpy."""

import dataclasses

import jax
import numpy as np
import pytest
from batches import CLS, MASK, PAD, SEP, batch, vocabulary

from mlm_jax import records, samples, sharding
from mlm_jax.config import Config, DataConfig, EvaluateConfig, MaskConfig, MeshConfig, ModelConfig
from mlm_jax.keys import root
from mlm_jax.masking import mask
from mlm_jax.models import build
from mlm_jax.tokenizer import Tokenizer

T, SEGMENTS, SIZE = 32, 4, 40
PIECES = [f"p{i}" for i in range(SIZE)]
CONFIG = Config(
    batch_size=4,
    row_length=T,
    data=DataConfig(max_segments=SEGMENTS),
    mask=MaskConfig(rate=0.3, unit="word"),
    model=ModelConfig(layers=2, width=8, heads=2, hidden=16, max_positions=T, dropout=0.1, initializer_range=0.5),
    evaluate=EvaluateConfig(seed=7),
)


def tokenizer():
    made = object.__new__(Tokenizer)
    made.shown = PIECES
    return made


def write(folder, rows_of_sets):
    """A manifest and shards; each row is a list of segments, each a list of ids between its CLS and SEP."""
    layout = records.Layout(T, SEGMENTS, "uint16")
    corpora = []
    for number, rows in enumerate(rows_of_sets):
        encoded = []
        for row in rows:
            ids = [[CLS, *segment, SEP] for segment in row]
            tokens = [i for segment in ids for i in segment]
            firsts = np.cumsum([0] + [len(segment) for segment in ids])[:-1]
            flags = [records.WORD_START] * len(tokens)
            encoded.append(records.encode_row(layout, tokens, flags, firsts, [-1] * len(ids), PAD))
        file = f"{number}.array_record"
        records.write_shard(folder / file, encoded)
        held_out = {"rows": len(rows), "shards": [{"file": file, "rows": len(rows), "hash": ""}] if rows else []}
        splits = {"train": {"rows": 0, "shards": []}, "eval": held_out}
        corpora.append({"source": f"text/set{number}.txt", "splits": splits})
    return {
        "row_length": T,
        "max_segments": SEGMENTS,
        "dtype": "uint16",
        "tokenizer": {"pad": PAD, "vocab_size": SIZE},
        "corpora": corpora,
    }


def segment(seed, length):
    return np.random.default_rng(seed).integers(5, SIZE, length).tolist()


def run(tmp_path, rows_of_sets, config=CONFIG, shape=(1, 1, 1)):
    """The manifest's samples, the model and the parameters."""
    manifest = write(tmp_path, rows_of_sets)
    mesh = sharding.make_mesh(
        dict(zip(("data", "fsdp", "tensor"), shape)), devices=jax.devices()[: int(np.prod(shape))]
    )
    model = build(config.model, SIZE)
    params = model.init(root(0, 3))
    guess = samples.make_samples(model, tokenizer(), vocabulary(SIZE), config, tmp_path, manifest, mesh)
    with sharding.activate(mesh, MeshConfig()):
        placed = jax.device_put(params, sharding.shardings(mesh, params, MeshConfig()))
        return guess(placed), model, params


TWO = [[segment(0, 12), segment(1, 14)], [segment(2, 28)]]


def test_places_targets_and_probabilities_against_numpy(tmp_path):
    got, model, params = run(tmp_path, [TWO])
    fixed = MaskConfig(rate=0.3, unit="word", corruption=(1.0, 0.0, 0.0))
    padded = [[CLS, *TWO[0][0], SEP, CLS, *TWO[0][1], SEP, 0, 0], [CLS, *TWO[1][0], SEP, 0, 0]]
    rows = batch(padded, [[1] * 14 + [2] * 16 + [0, 0], [1] * 30 + [0, 0]], rows=[0, 1])
    selected = np.asarray(mask(root(7, 2), rows, vocabulary(SIZE), fixed, 0.3).selected)
    inputs = np.where(selected, MASK, rows.tokens)
    hidden = model.apply(params, dataclasses.replace(rows, tokens=jax.numpy.asarray(inputs))).hidden
    logits = np.asarray(model.logits(params, hidden), np.float64)[..., :SIZE]
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    assert [text["set"] for text in got] == ["set0"] * 3
    for text, (row, first, after) in zip(got, [(0, 1, 13), (0, 15, 29), (1, 1, 29)]):
        assert text["tokens"] == [PIECES[i] for i in padded[row][first:after]]
        places = np.flatnonzero(selected[row, first:after])
        assert [place["place"] for place in text["masked"]] == places.tolist()
        for place in text["masked"]:
            assert place["target"] == text["tokens"][place["place"]]
            expected = chances[row, first + place["place"]]
            best = np.argsort(-expected)[:5]
            assert [piece for piece, _ in place["guesses"]] == [PIECES[i] for i in best]
            np.testing.assert_allclose([p for _, p in place["guesses"]], expected[best], atol=1e-4)


def test_texts_of_a_good_length_come_first_and_each_set_has_its_turn(tmp_path):
    long, short = [segment(0, 30)], [segment(1, 4), segment(2, 11)]
    rows = [short, long] * 4
    got, *_ = run(tmp_path, [[], rows, rows])
    assert [text["set"] for text in got] == ["set1"] * 3 + ["set2"] * 3
    # segments of 11 and 30 tokens in the order of the rows; those of 4 would come last
    assert [len(text["tokens"]) for text in got] == [11, 30, 11] * 2
    # the rows of the second set are numbered after those of the first, so their masks are others
    assert [text["tokens"] for text in got[:3]] == [text["tokens"] for text in got[3:]]
    assert [text["masked"] for text in got[:3]] != [text["masked"] for text in got[3:]]


def test_a_long_text_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "LONGEST", 20)
    monkeypatch.setattr(samples, "MOST_PLACES", 3)
    got, *_ = run(tmp_path, [[[segment(0, 30)]]])
    assert len(got[0]["tokens"]) == 20 and len(got[0]["masked"]) == 3


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2)])
def test_any_mesh_gives_the_same_answer(tmp_path, shape):
    one, other = run(tmp_path, [TWO])[0], run(tmp_path, [TWO], shape=shape)[0]
    assert len(one) == len(other) == 3
    for text, same in zip(one, other):
        assert text["tokens"] == same["tokens"]
        for place, again in zip(text["masked"], same["masked"]):
            assert place["place"] == again["place"]
            np.testing.assert_allclose([p for _, p in place["guesses"]], [p for _, p in again["guesses"]], atol=2e-4)


def test_without_held_out_rows_or_masked_places_there_are_no_samples(tmp_path):
    assert run(tmp_path, [[]])[0] == []
    none = dataclasses.replace(CONFIG, mask=MaskConfig(rate=0.0))
    assert run(tmp_path, [TWO], none)[0] == []


def test_an_id_without_a_piece_is_shown_by_its_number():
    text = samples.Text("a", None, np.zeros(4, np.int32), 1, np.array([6, 7]), np.array([2]))
    shown = samples._described(text, PIECES, np.array([[39, 41]]), np.array([[0.61239, 0.2]]))
    assert shown == {
        "set": "a",
        "tokens": ["p6", "p7"],
        "masked": [{"place": 1, "target": "p7", "guesses": [["p39", 0.6124], ["[41]", 0.2]]}],
    }
