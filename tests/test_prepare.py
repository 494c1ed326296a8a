"""From text to rows: sources, documents, packing, and the whole of `prepare`, interrupted and not."""

import dataclasses
import filecmp
import gzip
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from texts import interrupted, packed

from mlm_jax import records
from mlm_jax.cli.prepare import main
from mlm_jax.config import Config, ConfigError, DataConfig, TokenizerConfig
from mlm_jax.prepare import changes, packing, prepare, pydoc, sources, tasks
from mlm_jax.prepare.documents import encode_documents, paragraphs_of
from mlm_jax.prepare.phrases import read_phrases
from mlm_jax.prepare.sampling import Reservoir
from mlm_jax.prepare.sentences import sentence_ends
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.records import PARAGRAPH_START, SENTENCE_START, WORD_START, Layout
from mlm_jax.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def prose(seed: int, words: int) -> str:
    """Sentences of invented words, five or so to a paragraph."""
    draw = random.Random(seed)
    text = []
    while words > 0:
        count = draw.randint(3, 15)
        sentence = ["".join(draw.choices("aeioust", k=draw.randint(1, 8))) for _ in range(count)]
        text.append(" ".join(sentence).capitalize() + draw.choice(".?!") + draw.choice("   \n"))
        words -= count
    return "".join(text).strip()


