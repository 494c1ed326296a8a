"""Word starts, specials, cleaning and training of the SentencePiece tokenizer."""

import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from texts import CLEANED
from vocabularies import BYTE, CONTROL, LETTERS, SPECIALS, UNKNOWN, UNUSED, USER_DEFINED, groups, model, prose

from mlm_jax.config import ConfigError
from mlm_jax.prepare.fitting import candidates
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.text import clean, split_words
from mlm_jax.tokenizer import Tokenizer, Vocabulary


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text of each group, without white space."""
    encoding = tokenizer.encode(text)
    return ["".join(tokenizer.pieces[encoding.ids[i]] for i in group).strip("▁") for group in groups(encoding)]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer([prose(seed, 20_000) for seed in range(4)], 1000)[0]


# Words


def test_pieces_of_one_word_are_one_group():
    tokenizer = Tokenizer(model(["▁home", "land", "▁se", "curity", "."]))
    encoding = tokenizer.encode("homeland security.")
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["▁home", "land", "▁se", "curity", "."]
    np.testing.assert_array_equal(encoding.word_starts, [True, False, True, False, True])
    assert tokenizer.show_words(encoding.ids, encoding.word_starts) == "[▁home land] [▁se curity] [.]"
    assert words(tokenizer, "homeland security.") == split_words("homeland security.") == ["homeland", "security", "."]


def test_the_first_token_is_a_start_even_without_white_space():
    tokenizer = Tokenizer(model(["home", "land", "▁"]))
    assert words(tokenizer, "homeland") == ["homeland"]
    assert groups(tokenizer.encode("homeland")) == [[0, 1, 2]]  # ▁ home land
    encoding, lengths = tokenizer.encode_batch(["land", "", "home"])
    np.testing.assert_array_equal(lengths, [2, 0, 2])
    np.testing.assert_array_equal(encoding.word_starts, [True, False, True, False])


def test_white_space_after_words():
    tokenizer = Tokenizer(model(["ho", "me▁", "land▁", "."], treat_whitespace_as_suffix=True))
    encoding = tokenizer.encode("home land")
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["ho", "me▁", "land▁"]
    assert groups(encoding) == [[0, 1], [2]]


def test_each_ideograph_is_a_word():
    tokenizer = Tokenizer(model(["▁天", "气", "很", "好", "45", "6"]))
    assert groups(tokenizer.encode("天气很好456")) == [[0], [1], [2], [3], [4, 5]]
    assert tokenizer.ideographs[tokenizer.encode("天气很好456").ids].tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    "text, expected",
    [
        ("don't stop", ["don", "'", "t", "stop"]),
        ("snake_case", ["snake", "_", "case"]),
        ("1,5 (a)", ["1", ",", "5", "(", "a", ")"]),
        ("天气abc好", ["天", "气", "abc", "好"]),
        ("です。か", ["です", "。", "か"]),  # kana are letters
        ("e\u0301a", ["e\u0301a"]),  # a combining mark begins no word
        (".\u0301x", [".\u0301", "x"]),  # and hides no sign
        ("好\u0301\u0302x", ["好\u0301\u0302", "x"]),
        ("😀 😀", ["😀", "😀"]),
        ("  a  ", ["a"]),
    ],
)
def test_the_word_rule(text, expected):
    assert split_words(text) == expected
    characters = sorted({char for char in text if char != " "})
    assert words(Tokenizer(model(["▁", *characters])), text) == expected


def test_word_groups_are_the_words_of_the_text(trained):
    for seed in range(10, 20):
        text = prose(seed, 2000)
        known = "".join(char for char in text if char == " " or char in trained.pieces)
        assert words(trained, known) == split_words(known)


def test_bytes_break_no_word():
    hexes = [(f"<0x{value:02X}>", BYTE) for value in range(256)]
    tokenizer = Tokenizer(model(["▁", "a", "b"], more=hexes, byte_fallback=True))
    encoding = tokenizer.encode("aéb b.")
    assert [tokenizer.pieces[i] for i in encoding.ids] == ["▁", "a", "<0xC3>", "<0xA9>", "b", "▁", "b", "<0x2E>"]
    assert groups(encoding) == [[0, 1, 2, 3, 4], [5, 6], [7]]
    assert set(range(5, 261)) <= set(tokenizer.ordinary.tolist())
    assert tokenizer._backend.lengths[encoding.ids].sum() == len(" aéb b.")


def test_unknown_characters_break_no_word():
    tokenizer = Tokenizer(model(["▁", "a", "b"]))
    encoding = tokenizer.encode("aéb b")
    assert groups(encoding) == [[0, 1, 2, 3], [4, 5]]
    assert encoding.ids[2] == tokenizer.unk


# Special tokens


def test_specials_of_a_trained_model(trained):
    assert trained.pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (trained.pad, trained.unk, trained.cls, trained.sep, trained.mask) == (0, 1, 2, 3, 4)
    vocabulary = trained.vocabulary(np.arange(trained.size))
    assert isinstance(vocabulary, Vocabulary) and vocabulary.size == trained.size
    assert vocabulary.special.tolist() == [0, 1, 2, 3, 4]
    assert vocabulary.ordinary.tolist() == list(range(5, trained.size))


def test_text_never_becomes_a_special_token(trained):
    text = "a [MASK] b [CLS][SEP] [PAD] <s> </s>"
    assert not np.isin(trained.encode(text).ids, [0, 2, 3, 4]).any()


def test_mask_as_a_symbol_that_text_can_reach():
    specials = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN), ("<mask>", USER_DEFINED)]
    tokenizer = Tokenizer(model(["▁a", "▁", "<", ">", "m", "a", "s", "k"], specials))
    assert (tokenizer.cls, tokenizer.pad, tokenizer.sep, tokenizer.unk, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert tokenizer.special.tolist() == [0, 1, 2, 3, 4]
    assert words(tokenizer, "a <mask>") == ["a", "<", "mask", ">"]


@pytest.mark.parametrize("missing", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_a_missing_special_token_is_named(tmp_path, missing):
    (tmp_path / "spm.model").write_bytes(model(["a", "b"], [entry for entry in SPECIALS if entry[0] != missing]))
    with pytest.raises(ConfigError) as error:
        Tokenizer.load(tmp_path)
    assert (
        missing in str(error.value) and error.value.key == "config.tokenizer.path" and str(tmp_path) in str(error.value)
    )


def test_no_model_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"spm\.model, vocab\.txt, or a folder that holds one \(No such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "spm.model").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="is not a SentencePiece model"):
        Tokenizer.load(tmp_path / "spm.model")


def test_only_real_pieces_are_ordinary():
    more = [("<extra>", CONTROL), ("<unused>", UNUSED), ("(", USER_DEFINED)]
    tokenizer = Tokenizer(model(["▁a", "b"], more=more))
    assert tokenizer.special.tolist() == [0, 1, 2, 3, 4, 5]
    assert tokenizer.ordinary.tolist() == [7, 8, 9]


# Cleaning


@pytest.mark.parametrize(
    "text, expected",
    [
        *CLEANED,
        ("a\tb\r\nc", "a b  c"),
        ("a\u3000b", "a b"),
        ("a\ud800b", "ab"),
        ("plain text, as it is.", "plain text, as it is."),
        ("\u00ad\u200b\ufeff\u0000\ufffd\u200d", ""),
    ],
)
def test_cleaning_at_every_stage(trained, text, expected):
    assert clean(text) == expected
    np.testing.assert_array_equal(trained.encode(text).ids, trained.encode(expected).ids)
    assert train_tokenizer([text + " word"], 50)[0].hash == train_tokenizer([expected + " word"], 50)[0].hash


# Encoding


def test_decode_gives_the_text_back(trained):
    text = "abc def, ghi (jkl) mno."
    assert trained.decode(trained.encode(text).ids) == text
    assert trained.decode([trained.cls, *trained.encode(text).ids, trained.sep, trained.pad]) == text


def test_a_batch_equals_its_texts(trained):
    texts = [prose(30, 300), "", " \u200b ", "one", prose(31, 500)]
    encoding, lengths = trained.encode_batch(texts)
    assert encoding.ids.dtype == np.int32 and encoding.word_starts.dtype == bool
    each = [trained.encode(text) for text in texts]
    np.testing.assert_array_equal(lengths, [len(one.ids) for one in each])
    np.testing.assert_array_equal(encoding.ids, np.concatenate([one.ids for one in each]))
    np.testing.assert_array_equal(encoding.word_starts, np.concatenate([one.word_starts for one in each]))
    empty, none = trained.encode_batch([])
    assert not len(empty.ids) and not len(none)


def test_saved_and_loaded(trained, tmp_path):
    trained.save(tmp_path / "tokenizer")
    for path in (tmp_path / "tokenizer", tmp_path / "tokenizer" / "spm.model"):
        loaded = Tokenizer.load(path)
        assert loaded.hash == trained.hash and loaded.pieces == trained.pieces
    assert [file.name for file in (tmp_path / "tokenizer").iterdir()] == ["spm.model"]


# Training


def test_candidates_are_all_repeated_parts_of_words():
    draw = random.Random(0)
    counts = [("".join(draw.choices("abc▁", k=draw.randint(1, 20))), draw.randint(1, 3)) for _ in range(60)]
    expected = Counter()
    for word, count in counts:
        for length in range(2, 17):
            for start in range(len(word) - length + 1):
                expected[word[start : start + length]] += count
    assert dict(candidates(counts)) == {part: count for part, count in expected.items() if count > 1}


def test_no_piece_crosses_a_word_border(trained):
    for piece in trained.pieces[5:]:
        assert len(split_words(piece.replace("▁", " "))) <= 1, piece


def test_a_long_line_loses_nothing():
    tokenizer, report = train_tokenizer(["a" * 9001], 30)
    assert (report.bytes_read, report.bytes_used, report.bytes_skipped) == (9001, 9001, 0)
    assert "a" in tokenizer.pieces
    assert train_tokenizer(["some words, " * 800], 300)[1].bytes_skipped == 0


def test_one_huge_line_without_spaces():
    text = "".join(random.Random(0).choices(LETTERS, k=300_000))
    tokenizer, report = train_tokenizer([text], 1000)
    assert tokenizer.size == 1000 and report.longest_run == 300_000
    assert any("300,000 characters" in line for line in report.messages())


TIES = """
import sys
from mlm_jax.prepare.training import train_tokenizer
sys.stdout.write(train_tokenizer(["ab ac ad bc bd cd"], 30)[0].hash)
"""


def test_training_gives_the_same_bytes_in_every_process():
    commands = [[sys.executable, "-c", TIES]] * 3
    hashes = {subprocess.run(command, capture_output=True, check=True, text=True).stdout for command in commands}
    assert hashes == {train_tokenizer(["ab ac ad bc bd cd"], 30)[0].hash}


def test_the_order_of_the_texts_does_not_matter(trained):
    texts = [prose(seed, 20_000) for seed in range(4)]
    assert train_tokenizer(iter(texts[::-1]), 1000)[0].files == trained.files


def test_more_characters_than_pieces():
    text = " ".join(chr(0x4E00 + i) * (i + 1) for i in range(300))
    tokenizer, report = train_tokenizer([text], 200)
    assert tokenizer.size <= 200
    assert report.characters == 301 and report.alphabet < 200  # the sign of white space is one more
    assert any("of 301 different characters" in line for line in report.messages())
    assert tokenizer.encode(chr(0x4E00 + 299)).ids[-1] != tokenizer.unk  # the most frequent one
    assert tokenizer.encode(chr(0x4E00)).ids[-1] == tokenizer.unk  # the rarest


def test_too_little_text_for_the_vocabulary():
    tokenizer, report = train_tokenizer(["one two three"], 500)
    assert 5 < tokenizer.size < 500
    assert any(f"gives {tokenizer.size} pieces; 500 were asked for" in line for line in report.messages())
    with pytest.raises(ValueError, match="no word"):
        train_tokenizer([" \u200b "], 500)


def test_rare_letters_of_a_small_alphabet_are_kept():
    tokenizer, _ = train_tokenizer([prose(5, 50_000), "Quiz Xylem " * 3], 1000)
    assert not (tokenizer.encode("Quiz Xylem").ids == tokenizer.unk).any()
