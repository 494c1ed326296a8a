"""Which documents become rows: filters, duplicates, contamination; cleaning and sentences in several languages."""

import dataclasses
import functools
import gzip
import importlib
import itertools
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from test_prepare import config_of as config_without_tokenizer
from test_prepare import prose, read_rows, same, segments_of
from texts import CLEANED, interrupted

from mlm_jax.cli.prepare import summary
from mlm_jax.config import Config, ConfigError, DataConfig, FilterConfig, TokenizerConfig, check
from mlm_jax.prepare import duplicates, near, prepare, quality, sources
from mlm_jax.prepare.contamination import EXAMPLES
from mlm_jax.prepare.documents import encode_documents, paragraphs_of
from mlm_jax.prepare.plain import Plain
from mlm_jax.prepare.signatures import PLACES, signatures
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.tokenizer import Tokenizer

TOKENIZER = TokenizerConfig()


def words_of(text: str) -> list[str]:
    found = Plain.of([text])
    return [found.show(place, 1) for place in range(len(found.starts))]


# Words


@pytest.mark.parametrize(
    "text, words",
    [
        ("It's well-known: 3.5 Ölfässer!", ["it", "s", "well", "known", "3", "5", "ölfässer"]),
        ("cafe\u0301 हिन्दी", ["cafe\u0301", "हिन्दी"]),  # combining marks stay with their letters
        ("天气ok很好", ["天", "气", "ok", "很", "好"]),
        ("สวัสดี a", [*"สวัสดี", "a"]),
        ("カナ\nかな", [*"カナかな"]),
        ("... --- \n", []),
        ("", []),
    ],
)
def test_words_of_plain_text(text, words):
    assert words_of(text) == words


def oracle(text: str, n: int, short: bool) -> list[tuple[str, ...]]:
    """n-grams of a text as tuples of words."""
    words = words_of(text)
    if short and 0 < len(words) < n:
        return [tuple(words)]
    return list(itertools.pairwise(words)) if n == 2 else [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@pytest.mark.parametrize("short", [False, True])
def test_ngrams_are_equal_where_their_words_are(short):
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["a", "bc", "d!", "天", "E"], k=draw.randint(0, 12))) for _ in range(300)]
    found = Plain.of(texts)
    for n in (1, 2, 5):
        hashes, places = found.ngrams(n, short)
        expected = [(owner, gram) for owner, text in enumerate(texts) for gram in oracle(text, n, short)]
        assert found.owners(places).tolist() == [owner for owner, _ in expected]
        names = {}
        assert all(names.setdefault(hash, gram) == gram for hash, (_, gram) in zip(hashes.tolist(), expected))
        assert len(names) == len({gram for _, gram in expected})


# Quality


def measure(function, *texts: str) -> list[float]:
    found = Plain.of(list(texts))
    return [
        float(value) for value in (function(list(texts), found) if function is quality.symbols else function(found))
    ]


def test_measures_by_hand():
    assert measure(quality.characters, "ab c\nd", "", "  x ", "天气 e\u0301") == [4, 0, 1, 4]
    assert measure(quality.longest_words, "ab,c de\nfghi", "", "天气很ab好c", "x") == [4, 0, 2, 1]
    assert measure(quality.letters, "ab1 .", "", "1234", "天e\u0301") == [0.5, 0, 0, 1]
    # Gopher: hash signs and ellipses for each word
    assert measure(quality.symbols, "a # b ... c … d", "#x", "a b", "###") == [3 / 4, 1, 0, 3]
    # of four lines one stands further up already, with 2 of 9 characters
    assert quality.repeated_lines("ab\ncde\nab\nfg") == (1 / 4, 2 / 9)
    assert quality.repeated_lines("ab") == (0, 0)
    assert quality.repeated_lines("a\na\na\na") == (3 / 4, 3 / 4)
    # "a b c d e" again, and with it the second "f": 6 of 12 words; the second text has nothing twice
    measured = measure(quality.repeated_ngrams, "a b c d e f. A b c d e F!", "a b c d e f", "x", "a a a a a a a")
    assert measured == [6 / 12, 0, 0, 6 / 7]


