import numpy as np
import pytest
from vocabularies import BYTE, byte_pairs, model, word_pieces

from mlm_jax.config import ConfigError, FinetuneConfig, Task
from mlm_jax.finetune import encode
from mlm_jax.finetune.examples import Answer, Example
from mlm_jax.tokenizer import Tokenizer

WORDS = ["▁the", "▁cat", "▁sat", "▁on", "▁a", "▁mat", "▁", "s", ".", "c", "a", "t"]


def unigram():
    return Tokenizer(model(WORDS))


def pieces_of(tokenizer, ids):
    return [tokenizer.pieces[i] for i in ids]


def test_a_pair_and_what_of_it_is_second():
    tokenizer = unigram()
    example = Example("0", "the cat", "sat on a mat", label="x")
    (piece,), told = encode.encode([example], "classification", tokenizer, FinetuneConfig(row_length=16))
    wanted = ["[CLS]", "▁the", "▁cat", "[SEP]", "▁sat", "▁on", "▁a", "▁mat", "[SEP]"]
    assert pieces_of(tokenizer, piece.ids) == wanted and piece.second == 4 and not told
    assert piece.at.tolist() == [0] and encode.labels_of([piece], [example], Task("classification", ("w", "x")))[0] == 1
    (piece,), told = encode.encode([example], "classification", tokenizer, FinetuneConfig(row_length=8))
    assert pieces_of(tokenizer, piece.ids) == [*wanted[:7], "[SEP]"] and told == ["1 cut to 8 tokens"]


def test_between_the_texts_of_a_pair_stands_what_the_tokenizer_has_there(tmp_path):
    """`<s> A </s></s> B </s>` for RoBERTa (Liu et al., 2019)."""
    tokenizer = byte_pairs(tmp_path, ["t h", "th e"])
    (piece,), _ = encode.of_texts([Example("0", "a", "the")], tokenizer, 16)
    assert pieces_of(tokenizer, piece.ids) == ["<s>", "a", "</s>", "</s>", "the", "</s>"] and piece.second == 4
    (piece,), _ = encode.of_texts([Example("0", "a", "the")], tokenizer, 5)
    assert len(piece.ids) == 5


def test_the_longer_text_gives_way():
    def by_one(a, b, room):
        while a + b > room:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        return a, b

    for case in [(3, 4, 10), (9, 2, 8), (2, 9, 8), (5, 5, 7), (6, 5, 6), (7, 0, 4), (1, 8, 3)]:
        assert encode.longest_first(*case) == by_one(*case), case


def test_a_word_is_looked_at_in_one_window_by_its_first_token():
    tokenizer, words = unigram(), ("the", "cats", "sat", "on", "a", "mat", ".")
    example = Example("0", words=words, label=("B-x", "I-x", "O", "O", "O", "B-y", "O"))
    task = Task("tagging", ("O", "B-x", "I-x", "B-y", "I-y"))
    for limit in (6, 7, 32):
        pieces, _ = encode.of_words([example], tokenizer, limit)
        assert all(len(piece.ids) <= limit for piece in pieces)
        seen = np.concatenate([piece.words for piece in pieces])
        assert seen.tolist() == list(range(7))
        first = [tokenizer.pieces[piece.ids[at]] for piece in pieces for at in piece.at]
        assert first[:3] == ["▁the", "▁cat", "▁sat"] and first[5] == "▁mat"
        labels = encode.labels_of(pieces, [example], task)
        assert encode.tags_of(labels, pieces, [example], task) == [example.label]


def test_a_word_without_a_token_is_outside():
    tokenizer, task = unigram(), Task("tagging", ("O", "B-x"))
    example = Example("0", words=("the", "\u200b", "cat", "\u200d"), label=("B-x",) * 4)
    (piece,), told = encode.of_words([example], tokenizer, 16)
    assert piece.words.tolist() == [0, 2] and told == ["2 words have no token of their own: tagged O"]
    assert encode.tags_of([np.array([1, 1])], [piece], [example], task) == [("B-x", "O", "B-x", "O")]


