"""Tokenizers go to `transformers` and come from it with the same ids. Skipped where it is not installed."""

import json

import pytest

transformers = pytest.importorskip("transformers")

from vocabularies import AROUND, BERT, NASTY, byte_pairs, prose, unigram, word_pieces  # noqa: E402

from mlm_jax.prepare.fitting import Kind  # noqa: E402
from mlm_jax.prepare.training import train_tokenizer  # noqa: E402
from mlm_jax.text import clean  # noqa: E402
from mlm_jax.tokenizer import Tokenizer  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TEXTS = [*NASTY, *(prose(seed, 2000) for seed in range(3))]

TRAINED = {
    "with bytes": Kind("unigram", byte_fallback=True, lowercase=True, strip_accents=True),
    "pairs": Kind("bpe", lowercase=True),
    "pairs, with bytes": Kind("bpe", byte_fallback=True, strip_accents=True),
    "characters": Kind("char"),
    "word pieces": Kind("wordpiece", strip_accents=True),
}


def of_kind(kind: Kind | None = None) -> Tokenizer:
    return train_tokenizer([prose(seed, 20_000) for seed in range(3)], 800, kind)[0]


def families(folder) -> dict[str, Tokenizer]:
    known = sorted(set("".join(map(clean, TEXTS)).replace(" ", "")))
    return {
        "trained": of_kind(),
        "words": word_pieces(folder / "w", [*known, *(f"##{char}" for char in known)], do_lower_case=True),
        "bytes": byte_pairs(folder / "b", ["Ġ t", "Ġt h"]),
        "unigram": unigram(folder / "u", ["▁", *known]),
    }


@pytest.mark.parametrize("family", ["trained", "words", "bytes", "unigram", *TRAINED])
@pytest.mark.parametrize("model_type", [None, "bert", "modernbert"])
def test_auto_tokenizer_gives_the_ids_of_training(tmp_path, family, model_type):
    tokenizer = of_kind(TRAINED[family]) if family in TRAINED else families(tmp_path)[family]
    folder = tmp_path / "hub"
    tokenizer.save_hub(folder, max_length=512, types=False)
    if model_type:  # as it lies beside an exported model
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    given = tokenizer.kind == "tokenizer.json"  # written back as it was, so without the cleaning
    for text in TEXTS:
        text = clean(text) if given else text
        expected = tokenizer.encode(text).ids.tolist()
        found = theirs(text)["input_ids"]
        assert found == again(text)["input_ids"] == [tokenizer.cls, *expected, tokenizer.sep], text
        if tokenizer.unk not in expected and "▁" not in text:
            assert theirs.decode(found, skip_special_tokens=True) == tokenizer.decode(expected), text
    for text in AROUND:
        text = clean(text) if given else text
        found = theirs(text.replace("MASK", theirs.mask_token))["input_ids"]
        assert found == [tokenizer.cls, *tokenizer.encode_around(text.split("MASK")), tokenizer.sep], text
    assert list(theirs("a")) == ["input_ids", "attention_mask"] or given
    for role in ("pad", "cls", "sep", "mask", "unk"):
        assert getattr(theirs, f"{role}_token_id") == getattr(tokenizer, role)
    if not given:
        assert theirs.model_max_length == 512


def test_white_space_before_a_mask_and_what_fills_it(tmp_path):
    for tokenizer in families(tmp_path).values():
        tokenizer.save_hub(tmp_path / "hub")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
        mask = theirs.mask_token
        found = theirs(f"Tea {mask} milk")["input_ids"]
        assert found == theirs(f"Tea{mask} milk")["input_ids"]
        place = found.index(theirs.mask_token_id)
        fill = tokenizer.encode_around(["", " with"])[1:]
        filled = theirs.decode([*found[:place], *fill, *found[place + 1 :]], skip_special_tokens=True)
        assert filled.lower() == "tea with milk"


def test_a_vocabulary_is_read_as_by_its_own_tokenizer(tmp_path):
    """`vocab.txt` with the options of `tokenizer_config.json`, as BERT's tokenizer there reads them."""
    known = sorted(set("".join(map(clean, TEXTS)).replace(" ", "")) | set("abcdefghijklmnopqrstuvwxyz"))
    pieces = [*known, *(f"##{char}" for char in known), "th", "##ing"]
    for options in ({"do_lower_case": True}, {"strip_accents": True}, {"tokenize_chinese_chars": False}):
        ours = word_pieces(tmp_path / "w", pieces, **options)
        vocab = {piece: i for i, piece in enumerate([*BERT, *pieces])}
        theirs = transformers.BertTokenizer(vocab=vocab, **{"do_lower_case": False, **options})
        for text in TEXTS:
            found = theirs(clean(text), add_special_tokens=False)["input_ids"]
            assert ours.encode(text).ids.tolist() == found, (options, text)


def test_word_starts_are_where_fast_tokenizers_see_words(tmp_path):
    """Of English text with WordPiece, whose words of the library are those of the rule."""
    ours = families(tmp_path)["words"]
    ours.save_hub(tmp_path / "hub")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    text = "Don't stop (a) at 3.14 or 天气, please."
    words = theirs(text, add_special_tokens=False).word_ids()
    starts = [place == 0 or words[place] != words[place - 1] for place in range(len(words))]
    assert ours.encode(text).word_starts.tolist() == starts


def test_terms_reach_transformers(tmp_path):
    for tokenizer in families(tmp_path).values():
        more = tokenizer.add_terms(["tea", "milk"])
        more.save_hub(tmp_path / "hub")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
        for text in ("a tea milk", "tea, milk teas"):
            assert theirs(text)["input_ids"] == [more.cls, *more.encode(text).ids.tolist(), more.sep]
