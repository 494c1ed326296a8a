"""Encoded documents of a group, read by pieces in the order of their hashes."""

import json
import random

import numpy as np
import pytest

from mlm_jax.prepare import encoded
from mlm_jax.prepare.encoded import Part, equal_names, pieces


def write_parts(path, documents: list[list[tuple[int, list[int]]]]) -> list[Part]:
    """(hash, ids) of the documents of each part, all in one file with something else before each."""
    parts = []
    with open(path, "wb") as out:
        for number, members in enumerate(documents):
            out.write(b"something else")
            members = sorted(members)
            offset, ids = out.tell(), [i for _, ids in members for i in ids]
            out.write(np.array([value for value, _ in members], "<u8").tobytes())
            out.write(np.array([len(ids) for _, ids in members], "<i4").tobytes())
            out.write(np.array(ids, "<i4").tobytes())
            out.write((np.array(ids) % 251).astype("u1").tobytes())
            names = json.dumps([(f"d{value}", f"f{number}:{place}") for place, (value, _) in enumerate(members)])
            parts.append(Part(str(path), offset, len(members), len(ids), out.write(names.encode())))
    return parts


@pytest.mark.parametrize("size", [1, 10, 100, 10**9])
def test_pieces_hold_every_document_once_in_order(tmp_path, monkeypatch, size):
    draw = random.Random(0)
    values = [draw.getrandbits(64) for _ in range(300)]
    documents = [(value, [draw.randrange(10**6) for _ in range(draw.randint(1, 20))]) for value in values]
    parts = write_parts(tmp_path / "a.bin", [documents[:100], documents[100:101], documents[101:]])
    monkeypatch.setattr(encoded, "PIECE_TOKENS", size)
    found = list(pieces(parts))
    expected = sorted(documents)
    assert np.concatenate([piece.lengths for piece in found]).tolist() == [len(ids) for _, ids in expected]
    ids = np.concatenate([piece.ids for piece in found])
    assert ids.tolist() == [i for _, ids in expected for i in ids]
    np.testing.assert_array_equal(np.concatenate([piece.flags for piece in found]), ids % 251)
    assert all(piece.lengths.sum() == len(piece.ids) == len(piece.flags) < size + 20 for piece in found)
    assert len(found) == 1 if size == 10**9 else len(found) >= len(ids) / (size + 20)
    # which unit a document came from does not matter
    other = write_parts(tmp_path / "b.bin", [documents[::2], documents[1::2]])
    for left, right in zip(found, pieces(other), strict=True):
        np.testing.assert_array_equal(left.ids, right.ids)


def test_equal_hashes_are_named(tmp_path):
    parts = write_parts(tmp_path / "a.bin", [[(5, [1]), (9, [1])], [(7, [1])], [(1, [1]), (9, [2]), (11, [1])]])
    assert equal_names(parts) == [("d9", "f0:1"), ("d9", "f2:1")]
    assert equal_names(parts[:2]) == []
