"""Several sets of rows of one text: encoded documents that are kept, and pairs of segments."""

import json
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from test_prepare import CORPORA, config_of, pack, prose, read_rows, same, segments_of, write_json_lines
from texts import packed

from mlm_jax import records
from mlm_jax.config import ConfigError
from mlm_jax.prepare import encoding, packing, pairs, prepare, vocabulary
from mlm_jax.prepare.folder import alone
from mlm_jax.records import PARAGRAPH_START, SECOND_OF_PAIR, SENTENCE_START, WORD_START, Layout


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_json_lines(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 100)


@pytest.fixture
def no_encoding(monkeypatch):
    """Fails where a text is read or a tokenizer trained."""
    monkeypatch.setattr(encoding, "encode_unit", None)
    monkeypatch.setattr(encoding.sources, "units", None)
    monkeypatch.setattr(vocabulary, "train_tokenizer", None)


# Encoded documents that are kept


@pytest.fixture(scope="module")
def kept(corpus, tmp_path_factory) -> Path:
    """Encoded documents of the corpus."""
    folder = tmp_path_factory.mktemp("kept")
    prepare(config_of(corpus, encoded=str(folder / "encoded")), folder / "rows", progress=False)
    return folder


def test_rows_are_the_same_bytes_whether_encoded_documents_are_kept_or_not(corpus, kept, tmp_path):
    prepare(config_of(corpus), tmp_path / "rows", progress=False)
    assert same(tmp_path / "rows", kept / "rows")


@pytest.mark.parametrize("change", [{"row_length": 32}, {"max_segments": 2}, {"collocations": 0}])
def test_other_rows_are_only_packed(corpus, kept, tmp_path, no_encoding, monkeypatch, change):
    prepare(config_of(corpus, encoded=str(kept / "encoded"), **change), tmp_path / "again", progress=False)
    monkeypatch.undo()
    prepare(config_of(corpus, **change), tmp_path / "anew", progress=False)
    assert same(tmp_path / "again", tmp_path / "anew")


def test_other_documents_are_never_taken_for_these(tmp_path):
    text, encoded = write_json_lines(tmp_path / "corpus.jsonl", 40), tmp_path / "encoded"
    config = config_of(text, encoded=str(encoded))
    prepare(config, tmp_path / "first", progress=False)
    content = text.read_bytes()
    text.write_bytes(content.replace(b"a", b"e", 1))  # as long as before
    manifest = prepare(config, tmp_path / "second", progress=False)
    prepare(config_of(text), tmp_path / "anew", progress=False)
    assert same(tmp_path / "second", tmp_path / "anew") and len(list(encoded.iterdir())) == 2
    for change in ({"vocab_size": 200}, {"pack_groups": 2}):
        other = prepare(config_of(text, encoded=str(encoded), **change), tmp_path / "second", progress=False)
        assert other["fingerprint"] != manifest["fingerprint"]
    assert len(list(encoded.iterdir())) == 4


def test_that_it_waits_is_said(corpus, kept, tmp_path, capsys):
    (folder,) = (kept / "encoded").iterdir()
    config = config_of(corpus, encoded=str(kept / "encoded"), row_length=40)
    thread = threading.Thread(target=prepare, args=(config, tmp_path / "rows"))
    with alone(folder):
        thread.start()
        said, deadline = "", time.monotonic() + 30
        while "waiting" not in said and time.monotonic() < deadline:
            said += capsys.readouterr().err
            time.sleep(0.01)
        assert said.endswith(f"waiting for another process that works in {folder}\n")
        assert not (tmp_path / "rows").exists()
    thread.join()
    assert (tmp_path / "rows" / records.MANIFEST).exists()


