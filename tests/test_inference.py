"""Texts in rows, long ones in windows, and their vectors, against direct means of what the model says of one text."""

import functools
import json
import shutil

import goldens
import jax
import numpy as np
import pytest
from test_hub import hub_folder

from mlm_jax.cli import convert as convert_verb
from mlm_jax.cli import embed as embed_verb
from mlm_jax.config import ConfigError
from mlm_jax.inference import embed, load, rows, run, windows

SHORT = ["the cat sleeps well.", "a dog", "", "birds", "fish swims the well."]
LONG = " ".join(["the cat dog bird fish sleeps barks sings swims well"] * 2)  # 20 tokens; a window has 14


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A hub folder, and a run that was made of it."""
    root = tmp_path_factory.mktemp("inference")
    folder = hub_folder(root / "hub", "bert")
    assert convert_verb.main([str(folder), str(root / "run")]) == 0
    return folder, root / "run"


@pytest.fixture(scope="module")
def loaded(folders):
    return load(folders[0])


@functools.cache
def applied(model):
    return jax.jit(lambda params, batch: model.apply(params, batch).hidden)


def states(loaded, ids) -> np.ndarray:
    """Hidden states [n,d] of one segment, alone in a row of 16 that is padded as `transformers` pads."""
    t = 16
    mask = (np.arange(t) < len(ids)).astype(np.int32)[None]
    padded = np.pad(ids, (0, t - len(ids)))[None].astype(np.int32)
    batch = goldens.padded({"input_ids": padded, "attention_mask": mask})
    return np.asarray(applied(loaded.model)(loaded.params, batch))[0, : len(ids)]


# ---- rows ----


@pytest.mark.parametrize("longest", [7, 40, 128])
def test_every_item_stands_in_one_row_and_rows_are_nearly_full(longest):
    lengths = np.random.default_rng(0).integers(2, longest + 1, 2000).tolist()
    packed = rows.pack(lengths, 128)
    assert sorted(item for row in packed for item in row) == list(range(2000))
    assert max(sum(lengths[item] for item in row) for row in packed) <= 128
    assert sum(lengths) / (128 * len(packed)) >= 0.95


def test_best_fit_by_hand():
    """8 2 | 6 4 | 5 5: each into the row that it fills most, the longest first."""
    assert rows.pack([5, 8, 4, 6, 2, 5], 10) == [[1, 4], [3, 2], [0, 5]]
    assert rows.pack([], 10) == []


def test_a_batch_by_hand():
    """Two rows of 64: the one that the longest fills, and one that two share."""
    items = [
        rows.Item(np.arange(100, 140), at=np.array([3]), targets=np.array([7])),
        rows.Item(np.array([2, 9, 3]), at=np.array([1, 2]), counted=np.array([False, True, False])),
        rows.Item(np.arange(200, 264)),
    ]
    [(batch, places)] = rows.batches(items, 1024)
    b = batch.batch
    assert b.tokens.shape == (2, 64) and b.firsts.shape == (2, 2)
    assert sorted(number for number, _ in places) == [0, 1, 2]
    for number, (row, segment, slots) in places:
        own = b.segments[row] == segment + 1
        begin = b.firsts[row, segment]
        length = len(items[number].ids)
        assert b.tokens[row, own].tolist() == items[number].ids.tolist()
        assert np.flatnonzero(own).tolist() == list(range(begin, begin + length))
        assert b.positions[row, own].tolist() == list(range(length))
        assert batch.at[row, slots].tolist() == [begin + place for place in items[number].at]
    assert batch.counted.sum() == 40 + 1 + 64 and (b.segments > 0).sum() == 107
    where = dict(places)
    assert batch.targets[where[0].row, where[0].slots].tolist() == [7]
    assert batch.targets[where[1].row, where[1].slots].tolist() == [0, 0]
    row = where[1].row
    assert b.tokens[row, batch.counted[row] & (b.segments[row] == where[1].segment + 1)].tolist() == [9]


def test_batches_hold_so_many_tokens_and_few_shapes():
    lengths = np.random.default_rng(1).integers(2, 60, 300)
    found = list(rows.batches([rows.Item(np.full(n, n)) for n in lengths], 512))
    shapes = [batch.batch.tokens.shape for batch, _ in found]
    assert set(shapes[:-1]) == {(4, 128)} and shapes[-1][0] in (1, 2, 4)
    assert sorted(number for _, places in found for number, _ in places) == list(range(300))
    for batch, _ in found:
        assert ((batch.batch.row >= 0) == batch.batch.segments.any(1)).all()


def test_a_single_short_text_is_a_short_row():
    for length, row in ((3, 16), (17, 32), (64, 64), (65, 128), (129, 256)):
        [(batch, _)] = rows.batches([rows.Item(np.full(length, 5))], 4096)
        assert batch.batch.tokens.shape == (1, row), length
    assert list(rows.batches([], 4096)) == []


# ---- windows ----


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 8, 14, 30, 126])
def test_windows_cut_a_text_without_a_gap(room):
    for length in range(5 * room + 3):
        found = windows.cut(length, room)
        assert [i for window in found for i in range(window.first, window.last)] == list(range(length))
        for window in found:
            assert 0 <= window.start <= window.first <= window.last <= window.stop <= length
            assert window.stop - window.start == min(room, length)
            looked = np.arange(window.first, window.last)
            if window.start > 0:
                assert (looked - window.start >= room // 8).all()
            if window.stop < length:
                assert (window.stop - 1 - looked >= room // 8).all()


def test_windows_around_a_place():
    assert windows.around(50, 100, 10) == (45, 55, 50, 51)
    assert windows.around(2, 100, 10) == (0, 10, 2, 3)
    assert windows.around(99, 100, 10) == (90, 100, 99, 100)
    assert windows.around(3, 6, 10) == (0, 6, 3, 4)


# ---- load ----


def test_a_run_a_checkpoint_and_a_hub_folder_are_the_same_model(folders, loaded, tmp_path):
    _, path = folders
    assert loaded.limit == 16 and loaded.path == str(folders[0])
    for other in (load(path), load(path / "checkpoints" / "0"), load(path, step=0)):
        assert other.limit == 16
        jax.tree.map(np.testing.assert_array_equal, other.params, loaded.params)
        assert [ids.tolist() for ids in other.encode(SHORT)] == [ids.tolist() for ids in loaded.encode(SHORT)]
    with pytest.raises(ConfigError, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="--step"):
        load(folders[0], step=3)


def test_a_run_reads_no_further_than_its_rows(folders):
    """Learned positions after those of its rows were never trained."""
    _, path = folders
    before = (path / "config.json").read_text()
    (path / "config.json").write_text(json.dumps(json.loads(before) | {"row_length": 8}))
    try:
        assert load(path).limit == 8
    finally:
        (path / "config.json").write_text(before)


def test_a_model_without_a_head_fills_nothing(loaded):
    loaded.check_fills()
    params = {name: part for name, part in loaded.params.items() if name != "head"}
    with pytest.raises(ConfigError, match="has no head"):
        loaded._replace(params=params).check_fills()


# ---- embed ----


@pytest.fixture(scope="module")
def vectors(loaded):
    """By the pooling; the long text stands among the short ones."""
    return {pooling: embed(loaded, [*SHORT, LONG], pooling=pooling) for pooling in ("mean", "cls")}


def test_the_mean_is_that_of_the_states(loaded, vectors):
    for vector, text in zip(vectors["mean"], SHORT):
        ids = [2, *loaded.tokenizer.encode(text).ids, 3]
        np.testing.assert_allclose(vector, states(loaded, ids).mean(0), atol=1e-5)


def test_cls_is_the_first_state(loaded, vectors):
    for vector, text in zip(vectors["cls"], SHORT):
        ids = [2, *loaded.tokenizer.encode(text).ids, 3]
        np.testing.assert_allclose(vector, states(loaded, ids)[0], atol=1e-5)


def test_a_text_alone_has_the_vector_that_it_has_among_others(loaded, vectors):
    alone = embed(loaded, SHORT[:1])
    assert alone.shape == (1, 24) and alone.dtype == np.float32
    np.testing.assert_allclose(alone[0], vectors["mean"][0], atol=1e-5)


def test_a_long_text_by_hand(loaded, vectors):
    """20 tokens in windows of 14 that share at least 3: 0-13 and 6-19, each read up to the middle of the common 8."""
    ids = loaded.tokenizer.encode(LONG).ids
    assert len(ids) == 20
    first, second = states(loaded, [2, *ids[:14], 3]), states(loaded, [2, *ids[6:], 3])
    # CLS and ten tokens of the first, ten and SEP of the second
    expected = np.concatenate([first[:11], second[5:]])
    assert len(expected) == 22
    np.testing.assert_allclose(vectors["mean"][-1], expected.mean(0), atol=1e-5)
    np.testing.assert_allclose(vectors["cls"][-1], (first[0] + second[0]) / 2, atol=1e-5)


def test_vectors_of_length_one(loaded, vectors):
    found = embed(loaded, [*SHORT, LONG], normalize=True)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    expected = vectors["mean"] / np.linalg.norm(vectors["mean"], axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_stream_is_answered_in_pieces(loaded, vectors, monkeypatch):
    monkeypatch.setattr(run, "TEXTS_AT_A_TIME", 3)
    found = embed(loaded, iter([*SHORT, LONG]))
    np.testing.assert_allclose(found, vectors["mean"], atol=1e-5)
    assert embed(loaded, []).shape == (0, 24)


def test_an_unknown_pooling(loaded):
    with pytest.raises(ConfigError, match=r"pooling = 'max': there is mean, cls"):
        embed(loaded, SHORT, pooling="max")


# ---- the verb ----


def test_embed_prints_a_line_for_each_text(folders, vectors, capfd):
    assert embed_verb.main([f"--workdir={folders[0]}", "--pooling=cls", *SHORT[:2], LONG]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == [*SHORT[:2], LONG]
    found = np.array([line["embedding"] for line in lines])
    np.testing.assert_allclose(found, vectors["cls"][[0, 1, 5]], atol=1e-5)


def test_embed_writes_an_array(folders, vectors, tmp_path, capfd):
    out = tmp_path / "vectors.npy"
    assert embed_verb.main([f"--workdir={folders[0]}", f"--out={out}", *SHORT[:2], LONG]) == 0
    assert capfd.readouterr().out == f"{out}: 3 vectors of 24\n"
    found = np.load(out)
    assert found.dtype == np.float32 and found.shape == (3, 24)
    np.testing.assert_allclose(found, vectors["mean"][[0, 1, 5]], atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npy"]


def test_embed_writes_a_table(folders, vectors, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(embed_verb, "ROWS", 2)  # two groups
    out = tmp_path / "vectors.parquet"
    assert embed_verb.main([f"--workdir={folders[0]}", f"--out={out}", "--normalize", *SHORT[:2], LONG]) == 0
    table = parquet.read_table(out)
    assert table.schema.names == ["text", "embedding"] and table.schema.field("embedding").type.list_size == 24
    assert table["text"].to_pylist() == [*SHORT[:2], LONG]
    expected = vectors["mean"][[0, 1, 5]]
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(table["embedding"].to_pylist(), expected, atol=1e-5)


def test_the_header_has_room_for_any_number(tmp_path):
    vectors = np.arange(60_000, dtype=np.float32).reshape(-1, 2)
    assert embed_verb.written(tmp_path / "many.npy", (("", vector) for vector in vectors), 2) == 30_000
    np.testing.assert_array_equal(np.load(tmp_path / "many.npy"), vectors)
    assert embed_verb.written(tmp_path / "none.npy", iter(()), 2) == 0
    assert np.load(tmp_path / "none.npy").shape == (0, 2)


def test_a_file_that_did_not_become_whole_is_not_there(tmp_path):
    def broken():
        yield "a", np.zeros(2, np.float32)
        raise ConfigError("text", "b", "is wrong")

    (tmp_path / "old.npy").write_bytes(b"of before")
    with pytest.raises(ConfigError, match="is wrong"):
        embed_verb.written(tmp_path / "old.npy", broken(), 2)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of before"]


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--out=vectors.txt", "a"], "--out=vectors.txt: must end in .npy or .parquet"),
        (["--pooling=max", "a"], "pooling = 'max': there is mean, cls"),
        (["--out=/nowhere/vectors.npy", "a"], "--out = '/nowhere/vectors.npy': cannot be written"),
    ],
)
def test_embed_says_what_is_wrong(folders, flags, says, capfd):
    assert embed_verb.main([f"--workdir={folders[0]}", *flags]) == 2
    assert says in capfd.readouterr().err


def test_embed_wants_a_model(capfd):
    assert embed_verb.main(["a"]) == 2
    assert "--workdir=DIR is missing" in capfd.readouterr().err


def test_ids_outside_of_the_word_table_are_refused(folders, tmp_path):
    """A table of 100 rows, and a tokenizer of 101 ids: in JAX the last one would silently read another row."""
    shutil.copytree(folders[0], tmp_path / "hub")
    with open(tmp_path / "hub" / "vocab.txt", "a") as file:
        file.write("zebra\n")
    with pytest.raises(ConfigError, match="has 100 rows in its word table, and its tokenizer 101 ids"):
        load(tmp_path / "hub")
