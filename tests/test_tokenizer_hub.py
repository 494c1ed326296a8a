"""Tokenizers of the hub: WordPiece, byte-level pairs, unigram; reading, words, special tokens, writing, new terms."""

import io
import itertools
import json
import os

import numpy as np
import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from vocabularies import (
    AROUND,
    BERT,
    BYTE,
    LETTERS,
    NASTY,
    USER_DEFINED,
    byte_pairs,
    from_content,
    groups,
    model,
    prose,
    unigram,
    word_pieces,
)

from mlm_jax.config import Config, ConfigError, DataConfig, TokenizerConfig
from mlm_jax.prepare import prepare
from mlm_jax.prepare.documents import encode_documents
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.records import SENTENCE_START, WORD_START, Layout
from mlm_jax.text import clean, split_words
from mlm_jax.tokenizer import GRID, Tokenizer, export, hub, pieces

WORD_PIECES = ["ho", "##me", "天", *LETTERS, *(f"##{char}" for char in LETTERS), *".,!?'()_-", *"0123456789"]
MERGES = ["h o", "ho m", "hom e", "l a", "n d", "la nd", "Ġ s", "Ġs e", "Ġse c", "u r", "i t", "it y"]


def characters(text: str) -> list[str]:
    return sorted(set(text) - {" "})


def families(folder, text: str) -> dict[str, Tokenizer]:
    """A tokenizer of each family that knows the characters of a text, and nothing longer."""
    known = characters(text)
    return {
        "SentencePiece": Tokenizer(model(["▁", *known])),
        "WordPiece": word_pieces(folder / "words", [*known, *(f"##{char}" for char in known)], strip_accents=False),
        "byte pairs": byte_pairs(folder / "bytes", []),
        "unigram": unigram(folder / "unigram", ["▁", *known], lambda content: content.update(normalizer=None)),
    }


def words_by_place(tokenizer: Tokenizer, text: str) -> list[str]:
    """The characters of each group of tokens, from the decoded text."""
    encoding = tokenizer.encode(text)
    found = ["".join(tokenizer.decode(encoding.ids[group]).split()) for group in groups(encoding)]
    return [word.removeprefix("##") for word in found]


# Words


def test_the_same_words_in_every_family(tmp_path):
    made = {
        "SentencePiece": Tokenizer(model(["▁home", "land", "▁se", "cur", "ity", "."])),
        "WordPiece": word_pieces(tmp_path / "w", ["home", "##land", "se", "##cur", "##ity", "."]),
        "byte pairs": byte_pairs(tmp_path / "b", MERGES),
        "unigram": unigram(tmp_path / "u", ["▁home", "land", "▁se", "cur", "ity", "."]),
    }
    pieces = {
        "SentencePiece": "▁home land ▁se cur ity .",
        "WordPiece": "home ##land se ##cur ##ity .",
        "byte pairs": "home land Ġsec ur ity .",
        "unigram": "▁home land ▁se cur ity .",
    }
    for family, tokenizer in made.items():
        encoding = tokenizer.encode("homeland security.")
        assert " ".join(tokenizer.pieces[i] for i in encoding.ids) == pieces[family]
        np.testing.assert_array_equal(encoding.word_starts, [True, False, True, False, False, True], family)
        assert encoding.ids.dtype == np.int32 and encoding.word_starts.dtype == bool


@pytest.mark.parametrize(
    "text",
    [
        "don't stop (a) 1,5 snake_case.",
        "天气abc好 です。か",
        "e\u0301a .\u0301x 好\u0301\u0302x",
        "\U0001f600 \U0001f600a",
        "a",
        "مُحَمَّد",
    ],
)
def test_the_word_rule_in_every_family(tmp_path, text):
    for family, tokenizer in families(tmp_path, text).items():
        assert words_by_place(tokenizer, text) == split_words(text), family


def test_words_of_invented_prose(tmp_path):
    text = prose(10, 3000)
    for family, tokenizer in families(tmp_path, text).items():
        assert words_by_place(tokenizer, text.strip()) == split_words(text), family


def test_white_space_alone_belongs_to_the_token_after_it(tmp_path):
    tokenizer = byte_pairs(tmp_path, [])
    encoding = tokenizer.encode("a 天 b")
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["a", "Ġ", "å", "¤", "©", "Ġ", "b"]
    assert groups(encoding) == [[0], [1, 2, 3, 4], [5, 6]]