def write_json_lines(path: Path, count: int, words: int = 60, start: int = 0) -> Path:
    draw = random.Random(start)
    lines = [{"id": f"d{i}", "text": prose(i, draw.randint(1, 2 * words))} for i in range(start, start + count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def config_of(*paths: Path | str, row_length: int = 64, vocab_size: int = 300, **data) -> Config:
    data = {"workers": 1, "pack_groups": 3, "holdout": 0.1, "max_segments": 8} | data
    data = {"collocations": 40, "collocation_count": 2} | data
    return Config(
        row_length=row_length,
        data=DataConfig(sources=tuple(map(str, paths)), **data),
        tokenizer=TokenizerConfig(vocab_size=vocab_size, sample_bytes=50_000),
    )


def read_rows(folder: Path, split: str = "train") -> dict[str, np.ndarray]:
    """All rows of a split."""
    manifest = records.read_manifest(folder)
    raw = []
    for corpus in manifest["corpora"]:
        for shard in corpus["splits"][split]["shards"]:
            reader = ArrayRecordReader(str(folder / shard["file"]))
            raw += reader.read(list(range(shard["rows"])))
            reader.close()
    return records.decode_rows(records.layout_of(manifest), raw)


def segments_of(rows: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [
        tokens[of == number]
        for tokens, of in zip(rows["tokens"], rows["segments"])
        for number in range(1, of.max(initial=0) + 1)
    ]


def same(left: Path, right: Path) -> bool:
    """Whether two folders hold the same files with the same bytes."""
    names = sorted(path.relative_to(left) for path in left.rglob("*") if path.is_file())
    if names != sorted(path.relative_to(right) for path in right.rglob("*") if path.is_file()):
        return False
    return not any(filecmp.cmpfiles(left, right, map(str, names), shallow=False)[1:])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([prose(seed, 3000) for seed in range(3)], 300)[0]


# Sources


FIELDS = sources.Fields("text", "id")


def unit_of(data: bytes, kind: str = sources.TEXT) -> sources.Unit:
    return sources.Unit(0, sources.File("/corpus/file", "file", kind), 1, data)


def test_lines_end_at_newlines_alone():
    data = "l1\nl2\u2028x\nl3\x0by\nl4\x85z\nl5\x1cq\n".encode()
    assert [line.decode() for line in sources.lines_of(data)] == ["l1", "l2\u2028x", "l3\x0by", "l4\x85z", "l5\x1cq"]
    (document,) = sources.documents(unit_of(data), FIELDS)
    assert paragraphs_of(document.text) == ["l1", "l2 x", "l3y", "l4z", "l5q"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_carriage_returns_and_byte_order_mark(tmp_path, name):
    data = b"\xef\xbb\xbfa\r\nb\rc\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (unit,) = sources.units(sources.find_files(str(tmp_path)), FIELDS)
    assert sources.lines_of(unit.data) == [b"a", b"b\rc"]
    (document,) = sources.documents(unit, FIELDS)
    assert (document.text, document.id, document.place) == ("a\nb\rc", f"{name}:1", f"{tmp_path}/{name}:1")


def test_json_lines_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\n{"text": "two", "id": 7}\n')
    (unit,) = sources.units(sources.find_files(str(path)), FIELDS)
    found = list(sources.documents(unit, FIELDS))
    assert [(document.id, document.text) for document in found] == [("a.jsonl:1", "one"), ("7", "two")]


def test_a_bad_record_costs_itself():
    data = b'{"text": "good"}\n{"text": 5}\n[1]\n{"text": "cut\n{"text": "\xff"}\n{"body": "x"}\n{"text": "also good"}'
    found = list(sources.documents(unit_of(data, sources.JSON), FIELDS))
    assert [document.text for document in found if not document.problem] == ["good", "also good"]
    assert [(document.place, document.problem) for document in found if document.problem] == [
        ("/corpus/file:2", "no text in the field 'text'"),
        ("/corpus/file:3", "no text in the field 'text'"),
        ("/corpus/file:4", "not valid JSON"),
        ("/corpus/file:5", "not UTF-8"),
        ("/corpus/file:6", "no text in the field 'text'"),
    ]


def test_empty_lines_separate_documents():
    data = b"\n\nfirst\nof two lines\n\n \t\nsecond\n"
    found = list(sources.documents(unit_of(data), FIELDS))
    assert [(document.id, document.text) for document in found] == [
        ("file:3", "first\nof two lines"),
        ("file:7", "second"),
    ]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_units_hold_whole_documents_wherever_they_are_cut(tmp_path, monkeypatch, newline):
    texts = [b"paragraph one" + newline + b"p" * (i % 50) + newline for i in range(500)]
    (tmp_path / "a.txt").write_bytes((newline * 2).join(texts))
    whole = [
        (document.id, document.text)
        for unit in sources.units(sources.find_files(str(tmp_path)), FIELDS)
        for document in sources.documents(unit, FIELDS)
    ]
    monkeypatch.setattr(sources.parts, "UNIT_BYTES", 300)
    monkeypatch.setattr(sources.parts, "BLOCK_BYTES", 100)
    units = list(sources.units(sources.find_files(str(tmp_path)), FIELDS))
    cut = [(document.id, document.text) for unit in units for document in sources.documents(unit, FIELDS)]
    assert len(whole) == 500 and len(units) > 50
    assert cut == whole
    assert [unit.number for unit in units] == list(range(len(units)))


def test_files_of_a_source(tmp_path):
    for name in ("b.txt", "sub/a.jsonl.gz", "sub/c.TXT", "d.bin", "e.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    kinds = {file.name: file.kind for file in sources.find_files(str(tmp_path))}
    assert kinds == {"b.txt": "text", "e.json": "json", "sub/a.jsonl.gz": "json", "sub/c.TXT": "text"}
    assert list(kinds) == sorted(kinds)
    for name in (".hidden.txt", ".folder/a.jsonl", "sub/.ipynb_checkpoints/a.jsonl"):
        path = tmp_path / ".root" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"")
        with pytest.raises(ConfigError, match="the folder holds none of"):
            sources.find_files(str(tmp_path / ".root"))
        assert sources.find_files(str(path)) and list(kinds) == [f.name for f in sources.find_files(str(tmp_path))]
    assert [file.name for file in sources.find_files(f"{tmp_path}/*/*")] == ["a.jsonl.gz", "c.TXT"] or [
        file.name for file in sources.find_files(f"{tmp_path}/*/*")
    ] == ["sub/a.jsonl.gz", "sub/c.TXT"]
    assert [file.name for file in sources.find_files(str(tmp_path / "d.bin"))] == ["d.bin"]


@pytest.mark.parametrize(
    "source, message",
    [
        ("{folder}/none.txt", "no such file"),
        ("{folder}/*.txt", "no such file"),
        ("{folder}", "the folder holds none of"),
        ("builtin:novels", "the only embedded source is builtin:pydoc"),
        ("hdfs:a.txt", "known sources are"),
    ],
)
def test_sources_that_are_not_there(tmp_path, source, message):
    source = source.format(folder=tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        prepare(config_of(source), tmp_path / "rows", progress=False)
    assert error.value.key == "config.data.sources" and source in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_archive_is_named(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(os.urandom(5000))[:2000])
    with pytest.raises(ConfigError, match=r"a\.txt\.gz.*cannot be read"):
        prepare(config_of(path), tmp_path / "rows", progress=False)


def test_docstrings_of_a_module():
    source = b'''
"""Of the module.

    Its second paragraph,
    in two lines.
    """
import this_is_never_imported
class A:
    """Of A."""
    def f(self):
        "Of f."
        "not a docstring"
if True:
    async def g(): """Of g."""
'''
    expected = ["Of the module.", "Its second paragraph, in two lines.", "Of A.", "Of f.", "Of g."]
    assert list(pydoc.module_paragraphs(source)) == expected
    assert list(pydoc.module_paragraphs(b"def broken(:")) == []


def test_modules_of_the_standard_library_and_the_dependencies():
    names = [file.name for file in pydoc.module_files()]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py", "numpy/linalg/_linalg.py", "optax/__init__.py"} <= set(names)
    assert not any("/tests/" in name or name.startswith("test/") or "site-packages" in name for name in names)
    assert pydoc.module_name("json/__init__.py") == "json" and pydoc.module_name("json/decoder.py") == "json.decoder"


# Documents


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Mr. A. Smith paid 3.5 dollars to Dr. No. He left.", ["Mr. A. Smith paid 3.5 dollars to Dr. No.", "He left."]),
        ('He said "No." Then (so it is said.) Nothing.', ['He said "No."', "Then (so it is said.)", "Nothing."]),
        ("See e.g. the U.S. Army, cf. No. 5. Done.", ["See e.g. the U.S. Army, cf. No. 5.", "Done."]),
        ("1. An item. 2. Another.", ["1. An item.", "2. Another."]),
        ("what? he asked... and left. The end.", ["what? he asked... and left.", "The end."]),
        ("你好。“再见！”他说。好", ["你好。", "“再见！”", "他说。", "好"]),
        ("هل هذا؟ نعم. لا", ["هل هذا؟", "نعم.", "لا"]),
        ("डॉ. कलाम वैज्ञानिक थे। क्या? हाँ॥ अंत।", ["डॉ. कलाम वैज्ञानिक थे।", "क्या?", "हाँ॥", "अंत।"]),
        ("พ.ศ. 2560 มีคน 3.5 ล้าน คุณสบายดีไหม? ดี", ["พ.ศ. 2560 มีคน 3.5 ล้าน คุณสบายดีไหม?", "ดี"]),
        ("ကောင်းပါတယ်။ နေကောင်းလား။", ["ကောင်းပါတယ်။", "နေကောင်းလား။"]),
        ("Սա առաջինն է։ Սա երկրորդը։", ["Սա առաջինն է։", "Սա երկրորդը։"]),
        ("សួស្តី។ អរគុណ។", ["សួស្តី។", "អរគុណ។"]),
        ("Never ends", ["Never ends"]),
    ],
)
def test_sentences(text, sentences):
    ends = [0, *sentence_ends([text])[1].tolist(), len(text)]
    assert [text[first:last].strip() for first, last in itertools.pairwise(ends)] == sentences


def starts_of(text: str, tokenizer: Tokenizer, bit: int) -> list[str]:
    """The text from each token with that flag to the next one."""
    ids, flags, _ = encode_documents([text], tokenizer)
    places = [*np.flatnonzero(flags & bit), len(ids)]
    return [tokenizer.decode(ids[first:last]).strip() for first, last in itertools.pairwise(places)]


def test_flags_of_a_document(tokenizer):
    text = "  Aeiou tess. Oui  sat!\n\nTea\n"
    assert starts_of(text, tokenizer, PARAGRAPH_START) == ["Aeiou tess. Oui sat!", "Tea"]
    assert starts_of(text, tokenizer, SENTENCE_START) == ["Aeiou tess.", "Oui sat!", "Tea"]
    assert starts_of(text, tokenizer, WORD_START) == ["Aeiou", "tess", ".", "Oui", "sat", "!", "Tea"]
    ids, flags, lengths = encode_documents([text, "", "\u200b\n \n", "Tea"], tokenizer)
    assert lengths[1] == lengths[2] == 0 and lengths.sum() == len(ids) == len(flags)
    first_of_paragraphs = flags[flags & PARAGRAPH_START > 0]
    assert (first_of_paragraphs == PARAGRAPH_START | SENTENCE_START | WORD_START).all() and len(
        first_of_paragraphs
    ) == 3


def test_sentence_starts_around_unknown_characters(tokenizer):
    # unknown characters stand for an unknown number of characters: their sentences are found all the same
    text = "Tea 天气 sat. 很好天 oui. Est 好."
    ids, flags, _ = encode_documents([text], tokenizer)
    assert tokenizer.unk in ids
    starts = np.flatnonzero(flags & SENTENCE_START)
    assert len(starts) == 3
    assert tokenizer.decode(ids[starts[2] :]).strip().startswith("Est")


def test_sentences_without_white_space_between_them():
    text = "天气很好。他说：“好！”很好气天。"
    tokenizer, _ = train_tokenizer([text * 5], 100)
    assert starts_of(text, tokenizer, SENTENCE_START) == ["天气很好。", "他说：“好！”", "很好气天。"]
    assert len(encode_documents([text], tokenizer)[0]) == len(tokenizer.encode(text).ids)  # no white space is put in


# Packing


def pack(lengths: list[int], layout: Layout, seed: int = 0) -> tuple[packing.Plan, np.ndarray, np.ndarray]:
    """Plan of random documents with these lengths; their ids (each different) and flags."""
    draw = np.random.default_rng(seed)
    total = sum(lengths)
    flags = (draw.random(total) < 0.6).astype(np.uint8) * WORD_START
    flags[draw.random(total) < 0.05] = WORD_START | SENTENCE_START
    flags[np.cumsum(lengths) - lengths] = WORD_START | SENTENCE_START | PARAGRAPH_START
    return packing.plan(np.array(lengths), flags, layout), np.arange(10, total + 10), flags


CORPORA = {
    "long": [5000, 12_345, 3000, 777],
    "middle": np.random.default_rng(1).integers(20, 300, 400).tolist(),
    "short": np.random.default_rng(2).integers(8, 40, 2000).tolist(),
    "mixed": np.random.default_rng(3).geometric(0.02, 1500).tolist(),
}


@pytest.mark.parametrize("row_length", [64, 128, 512])
@pytest.mark.parametrize("corpus", CORPORA)
def test_rows_are_full_and_nothing_is_lost(corpus, row_length):
    lengths = CORPORA[corpus]
    layout = Layout(row_length, 32, "uint32")
    plan, ids, flags = pack(lengths, layout)
    rows = records.decode_rows(layout, packed(plan, ids, flags, layout, 0, 2, 3))
    fill = (rows["segments"] > 0).mean(axis=1)
    # the last rows of a group take what is left
    assert fill[: -max(1, len(fill) // 50)].mean() >= 0.97
    segments = segments_of(rows)
    assert all(s[0] == 2 and s[-1] == 3 and not np.isin(s[1:-1], [0, 2, 3]).any() for s in segments)
    np.testing.assert_array_equal(np.sort(np.concatenate([s[1:-1] for s in segments])), ids)
    assert all((np.diff(s[1:-1]) == 1).all() for s in segments)  # each is a run of one text
    documents = np.searchsorted(np.cumsum(lengths), ids - 10, side="right")
    assert all(documents[s[1] - 10] == documents[s[-2] - 10] for s in segments)


def test_cuts_lie_at_word_starts_and_small_pieces_are_not_cut_off():
    layout = Layout(64, 8, "uint32")
    plan, _, flags = pack(CORPORA["long"], layout)
    assert (flags[plan.starts] & WORD_START > 0).all()
    assert (plan.stops - plan.starts).min() >= packing.SHORTEST
    assert (flags[plan.starts] & SENTENCE_START > 0).mean() > 0.3


def test_a_cut_takes_a_sentence_end_in_the_last_quarter():
    # one document of 24 tokens, room for 14: the sentence that begins at 11 lies in the last quarter, the one at 5 not
    flags = np.full(24, WORD_START, np.uint8)
    flags[[0, 5, 11]] |= SENTENCE_START
    plan = packing.plan(np.array([24]), flags, Layout(16, 1, "uint16"))
    assert plan.stops[0] in (11, 14)
    long = np.tile(flags, 40)
    plan = packing.plan(np.array([len(long)]), long, Layout(512, 1, "uint16"))
    assert all(flags[stop % 24] & SENTENCE_START for stop in plan.stops[:-1])


def test_a_word_longer_than_a_row_is_cut():
    layout = Layout(16, 4, "uint16")
    flags = np.zeros(100, np.uint8)
    flags[0] = WORD_START | SENTENCE_START | PARAGRAPH_START
    plan = packing.plan(np.array([100]), flags, layout)
    rows = records.decode_rows(layout, packed(plan, np.arange(10, 110), flags, layout, 0, 2, 3))
    assert (plan.stops - plan.starts).max() == 14
    firsts = rows["positions"] == 1
    assert (rows["flags"][firsts] & WORD_START > 0).all()  # the first token of a segment begins a word
    assert (rows["flags"][np.isin(rows["tokens"], [0, 2, 3])] == 0).all()


def test_a_row_holds_at_most_max_segments():
    layout = Layout(64, 4, "uint32")
    plan, _, _ = pack([3] * 100, layout)
    assert np.bincount(plan.rows).max() == 4 and plan.count == 25


def test_specials_are_added_after_cutting():
    # two documents in rows of 6: every segment begins with CLS, ends with SEP, and holds no other
    layout = Layout(6, 2, "uint16")
    flags = np.array([7, 1, 1, 7, 1], np.uint8)
    ids = np.array([10, 11, 12, 20, 21])
    plan = packing.plan(np.array([3, 2]), flags, layout)
    rows = records.decode_rows(layout, packed(plan, ids, flags, layout, 0, 2, 3))
    assert sorted(map(list, segments_of(rows))) == [[2, 10, 11, 12, 3], [2, 20, 21, 3]]


# The sample


def test_the_sample_does_not_depend_on_the_order():
    draw = random.Random(0)
    texts = [(draw.getrandbits(64), size := draw.randint(1, 300), "x" * size) for _ in range(200)]
    expected, room = [], 5000
    for _, size, text in sorted(texts):
        room -= size
        if room < 0:
            break
        expected.append(text)
    for seed in range(20):
        random.Random(seed).shuffle(texts)
        reservoir = Reservoir(5000)
        for hash, size, text in texts:
            reservoir.add(hash, size, text)
        assert reservoir.texts() == expected


# The whole


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_json_lines(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 300)


@pytest.fixture(scope="module")
def reference(corpus, tmp_path_factory) -> Path:
    """Rows of the corpus, made in small units by one worker without interruption."""
    folder = tmp_path_factory.mktemp("reference") / "rows"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources.parts, "UNIT_BYTES", 20_000)
        patch.setattr(sources.parts, "BLOCK_BYTES", 5_000)
        prepare(config_of(corpus), folder, progress=False)
    return folder


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(sources.parts, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(sources.parts, "BLOCK_BYTES", 5_000)


def test_rows_hold_the_documents(corpus, reference):
    manifest = records.read_manifest(reference)
    tokenizer = Tokenizer.load(reference / "tokenizer")
    assert manifest["tokenizer"]["hash"] == tokenizer.hash and manifest["dtype"] == "uint16"
    (summary,) = manifest["corpora"]
    assert summary["counts"]["read"] == summary["counts"]["kept"] == 300 and summary["counts"]["dropped"] == {}
    assert summary["counts"]["bytes"] == corpus.stat().st_size
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    expected = np.sort(np.concatenate([tokenizer.encode(p).ids for text in texts for p in paragraphs_of(text)]))
    found = []
    for split in ("train", "eval"):
        rows = read_rows(reference, split)
        of_split = summary["splits"][split]
        assert len(rows["tokens"]) == of_split["rows"] == sum(shard["rows"] for shard in of_split["shards"])
        assert (rows["segments"] > 0).sum() == of_split["tokens"]
        segments = segments_of(rows)
        assert len(segments) == of_split["segments"]
        found.append(np.concatenate([segment[1:-1] for segment in segments]))
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), expected)
    np.testing.assert_array_equal(np.bincount(found[0], minlength=tokenizer.size), manifest["unigrams"])
    assert 0.03 < len(found[1]) / len(expected) < 0.2  # holdout is 0.1
    flags = read_rows(reference)["flags"]
    assert manifest["flags"] == {name: int((flags & bit > 0).sum()) for name, bit in records.FLAGS.items()}
    assert all(manifest["flags"].values())
    # a document is in one split alone
    paragraphs = {p for text in texts for p in paragraphs_of(text) if len(p) > 40}
    shown = [
        " ".join(tokenizer.decode(s) for s in segments_of(read_rows(reference, split))) for split in ("train", "eval")
    ]
    assert not [p for p in paragraphs if p in shown[0] and p in shown[1]]


def test_collocations_are_counted_in_the_training_documents(corpus, reference):
    manifest = records.read_manifest(reference)
    about, split = manifest["collocations"], manifest["corpora"][0]["splits"]["train"]
    assert about["tokens"] == split["tokens"] - 2 * split["segments"] == sum(manifest["unigrams"])
    content = (reference / about["file"]).read_bytes()
    assert about["hash"] == hashlib.blake2b(content, digest_size=16).hexdigest()
    phrases = read_phrases(reference / about["file"])
    assert len(phrases) == about["kept"] == 40 and min(phrase.count for phrase in phrases) >= 2
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    held_out = tasks.Settings(str(corpus), sources.Fields(), 0.1, (3, 1), "")
    trained = " \n ".join(text for i, text in enumerate(texts, 1) if not held_out.split(f"corpus.jsonl:{i}"))
    phrase = phrases[0]
    assert len(re.findall(rf"(?=[ \n]{re.escape(phrase.text)}[ .?!\n])", f" {trained} ")) == phrase.count


def test_a_bounded_sample_is_counted(corpus, tmp_path, small_units):
    config = config_of(corpus, collocation_tokens=2000)
    manifest = prepare(config, tmp_path / "rows", progress=False)
    assert 1900 < manifest["collocations"]["tokens"] <= 2000
    assert 5 < manifest["collocations"]["documents"] < 50
    many = config_of(corpus, collocations=100_000)
    manifest = prepare(many, tmp_path / "rows", progress=False)
    assert [note for note in manifest["notes"] if "of 100,000 collocations" in note]


def test_two_workers_write_the_same_bytes(corpus, reference, tmp_path, small_units):
    prepare(config_of(corpus, workers=2), tmp_path / "rows", progress=False)
    assert same(tmp_path / "rows", reference)


def test_the_size_of_the_units_does_not_matter_either(corpus, reference, tmp_path):
    prepare(config_of(corpus), tmp_path / "rows", progress=False)
    assert same(tmp_path / "rows", reference)


def test_a_second_call_does_nothing_and_a_change_builds_anew(corpus, tmp_path):
    folder = tmp_path / "rows"
    text = tmp_path / "corpus.jsonl"
    text.write_bytes(corpus.read_bytes())
    first = prepare(config_of(text), folder, progress=False)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert prepare(config_of(text, workers=2), folder, progress=False) == first
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    changed = {
        "row_length": prepare(config_of(text, row_length=32), folder, progress=False),
        "holdout": prepare(config_of(text, holdout=0.2), folder, progress=False),
        "vocab_size": prepare(config_of(text, vocab_size=200), folder, progress=False),
        "collocations": prepare(config_of(text, collocations=0), folder, progress=False),
    }
    # how collocations are found matters where they are asked for
    (change,) = changes(config_of(text, collocation_longest=3), first)
    assert change.startswith("collocations was {'list': 40, 'longest': 5,")
    assert changes(config_of(text, collocations=0, collocation_longest=3), changed["collocations"]) == []
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "tokenizer", "train", "eval"}
    write_json_lines(text, 200)
    changed["content"] = prepare(config_of(text), folder, progress=False)
    assert len({manifest["fingerprint"] for manifest in [first, *changed.values()]}) == 6
    assert changed["row_length"]["row_length"] == 32
    assert changed["vocab_size"]["tokenizer"]["vocab_size"] == 200
    assert changed["content"]["corpora"][0]["counts"]["read"] == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "rows"]  # nothing is left beside it
    assert changed["collocations"]["flags"]["phrase_joins"] == 0 < changed["content"]["flags"]["phrase_joins"]
    names = {"manifest.json", "tokenizer", "collocations.tsv", "train", "eval"}
    assert {path.name for path in folder.iterdir()} == names


def test_a_lost_shard_is_made_again(reference, corpus, tmp_path, small_units):
    folder = tmp_path / "rows"
    prepare(config_of(corpus), folder, progress=False)
    next(folder.glob("train/*")).unlink()
    prepare(config_of(corpus), folder, progress=False)
    assert same(folder, reference)


@pytest.mark.parametrize(
    "stage, name, after",
    [
        ("vocabulary", "train_tokenizer", 0),
        ("vocabulary", "write_json", 0),  # what training said
        ("encoding", "encode_unit", 0),
        ("encoding", "encode_unit", 2),
        ("shards", "pack_group", 2),
        ("phrase_list", "write_phrases", 0),
        ("phrase_list", "write_json", 0),
        ("pipeline", "write_json", 0),  # the manifest
        ("pipeline", "publish", 0),
    ],
)
def test_interrupted_anywhere_it_goes_on(corpus, reference, tmp_path, small_units, monkeypatch, stage, name, after):
    module = importlib.import_module(f"mlm_jax.prepare.{stage}")
    real, rows = getattr(module, name), tmp_path / "rows"
    interrupted(monkeypatch, module, name, after, lambda: prepare(config_of(corpus), rows, progress=False))
    assert not rows.exists()
    again = 0

    def counting(*args):
        nonlocal again
        again += 1
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, counting)
        prepare(config_of(corpus), tmp_path / "rows", progress=False)
    assert same(tmp_path / "rows", reference)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    if name == "encode_unit" and after:
        units = len(list(sources.units(sources.find_files(str(corpus)), FIELDS)))
        assert again == units - after  # what was done is not done again