def test_two_at_once_encode_once(tmp_path, monkeypatch):
    corpus = write_json_lines(tmp_path / "corpus.jsonl", 40)
    calls, real = [], vocabulary.train_tokenizer
    monkeypatch.setattr(vocabulary, "train_tokenizer", lambda *args: calls.append(args) or real(*args))
    configs = [config_of(corpus, encoded=str(tmp_path / "encoded"), row_length=length) for length in (32, 64)]
    threads = [
        threading.Thread(target=prepare, args=(config, tmp_path / str(config.row_length), False)) for config in configs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    for config in configs:
        config.data.encoded = ""
        prepare(config, tmp_path / "anew", progress=False)
        assert same(tmp_path / str(config.row_length), tmp_path / "anew")


def test_what_an_interrupted_call_has_encoded_is_found(corpus, kept, tmp_path, monkeypatch):
    def failing(*args):
        raise KeyboardInterrupt

    config = config_of(corpus, encoded=str(tmp_path / "encoded"))
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "encode_unit", failing)
        with pytest.raises(KeyboardInterrupt):
            prepare(config, tmp_path / "rows", progress=False)
    (folder,) = (tmp_path / "encoded").iterdir()
    (folder / "units-0" / "000000.bin.partial").write_bytes(b"half")
    monkeypatch.setattr(vocabulary, "train_tokenizer", None)  # it is there
    prepare(config, tmp_path / "rows", progress=False)
    assert same(tmp_path / "rows", kept / "rows") and not list(folder.rglob("*.partial"))


def test_what_was_lost_is_encoded_again(tmp_path):
    corpus, folder = write_json_lines(tmp_path / "corpus.jsonl", 40), tmp_path / "encoded"
    first = prepare(config_of(corpus, encoded=str(folder)), tmp_path / "first", progress=False)
    (lost,) = folder.glob("*/units-0/*.bin")
    lost.unlink()
    prepare(config_of(corpus, encoded=str(folder)), tmp_path / "second", progress=False)
    assert same(tmp_path / "first", tmp_path / "second") and first["corpora"][0]["counts"]["read"] == 40


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_what_was_damaged_is_made_again(tmp_path):
    corpus, folder = write_json_lines(tmp_path / "corpus.jsonl", 40), tmp_path / "encoded"
    evaluation = write_json_lines(tmp_path / "evaluation.jsonl", 2, start=90)
    options = {"duplicates": "exact", "contamination": (str(evaluation),)}

    def prepared(name: str, row_length: int, **more: object) -> Path:
        prepare(config_of(corpus, row_length=row_length, **options, **more), tmp_path / name, progress=False)
        return tmp_path / name

    prepared("first", 64, encoded=str(folder))
    anew = prepared("anew", 48)
    units, files = "*/units-0/000000", ("*/contamination.npy", "*/contamination.json", "*/tokenizer/*")
    files += (f"{units}.bin", f"{units}.npy", f"{units}.json", "*/units-0.json", "*/training.json")
    for number, pattern in enumerate(files):
        (path,) = folder.glob(pattern)
        before = path.read_bytes()
        _cut(path)
        assert same(prepared(str(number), 48, encoded=str(folder)), anew), pattern
        assert path.read_bytes() == before, pattern


def test_what_another_tokenizer_encoded_is_not_mixed_in(tmp_path, monkeypatch):
    """As where another version of the library trains other pieces."""
    corpus, folder = write_json_lines(tmp_path / "corpus.jsonl", 40), tmp_path / "encoded"
    real = vocabulary.train_tokenizer
    with monkeypatch.context() as patch:
        patch.setattr(vocabulary, "train_tokenizer", lambda texts, size, *more: real(texts, size - 60, *more))
        prepare(config_of(corpus, encoded=str(folder)), tmp_path / "first", progress=False)
    (path,) = folder.glob("*/training.json")
    path.write_text("")
    prepare(config_of(corpus, encoded=str(folder), row_length=48), tmp_path / "second", progress=False)
    prepare(config_of(corpus, row_length=48), tmp_path / "anew", progress=False)
    assert same(tmp_path / "second", tmp_path / "anew")