def test_characters_that_a_normaliser_makes_stay_one_word(tmp_path):
    tokenizer = unigram(tmp_path, ["▁", "1", "⁄", "2", "a"])
    encoding = tokenizer.encode("½ a")
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["▁", "1", "⁄", "2", "▁", "a"]
    assert groups(encoding) == [[0, 1, 2, 3], [4, 5]]


def test_each_ideograph_is_a_word(tmp_path):
    tokenizer = word_pieces(tmp_path, ["天", "气", "很", "好", "45", "##6"])
    encoding = tokenizer.encode("天气很好456")
    assert groups(encoding) == [[0], [1], [2], [3], [4, 5]]
    assert tokenizer.ideographs[encoding.ids].tolist() == [True] * 4 + [False] * 2


def test_sentences_begin_at_the_right_token(tmp_path):
    text = "Ah té! “Bé.” Cé 天气。好天 ½. D"
    for family, tokenizer in families(tmp_path, text + "Ace. Be").items():
        ids, flags, _ = encode_documents([text, "", "Ace. Be"], tokenizer)
        places = [*np.flatnonzero(flags & SENTENCE_START), len(ids)]
        found = [tokenizer.decode(ids[a:b]).replace(" ", "") for a, b in itertools.pairwise(places)]
        assert found == ["Ahté!", "“Bé.”", "Cé天气。", "好天½.", "D", "Ace.", "Be"], family
        assert (flags[places[:-1]] & WORD_START).all()


def test_a_batch_equals_its_texts(tmp_path, monkeypatch):
    texts = [clean(prose(seed, 200)) for seed in range(8)] + ["", "b"]
    for tokenizer in families(tmp_path, "".join(texts)).values():
        whole, lengths = tokenizer.encode_batch(texts)
        monkeypatch.setattr(hub, "BATCH", 300)
        np.testing.assert_array_equal(tokenizer.encode_batch(texts)[0].ids, whole.ids)
        each = [tokenizer.encode(text) for text in texts]
        np.testing.assert_array_equal(lengths, [len(one.ids) for one in each])
        np.testing.assert_array_equal(whole.word_starts, np.concatenate([one.word_starts for one in each]))
        empty, none = tokenizer.encode_batch([])
        assert empty.ids.dtype == np.int32 and not len(empty.word_starts) and not len(none)


def lowered(content: dict) -> None:
    content["normalizer"] = {"type": "Lowercase"}


def composed(content: dict) -> None:
    content["normalizer"] = {"type": "NFC"}
    content["pre_tokenizer"]["add_prefix_space"] = True


@pytest.mark.parametrize(
    "make, by_words",
    [
        (lambda folder: word_pieces(folder, WORD_PIECES), True),
        (lambda folder: word_pieces(folder, WORD_PIECES, do_lower_case=True), True),
        (lambda folder: word_pieces(folder, WORD_PIECES, tokenize_chinese_chars=False, strip_accents=True), True),
        (lambda folder: byte_pairs(folder, MERGES), True),
        (lambda folder: byte_pairs(folder, MERGES, composed), True),
        (lambda folder: byte_pairs(folder, MERGES, lowered), False),  # of lower-casing it is not known
        (lambda folder: unigram(folder, ["▁", *LETTERS]), False),
    ],
)
def test_words_encoded_once_give_what_the_library_gives_for_the_text(tmp_path, monkeypatch, make, by_words):
    tokenizer = make(tmp_path)
    backend = tokenizer._backend
    assert (backend._words is not None) == by_words
    monkeypatch.setattr(pieces, "ROOM", 2000)  # so that words are forgotten, and met again
    texts = [clean(text) for seed in range(6) for text in [*NASTY, prose(seed, 900), prose(seed, 100)]]
    for text in [*texts, " ".join(text.strip() for text in texts)]:
        encoding, lengths = tokenizer.encode_batch([text])
        whole = backend._plain.encode(text, add_special_tokens=False)
        starts, places = hub.find_words([text], lengths, *np.array(whole.offsets, np.int64).reshape(-1, 2).T)
        assert encoding.ids.tolist() == whole.ids and lengths.tolist() == [len(whole.ids)]
        assert np.array_equal(encoding.word_starts, starts) and np.array_equal(encoding.places, places)


