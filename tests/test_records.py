"""Row records against arrays written out by hand, and shards and manifests on disk."""

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from mlm_jax import records
from mlm_jax.records import Layout

LAYOUT = Layout(6, 3, "uint16")


def row(tokens=(5, 6, 7, 8, 9), flags=(0, 1, 2, 0, 1), firsts=(0, 3), labels=(-1, 1)) -> bytes:
    return records.encode_row(LAYOUT, tokens, flags, firsts, labels, pad=4)


def test_two_segments_and_padding():
    rows = records.decode_rows(LAYOUT, [row()])
    np.testing.assert_array_equal(rows["tokens"], [[5, 6, 7, 8, 9, 4]])
    np.testing.assert_array_equal(rows["segments"], [[1, 1, 1, 2, 2, 0]])
    np.testing.assert_array_equal(rows["positions"], [[0, 1, 2, 0, 1, 0]])
    np.testing.assert_array_equal(rows["flags"], [[0, 1, 2, 0, 1, 0]])
    np.testing.assert_array_equal(rows["firsts"], [[0, 3, 0]])
    np.testing.assert_array_equal(rows["pair_labels"], [[-1, 1, -1]])
    assert {rows[name].dtype.name for name in ("tokens", "segments", "positions", "firsts", "pair_labels")} == {"int32"}


def test_bytes_of_a_record():
    # ids, flags, starts, labels, length; little-endian, nothing between
    expected = bytes([5, 0, 6, 0, 7, 0, 8, 0, 9, 0, 4, 0]) + bytes([0, 1, 2, 0, 1, 0])
    expected += bytes([0, 0, 3, 0, 255, 255]) + bytes([255, 1, 255]) + bytes([5, 0])
    assert row() == expected


def test_many_rows_at_once_equal_single_ones():
    tokens = np.array([[5, 6, 7, 8, 9, 4], [5, 6, 4, 4, 4, 4]])
    flags = np.array([[0, 1, 2, 0, 1, 0], [0, 7, 0, 0, 0, 0]], np.uint8)
    firsts = np.array([[0, 3, -1], [0, -1, -1]])
    block = records.encode_rows(LAYOUT, tokens, flags, firsts, np.array([[-1, 1, -1], [0, -1, -1]]), np.array([5, 2]))
    assert block == [row(labels=(-1, 1)), row((5, 6), (0, 7), (0,), (0,))]


@pytest.mark.parametrize("vocab_size, dtype", [(65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_integer_type_holds_the_largest_id(vocab_size, dtype):
    layout = Layout.for_vocabulary(4, 1, vocab_size)
    assert layout.dtype == dtype
    raw = records.encode_row(layout, [vocab_size - 1], [1], [0], [-1], pad=0)
    assert records.decode_rows(layout, [raw])["tokens"][0, 0] == vocab_size - 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="65536"):
        records.encode_row(LAYOUT, [65_536], [0], [0], [-1], pad=0)
    with pytest.raises(ValueError, match="7 tokens"):
        records.encode_row(LAYOUT, [1] * 7, [0] * 7, [0], [-1], pad=0)
    with pytest.raises(ValueError, match="65536"):
        wide = np.full((1, 6), 65_536)
        of_segments = np.zeros((1, 3), int)
        records.encode_rows(LAYOUT, wide, np.zeros((1, 6), np.uint8), of_segments, of_segments, np.array([6]))
    with pytest.raises(ValueError, match="bytes"):
        records.decode_rows(LAYOUT, [b"short"])


def test_a_shard_gives_back_its_rows(tmp_path):
    path = tmp_path / "train" / "0-0000.array_record"
    assert records.write_shard(path, iter([row(), row((1,), (1,), (0,), (-1,))])) == 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    reader = ArrayRecordReader(str(path))
    assert reader.read([1, 0]) == [row((1,), (1,), (0,), (-1,)), row()]
    reader.close()


def test_a_shard_that_failed_does_not_appear(tmp_path):
    def rows():
        yield row()
        raise KeyError("interrupted")

    path = tmp_path / "0-0000.array_record"
    with pytest.raises(KeyError):
        records.write_shard(path, rows())
    assert not path.exists()


def test_manifest_of_another_format_is_refused(tmp_path):
    records.write_json(tmp_path / records.MANIFEST, {"format": records.FORMAT, "row_length": 6})
    assert records.read_manifest(tmp_path)["row_length"] == 6
    records.write_json(tmp_path / records.MANIFEST, {"format": records.FORMAT + 1})
    with pytest.raises(ValueError, match=r"manifest\.json.*: has format 4, not 3: prepare again"):
        records.read_manifest(tmp_path)
    with pytest.raises(ValueError, match="is no manifest of rows"):
        records.read_manifest(tmp_path / "nowhere")
