"""Pseudo-log-likelihoods against one run for every token, alone in its row."""

import json

import numpy as np
import pytest
from test_fill import chances
from test_inference import LONG, folders, loaded  # noqa: F401

from mlm_jax.cli import score as verb
from mlm_jax.config import ConfigError
from mlm_jax.inference import run, score
from mlm_jax.inference.score import masked_with, perplexity, scores

TEXTS = ["the cat sleeps well.", "", "a cats swims"]


def directly(loaded, text, masked) -> list[float]:  # noqa: F811
    """masked: for each token the places that are masked."""
    ids, logs = loaded.tokenizer.encode(text).ids, []
    for place, places in enumerate(masked):
        copy = np.array(ids)
        copy[places] = loaded.tokenizer.mask
        logs.append(np.log(chances(loaded, copy)[place, ids[place]]))
    return logs


def test_every_token_masked_in_turn(loaded):  # noqa: F811
    answers = score(loaded, TEXTS)
    for text, answer in zip(TEXTS, answers):
        ids = loaded.tokenizer.encode(text).ids
        logs = directly(loaded, text, [[i] for i in range(len(ids))])
        np.testing.assert_allclose([value for _, value in answer["each"]], logs, rtol=1e-4)
        assert [piece for piece, _ in answer["each"]] == [loaded.tokenizer.shown[i] for i in ids]
        assert answer["tokens"] == len(ids) and answer["score"] == pytest.approx(sum(logs), rel=1e-4)
    assert answers[1]["score"] == 0 and answers[1]["perplexity"] is None
    assert answers[0]["perplexity"] == pytest.approx(np.exp(-answers[0]["score"] / answers[0]["tokens"]))


def test_with_the_rest_of_the_word(loaded):  # noqa: F811
    encoding = loaded.tokenizer.encode(TEXTS[2])
    assert encoding.word_starts.tolist() == [True, True, False, True]
    (answer,) = score(loaded, TEXTS[2:], "within-word")
    logs = directly(loaded, TEXTS[2], [[0], [1, 2], [2], [3]])
    np.testing.assert_allclose([value for _, value in answer["each"]], logs, rtol=1e-4)
    starts = np.array([True, False, False, True, False])
    assert [list(masked_with(starts, i, 5, "within-word")) for i in range(5)] == [[0, 1, 2], [1, 2], [2], [3, 4], [4]]
    assert list(masked_with(starts, 0, 2, "within-word")) == [0, 1]  # no further than the window goes
    with pytest.raises(ConfigError, match="variant = 'word': there is original, within-word"):
        score(loaded, TEXTS, "word")


def test_long_texts_in_windows(loaded):  # noqa: F811
    """20 tokens in windows of 14: 0-13 looks at the first 10, 6-19 at the others."""
    (answer,) = score(loaded, [LONG])
    ids = loaded.tokenizer.encode(LONG).ids
    copy = np.array(ids)
    copy[10] = loaded.tokenizer.mask
    assert answer["each"][10][1] == pytest.approx(np.log(chances(loaded, copy[6:])[4, ids[10]]), rel=1e-4)
    copy = np.array(ids)
    copy[9] = loaded.tokenizer.mask
    assert answer["each"][9][1] == pytest.approx(np.log(chances(loaded, copy[:14])[9, ids[9]]), rel=1e-4)


def test_a_stream_is_answered_as_it_is_read(loaded, monkeypatch):  # noqa: F811
    """In pieces of 3 copies: 5 tokens, none, 4, none. The first text is whole after two, before the last is read."""
    monkeypatch.setattr(run, "TEXTS_AT_A_TIME", 3)
    texts, read = [*TEXTS, ""], []
    stream = scores(loaded, (read.append(text) or text for text in texts))
    assert next(stream)["text"] == TEXTS[0] and read == TEXTS
    answers = [*stream]
    assert [answer["text"] for answer in answers] == texts[1:] and read == texts
    for answer, alone in zip(answers, score(loaded, texts[1:])):
        assert answer["score"] == pytest.approx(alone["score"], rel=1e-5) and answer["tokens"] == alone["tokens"]
    assert [answer["text"] for answer in score(loaded, ["", ""])] == ["", ""]


def test_a_corpus_is_a_sum(loaded, folders, capfd):  # noqa: F811
    """One token of loss 4 and three of loss 1 make exp(7/4), not exp((4 + 1) / 2)."""
    assert perplexity(-4.0 - 3 * 1.0, 1 + 3) == pytest.approx(5.7546, abs=1e-4)
    argv = [f"--workdir={folders[0]}", "--json", *TEXTS]
    assert verb.main(argv) == 0
    out, said = capfd.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["text"] for answer in answers] == TEXTS and "each" not in answers[0]
    total, tokens = sum(answer["score"] for answer in answers), sum(answer["tokens"] for answer in answers)
    assert f"3 texts, {tokens} tokens: score {total:,.2f}, pseudo-perplexity {np.exp(-total / tokens):,.2f}" in said
    assert verb.main([f"--workdir={folders[0]}", "--each", TEXTS[0]]) == 0
    assert "sleeps" in capfd.readouterr().out.splitlines()[4]