def test_many_at_once_are_what_each_is(tmp_path):
    text = "Tea, na\u00efve \u5929\u6c14 at home."
    for tokenizer in families(tmp_path, text).values():
        encoding, lengths = tokenizer.encode_batch([text, "a"], cleaned=True)
        assert encoding.ids[: lengths[0]].tolist() == tokenizer.encode(text).ids.tolist()
        each = [encoding.ids.tolist(), [], [tokenizer.unk], [tokenizer.cls, *encoding.ids[:3].tolist()]]
        assert tokenizer.decode_batch(each) == [tokenizer.decode(ids) for ids in each]
        assert tokenizer.decode_batch([]) == []


def test_an_added_word_keeps_text_whole(tmp_path):
    def add(content: dict) -> None:
        added = content["added_tokens"][0] | {"id": 261, "content": "new york", "special": False}
        content["added_tokens"].append(added)

    tokenizer = byte_pairs(tmp_path, [], add)
    assert tokenizer._backend._words is None
    assert 261 in tokenizer.encode("in new york now").ids


def test_the_library_gets_its_threads_back(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    byte_pairs(tmp_path, []).encode("a")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    Tokenizer.load(tmp_path).encode("a")
    assert "TOKENIZERS_PARALLELISM" not in os.environ


# vocab.txt


def test_lines_of_a_vocabulary():
    lines = hub.vocab_lines("a\r\nb\rc\n\u2028\n\x0b\n\x85\n\n d\n".encode(), "")
    assert lines == ["a", "b\rc", "\u2028", "\x0b", "\x85", "", " d"]
    assert hub.vocab_lines("\ufeffa\nb\ufeff".encode(), "") == ["a", "b\ufeff"]


def test_line_ends_and_a_bom_change_nothing(tmp_path):
    pieces = [*BERT, *(f"x{i}" for i in range(95)), "\u2028", "tea", "##s"]
    made = []
    for number, (start, end) in enumerate([("", "\n"), ("", "\r\n"), ("\ufeff", "\n"), ("\ufeff", "\r\n")]):
        path = tmp_path / f"{number}.txt"
        path.write_bytes((start + "".join(piece + end for piece in pieces)).encode())
        made.append(Tokenizer.load(path))
    assert {tokenizer.hash for tokenizer in made} == {made[0].hash}
    for tokenizer in made:
        assert tokenizer.encode("teas").ids.tolist() == [101, 102]  # after the separator, entry 100
        assert tokenizer.pieces == pieces


def test_options_of_a_vocabulary(tmp_path):
    pieces = ["na", "##ive", "##ïve", "Na", "天", "##气", "气"]

    def tokens(text, **options):
        tokenizer = word_pieces(tmp_path, pieces, **options)
        return [tokenizer.pieces[i] for i in tokenizer.encode(text).ids]

    assert tokens("Naïve", do_lower_case=True) == ["na", "##ive"]
    assert tokens("Naïve", do_lower_case=True, strip_accents=False) == ["na", "##ïve"]
    assert tokens("Naïve") == ["Na", "##ïve"]
    assert tokens("Naïve", strip_accents=True) == ["Na", "##ive"]
    assert tokens("天气") == ["天", "气"]
    assert tokens("天气", tokenize_chinese_chars=False) == ["天", "##气"]
    with pytest.raises(ConfigError, match="word_tokenizer_type='mecab'"):
        tokens("天气", word_tokenizer_type="mecab")
    with pytest.raises(ConfigError, match="do_basic_tokenize=False"):
        tokens("天气", do_basic_tokenize=False)


def test_tokens_added_beside_a_vocabulary_are_not_lost(tmp_path):
    with pytest.raises(ConfigError, match=r"adds '<tea>' to vocab\.txt"):
        word_pieces(tmp_path, ["a"], added_tokens_decoder={"5": {"content": "a"}, "6": {"content": "<tea>"}})
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "added_tokens.json").write_text('{"<tee>": 6}')
    with pytest.raises(ConfigError, match=r"adds '<tee>' to vocab\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("pieces, expected", [(["tea", "tom"], ["tea"]), (["tea", "Tom"], ["[UNK]"])])
def test_without_options_capitals_in_the_vocabulary_decide(tmp_path, pieces, expected):
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT, *pieces]))
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.pieces[i] for i in tokenizer.encode("Tea").ids] == expected


# Special tokens


