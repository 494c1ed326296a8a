"""Collocations against scores by hand and a plain count of every cut; their marks in the rows."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from texts import packed
from vocabularies import byte_pairs

from mlm_jax import records
from mlm_jax.prepare import packing, phrases
from mlm_jax.prepare.collocations import collocations, sample, split
from mlm_jax.prepare.documents import encode_documents
from mlm_jax.prepare.phrases import Marker, Phrase, Traits, read_phrases, words_of, write_phrases
from mlm_jax.prepare.tasks import Part
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.records import PHRASE_JOIN, SENTENCE_START, WORD_START, Layout
from mlm_jax.tokenizer import Tokenizer

TEN = """The new york city. The new york city. The new york times. The new york times. The old city.
The old times. The city sleeps. The times change. A new city. A new york."""
MORE = "the king's well-known house, 3.5 miles (north) 'tis - it x-- council [unheard-of] new york- It City"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([f"{TEN} {MORE}"], 90)[0]


def encoded(text: str, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    return encode_documents([text], tokenizer)[:2]


def test_punctuation_of_byte_level_pieces_ends_a_phrase(tmp_path):
    """Pieces as they are written hold letters where the text has white space, signs, or parts of characters."""
    tokenizer = byte_pairs(tmp_path, ["Ġ (", "Ġ d", "Ġd o", "Ġdo g", "â Ģ", "âĢ Ķ", "Ġ âĢĶ"])
    traits = Traits(tokenizer)
    by_text = {tokenizer.pieces[i]: (int(traits.holds[i]), bool(traits.spaced[i])) for i in range(tokenizer.size)}
    assert by_text["Ġdog"] == (phrases.LETTERS, True) and by_text["g"] == (phrases.LETTERS, False)
    assert by_text["Ġ("] == by_text["ĠâĢĶ"] == (phrases.OTHER, True) and by_text["âĢĶ"] == (phrases.OTHER, False)


def test_scores_by_hand(tokenizer):
    # 34 words, 24 bigrams and 14 trigrams, none across a full stop; new 6, york 5, city 5; new york 5, york city 2
    found, about = collocations([encoded(TEN, tokenizer)], tokenizer, asked=100, longest=3, least=2)
    scores = {phrase.text: (phrase.count, phrase.score) for phrase in found}
    assert scores["new york"] == (5, pytest.approx(math.log((5 / 24) / (6 / 34 * 5 / 34)), abs=1e-4))
    # three cuts: new york | city 0.0306, new | york city 0.0147, new | york | city 0.0038; the first explains most
    assert scores["new york city"] == (2, pytest.approx(math.log((2 / 14) / (5 / 24 * 5 / 34)), abs=1e-4))
    assert scores["york city"] == (2, pytest.approx(math.log((2 / 24) / (5 / 34 * 5 / 34)), abs=1e-4))
    assert "The city" not in scores and "A new" in scores  # The 8, city 5, together once; A 2, always before new
    assert [phrase.text for phrase in found if len(phrase.ids) == 3] == [
        "The new york", "new york times", "new york city"
    ]  # fmt: skip
    # (4/14) / (8/34 x 5/24) = (2/14) / (5/24 x 4/34) = 204/35: equal, so the text decides
    assert scores["The new york"][1] == scores["new york times"][1] == pytest.approx(math.log(204 / 35), abs=1e-4)
    assert about["3"] == {"candidates": 3, "kept": 3, "lowest_score": scores["new york city"][1]}


def test_equal_scores_are_ordered_by_the_text_alone(tokenizer):
    (kept,), _ = collocations([encoded(TEN, tokenizer)], tokenizer, 1, longest=2, least=2)
    everything, _ = collocations([encoded(TEN, tokenizer)], tokenizer, 100, longest=2, least=2)
    keys = [(-phrase.score, phrase.text) for phrase in everything]
    assert keys == sorted(keys) and kept == everything[0]
    sentences = TEN.replace("\n", " ").split(". ")
    for seed in range(5):
        random.Random(seed).shuffle(sentences)
        texts = [encoded(sentence, tokenizer) for sentence in sentences]
        assert collocations(texts, tokenizer, 100, 2, 2)[0] == everything


def cuts(words: tuple) -> list[list[tuple]]:
    """All ways to cut an n-gram into two or more parts."""
    size = len(words)
    places = [chosen for k in range(1, size) for chosen in itertools.combinations(range(1, size), k)]
    return [[words[a:b] for a, b in itertools.pairwise((0, *chosen, size))] for chosen in places]


def test_against_a_plain_count(tokenizer):
    """Every n-gram of 2 to 5 words of 3,000 random sentences, by dictionaries and a loop over all cuts."""
    draw = random.Random(0)
    words = ["new", "york", "city", "times", "old", "house", "it"]
    sentences = [draw.choices(words, weights=[5, 4, 3, 3, 2, 1, 1], k=draw.randint(1, 9)) for _ in range(1000)]
    text = "\n".join(" ".join(sentence) for sentence in sentences)
    counts, totals = Counter(), Counter()
    for n in range(1, 6):
        grams = [tuple(s[i : i + n]) for s in sentences for i in range(len(s) - n + 1)]
        counts.update(grams)
        totals[n] = len(grams)
    expected = {}
    for gram, count in counts.items():
        if len(gram) > 1 and count >= 4:
            chance = max(math.prod(counts[part] / totals[len(part)] for part in cut) for cut in cuts(gram))
            score = math.log(count / totals[len(gram)] / chance)
            if round(score, 4) > 0:
                expected[" ".join(gram)] = (count, pytest.approx(score, abs=2e-4))
    found, _ = collocations([encoded(text, tokenizer)], tokenizer, 10_000, longest=5, least=4)
    assert {phrase.text: (phrase.count, phrase.score) for phrase in found} == expected
    assert {len(phrase.ids) for phrase in found} == {2, 3, 4, 5}


def runs(text: str, tokenizer: Tokenizer) -> list[list[str]]:
    """The runs of two words or more that a phrase may stand in."""
    ids, flags = encoded(text, tokenizer)
    words = words_of(ids, flags, Traits(tokenizer))
    shown = [tokenizer.decode(part).strip() for part in np.split(ids, words.starts[1:])]
    found = []
    for place, left in enumerate(words.left):
        if left > 1 and (place == 0 or words.left[place - 1] != left + 1):
            found.append(shown[place : place + left])
    return found


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The old house. It sleeps", [["The", "old", "house"], ["It", "sleeps"]]),
        ("the king's house", [["the", "king", "'", "s", "house"]]),
        ("well-known times", [["well", "-", "known", "times"]]),
        ("old city, new york", [["old", "city"], ["new", "york"]]),
        ("(the city) sleeps", [["the", "city"]]),
        ("new - york old", [["york", "old"]]),
        ("'tis old x-- the city york-", [["tis", "old", "x"], ["the", "city", "york"]]),
        ("3.5 miles north", [["5", "miles", "north"]]),
        ("old \u05d0 city new", [["city", "new"]]),  # an unknown character
        ("old\nnew york", [["new", "york"]]),
    ],
)
def test_where_a_phrase_may_stand(tokenizer, text, expected):
    assert runs(text, tokenizer) == expected


def phrase(text: str, tokenizer: Tokenizer, skip: int = 0) -> Phrase:
    ids, flags = encoded(text, tokenizer)
    words = np.split(ids, np.flatnonzero(flags & WORD_START)[1:])[skip:]
    return Phrase(1, 1.0, text, tuple(tuple(word.tolist()) for word in words))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("the new york city council", "the new+york+city council"),  # the longest that begins first
        ("york city council new york", "york+city+council new+york"),
        ("new york new york city", "new+york new+york+city"),
        ("new york. City council", "new+york . City council"),
        ("new. york city council", "new . york+city+council"),  # no sentence ends before a small letter, but at a sign
        ("new\nyork", "new york"),
        ("it well-known house", "it well+-+known house"),
    ],
)
def test_the_longest_phrase_from_left_to_right(tokenizer, text, expected):
    listed = ["new york", "york city council", "new york city", "well-known"]
    marker = Marker([phrase(words, tokenizer) for words in listed], tokenizer)
    ids, flags = encoded(text, tokenizer)
    marked = marker(ids, flags)
    assert (marked & ~np.uint8(PHRASE_JOIN) == flags).all()
    assert (marked[marked & PHRASE_JOIN > 0] & WORD_START > 0).all()
    starts = np.flatnonzero(flags & WORD_START)
    words = [tokenizer.decode(part).strip() for part in np.split(ids, starts[1:])]
    joined = (marked[starts] & PHRASE_JOIN) > 0
    assert "".join(("+" if join else " ") + word for word, join in zip(words, joined))[1:] == expected


def test_the_marks_of_a_long_text_by_a_plain_loop(tokenizer):
    draw = random.Random(1)
    words = ["new", "york", "city", "old"]
    listed = ["new york", "york city old", "city city", "old new york city york", "york york"]
    text = " ".join(draw.choices(words, k=5000))
    plain, at, given = [], 0, text.split()
    while at < len(given):
        fits = [n for p in listed if (n := len(p.split())) and given[at : at + n] == p.split()]
        n = max(fits, default=1)
        plain += [False] + [True] * (n - 1)
        at += n
    ids, flags = encoded(text, tokenizer)
    marked = Marker([phrase(words, tokenizer) for words in listed], tokenizer)(ids, flags)
    # the first word has the pieces of the others: white space is put before it
    assert ((marked[flags & WORD_START > 0] & PHRASE_JOIN) > 0).tolist() == plain


def test_long_texts_are_read_in_pieces(tokenizer, monkeypatch):
    ids, flags = encoded(TEN * 3, tokenizer)
    listed, _ = collocations([(ids, flags)], tokenizer, 20, 3, 2)
    whole = Marker(listed, tokenizer)(ids, flags)
    monkeypatch.setattr(phrases, "PIECE", 7)
    assert len(phrases.pieces(flags)) > 9
    assert all(flags[piece.start] & SENTENCE_START for piece in phrases.pieces(flags))
    assert collocations([(ids, flags)], tokenizer, 20, 3, 2)[0] == listed
    np.testing.assert_array_equal(Marker(listed, tokenizer)(ids, flags), whole)


def test_an_ideograph_after_white_space_is_the_same_word():
    text = "天气很好 天气不好 很好。"
    tokenizer, _ = train_tokenizer([text * 5], 12)  # every character is a piece, white space too
    ids, flags = encoded(text, tokenizer)
    found, _ = collocations([(ids, flags)], tokenizer, 100, 2, 2)
    assert [(phrase.text, phrase.count) for phrase in found] == [("天气", 2), ("很好", 2)]
    assert len({phrase.ids[0] for phrase in found}) == 2 and all(len(phrase.ids[0]) == 1 for phrase in found)
    marked = Marker(found, tokenizer)(ids, flags)
    joined = [int(flag & PHRASE_JOIN > 0) for flag in marked if flag & WORD_START]
    assert joined == [0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0]


def test_no_phrase_continues_across_the_border_of_a_segment():
    flags = np.full(30, WORD_START | PHRASE_JOIN, np.uint8)
    flags[0] = WORD_START | SENTENCE_START
    layout = Layout(16, 2, "uint16")
    plan = packing.plan(np.array([30]), flags, layout)
    rows = records.decode_rows(layout, packed(plan, np.arange(10, 40), flags, layout, 0, 2, 3))
    joins = (rows["flags"] & PHRASE_JOIN) > 0
    inner = rows["tokens"] >= 10
    np.testing.assert_array_equal(joins, inner & (rows["positions"] > 1))
    assert len(plan.starts) > 1


def test_the_list_as_a_file(tmp_path, tokenizer):
    found, _ = collocations([encoded(TEN, tokenizer)], tokenizer, 100, 3, 2)
    write_phrases(tmp_path / "list.tsv", found)
    assert read_phrases(tmp_path / "list.tsv") == found
    first = (tmp_path / "list.tsv").read_text().splitlines()[1].split("\t")
    assert first[:4] == ["2", str(found[0].count), f"{found[0].score:.4f}", found[0].text]


def test_a_text_without_collocations(tokenizer):
    for text in ("", ". . .", "new", "new york"):
        found, about = collocations([encoded(text, tokenizer)] if text else [], tokenizer, 10, 4, 2)
        assert found == [] and [of["kept"] for of in about.values()] == [0, 0, 0]
    ids, flags = encoded("new york", tokenizer)
    np.testing.assert_array_equal(Marker([], tokenizer)(ids, flags), flags)


@pytest.mark.parametrize(
    "asked, candidates, expected",
    [
        (800, [9999] * 4, [400, 200, 100, 100]),  # the shares of the paper's authors
        (7, [99], [7]),
        (50, [99, 10, 3], [37, 10, 3]),
        (50, [10, 99, 99], [10, 28, 12]),
        (50, [3, 2, 1], [3, 2, 1]),
        (0, [3, 2, 1], [0, 0, 0]),
    ],
)
def test_how_many_of_each_length(asked, candidates, expected):
    assert split(asked, candidates) == expected


def part(path, documents: list[tuple[int, list[int]]]) -> Part:
    """A file of documents (hash, ids); every second token begins a word."""
    flags = np.concatenate([np.arange(len(ids)) % 2 == 0 for _, ids in documents]).astype(np.uint8)
    content = np.array([value for value, _ in documents], "<u8").tobytes()
    content += np.array([len(ids) for _, ids in documents], "<i4").tobytes()
    content += np.concatenate([ids for _, ids in documents]).astype("<i4").tobytes() + flags.tobytes()
    path.write_bytes(content)
    return Part(str(path), 0, len(documents), len(flags), 0)


def test_the_documents_with_the_smallest_hashes_are_counted(tmp_path):
    first = part(tmp_path / "a", [(1, [10, 11, 12]), (2**63, [20] * 5)])
    second = part(tmp_path / "b", [(7, [30, 31, 32, 33, 34]), (9, [40, 41])])
    for parts in ([first, second], [second, first]):
        for most, expected in [(100, 15), (7, 7), (6, 5), (5, 5), (3, 3), (10, 10)]:
            taken = list(sample(parts, most))
            assert sum(len(ids) for _, ids, _ in taken) == expected
            assert all(len(ids) == len(flags) for _, ids, flags in taken)
        # 3 of the first, whole words of what comes next: 30 31 | 32 33, then nothing of 40
        taken = sorted(np.concatenate([ids for _, ids, _ in sample(parts, 7)]).tolist())
        assert taken == [10, 11, 12, 30, 31, 32, 33]