@pytest.mark.parametrize(
    "rule, text, reason",
    [
        ({"min_characters": 8}, "ab cd efg", "too few characters"),
        ({"min_words": 4}, "ab cd efg", "too few words"),
        ({"max_word_characters": 7}, "ab cdefghij", "too long a word"),
        ({"min_letters": 0.8}, "ab cd 12 34", "too few letters"),
        ({"max_symbols": 0.1}, "ab # cd ef", "too many symbols"),
        ({"max_repeated_lines": 0.3}, "abc\nx y\nabc", "repeated lines"),
        ({"max_repeated_text": 0.2}, "abc\nd\ne\nf\ng\nabc", "repeated text"),
        ({"max_repeated_ngrams": 0.15}, "a b c d e, a b c d e", "repeated n-grams"),
    ],
)
def test_rules(rule, text, reason):
    good = "All is well here, and nothing is said a second time."
    assert quality.verdicts([text, good], Plain.of([text, good]), FilterConfig(**rule)) == [reason, ""]
    assert quality.verdicts([text], Plain.of([text]), FilterConfig()) == [""]
    with pytest.raises(ConfigError, match=f"config.data.filter.{next(iter(rule))} = -1"):
        check(
            Config(data=DataConfig(filter=FilterConfig(**{next(iter(rule)): type(next(iter(rule.values())))(-1)}))), 1
        )