@pytest.mark.parametrize("missing", BERT)
def test_a_missing_special_token_is_named(tmp_path, missing):
    with pytest.raises(ConfigError) as error:
        word_pieces(tmp_path, ["a", "b"], [name for name in BERT if name != missing])
    assert missing in str(error.value) and str(tmp_path) in str(error.value)
    assert error.value.key == "config.tokenizer.path"


def test_mask_must_be_a_token_of_its_own(tmp_path):
    with pytest.raises(ConfigError, match=r"mask_token <extra> is not in the vocabulary"):
        word_pieces(tmp_path, ["a"], mask_token="<extra>")
    for role in ("unk", "pad"):
        with pytest.raises(ConfigError, match=f"its mask_token is its {role}_token"):
            word_pieces(tmp_path, ["a"], mask_token=f"[{role.upper()}]")


def test_special_tokens_by_the_names_that_the_files_give(tmp_path):
    names = {"cls_token": {"content": "begin"}, "sep_token": "end", "mask_token": "hole", "pad_token": "fill"}
    tokenizer = word_pieces(tmp_path, ["a"], ["end", "[UNK]", "fill", "hole", "begin"], **names)
    assert (tokenizer.sep, tokenizer.unk, tokenizer.pad, tokenizer.mask, tokenizer.cls) == (0, 1, 2, 3, 4)
    tokenizer = byte_pairs(tmp_path / "b", [], bos_token="<s>", eos_token="</s>")
    assert (tokenizer.cls, tokenizer.pad, tokenizer.sep, tokenizer.unk, tokenizer.mask) == (0, 1, 2, 3, 260)
    assert tokenizer.special.tolist() == [0, 1, 2, 3, 260]


def test_text_never_becomes_a_special_token(tmp_path):
    text = "a [MASK] b [CLS][SEP] [PAD] <s> </s> <mask> <pad>"
    split = {"type": "WhitespaceSplit"}
    made = families(tmp_path, text) | {
        "cut at white space": from_content(
            tmp_path / "s", {**word_pieces(tmp_path / "w", ["a"])._backend.content, "pre_tokenizer": split}
        )
    }
    for family, tokenizer in made.items():
        special = set(tokenizer.special.tolist()) - {tokenizer.unk}
        assert not special & set(tokenizer.encode(text).ids.tolist()), family


def test_holes_in_the_ids(tmp_path):
    tokenizer = word_pieces(tmp_path, ["a", "", "b", "[unused0]", "[unused1]"])
    assert (tokenizer.size, tokenizer.pieces[5:]) == (10, ["a", "[6]", "b", "[unused0]", "[unused1]"])
    vocabulary = tokenizer.vocabulary()
    assert vocabulary.special.tolist() == [0, 1, 2, 3, 4] and vocabulary.ordinary.tolist() == [5, 7]


def test_an_added_token_keeps_its_id_after_a_hole(tmp_path):
    """The library gives it the number of tokens as its id, which is 260, the id of another one here."""

    def change(content):
        content["model"]["vocab"]["!"] = 260  # leaves a hole
        content["added_tokens"][-1]["id"] = 300

    tokenizer = byte_pairs(tmp_path / "given", [], change)
    assert (tokenizer.mask, tokenizer.size) == (300, 301) and tokenizer.encode("!").ids.tolist() == [260]
    assert tokenizer.ordinary.tolist() == [i for i in range(4, 261) if tokenizer.pieces[i] != f"[{i}]"]
    tokenizer.save_hub(tmp_path / "hub")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "hub/tokenizer.json"))
    assert library.encode("a <mask>!").ids == [0, *tokenizer.encode_around(["a ", "!"]), 2]
    assert library.token_to_id("<mask>") == 300