def test_windows_cover_a_context_or_are_refused():
    """A question of 9 tokens leaves 100 - 3 - 9 = 88; windows that go on by 100 would leave gaps."""
    assert encode.windows_of(200, 88, 32) == [(0, 88), (56, 144), (112, 200)]
    assert encode.windows_of(200, 88, 0) == [(0, 88), (88, 176), (176, 200)]
    assert encode.windows_of(5, 88, 32) == [(0, 5)] and encode.windows_of(0, 88, 32) == [(0, 0)]
    for overlap in (88, 100):
        with pytest.raises(ConfigError, match=f"config.window_overlap = {overlap}: a question leaves room for 88"):
            encode.windows_of(200, 88, overlap)


CONTEXT = "\u200bThe  🙂 cat é\u0301 sat\u00a0on the mat, the CAT."


LETTERS = sorted(set("thecasonm,.🙂é\u0301THECAT") | set(WORDS))
TOKENIZERS = {
    "unigram": lambda folder: Tokenizer(model(LETTERS)),
    "bytes": lambda folder: Tokenizer(
        model(WORDS, more=[(f"<0x{i:02X}>", BYTE) for i in range(256)], byte_fallback=True)
    ),
    "wordpiece": lambda folder: word_pieces(
        folder, ["the", "cat", "sat", "on", "mat", ",", ".", "🙂", "e", "##s"], do_lower_case=True
    ),
    "byte pairs": lambda folder: byte_pairs(folder, ["t h", "th e"]),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("answer", ["The", "🙂", "cat", "sat\u00a0on", "mat", "the CAT", "cat é\u0301 sat"])
def test_an_answer_comes_back_as_it_stands_in_the_context(kind, answer, tmp_path):
    tokenizer = TOKENIZERS[kind](tmp_path)
    start = CONTEXT.index(answer)
    example = Example("q", "on", CONTEXT, answers=(Answer(answer, start),))
    pieces, _ = encode.of_questions([example], tokenizer, 48, 4)
    holding = [piece for piece in pieces if piece.at.any()]
    assert holding
    for piece in holding:
        first, last = piece.at - piece.context[0]
        assert CONTEXT[piece.spans[first, 0] : piece.spans[last, 1]] == answer
        numbers = np.zeros((len(piece.ids), 2), np.float32)
        numbers[piece.at, [0, 1]] = 5.0
        (found,) = encode.answers_of([numbers], [piece], [example], unanswerable=True)
        assert found["prediction"] == answer and found["null_odds"] == -10.0
    for piece in pieces:
        assert len(piece.ids) - 1 == piece.context[1] and piece.second == piece.context[0]


def test_the_best_span_is_that_of_all_pairs():
    draws = np.random.default_rng(0)
    for n in (1, 2, 7, 15):
        starts, ends = draws.normal(size=(2, n))
        every = [(starts[i] + ends[j], i, j) for i in range(n) for j in range(i, n)]
        assert encode.best_span(starts, ends) == pytest.approx(max(every))
    assert encode.best_span(np.zeros(0), np.zeros(0))[0] == -np.inf


def test_where_all_windows_say_so_there_is_no_answer():
    tokenizer = unigram()
    example = Example("q", "on", "the cat sat on a mat", impossible=True)
    pieces, _ = encode.of_questions([example], tokenizer, 8, 1)
    assert len(pieces) == 2 and all(piece.at.tolist() == [0, 0] for piece in pieces)
    outputs = [np.zeros((len(piece.ids), 2)) for piece in pieces]
    outputs[0][0] = 4.0  # CLS of the first window
    outputs[1][0] = 2.0
    outputs[1][pieces[1].context[0]] = 1.0
    (found,) = encode.answers_of(outputs, pieces, [example], unanswerable=True)
    assert found == {"prediction": "", "null_odds": 2.0, "best_answer": "on"}
    (found,) = encode.answers_of(outputs, pieces, [example], unanswerable=False)
    assert found == {"prediction": "on", "null_odds": 2.0}