def test_the_first_broken_rule_counts(tmp_path):
    path = tmp_path / "a.jsonl"
    texts = [prose(0, 60), prose(1, 60), "Too short", "x1 " * 60, "12 " * 60, "\u200b"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rules = FilterConfig(min_words=20, min_letters=0.6, max_repeated_ngrams=0.5)
    manifest = prepare(config_of(path, filter=rules, holdout=0.0), tmp_path / "rows", progress=False)
    counts = manifest["corpora"][0]["counts"]
    assert (counts["read"], counts["kept"]) == (6, 2)
    assert counts["dropped"] == {"empty": 1, "too few letters": 2, "too few words": 1}
    assert "2 too few letters" in summary(manifest, tmp_path / "rows")
    with pytest.raises(ConfigError, match=r"holds no text .*1 empty, 5 too few words"):
        prepare(config_of(path, filter=FilterConfig(min_words=500), holdout=0.0), tmp_path / "rows", progress=False)


# Near-duplicates


@functools.cache
def shingles(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(oracle(text, 5, True))


def jaccard(one: str, other: str) -> float:
    left, right = shingles(one), shingles(other)
    return len(left & right) / len(left | right)


def changed(text: str, count: int, seed: int) -> str:
    """The text with `count` words replaced."""
    draw, words = random.Random(seed), text.split()
    for place in draw.sample(range(len(words)), count):
        words[place] = f"new{draw.randint(0, 10**6)}"
    return " ".join(words)


def planted(count: int) -> list[str]:
    """Texts of 100 words or so, each of which has a copy with 0 to 14 words replaced; in no order."""
    originals = [prose(seed, 100).replace("\n", " ") for seed in range(count)]
    copies = [changed(text, seed % 15, seed) for seed, text in enumerate(originals)]
    texts = originals + copies
    random.Random(1).shuffle(texts)
    return texts


def test_the_estimate_is_the_jaccard_similarity():
    texts = planted(100)
    prints = signatures(texts, Plain.of(texts), near=True)["signature"]
    draw, pairs = random.Random(0), []
    for i, j in itertools.combinations(range(len(texts)), 2):
        if (exact := jaccard(texts[i], texts[j])) > 0 or draw.random() < 0.001:
            pairs.append((exact, (prints[i] == prints[j]).mean()))
    exact, estimated = np.array(pairs).T
    assert len(pairs) > 100 and abs((estimated - exact).mean()) < 0.01
    assert np.abs(estimated - exact).max() < 4.5 * np.sqrt(0.25 / PLACES)


def brute_force(prints: np.ndarray, similarity: float) -> list[int]:
    """The first text of each one's component, by comparing all pairs."""
    label = list(range(len(prints)))
    for i, j in itertools.combinations(range(len(prints)), 2):
        if (prints[i] == prints[j]).mean() >= similarity and label[i] != label[j]:
            low, high = sorted((label[i], label[j]))
            label = [low if one == high else one for one in label]
    return label


@pytest.mark.parametrize("similarity", [0.5, 0.8, 1.0])
def test_components_are_those_of_all_pairs(tmp_path, similarity):
    # chains, too: seven copies, each changed at one more place than the one before
    texts = planted(60)
    for seed in range(5):
        texts.append(prose(1000 + seed, 80))
        for step in range(7):
            texts.append(changed(texts[-1], 1, step))
    prints = signatures(texts, Plain.of(texts), near=True)["signature"]
    order = np.random.default_rng(0).permutation(len(texts))
    found = near.components(prints, order, similarity, tmp_path / "bands")
    expected = brute_force(prints[order], similarity)
    assert np.mean(found == expected) >= 0.99  # two pairs of a hundred at the very limit may share no band
    assert len(set(expected)) < len(texts) - 3 and not list(tmp_path.iterdir())


def test_bands():
    # chance of a shared band at the limit, 1 - (1 - s^r)^(128 // r): 0.994 at r = 6, 0.983 at r = 7 for s = 0.8
    assert near.rows_of_bands(0.8, 128) == max(r for r in range(1, 129) if 1 - (1 - 0.8**r) ** (128 // r) >= 0.99)
    assert near.rows_of_bands(1.0, 128) == 128


def test_crowded_buckets_are_compared_round_by_round(tmp_path):
    # all share their first band; 0, 2, 4 are alike, and so are 1, 3, 5
    prints = np.zeros((6, 8), np.uint32)
    prints[1::2, 2:] = 7
    label = near.components(prints, np.arange(6), 0.8, tmp_path / "bands")
    assert label.tolist() == [0, 1, 0, 1, 0, 1]


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> list[Path]:
    """Two sources: 200 texts and copies of them, and 40 texts of which 20 stand in the first one, too."""
    folder, texts = tmp_path_factory.mktemp("corpora"), planted(100)
    draw = random.Random(2)
    copies = [changed(text, 1, 7) for text in texts[:10]] + [text.replace(" ", "  ") for text in texts[10:20]]
    second = copies + [prose(5000 + i, 80).replace("\n", " ") for i in range(20)]
    draw.shuffle(second)
    return [write(folder / "first.jsonl", texts), write(folder / "second.jsonl", second)]


def texts_of(folder: Path, split: str) -> list[str]:
    """The documents of `wide` rows."""
    tokenizer = Tokenizer.load(folder / "tokenizer")
    return [tokenizer.decode(segment[1:-1]).strip() for segment in segments_of(read_rows(folder, split))]


@pytest.fixture(scope="module", autouse=True)
def given(tmp_path_factory) -> None:
    """All of this file has one tokenizer: what a test is about does not depend on it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    letters = "new 0 1 2 3 4 5 6 7 8 9 " * 50
    train_tokenizer([prose(0, 3000), letters], 300)[0].save(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "TOKENIZER", TokenizerConfig(path=str(folder)))
        yield


def config_of(*paths: Path, **options) -> Config:
    return dataclasses.replace(config_without_tokenizer(*paths, **options), tokenizer=TOKENIZER)


def wide(paths: list[Path], **data) -> Config:
    """Each document is a row."""
    return config_of(*paths, row_length=1024, max_segments=1, holdout=0.3, collocations=0, **data)


@pytest.mark.parametrize("how", ["exact", "near"])
def test_no_text_stands_twice(corpora, tmp_path, how):
    manifest = prepare(wide(corpora, duplicates=how), tmp_path / "rows", progress=False)
    documents = [text for path in corpora for text in map(json.loads, path.read_text().splitlines())]
    documents = [" ".join(document["text"].split()) for document in documents]
    kept = [text for split in ("train", "eval") for text in texts_of(tmp_path / "rows", split)]
    counts = [corpus["counts"] for corpus in manifest["corpora"]]
    assert sum(of_corpus["kept"] for of_corpus in counts) == len(kept)
    assert sum(of_corpus["tokens"] for of_corpus in counts) == sum(
        split["tokens"] - 2 * split["segments"] for corpus in manifest["corpora"] for split in corpus["splits"].values()
    )
    assert sum(manifest["unigrams"]) == sum(
        corpus["splits"]["train"]["tokens"] - 2 * corpus["splits"]["train"]["segments"]
        for corpus in manifest["corpora"]
    )
    exact = sum(of_corpus["dropped"].get("duplicate", 0) for of_corpus in counts)
    assert exact == len(documents) - len(set(documents)) >= 16
    assert len(set(kept)) == len(kept)
    if how == "exact":
        assert set(kept) == set(documents)
        assert all("near-duplicate" not in of_corpus["dropped"] for of_corpus in counts)
    else:
        pairs = list(itertools.combinations(sorted(set(documents)), 2))
        similar = {(one, other): value for one, other in pairs if (value := jaccard(one, other)) > 0.6}
        gone = set(documents) - set(kept)
        # what is clearly a duplicate has gone, and only what has one (precision and recall beside the exact measure)
        sure = [pair for pair, value in similar.items() if value >= 0.9]
        assert len(sure) > 10 and all(one in gone or other in gone for one, other in sure)
        assert gone and all(any(text in pair for pair in similar) for text in gone)
        assert manifest["duplicates"]["across_splits"] > 5
        example = manifest["duplicates"]["examples"][-1]
        assert example["reason"] == "near-duplicate" and example["dropped"] != example["kept"]
    trained, held_out = (texts_of(tmp_path / "rows", split) for split in ("train", "eval"))
    limit = 1 if how == "exact" else 0.9
    assert not [1 for one in trained for other in held_out if jaccard(one, other) >= limit]


def test_the_smallest_document_of_the_first_source_stays(tmp_path):
    texts = [prose(10 * i, 60) for i in range(1, 4)]
    first = write(tmp_path / "a.jsonl", [*texts, texts[0], texts[0]])
    second = write(tmp_path / "b.jsonl", [*texts, "Another one."])
    manifest = prepare(config_of(first, second, duplicates="exact", holdout=0.0), tmp_path / "rows", progress=False)
    assert [corpus["counts"]["kept"] for corpus in manifest["corpora"]] == [3, 1]
    hashes = {line: sources.document_hash(str(first), f"a.jsonl:{line}") for line in (1, 4, 5)}
    stays = min(hashes, key=hashes.get)
    pairs = [pair for pair in manifest["duplicates"]["examples"] if pair["kept"]["document"] == f"a.jsonl:{stays}"]
    gone = {(pair["dropped"]["source"], pair["dropped"]["document"]) for pair in pairs}
    expected = {(str(first), f"a.jsonl:{line}") for line in hashes if line != stays} | {(str(second), "b.jsonl:1")}
    assert gone == expected


def test_a_source_that_stands_in_others_is_an_error(corpora, tmp_path):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(corpora[0].read_bytes())
    with pytest.raises(ConfigError, match="all its documents stand in other sources already") as error:
        prepare(wide([corpora[0], copy], duplicates="exact"), tmp_path / "rows", progress=False)
    assert error.value.value == str(copy)


def test_order_workers_and_units_do_not_matter(corpora, tmp_path, monkeypatch):
    options = {"duplicates": "near", "collocations": 40}
    config = dataclasses.replace(config_of(*corpora, **options), row_length=64)
    prepare(config, tmp_path / "one", progress=False)
    monkeypatch.setattr(sources.parts, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(sources.parts, "BLOCK_BYTES", 5_000)
    two = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=2))
    prepare(two, tmp_path / "two", progress=False)
    assert same(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(
    "module, name, after", [("duplicates", "_near", 0), ("duplicates", "write_json", 0), ("shards", "pack_group", 1)]
)
def test_interrupted_it_goes_on(corpora, tmp_path, monkeypatch, module, name, after):
    config = config_of(*corpora, duplicates="near", collocations=0)
    prepare(config, tmp_path / "whole", progress=False)
    module = importlib.import_module(f"mlm_jax.prepare.{module}")
    interrupted(monkeypatch, module, name, after, lambda: prepare(config, tmp_path / "rows", progress=False))
    with monkeypatch.context() as patch:
        if module is not duplicates:
            patch.setattr(duplicates, "_near", None)  # what was found is not looked for again
        prepare(config, tmp_path / "rows", progress=False)
    assert same(tmp_path / "whole", tmp_path / "rows")


def test_encoded_documents_serve_another_similarity(corpora, tmp_path, monkeypatch):
    kept = {"encoded": str(tmp_path / "kept"), "duplicates": "near", "collocations": 0}
    first = prepare(config_of(*corpora, **kept), tmp_path / "first", progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("mlm_jax.prepare.encoding"), "encode_unit", None)
        lower = config_of(*corpora, duplicate_similarity=0.6, **kept)
        second = prepare(lower, tmp_path / "second", progress=False)
    assert second["duplicates"]["dropped"] > first["duplicates"]["dropped"]
    next((tmp_path / "kept").rglob("*.npy")).unlink()  # what is lost is made again
    third = prepare(config_of(*corpora, duplicate_similarity=0.7, **kept), tmp_path / "second", progress=False)
    assert first["duplicates"]["dropped"] <= third["duplicates"]["dropped"] <= second["duplicates"]["dropped"]
    prepare(config_of(*corpora, duplicates="near", collocations=0), tmp_path / "third", progress=False)
    assert same(tmp_path / "first", tmp_path / "third")


def test_a_missing_library_is_named(corpora, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(ConfigError, match=r"config.data.duplicates = 'near': needs the library rensa: pip install"):
        prepare(wide(corpora, duplicates="near"), tmp_path / "rows", progress=False)


# Contamination


SECRET = "which of these seven words would never be guessed by any model at all"


@pytest.mark.parametrize(
    "option, message",
    [
        ({"contamination": ("",)}, r"config.data.contamination = \('',\): a file has no name"),
        ({"contamination_words": 0}, "config.data.contamination_words = 0: must be at least 1"),
        ({"contamination_action": "hide"}, "must be one of drop, report"),
        ({"duplicates": "maybe"}, "must be one of keep, exact, near"),
        ({"duplicate_similarity": 0.4}, "config.data.duplicate_similarity = 0.4: must be at least 0.5"),
        ({"duplicate_similarity": 1.1}, r"config.data.duplicate_similarity = 1.1: must lie in \[0, 1\]"),
    ],
)
def test_options_that_cannot_be(option, message):
    with pytest.raises(ConfigError, match=message):
        check(Config(data=DataConfig(**option)), 1)


@pytest.mark.parametrize("action", ["drop", "report"])
def test_documents_with_a_text_of_an_evaluation(tmp_path, action):
    evaluation = tmp_path / "questions.txt"
    evaluation.write_text(f"Question: {SECRET}?\n\nToo short to be found.\n")
    texts = [prose(seed, 80) for seed in range(40)]
    texts[7] += "\n" + SECRET.upper().replace(" ", ", ")  # case and signs do not count
    texts[9] += "\nToo short to be found."
    texts[11] += "\n" + SECRET.rpartition(" ")[0].partition(" ")[2] + "."  # 12 of its words
    path = write(tmp_path / "a.jsonl", texts)
    config = config_of(path, contamination=(str(evaluation),), contamination_action=action, holdout=0.0)
    manifest = prepare(config, tmp_path / "rows", progress=False)
    about, counts = manifest["contamination"], manifest["corpora"][0]["counts"]
    assert counts["dropped"] == ({"contaminated": 1} if action == "drop" else {})
    assert (about["texts"], about["short"], about["documents"]) == (2, 1, 1)
    assert about["ngrams"] == 3  # 15 words
    (note,) = [note for note in manifest["notes"] if "contamination" in note]
    assert note.startswith("1 of the 2 texts in config.data.contamination have fewer than 13 words")
    (example,) = about["examples"]
    assert example == {"source": str(path), "document": "a.jsonl:8", "words": " ".join(SECRET.split()[:13])}
    assert "1 documents with text of evaluations" in summary(manifest, tmp_path / "rows")
    before = manifest["fingerprint"]
    evaluation.write_text("Another question, which is long enough to be looked for, though nobody has ever asked it.")
    manifest = prepare(config, tmp_path / "rows", progress=False)
    assert manifest["fingerprint"] != before and manifest["contamination"]["documents"] == 0


def test_a_few_contaminated_documents_are_named(tmp_path):
    (tmp_path / "eval.jsonl").write_text(json.dumps({"text": SECRET}) + "\n")
    path = write(tmp_path / "a.jsonl", [f"{SECRET} {prose(seed, 50)}" for seed in range(9)] + [prose(99, 50)])
    config = config_of(path, contamination=(str(tmp_path / "eval.jsonl"),), contamination_words=8, holdout=0.0)
    about = prepare(config, tmp_path / "rows", progress=False)["contamination"]
    assert about["documents"] == 9 and len(about["examples"]) == EXAMPLES


@pytest.mark.parametrize(
    "content, message",
    [(None, "no such file"), ("A short one.", "none of its 1 texts .* has 13 words")],
)
def test_evaluations_that_give_nothing_to_look_for(tmp_path, content, message):
    path = write(tmp_path / "a.jsonl", [prose(0, 60)])
    if content:
        (tmp_path / "eval.txt").write_text(content)
    config = config_of(path, contamination=(str(tmp_path / "eval.txt"),), holdout=0.0)
    with pytest.raises(ConfigError, match=message) as error:
        prepare(config, tmp_path / "rows", progress=False)
    assert error.value.key == "config.data.contamination"


def test_evaluations_that_cannot_be_read_are_counted(tmp_path):
    text = json.dumps({"text": SECRET})
    mixed, other, path = tmp_path / "mixed.jsonl", tmp_path / "z.jsonl", tmp_path / "a.jsonl"
    mixed.write_bytes(
        f'{text}\n{{"question": "{SECRET}"}}\n{{"question": 1}}\nno json\n'.encode() + b'{"text": "\xff"}\n'
    )
    other.write_text("[\n")
    write(path, [prose(0, 60), prose(1, 60)])
    config = config_of(path, contamination=(str(mixed), str(other)), holdout=0.0, encoded=str(tmp_path / "encoded"))
    manifest = prepare(config, tmp_path / "rows", progress=False)
    about = manifest["contamination"]
    reason = "no text in the field 'text'"
    assert about["dropped"] == {reason: 2, "not UTF-8": 1, "not valid JSON": 2}
    assert (about["texts"], about["first_problem"]) == (1, [f"{mixed}:2", reason])
    (note,) = [note for note in manifest["notes"] if "contamination" in note]
    assert f"5 records (2 {reason}, 1 not UTF-8, 2 not valid JSON; the first is {mixed}:2)" in note
    (info,) = (tmp_path / "encoded").rglob("contamination.json")
    info.write_text(json.dumps({key: about[key] for key in ("words", "action", "texts", "short", "ngrams")}))
    again = prepare(config, tmp_path / "again", progress=False)  # from documents encoded by an earlier version
    assert again["contamination"] == about


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "e.jsonl",
            b'{"question": "x"}\n',
            r"none of its 0 texts .*; unreadable are 1 records \(1 no text .*e.jsonl:1\)",
        ),
        ("e.jsonl.gz", gzip.compress(prose(0, 60).encode())[:-9], "e.jsonl.gz': cannot be read"),
        ("builtin:pydoc", None, "holds no text of an evaluation; name a file"),
    ],
)
def test_a_fault_of_evaluations_blames_them(tmp_path, name, content, message):
    path = write(tmp_path / "a.jsonl", [prose(0, 60)])
    if content:
        (tmp_path / name).write_bytes(content)
        name = str(tmp_path / name)
    with pytest.raises(ConfigError, match=message) as error:
        prepare(config_of(path, contamination=(name,), holdout=0.0), tmp_path / "rows", progress=False)
    assert error.value.key == "config.data.contamination"


def first_held_out(name: str, share: float) -> int:
    """The first line that would be held out in a source of this name."""
    id = f"{Path(name).name}:{{}}".format
    return next(i for i in range(1, 999) if sources.document_hash(name, id(i), b"holdout") < share * 2**64)


@pytest.mark.parametrize("given", [False, True])
def test_a_source_that_is_held_out_as_a_whole_is_an_error(tmp_path, given):
    path, other = tmp_path / "a.jsonl", write(tmp_path / "b.jsonl", [prose(seed, 60) for seed in range(20)])
    held = first_held_out(str(path), 0.3)
    path.write_text("\n" * (held - 1) + json.dumps({"text": prose(99, 60)}) + "\n")
    train_tokenizer([prose(seed, 60) for seed in range(9)], 200)[0].save(tmp_path / "given")
    asked = TokenizerConfig(path=str(tmp_path / "given")) if given else TOKENIZER
    said = f"the only document of {str(path)!r} is held out for evaluation: none is left to train on; set it to 0, or"
    for paths in ([path], [path, other], [other, path]):
        config = dataclasses.replace(config_of(*paths, holdout=0.3), tokenizer=asked)
        with pytest.raises(ConfigError) as error:
            prepare(config, tmp_path / "rows", progress=False)
        assert error.value.key == "config.data.holdout" and said in str(error.value)
    config = dataclasses.replace(config_of(path, holdout=0.0), tokenizer=asked)
    assert prepare(config, tmp_path / "rows", progress=False)["corpora"][0]["splits"]["train"]["rows"] > 0


def test_what_is_lost_besides_what_is_held_out_is_told(tmp_path):
    path = tmp_path / "a.txt"
    lines = [f"{prose(line, 20)}\n" for line in range(60)]
    path.write_text("".join(lines))  # one document
    name = next(f"{path}{suffix}" for suffix in map(str, range(99)) if first_held_out(f"{path}{suffix}", 0.3) == 1)
    path.rename(name)
    with pytest.raises(ConfigError, match=r"the only document of .* \(in a text file an empty line ends one\)"):
        prepare(config_of(name, holdout=0.3), tmp_path / "rows", progress=False)
    records = tmp_path / "b.jsonl"
    held = first_held_out(str(records), 0.3)
    records.write_text("no json\n" * (held - 1) + json.dumps({"text": prose(99, 60)}) + "\nno json\n")
    with pytest.raises(ConfigError, match=rf"\(of {held + 1} read, the others are dropped\) is held out"):
        prepare(config_of(records, holdout=0.3), tmp_path / "rows", progress=False)


# Cleaning


# combining marks are kept, and composed nowhere
@pytest.mark.parametrize("text, expected", [*CLEANED, ("cafe\u0301 na\u0308\u00efve", "cafe\u0301 na\u0308\u00efve")])
def test_one_cleaning_for_corpus_training_use_and_export(text, expected, tmp_path):
    import tokenizers

    assert paragraphs_of(text) == [expected]
    trained = train_tokenizer([f"{word} {expected} " * 9 for word in ("some", "text")], 200)[0]
    given = train_tokenizer([f"{word} {text} " * 9 for word in ("some", "text")], 200)[0]
    assert given.hash == trained.hash
    ids = trained.encode(expected).ids.tolist()
    assert trained.encode(text).ids.tolist() == ids == encode_documents([text], trained)[0].tolist()
    assert trained.unk not in ids and trained.decode(ids).strip() == expected
    trained.save_hub(tmp_path, None)
    exported = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert exported.encode(text, add_special_tokens=False).ids == ids


def test_a_text_of_vanishing_characters_gives_no_row(tmp_path):
    path = write(tmp_path / "a.jsonl", ["\u200b\ufeff\u00ad\u200d", "A text. " * 9])
    manifest = prepare(config_of(path, holdout=0.0), tmp_path / "rows", progress=False)
    assert manifest["corpora"][0]["counts"]["dropped"] == {"empty": 1}
    assert len(segments_of(read_rows(tmp_path / "rows"))) == 1