def test_an_added_word_after_a_hole_is_refused(tmp_path):
    content = word_pieces(tmp_path / "w", ["a", "", "b"])._backend.content
    word = {"content": "tea", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    content["added_tokens"].append({"id": 8, "special": False, **word})
    with pytest.raises(ConfigError, match="the id 8 of 'tea' is not kept"):
        from_content(tmp_path / "j", content)


def test_ids_that_need_32_bits(tmp_path):
    tokenizer = word_pieces(tmp_path, [*[""] * (65_536 - len(BERT)), "tea"])
    assert tokenizer.size == 65_537 and tokenizer.encode("tea").ids.tolist() == [65_536]
    assert Layout.for_vocabulary(64, 4, tokenizer.size).dtype == "uint32"


# Files


def test_saved_and_loaded(tmp_path):
    """One folder for all: nothing of the tokenizer before is left."""
    for tokenizer in families(tmp_path, "some text.").values():
        tokenizer.save(tmp_path / "tokenizer")
        loaded = Tokenizer.load(tmp_path / "tokenizer")
        assert (loaded.kind, loaded.hash, loaded.pieces) == (tokenizer.kind, tokenizer.hash, tokenizer.pieces)
        assert {file.name for file in (tmp_path / "tokenizer").iterdir()} == set(tokenizer.files)
        assert loaded.encode("some text.").ids.tolist() == tokenizer.encode("some text.").ids.tolist()


def test_the_hash_is_that_of_what_the_ids_depend_on(tmp_path):
    made = [
        word_pieces(tmp_path, ["a", "b"]),
        word_pieces(tmp_path, ["a", "b"], model_max_length=512),
        word_pieces(tmp_path, ["a", "b"], do_lower_case=True),
        word_pieces(tmp_path, ["b", "a"]),
    ]
    assert made[0].hash == made[1].hash and len({tokenizer.hash for tokenizer in made}) == 3


def test_cutting_and_padding_of_the_file_are_not_used(tmp_path):
    def change(content):
        content["truncation"] = {"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
        content["padding"] = {"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": None}
        content["padding"] |= {"pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"}

    tokenizer = byte_pairs(tmp_path, [], change)
    _, lengths = tokenizer.encode_batch(["abcdefgh", "a"])
    assert lengths.tolist() == [8, 1]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"{", "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b"{}", "does not read tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_that_is_no_text(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"vocab.txt is not UTF-8"):
        Tokenizer.load(tmp_path)


# In use


@pytest.mark.parametrize("family", ["WordPiece", "byte pairs"])
def test_rows_of_a_given_tokenizer(tmp_path, family):
    """Every token is that of the text, by path of a file as of a folder; the words are those of the rule."""
    text = "Tea is (not) milk. Milk is not tea."
    tokenizer = families(tmp_path, text)[family]
    source = tmp_path / "text.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for _ in range(40)), encoding="utf-8")
    tokenizer.save(tmp_path / "given")
    fingerprints = []
    for path in (tmp_path / "given", tmp_path / "given" / tokenizer.kind):
        config = Config(row_length=64, tokenizer=TokenizerConfig(path=str(path)))
        config.data = DataConfig(sources=(str(source),), workers=1, pack_groups=1, holdout=0.0)
        manifest = prepare(config, tmp_path / "rows", progress=False)
        fingerprints.append(manifest["fingerprint"])
    assert fingerprints[0] == fingerprints[1]
    said, rows = manifest["tokenizer"], tmp_path / "rows"
    assert said["hash"] == tokenizer.hash == Tokenizer.load(rows / "tokenizer").hash
    assert (rows / said["file"]).exists() and said["special"] == tokenizer.special.tolist()
    encoding = tokenizer.encode(text)
    counts = np.bincount(encoding.ids, minlength=tokenizer.size) * 40
    np.testing.assert_array_equal(manifest["unigrams"], counts)
    assert manifest["notes"] == []


def test_a_tokenizer_of_another_language_is_noted(tmp_path):
    tokenizer = word_pieces(tmp_path / "given", ["a"])
    (tmp_path / "text.txt").write_text("Tea is not a milk.\n\nMilk.\n", encoding="utf-8")
    config = Config(row_length=32, tokenizer=TokenizerConfig(path=str(tmp_path / "given")))
    config.data = DataConfig(sources=(str(tmp_path / "text.txt"),), workers=1, pack_groups=1, holdout=0.0)
    manifest = prepare(config, tmp_path / "rows", progress=False)
    (note,) = manifest["notes"]
    assert note.startswith(manifest["corpora"][0]["source"])
    assert note.endswith(": 88% of the tokens are unknown: the tokenizer was made for other text")
    assert manifest["unigrams"][tokenizer.unk] == 7


# For a reader


def test_pieces_for_a_reader(tmp_path):
    tokenizer = byte_pairs(tmp_path / "b", ["Ġ t", "Ã ©"])
    assert tokenizer.shown[-3:] == ["▁t", "é", "<mask>"] and "Ã" in tokenizer.shown
    tokenizer = word_pieces(tmp_path / "w", ["tea", "##s", "天", ".", "(", "##"])
    assert tokenizer.shown == [*BERT, "▁tea", "s", "天", ".", "▁(", "▁##"]
    encoding = tokenizer.encode("(teas).")
    assert tokenizer.show_words(encoding.ids[1:3], encoding.word_starts[1:3]) == "[▁tea s]"


# Around a MASK


def test_white_space_before_a_mask_is_its_own(tmp_path):
    for family, tokenizer in families(tmp_path, "Tea milk with").items():
        mask = tokenizer.pieces[tokenizer.mask]
        ids = {
            tuple(tokenizer.encode_around(text.split("MASK")))
            for text in ("Tea MASK milk", "TeaMASK milk", "Tea  MASK  milk", " Tea\u00a0MASK\u200b milk ")
        }
        assert len(ids) == 1, family
        (found,) = ids
        assert found.count(tokenizer.mask) == 1
        place = found.index(tokenizer.mask)
        filled = [*found[:place], *tokenizer.encode_around(["", " with"])[1:], *found[place + 1 :]]
        assert tokenizer.decode(filled) == "Tea with milk", family
        first = tokenizer.encode_around(["", " milk"])
        assert first[0] == tokenizer.mask and tokenizer.decode(first).strip() == "milk"
        assert tokenizer.encode_around(["Tea ", ""])[-1] == tokenizer.mask
        assert mask not in tokenizer.decode(found)


# Writing for the hub


def read_back(tokenizer: Tokenizer, folder) -> tokenizers.Tokenizer:
    tokenizer.save_hub(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def given_model(**spec) -> Tokenizer:
    letters = [f"▁{char}" for char in LETTERS] + list(LETTERS) + list("().,")
    hexes = [(f"<0x{value:02X}>", BYTE) for value in range(256)] if spec.get("byte_fallback") else []
    return Tokenizer(model(["▁", "▁the", "doub", *letters], more=hexes, **spec))


def check_same(tokenizer: Tokenizer, library: tokenizers.Tokenizer, texts: list[str], cleaned: bool) -> None:
    for text in texts:
        expected = tokenizer.encode(text).ids.tolist()
        found = library.encode(text if cleaned else clean(text))
        assert found.ids == [tokenizer.cls, *expected, tokenizer.sep], text
        if tokenizer.unk not in expected and "▁" not in text:  # that sign is white space to SentencePiece
            assert library.decode(found.ids) == tokenizer.decode(expected), text
    mask = tokenizer.pieces[tokenizer.mask]
    for text in AROUND:
        given = text if cleaned else clean(text)
        expected = [tokenizer.cls, *tokenizer.encode_around(given.split("MASK")), tokenizer.sep]
        assert library.encode(given.replace("MASK", mask)).ids == expected, text
    pair = library.encode("a", "a")
    one = tokenizer.encode("a").ids.tolist()
    assert pair.ids == [tokenizer.cls, *one, tokenizer.sep, *one, tokenizer.sep]
    assert pair.type_ids == [0] * (len(one) + 2) + [1] * (len(one) + 1)


def test_a_trained_model_is_the_same_in_the_hub_format(tmp_path):
    texts = [prose(seed, 20_000) for seed in range(3)]
    tokenizer, _ = train_tokenizer(texts, 800)
    scores = [piece.score for piece in tokenizer._backend.proto().pieces]
    assert scores == [round(score * GRID) / GRID for score in scores]
    check_same(tokenizer, read_back(tokenizer, tmp_path), [*NASTY, *texts, prose(9, 5000)], cleaned=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["mask_token"] == "[MASK]" and "token_type_ids" in config["model_input_names"]
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    assert [token["content"] for token in added if token["lstrip"]] == ["[MASK]"]
    tokenizer.save_hub(tmp_path, max_length=512, types=False)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 512 and "token_type_ids" not in config["model_input_names"]


def test_ties_are_cut_alike_however_long_the_text():
    """Scores on the grid add up exactly, so the first way to cut that is best wins in both libraries."""
    tokenizer, _ = train_tokenizer(["aa aaa ab aab aba bab " * 50], 12)
    text = "abaabaaab" * 3000
    library = tokenizers.Tokenizer.from_str(json.dumps(export.sentencepiece_content(tokenizer._backend)))
    assert library.encode(text, add_special_tokens=False).ids == tokenizer.encode(text).ids.tolist()


def test_bytes_are_the_same_in_the_hub_format(tmp_path):
    tokenizer = given_model(byte_fallback=True)
    check_same(tokenizer, read_back(tokenizer, tmp_path), [*NASTY, "a<0x41> <0x4G> <0xE5>"], cleaned=True)


def test_a_normalising_model_is_the_same_in_the_hub_format(tmp_path):
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([prose(0, 3000), "the fine tea"] * 3),
        model_writer=output,
        vocab_size=120,
        normalization_rule_name="nmt_nfkc_cf",
        user_defined_symbols=["[MASK]"],
        control_symbols=["[PAD]", "[CLS]", "[SEP]"],
        bos_id=-1,
        eos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    tokenizer = Tokenizer(output.getvalue())
    check_same(tokenizer, read_back(tokenizer, tmp_path), [*NASTY, "ﬁne Ｔｅａ THE"], cleaned=True)


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda: Tokenizer(model(["▁a"], treat_whitespace_as_suffix=True)), "white space after words"),
        (lambda: Tokenizer(model(["▁a"], model_type=3)), "takes whole words as pieces"),
        (lambda: Tokenizer(model(["▁a"], more=[("tea", USER_DEFINED)])), "'tea' as a user-defined"),
    ],
)
def test_what_the_hub_format_cannot_express_is_refused(tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        given().save_hub(tmp_path)


def test_word_pieces_are_the_same_in_the_hub_format(tmp_path):
    known = characters("".join(NASTY) + "Teamilk".lower())
    pieces = [*known, *(f"##{char}" for char in known), "tea", "##s", "milk"]
    for options in ({"do_lower_case": True}, {"strip_accents": True}, {"tokenize_chinese_chars": False}):
        tokenizer = word_pieces(tmp_path / "given", pieces, **options)
        check_same(tokenizer, read_back(tokenizer, tmp_path / "hub"), NASTY, cleaned=True)
        assert Tokenizer.load(tmp_path / "hub").pieces == tokenizer.pieces


def test_a_hub_file_is_written_back_as_it_was(tmp_path):
    def pairs(content):
        # as for RoBERTa, but with token types, which check_same asks for
        content["post_processor"] = None

    plain = byte_pairs(tmp_path / "plain", MERGES, model_max_length=77)
    plain.save_hub(tmp_path / "same", max_length=99)
    assert (tmp_path / "same/tokenizer.json").read_bytes() == (tmp_path / "plain/tokenizer.json").read_bytes()
    config = json.loads((tmp_path / "same/tokenizer_config.json").read_text())
    assert config["model_max_length"] == 77 and config["mask_token"] == "<mask>"
    plain.save_hub(tmp_path / "short", max_length=5, types=False)  # what the model cannot do, is not promised
    config = json.loads((tmp_path / "short/tokenizer_config.json").read_text())
    assert config["model_max_length"] == 5 and "token_type_ids" not in config["model_input_names"]
    tokenizer = byte_pairs(tmp_path / "given", MERGES, pairs)
    library = read_back(tokenizer, tmp_path / "hub")
    check_same(tokenizer, library, NASTY, cleaned=False)


def test_mask_takes_white_space_where_the_file_forgot_it(tmp_path):
    def change(content):
        content["added_tokens"][-1]["lstrip"] = False

    mask = {"content": "<mask>", "lstrip": False, "__type": "AddedToken"}
    tokenizer = byte_pairs(tmp_path / "given", [], change, mask_token=mask)
    library = read_back(tokenizer, tmp_path / "hub")
    assert library.encode("a <mask>").ids == library.encode("a<mask>").ids
    config = json.loads((tmp_path / "hub/tokenizer_config.json").read_text())
    assert config["mask_token"] == {**mask, "lstrip": True}


# New terms


def decoded_terms(tokenizer: Tokenizer) -> dict[str, list[str]]:
    return {tokenizer.pieces[i]: [tokenizer.pieces[j] for j in ids] for i, ids in tokenizer.added.items()}


def test_terms_become_pieces(tmp_path):
    text = "a stage (teas), tee tea se."
    for family, tokenizer in families(tmp_path, text).items():
        more = tokenizer.add_terms(["tea", "teas", "a"])
        for i, before in more.added.items():
            assert tokenizer.size <= i < more.size and (before < tokenizer.size).all()
        ids = more.encode("a tea (teas), tea").ids
        shown = [more.shown[i].strip("▁") for i in ids]
        shown = [piece for piece in shown if piece]
        in_brackets = ["t", "e", "a", "s"] if family == "unigram" else ["teas"]
        assert shown == ["a", "tea", "(", *in_brackets, ")", ",", "tea"], family
        assert more.decode(ids) == tokenizer.decode(tokenizer.encode("a tea (teas), tea").ids)
        assert more.encode("stage tee se.").ids.tolist() == tokenizer.encode("stage tee se.").ids.tolist(), family
        before = tokenizer.encode_around(["", " tea"])[1:]
        assert more.pieces_before("tea").tolist() == before, family
        with pytest.raises(KeyError, match="stage"):
            more.pieces_before("stage")
        assert more.add_terms(["tea"]).size == more.size  # it is one already
        more.save(tmp_path / "saved")
        assert Tokenizer.load(tmp_path / "saved").hash == more.hash != tokenizer.hash
        more.save_hub(tmp_path / "hub")
        library = tokenizers.Tokenizer.from_file(str(tmp_path / "hub/tokenizer.json"))
        assert library.encode("a tea (teas), tea").ids == [more.cls, *ids, more.sep], family
        assert np.isin([*more.added], more.ordinary).all()


def test_added_tokens_need_no_merges(tmp_path):
    """As runs of white space, which some tokenizers find before they look for pieces."""

    def change(content):
        content["model"]["vocab"]["  "] = 260
        content["added_tokens"][-1]["id"] = 261
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
        content["added_tokens"].insert(-1, {"id": 260, "content": "  ", **flags})

    tokenizer = byte_pairs(tmp_path, [], change).add_terms(["tea"])
    assert [tokenizer.shown[i] for i in tokenizer.encode("a  tea").ids] == ["a", "▁▁", "tea"]
    assert tokenizer.shown[-2:] == ["▁tea", "tea"] and 260 in tokenizer.ordinary


def test_a_whole_word_alone_is_a_term(tmp_path):
    tokenizer = word_pieces(tmp_path, ["tea", "##s", "##m", "-", "co", "##vid", "19"]).add_terms(["teas", "covid-19"])
    tokens = [tokenizer.pieces[i] for i in tokenizer.encode("teasm teas covid-19 covid-1").ids]
    assert tokens == ["tea", "##s", "##m", "teas", "covid-19", "co", "##vid", "-", "[UNK]"]


def test_a_word_of_ideographs(tmp_path):
    tokenizer = word_pieces(tmp_path, ["今", "天", "气"]).add_terms(["天气"])
    encoding = tokenizer.encode("今天天气")
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["今", "天", "天气"] and encoding.word_starts.all()
    assert decoded_terms(tokenizer) == {"天气": ["天", "气"]}


def test_a_term_of_unknown_characters(tmp_path):
    for tokenizer in (Tokenizer(model(["▁", "a", "b"])), unigram(tmp_path, ["▁", "a", "b"])):
        more = tokenizer.add_terms(["a☃☃b"])
        assert [more.shown[i] for i in more.encode("a☃☃b b").ids] == ["▁a☃☃b", "▁", "b"]


@pytest.mark.parametrize("term", ["two words", "", "co\u00adoperate", " tea"])
def test_a_term_must_be_one_word(tmp_path, term):
    with pytest.raises(ConfigError, match="must be one word"):
        byte_pairs(tmp_path, []).add_terms([term])


def test_terms_that_cannot_be_pieces(tmp_path):
    with pytest.raises(ConfigError, match="is cut into Ġtea 19 before"):
        byte_pairs(tmp_path / "b", []).add_terms(["tea19"])
    with pytest.raises(ConfigError, match="whole runs"):
        byte_pairs(tmp_path / "b", []).add_terms(["天气"])
    with pytest.raises(ConfigError, match="mixes ideographs"):
        word_pieces(tmp_path / "w", ["a"]).add_terms(["天a"])
    with pytest.raises(ConfigError, match="merges do not lead to the piece 'abc'"):
        byte_pairs(tmp_path / "u", ["a b", "b c", "a bc"]).add_terms(["tea"])
    with pytest.raises(ConfigError, match="this one takes characters, or merges pairs"):
        Tokenizer(model(["▁a", "▁"], model_type=sentencepiece_model_pb2.TrainerSpec.BPE)).add_terms(["tea"])
