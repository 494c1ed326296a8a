"""What is filled in, against the softmax of the model's logits for one text alone."""

import jax
import numpy as np
import pytest
from test_inference import LONG, folders, loaded, states  # noqa: F401

from mlm_jax.cli import fill_mask as verb
from mlm_jax.config import ConfigError
from mlm_jax.convert import NamesError, from_hub
from mlm_jax.convert.files import read_tensors
from mlm_jax.inference import fill, fill_mask
from mlm_jax.inference.fill import template

TEXTS = ["the cat [MASK] well.", "[MASK] dog[MASK] sings [MASK]", "fish"]


def chances(loaded, ids) -> np.ndarray:  # noqa: F811
    """Probabilities [n,v] for one segment, CLS and SEP added."""
    hidden = states(loaded, loaded.surrounded(ids))
    logits = np.asarray(jax.jit(loaded.model.logits)(loaded.params, hidden[None]))[0, 1:-1, : loaded.tokenizer.size]
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def same(guesses, probabilities, number=5):
    order = np.argsort(-probabilities, kind="stable")[:number]
    assert [guess["id"] for guess in guesses] == order.tolist()
    np.testing.assert_allclose([guess["probability"] for guess in guesses], probabilities[order], rtol=2e-5)


def test_each_mask_for_itself(loaded):  # noqa: F811
    answers = fill_mask(loaded, TEXTS[:2])
    for text, answer in zip(TEXTS, answers):
        one = template(loaded.tokenizer, text)
        found = chances(loaded, one.ids)
        assert answer["text"] == text and len(answer["masks"]) == text.count("[MASK]")
        for guesses, place in zip(answer["masks"], one.places):
            same(guesses, found[place])


def test_jointly_the_surest_first(loaded):  # noqa: F811
    answer, single = fill_mask(loaded, [TEXTS[1], TEXTS[0]], joint=True)
    one, order, left = template(loaded.tokenizer, TEXTS[1]), [], [0, 1, 2]
    ids, words = one.ids.copy(), {}
    while left:
        found = chances(loaded, ids)[one.places]
        best = max(left, key=lambda mask: found[mask].max())
        same(answer["masks"][best], found[best])
        ids[one.places[best]] = found[best].argmax()
        words[best] = loaded.tokenizer.shown[found[best].argmax()]
        order.append(best)
        left.remove(best)
    assert answer["order"] == order and answer["filled"] == one.written(words)
    assert single["filled"] == fill_mask(loaded, TEXTS[:1])[0]["masks"][0][0]["sequence"]


def test_a_long_text_is_seen_around_each_mask(loaded):  # noqa: F811
    """A window of 14: for the mask at place 10 of 21 that of 3 to 16, for the one at the end the last 14."""
    words = LONG.split()
    text = " ".join([*words[:10], "[MASK]", *words[10:], "[MASK]"])
    (answer,) = fill_mask(loaded, [text])
    ids = template(loaded.tokenizer, text).ids
    assert len(ids) == 22
    same(answer["masks"][0], chances(loaded, ids[3:17])[7])
    same(answer["masks"][1], chances(loaded, ids[8:])[13])


def test_among_targets(loaded):  # noqa: F811
    (answer,) = fill_mask(loaded, TEXTS[:1], targets=["dog", "cat", "dog"])
    one = template(loaded.tokenizer, TEXTS[0])
    found = chances(loaded, one.ids)[one.places[0]]
    ids = [loaded.tokenizer.pieces.index(word) for word in ("dog", "cat")]
    assert {guess["id"]: guess["probability"] for guess in answer["masks"][0]} == pytest.approx(
        {i: found[i] for i in ids}, rel=2e-5
    )
    # after white space the word, else what continues one; the same word where nothing does
    text = "the cat[MASK] [MASK]"
    (answer,) = fill_mask(loaded, [text], targets=["s", "dog"])
    one = template(loaded.tokenizer, text)
    for guesses, place, names in zip(answer["masks"], one.places, (("##s", "dog"), ("s", "dog"))):
        wanted = [loaded.tokenizer.pieces.index(name) for name in names]
        assert sorted(guess["id"] for guess in guesses) == sorted(wanted)
        found = chances(loaded, one.ids)[place]
        np.testing.assert_allclose([guess["probability"] for guess in guesses], sorted(found[wanted])[::-1], rtol=2e-5)
    (top,) = fill_mask(loaded, [text], targets=["s", "dog"], top_k=1, joint=True)
    assert [len(guesses) for guesses in top["masks"]] == [1, 1] and "MASK" not in top["filled"]
    for word, says in [("zebra", r"targets = 'zebra': is "), ("[SEP]", "must be one piece"), ("", "must be one piece")]:
        with pytest.raises(ConfigError, match=says):
            fill_mask(loaded, TEXTS[:1], targets=[word])


def test_white_space_around_what_is_filled_in(loaded):  # noqa: F811
    for text, filling, written in [
        ("Tea [MASK] milk", "▁with", "Tea with milk"),
        ("Tea[MASK] milk", "▁with", "Tea with milk"),
        ("Tea  [MASK] milk", "▁with", "Tea  with milk"),
        ("[MASK] milk", "▁with", "with milk"),
        (" [MASK]", "▁with", " with"),
        ("walk [MASK].", "ing", "walking."),
        ("Tea [MASK]", "▁with", "Tea with"),
    ]:
        assert template(loaded.tokenizer, text).written({0: filling}) == written
    two = template(loaded.tokenizer, "a [MASK] b[MASK]")
    assert two.written({1: "▁c"}) == "a [MASK] b c" and two.written({}) == "a [MASK] b[MASK]"


def test_what_cannot_be_filled(loaded, folders, capfd):  # noqa: F811
    answers = fill.filled(loaded, TEXTS)
    assert [next(answers)["text"], next(answers)["text"]] == TEXTS[:2]  # those before it are answered
    with pytest.raises(ConfigError, match=r"text = 'fish': holds no \[MASK\] \(text 3\)"):
        next(answers)
    params = {name: value for name, value in loaded.params.items() if name != "head"}
    with pytest.raises(ConfigError, match="has no head that fills masks"):
        fill_mask(loaded._replace(params=params), TEXTS[:1])
    alone = read_tensors(folders[0])  # as a BertModel has them
    without = {name: tensor for name, tensor in alone.items() if not name.startswith("cls.")}
    vocab_size = loaded.model.vocab_size
    with pytest.raises(NamesError, match=r"missing: cls\.predictions\.bias"):
        from_hub(without, loaded.model.config, vocab_size)
    assert "head" not in from_hub(without, loaded.model.config, vocab_size, headless=True)
    without.popitem()
    with pytest.raises(NamesError, match="missing: "):
        from_hub(without, loaded.model.config, vocab_size, headless=True)
    assert fill_mask(loaded, []) == []
    for folder in folders:
        assert verb.main([f"--workdir={folder}", "--targets=cat,dog", "--joint", TEXTS[1]]) == 0
    one, other = capfd.readouterr().out.split("[MASK] dog[MASK] sings [MASK]\n")[1:]
    assert one == other and "[MASK] 3" in one
    assert verb.main([f"--workdir={folders[0]}", "--targets=cat,,dog", TEXTS[1]]) == 2
    assert "an empty word" in capfd.readouterr().err
