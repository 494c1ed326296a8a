"""Tokenizers of every kind that is trained: the same bytes each time, sizes, files, export, rows."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import tokenizers
from test_prepare import config_of, read_rows
from vocabularies import AROUND, NASTY, groups, model, prose

from mlm_jax.cli.prepare import summary
from mlm_jax.config import Config, ConfigError, TokenizerConfig, check
from mlm_jax.prepare import prepare
from mlm_jax.prepare.fitting import FITS, Kind
from mlm_jax.prepare.progress import Pulse
from mlm_jax.prepare.segmentation import segment
from mlm_jax.prepare.served import serve
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.records import WORD_START
from mlm_jax.text import split_words
from mlm_jax.tokenizer import Tokenizer

TEXTS = [prose(seed, 20_000) for seed in range(3)]
# words in which merges may overlap, capital letters, accents apart from their letters and not, other scripts
HARD = [*NASTY, "abababab aaaa aaa baab ababa hahahaha", "𠮷<0x41>"]
HARD += ["Éa ÉCOLE É \u0041\u030a İstanbul ǅ ΑΣΣ ß ﬁ 가나 かがガ Ñandú Å ẞ"]
KINDS = [Kind(name) for name in FITS]
KINDS += [Kind(name, byte_fallback=True) for name in ("unigram", "bpe", "char")]

SPELLED = [
    Kind(name, False, *both) for name in ("bpe", "wordpiece") for both in ((False, True), (True, False), (True, True))
]
SPELLED += [Kind("unigram", True, True, True), Kind("char", True, False, True), *KINDS]


def trained(kind: Kind, size: int = 600) -> Tokenizer:
    return train_tokenizer(TEXTS, size, kind)[0]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    encoding = tokenizer.encode(text)
    return [tokenizer.decode(encoding.ids[group]).removeprefix("##").replace(" ", "") for group in groups(encoding)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_pieces_words_and_files(tmp_path, kind):
    tokenizer = trained(kind)
    assert tokenizer.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and tokenizer.size <= 600
    for piece in tokenizer.shown[5:]:  # no piece crosses a word border
        assert len(split_words(piece.replace("▁", " "))) <= 1 or piece.startswith("<0x"), piece
    known = "".join(char for char in prose(11, 3000) if char in "".join(TEXTS))
    if kind.name != "wordpiece" or tokenizer.unk not in tokenizer.encode(known).ids:
        shown = [word.replace("\u2047", "?") for word in words(tokenizer, known)]
        assert [len(word) for word in shown] == [len(word) for word in split_words(known)]
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).hash == tokenizer.hash
    longest = max(map(len, tokenizer.shown[5:]))
    assert longest == 1 + (kind.name == "char") * 0 if kind.name == "char" and not kind.byte_fallback else longest > 4


@pytest.mark.parametrize("kind", SPELLED, ids=str)
def test_the_hub_format_has_the_same_ids(tmp_path, kind):
    tokenizer = train_tokenizer([*TEXTS[:1], *HARD * 3], 500, kind)[0]
    tokenizer.save_hub(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*HARD, prose(9, 3000)]:
        expected = [tokenizer.cls, *tokenizer.encode(text).ids.tolist(), tokenizer.sep]
        assert library.encode(text).ids == expected, text
    for text in AROUND:
        expected = [tokenizer.cls, *tokenizer.encode_around(text.split("MASK")), tokenizer.sep]
        assert library.encode(text.replace("MASK", "[MASK]")).ids == expected, text
    found = tokenizer.decode(tokenizer.encode("Élan vital İ").ids)
    plain = [char for char in found if char.isalpha()]
    assert any(char.isupper() for char in plain) != kind.lowercase
    assert ("É" in found or "é" in found) != kind.strip_accents or tokenizer.unk in tokenizer.encode("Élan vital İ").ids


def test_case_and_accents_are_switches_of_their_own():
    for name in ("unigram", "bpe", "char", "wordpiece"):
        for lowercase, strip_accents, expected in (
            (False, False, "Café Ñandú"),
            (True, False, "café ñandú"),
            (False, True, "Cafe Nandu"),
            (True, True, "cafe nandu"),
        ):
            text = ["Café Ñandú cafe\u0301 CAFÉ " * 20 + "cafe Nandu nandu Cafe CAFE " * 20]
            tokenizer = train_tokenizer(text, 200, Kind(name, False, lowercase, strip_accents))[0]
            assert tokenizer.decode(tokenizer.encode("Café Ñandú").ids) == expected


TIES = """
import sys
from mlm_jax.prepare.fitting import FITS, Kind
from mlm_jax.prepare.training import train_tokenizer
text = "ab ac ad bc bd cd abcd acbd bcda cdab dcba badc ef fe eg ge fg gf " * 2
print([train_tokenizer([text], 60, Kind(name))[0].hash for name in FITS])
"""


def test_every_kind_gives_the_same_bytes_in_every_process():
    commands = [[sys.executable, "-c", TIES]] * 3
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    assert len({process.communicate()[0] for process in running}) == 1 and not any(p.returncode for p in running)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sizes_long_lines_and_order(kind):
    many = " ".join(chr(0x4E00 + i) * (i + 1) for i in range(400))
    tokenizer, report = train_tokenizer([many], 300, kind)
    assert tokenizer.size <= 300 and report.alphabet <= 300 - kind.specials
    assert any("different characters fit" in line for line in report.messages())
    rare = tokenizer.encode(chr(0x4E00)).ids
    assert (tokenizer.unk in rare) != kind.byte_fallback
    if kind.byte_fallback:  # its three bytes, in this order
        assert [tokenizer.pieces[i] for i in rare[-3:]] == ["<0xE4>", "<0xB8>", "<0x80>"]
        assert any("written as bytes" in line for line in report.messages())
    tokenizer, report = train_tokenizer(["a" * 9001], 300, kind)
    assert (report.bytes_read, report.bytes_skipped) == (9001, 0) and report.longest_run == 9001
    assert train_tokenizer(TEXTS[::-1], 500, kind)[0].files == train_tokenizer(TEXTS, 500, kind)[0].files


def test_a_vocabulary_with_other_line_ends(tmp_path):
    tokenizer = trained(Kind("wordpiece", lowercase=True))
    tokenizer.save(tmp_path)
    (tmp_path / "vocab.txt").write_bytes((tmp_path / "vocab.txt").read_bytes().replace(b"\n", b"\r\n"))
    again = Tokenizer.load(tmp_path)
    assert again.pieces == tokenizer.pieces
    np.testing.assert_array_equal(again.encode(TEXTS[0]).ids, tokenizer.encode(TEXTS[0]).ids)


def test_characters_are_tokens_and_words_are_words():
    text = "Home land. 天气很好"
    tokenizer = train_tokenizer([text * 9], 100, Kind("char"))[0]
    encoding, lengths = tokenizer.encode_batch([text])
    assert [tokenizer.pieces[i] for i in encoding.ids] == list("▁Home▁land.▁天气很好")
    shown = tokenizer.show_words(encoding.ids, encoding.word_starts)
    assert shown == "[▁ H o m e] [▁ l a n d] [.] [▁ 天] [气] [很] [好]"
    starts = segment("icu", [text], tokenizer, encoding, lengths)
    assert tokenizer.show_words(encoding.ids, starts) == "[▁ H o m e] [▁ l a n d] [.] [▁ 天 气] [很 好]"


def test_bytes_of_a_character_are_one_word_and_ordinary():
    tokenizer = train_tokenizer(["some words, " * 50], 400, Kind("bpe", byte_fallback=True))[0]
    assert words(tokenizer, "wørds, some") == ["wørds", ",", "some"]
    assert set(range(5, 261)) <= set(tokenizer.ordinary.tolist())


@pytest.mark.parametrize("name", FITS)
def test_rows_of_each_kind(tmp_path, name):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": prose(i, 600)}) for i in range(40)))
    config = config_of(tmp_path / "a.jsonl", collocations=0)
    config.tokenizer = TokenizerConfig(kind=name, vocab_size=400, sample_bytes=50_000, lowercase=True)
    manifest = prepare(config, tmp_path / "rows", progress=False)
    training = manifest["tokenizer"]["training"]
    assert training["kind"] == {"name": name, "byte_fallback": False, "lowercase": True, "strip_accents": False}
    tokenizer = Tokenizer.load(tmp_path / "rows" / "tokenizer")
    rows = read_rows(tmp_path / "rows")
    whole = rows["segments"] > 0
    text = tokenizer.decode(rows["tokens"][0][whole[0]])
    assert text == text.lower() and len(text) > 20
    # words are as many as the rule of the text finds, whatever the kind
    starts = int(((rows["flags"] & WORD_START) > 0).sum())
    expected = sum(len(split_words(prose(i, 600).lower())) for i in range(40))
    evaluated = int(((read_rows(tmp_path / "rows", "eval")["flags"] & WORD_START) > 0).sum())
    assert abs(starts + evaluated - expected) <= 0.02 * expected


def test_mistakes_in_the_options():
    for tokenizer, message in (
        (TokenizerConfig(kind="words"), "must be one of unigram, bpe, char, wordpiece"),
        (TokenizerConfig(kind="wordpiece", byte_fallback=True), "WordPiece knows no bytes"),
        (TokenizerConfig(byte_fallback=True, vocab_size=260), "256 pieces are bytes"),
        (TokenizerConfig(kind="bpe", terms="x"), r"config\.tokenizer\.terms = 'x': cannot be added to"),
        (
            TokenizerConfig(path="x", lowercase=True),
            "lowercase = True: is for a tokenizer that is trained",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            check(Config(tokenizer=tokenizer), devices=1)


def test_text_of_the_librarys_own_signs_holds_no_word(tmp_path):
    signs = ["\u2581\u2581\u2581", "\u2585"]  # for white space and for the unknown
    for kind in KINDS[:3]:
        with pytest.raises(ValueError, match="no word"):
            train_tokenizer(signs, 300, kind)
        assert train_tokenizer([*signs, "word"], 300, kind)[1].pieces > 6
    letters = train_tokenizer(signs, 300, Kind("wordpiece"))[0].pieces[5:]  # to which the first is a sign like another
    assert letters == ["##\u2581", "\u2581"]
    (tmp_path / "a.txt").write_text("\n\n".join(signs), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.data\.sources = .*: hold no word to train a tokenizer on"):
        prepare(config_of(tmp_path / "a.txt", holdout=0.0), tmp_path / "rows", progress=False)


def test_a_bad_term_names_the_option(tmp_path):
    trained(Kind("unigram"), 200).save(tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text("some words")
    (tmp_path / "terms.txt").write_text("heart\nfoo bar\n")
    config = config_of(tmp_path / "a.txt")
    config.tokenizer = TokenizerConfig(path=str(tmp_path / "tokenizer"), terms=str(tmp_path / "terms.txt"))
    with pytest.raises(ConfigError, match=r"^config\.tokenizer\.terms = '.*terms\.txt': 'foo bar' must be one word, "):
        prepare(config, tmp_path / "rows", progress=False)


def test_terms_in_each_kind():
    for name in FITS:
        tokenizer = trained(Kind(name))
        if name in ("bpe", "char"):
            with pytest.raises(ConfigError, match="a unigram model alone"):
                tokenizer.add_terms(["thrombocyte"])
            continue
        more = tokenizer.add_terms(["thrombocyte"])
        assert tokenizer.size < more.size and len(more.encode("thrombocyte").ids) == 1
        np.testing.assert_array_equal(more.encode(TEXTS[0]).ids, tokenizer.encode(TEXTS[0]).ids)


def test_what_is_served_worst():
    """By hand: ▁home land | . | ▁x [UNK] y are three words, 6 tokens, of which one is unknown."""
    tokenizer = Tokenizer(model(["▁home", "land", ".", "▁x", "y", "▁天", "气", "▁"]))
    found = serve(tokenizer, ["homeland. xéy", "天气\n\n天 天"])
    assert (found["words"], found["tokens"], found["unknown"]) == (7, 10, 0.1)
    assert found["tokens_per_word"] == round(10 / 7, 3) and found["as_bytes"] == 0
    assert found["scripts"] == {
        "Cjk": {"words": 4, "tokens_per_word": 1.0, "unknown": 0.0},
        "Latin": {"words": 2, "tokens_per_word": 2.5, "unknown": 0.2},
        "Signs": {"words": 1, "tokens_per_word": 1.0, "unknown": 0.0},
    }
    assert found["characters"] == ["é"]
    assert found["words_of_most_pieces"][:2] == ["xéy", "homeland"]
    assert serve(tokenizer, [" ", ""]) == {}
    assert serve(tokenizer, ["天气"], "icu")["tokens_per_word"] == 2


def test_the_closing_report_of_training(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": prose(i, 600)}) for i in range(60)))
    manifest = prepare(
        config_of(tmp_path / "a.jsonl", collocations=0, vocab_size=260), tmp_path / "rows", progress=False
    )
    held_out, (corpus,) = manifest["tokenizer"]["training"]["held_out"], manifest["corpora"]
    # all held-out text is small enough to be looked at: the same tokens as in its rows, but for CLS and SEP
    evaluated = corpus["splits"]["eval"]
    assert held_out["tokens"] == evaluated["tokens"] - 2 * evaluated["segments"]
    assert abs(held_out["unknown"] * held_out["tokens"] - evaluated["unknown"]) < 0.1
    shown = summary(manifest, tmp_path / "rows")
    assert "unigram, trained on" in shown and "tokens a word by writing: Latin" in shown


def test_a_sign_of_life(capsys):
    with Pulse("tokenizer", True, seconds=0.01):
        time.sleep(0.1)
    assert "tokenizer: at work for 0 s, peak memory" in capsys.readouterr().err
    with Pulse("tokenizer", False, seconds=0.01):
        time.sleep(0.05)
    assert not capsys.readouterr().err