def test_where_encoded_documents_cannot_be_kept(corpus, tmp_path):
    rows = tmp_path / "rows"
    (tmp_path / "file").write_text("")
    for path, message in (
        (rows, "the folder of the rows"),
        (rows / "in", "the folder of the rows"),
        (tmp_path / "file", "cannot be made"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            prepare(config_of(corpus, encoded=str(path)), rows, progress=False)
        assert error.value.key == "config.data.encoded" and not rows.exists()


# Pairs


PAD, CLS, SEP = 0, 2, 3
LAYOUT = Layout(64, 8, "uint32")


def text_of(*documents: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Documents from the lengths of their sentences: ids (each different), flags, lengths, hashes."""
    sizes = [size for document in documents for size in document]
    ids, flags = np.arange(10, 10 + sum(sizes)), np.full(sum(sizes), WORD_START, np.uint8)
    flags[np.cumsum(sizes) - sizes] |= SENTENCE_START
    lengths = np.array([sum(document) for document in documents if document])
    flags[np.cumsum(lengths) - lengths] |= PARAGRAPH_START
    hashes = np.random.default_rng(len(sizes)).integers(0, 1 << 63, len(lengths), np.uint64)
    return ids, flags, lengths, hashes


def paired(kind, ids, flags, lengths, hashes, layout=LAYOUT):
    """(decoded rows, the segments' first and second texts and labels) of documents."""
    plan = packing.plan(lengths, flags, layout, pairs=True)
    made = pairs.pair(kind, plan.starts, plan.stops, ids, flags, lengths, hashes, layout.row_length)
    rows = records.decode_rows(layout, packed(plan, ids, flags, layout, PAD, CLS, SEP, made))
    return rows, texts_of(rows)


def texts_of(rows) -> list[tuple[list[int], list[int], int]]:
    """(first text, second text, label) of each segment, specials left out. The form of a segment is checked."""
    found = []
    for i, row in enumerate(rows["segments"]):
        for segment in range(1, row.max(initial=0) + 1):
            tokens, flags = rows["tokens"][i][row == segment], rows["flags"][i][row == segment]
            label = int(rows["pair_labels"][i, segment - 1])
            second = flags & SECOND_OF_PAIR > 0
            first, after = tokens[~second].tolist(), tokens[second].tolist()
            assert first.pop(0) == CLS and (first.pop() == SEP) and (not after or after.pop() == SEP)
            assert not {PAD, CLS, SEP} & {*first, *after}
            assert bool(after) == (label >= 0) and (np.diff(second.astype(int)) >= 0).all()
            assert np.isin(flags[np.isin(tokens, [CLS, SEP])], [0, SECOND_OF_PAIR]).all()
            found.append((first, after, label))
    return found


@pytest.mark.parametrize("kind", ["next", "order"])
@pytest.mark.parametrize("corpus, row_length", [("long", 512), ("middle", 64), ("short", 512), ("mixed", 64)])
def test_rows_of_pairs_are_full_and_nothing_is_lost(corpus, row_length, kind):
    layout, lengths = Layout(row_length, 32, "uint32"), np.array(CORPORA[corpus])
    _, ids, flags = pack(CORPORA[corpus], layout)
    hashes = np.random.default_rng(5).integers(0, 1 << 63, len(lengths), np.uint64)
    rows, texts = paired(kind, ids, flags, lengths, hashes, layout)
    fill = (rows["segments"] > 0).mean(axis=1)
    assert fill[: -max(1, len(fill) // 50)].mean() >= 0.97
    np.testing.assert_array_equal(np.sort(np.concatenate([first + second for first, second, _ in texts])), ids)
    document = np.repeat(np.arange(len(lengths)), lengths)
    sentences = [*np.flatnonzero(flags & SENTENCE_START).tolist(), len(ids)]
    long = {
        place for start, stop in pairwise(sentences) if stop - start > row_length - 2 for place in range(start, stop)
    }
    for first, second, label in texts:
        both = [text for text in (first, second) if text]
        assert all((np.diff(text) == 1).all() for text in both)  # each is a run of one document
        assert all(document[text[0] - 10] == document[text[-1] - 10] for text in both)
        if second:  # of whole sentences, or within some that no row holds
            edges = {text[0] - 10 for text in both} | {text[-1] - 9 for text in both}
            assert edges <= {*sentences} or (edges <= long and not edges & {*sentences})
            assert (second[0] == first[-1] + 1) == (label == 0)
            assert (document[first[0] - 10] != document[second[0] - 10]) == (label == 1)
    labels = Counter(label for _, _, label in texts)
    assert labels[1] == 0 if kind == "order" else abs(labels[1] - labels[0]) <= 2  # both of a couple have the same
    assert labels[-1] < (0.65 if corpus == "middle" else 0.45) * len(texts)


def test_one_document_has_nothing_that_is_random():
    rows, texts = paired("next", *text_of([5, 6, 7]))
    assert texts == [(list(range(10, 28)), [], -1)]
    assert (rows["segments"] > 0).sum() == 18 + 2


def test_documents_of_one_sentence_have_nothing_that_follows():
    for kind in ("next", "order"):
        _, texts = paired(kind, *text_of([5], [5]))
        assert sorted(texts) == [([10, 11, 12, 13, 14], [], -1), ([15, 16, 17, 18, 19], [], -1)]


def test_half_of_what_could_follow_is_random_and_of_another_document():
    # an empty document leaves nothing; the others have two sentences each, of 3 to 12 tokens
    draw = np.random.default_rng(0)
    documents = [[], *draw.integers(3, 13, (10_000, 2)).tolist()]
    ids, flags, lengths, hashes = text_of(*documents)
    plan = packing.plan(lengths, flags, LAYOUT, pairs=True)
    made = pairs.pair("next", plan.starts, plan.stops, ids, flags, lengths, hashes, LAYOUT.row_length)
    labels, document = made.labels, np.repeat(np.arange(len(lengths)), lengths)
    assert len(labels) >= 10_000 and (labels >= 0).mean() > 0.99
    assert abs((labels == 1).sum() / (labels >= 0).sum() - 0.5) < 0.001
    follows, random = labels == 0, labels == 1
    np.testing.assert_array_equal(made.seconds[follows], made.cuts[follows])
    assert (document[plan.starts[follows]] == document[made.seconds[follows]]).all()
    assert (document[plan.starts[random]] != document[made.seconds[random]]).all()
    np.testing.assert_array_equal(np.sort(made.seconds[random]), np.sort(made.cuts[random]))  # each stands once


@pytest.mark.parametrize("kind", ["next", "order"])
def test_text_without_sentences_is_paired_within_them(kind):
    """Four documents of one sentence of 600 words each, in rows of 64, and short ones of one sentence."""
    ids, flags, lengths, hashes = text_of([600], [600], [9], [9], [600], [600])
    rows, texts = paired(kind, ids, flags, lengths, hashes)
    np.testing.assert_array_equal(np.sort(np.concatenate([first + second for first, second, _ in texts])), ids)
    assert (rows["segments"] > 0).mean() >= 0.97
    labels = Counter(label for _, _, label in texts)
    assert (labels[0] + labels[1] > 0.5 * len(texts) and abs(labels[0] - labels[1]) <= 2) or kind == "order"
    document = np.repeat(np.arange(len(lengths)), lengths)
    edges = {10, *(np.cumsum(lengths) + 9).tolist(), *(np.cumsum(lengths) + 10).tolist()}
    for first, second, label in texts:
        if second:  # neither begins nor ends a sentence: that would show what stood first
            assert not {first[0], first[-1], second[0], second[-1]} & edges
            assert (document[first[0] - 10] != document[second[0] - 10]) == (label == 1)
            assert (second[0] == first[-1] + 1) == (label == 0)


def test_what_stands_twice_is_never_called_random():
    # two documents of the same text: whichever second text is taken, it follows
    ids, flags, lengths, hashes = text_of([4, 6], [4, 6])
    _, texts = paired("next", np.concatenate([ids[:10], ids[:10]]), flags, lengths, hashes)
    assert [label for _, _, label in texts] == [-1, -1]
    # only the first sentence stands twice
    _, texts = paired("next", np.concatenate([ids[:10], ids[:4], ids[14:]]), flags, lengths, hashes)
    assert [label for _, _, label in texts] == [-1, -1]


def test_pairs_follow_from_the_documents_alone():
    """Not from their places, nor from what other documents there are, where the partners are the same."""
    ids, flags, lengths, hashes = text_of([4, 6], [7, 6], [5, 3])
    seen = set()
    for salt in range(20):
        both = hashes[:2] + np.uint64(salt)
        _, texts = paired("next", ids[:23], flags[:23], lengths[:2], both)
        _, more = paired("next", ids, flags, lengths, np.append(both, hashes[2]))
        assert sorted(texts) == sorted(text for text in more if text[0][0] < 33)
        assert {label for _, _, label in texts} in ({0}, {1})
        seen |= {label for _, _, label in texts}
    assert seen == {0, 1}


def balanced_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    """Of a nearest-neighbour guess on half of the data from the other half."""
    scaled = (features - features.mean(0)) / (features.std(0) + 1e-9)
    half = len(labels) // 2
    distance = ((scaled[half:, None] - scaled[None, :half]) ** 2).sum(-1)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :15]
    guessed = labels[:half][nearest].mean(1) > 0.5
    return float(np.mean([(guessed[labels[half:] == label] == label).mean() for label in (0, 1)]))


def features_of(rows) -> tuple[np.ndarray, np.ndarray]:
    """What can be seen of each pair but its text: lengths of both texts, place in the row, number of segments, fill."""
    features, labels = [], []
    for i, row in enumerate(rows["segments"]):
        for segment in range(1, row.max(initial=0) + 1):
            if (label := rows["pair_labels"][i, segment - 1]) >= 0:
                inside = row == segment
                second = int((rows["flags"][i][inside] & SECOND_OF_PAIR > 0).sum())
                sizes = [int(inside.sum()) - second, second]
                features.append([*sizes, rows["firsts"][i, segment - 1], segment, row.max(), (row > 0).sum()])
                labels.append(label)
    return np.array(features, float), np.array(labels)


def test_neither_lengths_nor_places_tell_the_label():
    draw = np.random.default_rng(3)
    documents = [draw.geometric(0.1, draw.integers(1, 30)).tolist() for _ in range(800)]
    rows, _ = paired("next", *text_of(*documents))
    features, labels = features_of(rows)
    order = draw.permutation(len(labels))[:2000]
    error = 0.5 / np.sqrt(1000)
    assert len(order) == 2000
    assert balanced_accuracy(features[order], labels[order]) == pytest.approx(0.5, abs=4 * error)
    # were the second texts of some other lengths, it would be found out
    worse = features.copy()
    worse[labels == 1, 1] = draw.permutation(worse[labels == 1, 1]) + 2
    assert balanced_accuracy(worse[order], labels[order]) > 0.5 + 4 * error
    # both labels have the same second lengths, each as often up to chance
    for size, count in Counter(features[:, 1]).items():
        random = ((features[:, 1] == size) & (labels == 1)).sum()
        assert abs(random - count / 2) <= 5 * np.sqrt(count) and random % 2 == 0


def test_swapping_what_is_in_order_shows_in_no_length():
    """The first text is as often the longer one."""
    draw = np.random.default_rng(3)
    documents = [draw.geometric(0.1, draw.integers(2, 30)).tolist() for _ in range(800)]
    _, texts = paired("order", *text_of(*documents))
    sizes = np.array([(len(first), len(second)) for first, second, label in texts if label == 0])
    longer, shorter = (sizes[:, 0] > sizes[:, 1]).sum(), (sizes[:, 0] < sizes[:, 1]).sum()
    assert longer == shorter > 0.4 * len(sizes)
    swapped = draw.random(len(sizes)) < 0.5
    seen = np.where(swapped[:, None], sizes[:, ::-1], sizes).astype(float)
    assert balanced_accuracy(seen, swapped) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(sizes) / 2))


@pytest.mark.parametrize("kind", ["next", "order"])
def test_prepared_pairs(corpus, kept, tmp_path, kind):
    config = config_of(corpus, pairs=kind, encoded=str(kept / "encoded"), workers=2 if kind == "next" else 1)
    manifest = prepare(config, tmp_path / "rows", progress=False)
    config.data.encoded, config.data.workers = "", 1
    prepare(config, tmp_path / "anew", progress=False)
    assert same(tmp_path / "rows", tmp_path / "anew")
    assert manifest["pairs"] == kind
    plain = records.read_manifest(kept / "rows")
    assert manifest["unigrams"] == plain["unigrams"]
    for split, about in manifest["corpora"][0]["splits"].items():
        rows = read_rows(tmp_path / "rows", split)
        labels = rows["pair_labels"][rows["pair_labels"] >= 0]
        assert about["labels"] == [int((labels == label).sum()) for label in (0, 1)]
        assert about["tokens"] == (rows["segments"] > 0).sum()
        assert about["segments"] == len(segments_of(rows))
    rows = read_rows(tmp_path / "rows")
    first, second = (rows["flags"] & SECOND_OF_PAIR == bit for bit in (0, SECOND_OF_PAIR))
    # positions run on within a pair, and no phrase goes on behind a SEP
    inside = second[:, 1:] & first[:, :-1]
    np.testing.assert_array_equal((rows["positions"][:, 1:] - rows["positions"][:, :-1])[inside], 1)
    after = np.pad(np.isin(rows["tokens"], [CLS, SEP]), ((0, 0), (1, 0)))[:, :-1]
    assert not (rows["flags"][after] & records.PHRASE_JOIN).any() and (rows["flags"] & records.PHRASE_JOIN).any()


def test_few_pairs_are_noted(tmp_path):
    lines = [json.dumps({"text": prose(i, 6)}) for i in range(60)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    manifest = prepare(config_of(tmp_path / "corpus.jsonl", pairs="next"), tmp_path / "rows", progress=False)
    assert [note for note in manifest["notes"] if "of the training segments are pairs" in note]