KILLED = """
import sys
from mlm_jax.prepare import prepare, sources
from mlm_jax.config import from_json
sources.parts.UNIT_BYTES, sources.parts.BLOCK_BYTES = 20_000, 5_000
if __name__ == "__main__":
    prepare(from_json(sys.argv[1]), sys.argv[2], progress=False)
"""


@pytest.mark.processes
@pytest.mark.parametrize("awaited", ["work/units-0/000003.json", "train/*.array_record*"])
def test_killed_it_goes_on_and_leaves_no_process(corpus, reference, tmp_path, small_units, awaited):
    from mlm_jax.config import to_json

    config = config_of(corpus, workers=2)
    process = subprocess.Popen([sys.executable, "-c", KILLED, to_json(config), str(tmp_path / "rows")])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(f".rows.*/{awaited}")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert children and not (tmp_path / "rows").exists()
    while any(_alive(int(child)) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    prepare(config, tmp_path / "rows", progress=False)
    assert same(tmp_path / "rows", reference)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_half_a_publication_is_completed(corpus, reference, tmp_path, small_units, monkeypatch):
    from mlm_jax.prepare import pipeline

    folder = tmp_path / "rows"
    prepare(config_of(corpus, row_length=32), folder, progress=False)
    real = Path.rename

    def failing(self, target):
        if self.name.endswith(".partial") and target == folder:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(KeyboardInterrupt):
            prepare(config_of(corpus), folder, progress=False)
    assert not folder.exists()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_build", None)  # all is built
        prepare(config_of(corpus), folder, progress=False)
    assert same(folder, reference)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_an_existing_tokenizer_is_used_as_it_is(corpus, tokenizer, tmp_path):
    tokenizer.save(tmp_path / "given")
    config = dataclasses.replace(config_of(corpus), tokenizer=TokenizerConfig(path=str(tmp_path / "given")))
    manifest = prepare(config, tmp_path / "rows", progress=False)
    assert manifest["tokenizer"]["hash"] == tokenizer.hash
    assert (tmp_path / "rows/tokenizer/spm.model").read_bytes() == tokenizer.files["spm.model"]


def test_equal_ids_are_an_error_that_names_both_places(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "one"}\n{"id": "y", "text": "two"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": "z", "text": "three"}\n\n{"id": "y", "text": "four"}\n')
    with pytest.raises(ConfigError) as error:
        prepare(config_of(tmp_path, holdout=0.0, id_field="id"), tmp_path / "rows", progress=False)
    for part in ("'y'", f"{tmp_path}/a.jsonl:2", f"{tmp_path}/b.jsonl:3"):
        assert part in str(error.value)
    manifest = prepare(config_of(tmp_path / "*.jsonl", holdout=0.0), tmp_path / "rows", progress=False)
    assert manifest["corpora"][0]["counts"]["kept"] == 4


def test_the_fields_of_text_and_name(tmp_path):
    records = [{"body": "Tea with milk.", "name": "a"}, {"body": "Milk alone.", "name": "b"}]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "named.jsonl").write_text(lines)
    (tmp_path / "plain.jsonl").write_text(lines.replace("body", "text"))
    (tmp_path / "twice.jsonl").write_text(lines.replace('"b"', '"a"'))
    of = {"holdout": 0.0}
    named = prepare(config_of(tmp_path / "named.jsonl", text_field="body", **of), tmp_path / "rows", progress=False)
    plain = prepare(config_of(tmp_path / "plain.jsonl", **of), tmp_path / "others", progress=False)
    assert named["corpora"][0]["counts"]["kept"] == 2 and named["unigrams"] == plain["unigrams"]
    twice = config_of(tmp_path / "twice.jsonl", text_field="body", id_field="name", **of)
    with pytest.raises(ConfigError, match="two documents are called 'a'"):
        prepare(twice, tmp_path / "no", progress=False)


def test_what_is_dropped_is_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words here"}\n{"text": "\\u200b\\u00ad"}\n{"text": ""}\n{"no": 1}\n{"text": \n')
    manifest = prepare(config_of(path, holdout=0.0), tmp_path / "rows", progress=False)
    counts = manifest["corpora"][0]["counts"]
    assert (counts["read"], counts["kept"]) == (5, 1)
    assert counts["dropped"] == {"empty": 2, "no text in the field 'text'": 1, "not valid JSON": 1}
    assert manifest["corpora"][0]["splits"]["eval"] == {
        "rows": 0, "segments": 0, "labels": [0, 0], "tokens": 0, "unknown": 0, "shards": []
    }  # fmt: skip
    assert not (tmp_path / "rows" / "eval").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"body": "x"}\n{"body": "y"}\n', r"a\.jsonl:1.*no text in the field 'text'; and so in all 2 records"),
        ("\n[\n", r"a\.jsonl:2.*not valid JSON"),
        ('{"text": "\\u200b"}\n', "holds no text"),
        ("", "hold no word"),
    ],
)
def test_a_source_without_text_is_an_error(tmp_path, tokenizer, content, message):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    tokenizer.save(tmp_path)
    config = config_of(path, holdout=0.0)
    if content:
        config = dataclasses.replace(config, tokenizer=TokenizerConfig(path=str(tmp_path)))
    with pytest.raises(ConfigError, match=message):
        prepare(config, tmp_path / "rows", progress=False)


