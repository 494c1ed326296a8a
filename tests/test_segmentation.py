"""Words in writing without white space: borders, the same for every family of tokenizers, and the rows that follow."""

import json
import sys
from unicodedata import normalize

import numpy as np
import pytest
from test_prepare import config_of, read_rows
from vocabularies import BYTE, byte_pairs, groups, model, prose, unigram, word_pieces

from mlm_jax.config import Config, ConfigError, DataConfig, check
from mlm_jax.prepare import prepare, segmentation
from mlm_jax.prepare.documents import encode_documents
from mlm_jax.prepare.identity import changes
from mlm_jax.prepare.segmentation import segment
from mlm_jax.records import WORD_START
from mlm_jax.tokenizer import Encoding, Tokenizer

# Words of modern text, as a reader of the language cuts them; "|" before each, or white space where the text has it.
TEXTS = [
    "天气|很好|456",
    "今天|天气|很好|，|我们|去|公园",
    "abc|中华|人民|共和国|2024|年|3|月 x",
    "これ|は|ペン|です|。|コンピューター|で|東京",
    "𠮷|野家|は|美味しい",  # a character beyond the 16 bits in which the library counts
    "ประเทศไทย|มี|ประชากร|มากกว่า Python เขียน|3|วัน",  # vowels above and below stay with their letters
    "あ|abc あ|.|b",
    "plain text|, as it is|.",
    "好",
    "",
]
PLAIN = [text.replace("|", "") for text in TEXTS]
WORDS = [[word for part in text.split() for word in part.split("|") if word] for text in TEXTS]
KNOWN = sorted(set("".join(PLAIN)) - {" "})


def families(folder) -> dict[str, Tokenizer]:
    hexes = [(f"<0x{value:02X}>", BYTE) for value in range(256)]
    return {
        "SentencePiece": Tokenizer(model(["▁", *KNOWN, "45", "天气", "▁今天"])),
        "unknown characters": Tokenizer(model(["▁", *(char for char in KNOWN if char not in "气中𠮷กe")])),
        "bytes of a character": Tokenizer(model(["▁", "a", "天"], more=hexes, byte_fallback=True)),
        "WordPiece": word_pieces(folder / "w", [*KNOWN, *(f"##{char}" for char in KNOWN)]),
        "byte pairs": byte_pairs(folder / "b", ["Ġ t"]),
        "unigram": unigram(folder / "u", ["▁", *KNOWN]),
    }


def segmented(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    encoding, lengths = tokenizer.encode_batch(texts)
    starts = segment("icu", texts, tokenizer, encoding, lengths)
    ends = np.cumsum(lengths)
    return [Encoding(encoding.ids[end - n : end], starts[end - n : end]) for n, end in zip(lengths, ends)]


def test_words_are_the_same_for_every_family(tmp_path):
    """As a reader cuts the text, whatever the pieces."""
    for family, tokenizer in families(tmp_path).items():
        for text, words, encoding in zip(PLAIN, WORDS, segmented(tokenizer, PLAIN)):
            found = [tokenizer.decode(encoding.ids[group]) for group in groups(encoding)]
            assert len(found) == len(words), (family, text, found)
            if tokenizer.unk not in encoding.ids:
                found = [word.replace(" ", "").replace("##", "") for word in found]
                assert found == [normalize("NFKC", word) if family == "unigram" else word for word in words], family


def test_an_expression_that_is_cut_by_its_words(tmp_path):
    tokenizer = word_pieces(tmp_path, ["天", "气", "很", "好", "45", "##6"])
    assert groups(tokenizer.encode("天气很好456")) == [[0], [1], [2], [3], [4, 5]]
    assert groups(segmented(tokenizer, ["天气很好456"])[0]) == [[0, 1], [2, 3], [4, 5]]


def test_a_segmenter_cuts_as_it_says(tmp_path, monkeypatch):
    """With words 天气, 很, 好 and 456 the groups are {0, 1}, {2}, {3}, {4, 5}."""
    monkeypatch.setitem(segmentation.SEGMENTERS, "icu", lambda text: np.array([0, 2, 3]))
    tokenizer = word_pieces(tmp_path, ["天", "气", "很", "好", "45", "##6"])
    assert groups(segmented(tokenizer, ["天气很好456"])[0]) == [[0, 1], [2], [3], [4, 5]]


def test_a_piece_across_a_border_joins_both_words():
    tokenizer = Tokenizer(model(["▁", "天", "气很", "好"]))
    (encoding,) = segmented(tokenizer, ["天气很好"])
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["▁", "天", "气很", "好"]
    assert groups(encoding) == [[0, 1, 2, 3]]


def test_marks_stay_with_their_letters():
    tokenizer = Tokenizer(model(["▁", "天", "气", "人", "\u0301", "\u0e34", "a", "."]))
    (encoding, lone) = segmented(tokenizer, ["天\u0301气人\u0301a a\u0e34.", "\u0e34a"])
    shown = [tokenizer.decode(encoding.ids[group]).strip() for group in groups(encoding)]
    assert shown == ["天\u0301", "气", "人\u0301", "a", "a\u0e34", "."]
    assert len(groups(lone)) == 1


def test_other_text_keeps_its_words(tmp_path):
    texts = [text.translate({ord(char): None for char in "天气很好と言う"}) for text in (prose(1, 3000), prose(2, 500))]
    for tokenizer in families(tmp_path).values():
        encoding, lengths = tokenizer.encode_batch(texts)
        found = segment("icu", texts, tokenizer, encoding, lengths)
        np.testing.assert_array_equal(found, encoding.word_starts)


def test_rows_have_the_words(tmp_path):
    sentence = "今天天气很好，我们去公园。" * 4
    lines = [json.dumps({"text": f"{sentence}\n{i} {sentence}"}, ensure_ascii=False) for i in range(60)]
    (tmp_path / "zh.jsonl").write_text("\n".join(lines), encoding="utf-8")
    config = config_of(tmp_path / "zh.jsonl", collocations=0, segmenter="icu")
    manifest = prepare(config, tmp_path / "icu", progress=False)
    plain = prepare(config_of(tmp_path / "zh.jsonl", collocations=0), tmp_path / "none", progress=False)
    assert manifest["segmenter"]["name"] == "icu" and plain["segmenter"] == {}
    notes = [[note for note in each["notes"] if "ideographs" in note] for each in (manifest, plain)]
    assert not notes[0] and len(notes[1]) == 1 and "data.segmenter=icu" in notes[1][0]
    assert manifest["unigrams"] == plain["unigrams"]  # the ids are the same
    # 今天 天气 很好 ， 我们 去 公园 。: 8 words of 13 characters
    share = manifest["flags"]["word_starts"] / plain["flags"]["word_starts"]
    assert abs(share - 8 / 13) < 0.02
    rows = read_rows(tmp_path / "icu")
    starts = np.diff(np.flatnonzero((rows["flags"] & WORD_START).ravel()))
    assert {1, 2} <= set(starts.tolist()) and 0.5 < np.mean(starts == 2) < 0.8


def test_another_version_finds_other_words(tmp_path, monkeypatch):
    import icu4py

    (tmp_path / "a.txt").write_text("\u5929\u6c14\u5f88\u597d\n" * 20)
    config = config_of(tmp_path / "a.txt", segmenter="icu", encoded=str(tmp_path / "encoded"), holdout=0.0)
    first = prepare(config, tmp_path / "rows", progress=False)
    with monkeypatch.context() as patch:  # finished rows need the library no more
        patch.setitem(sys.modules, "icu4py", None)
        assert prepare(config, tmp_path / "rows", progress=False) == first
    monkeypatch.setattr(icu4py, "icu_version", "1.0")
    second = prepare(config, tmp_path / "rows", progress=False)
    assert second["segmenter"]["version"] == "1.0" and second["fingerprint"] != first["fingerprint"]
    assert len(list((tmp_path / "encoded").iterdir())) == 2 and not changes(config, first)
    config.data.segmenter = "none"
    plain = prepare(config, tmp_path / "plain", progress=False)["fingerprint"]
    monkeypatch.undo()
    assert prepare(config, tmp_path / "again", progress=False)["fingerprint"] == plain


def test_a_segmenter_that_is_not_there(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.data\.segmenter = 'jieba': must be one of none, icu"):
        check(Config(data=DataConfig(segmenter="jieba")), devices=1)
    monkeypatch.setitem(sys.modules, "icu4py", None)
    (tmp_path / "a.txt").write_text("天气很好")
    with pytest.raises(ConfigError, match=r"pip install 'mlm-jax\[prepare\]'"):
        prepare(config_of(tmp_path / "a.txt", segmenter="icu"), tmp_path / "rows", progress=False)


def test_documents_are_segmented_paragraph_by_paragraph(tmp_path):
    tokenizer = families(tmp_path)["SentencePiece"]
    ids, flags, lengths = encode_documents(["天气很好\n\n今天 天气", "", "很好"], tokenizer, "icu")
    assert lengths.tolist() == [7, 0, 3]
    words = (flags & WORD_START != 0).tolist()
    pieces = [tokenizer.pieces[i] for i in ids]
    assert list(zip(pieces, words)) == [
        ("▁", True),
        ("天气", False),
        ("很", True),
        ("好", False),
        ("▁今天", True),
        ("▁", True),
        ("天气", False),
        ("▁", True),
        ("很", False),
        ("好", False),
    ]