def test_only_rows_are_replaced(corpus, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else than rows"):
        prepare(config_of(corpus), folder, progress=False)
    assert (folder / "thesis.txt").read_text() == "mine"


def test_several_corpora(corpus, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(prose(i, 80) for i in range(900, 1000)))
    manifest = prepare(config_of(corpus, other), tmp_path / "rows", progress=False)
    assert [entry["source"] for entry in manifest["corpora"]] == [str(corpus), str(other)]
    assert [entry["counts"]["kept"] for entry in manifest["corpora"]] == [300, 100]
    files = [shard["file"] for entry in manifest["corpora"] for shard in entry["splits"]["train"]["shards"]]
    assert len(files) == len(set(files)) and all((tmp_path / "rows" / file).is_file() for file in files)
    alone = prepare(config_of(other), tmp_path / "alone", progress=False)
    assert alone["corpora"][0]["counts"]["read"] == 100


def test_chinese_without_segmentation_is_noted(tmp_path):
    draw = random.Random(0)
    characters = [chr(0x4E00 + i) for i in range(100)]
    text = "\n\n".join("".join(draw.choices(characters, k=60)) + "。" for _ in range(50))
    (tmp_path / "zh.txt").write_text(text, encoding="utf-8")
    manifest = prepare(config_of(tmp_path / "zh.txt"), tmp_path / "rows", progress=False)
    assert sum("ideographs" in note for note in manifest["notes"]) == 1
    (tmp_path / "en.txt").write_text("\n\n".join(prose(i, 50) for i in range(20)))
    config = config_of(tmp_path / "en.txt", collocations=0)
    assert prepare(config, tmp_path / "rows", progress=False)["notes"] == []


def test_docstrings_as_a_corpus(tmp_path, monkeypatch):
    files = [file for file in pydoc.module_files() if file.name.startswith(("json/", "email/", "logging/"))]
    monkeypatch.setattr(pydoc, "module_files", lambda: files)
    manifest = prepare(config_of("builtin:pydoc", vocab_size=1000), tmp_path / "rows", progress=False)
    (summary,) = manifest["corpora"]
    assert summary["source"] == "builtin:pydoc" and 20 < summary["counts"]["kept"] <= len(files)
    tokenizer = Tokenizer.load(tmp_path / "rows/tokenizer")
    text = " ".join(
        tokenizer.decode(s) for split in ("train", "eval") for s in segments_of(read_rows(tmp_path / "rows", split))
    )
    assert "parsing, handling, and generating email messages" in text
    monkeypatch.setattr(pydoc, "MOST_BYTES", 20_000)
    capped = prepare(config_of("builtin:pydoc", vocab_size=500), tmp_path / "capped", progress=False)
    assert capped["corpora"][0]["counts"]["bytes"] <= 20_000 + capped["corpora"][0]["counts"]["read"]


def test_document_hashes():
    # BLAKE2b with 8 bytes of digest over "builtin:pydoc\0json"
    expected = int.from_bytes(hashlib.blake2b(b"builtin:pydoc\0json", digest_size=8).digest(), "big")
    assert sources.document_hash("builtin:pydoc", "json") == expected
    settings = tasks.Settings("s", FIELDS, 0.25, (8, 2), "")
    share = np.mean([settings.split(f"document {i}") for i in range(4000)])
    assert abs(share - 0.25) < 0.03


def test_workers_stay_light():
    code = "import sys, mlm_jax.prepare; print({'jax', 'flax', 'grain', 'array_record', 'google'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_verb(corpus, tmp_path, capsys):
    script = tmp_path / "small.py"
    script.write_text(
        "from mlm_jax.config import *\n"
        "def get_config():\n"
        f"    return Config(row_length=64, data=DataConfig(sources=({str(corpus)!r},), workers=1),\n"
        "        tokenizer=TokenizerConfig(vocab_size=300, sample_bytes=100_000))\n"
    )
    assert main([f"--config={script}", f"--workdir={tmp_path}/run"]) == 0
    out = capsys.readouterr().out
    assert "300 read, 300 kept, dropped: none" in out and "% full" in out and "[▁" in out
    assert (tmp_path / "run/rows/manifest.json").exists()
    assert main([f"--config={script}", f"--workdir={tmp_path}/run", "--config.data.sources=/nowhere.txt"]) == 2
    assert "config.data.sources = '/nowhere.txt': no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "Example" in capsys.readouterr().out
