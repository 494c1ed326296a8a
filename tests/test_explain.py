"""Explanations of a prediction: against closed forms, plain sums, direct runs and a small oracle."""

import dataclasses
import json
import re

import batches
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import vocabularies
from test_models import SMALL, key
from test_report import Elements

from mlm_jax import tree
from mlm_jax.batch import Encoded
from mlm_jax.config import ConfigError
from mlm_jax.inference import Loaded, explain
from mlm_jax.inference.explain import attributions, rollout
from mlm_jax.inference.explain.asking import questions, words_of
from mlm_jax.inference.explain.page import CUT, html
from mlm_jax.inference.explain.terminal import terminal
from mlm_jax.models import build
from mlm_jax.tokenizer import Tokenizer

PIECES = ["▁", "▁the", "▁cat", "▁sleep", "▁well", ".", ",", "▁dog", *"abcdefghijklmnopqrstuvwxyz"]
TEXT = "the cat [MASK] sleeps, well."
IDS = ["[CLS]", "▁the", "▁cat", "[MASK]", "▁sleep", "s", ",", "▁well", ".", "[SEP]"]
PLACE, DOG = 3, "▁dog"


@pytest.fixture(scope="module")
def loaded():
    tokenizer = Tokenizer(vocabularies.model(PIECES))
    model = build(dataclasses.replace(SMALL, layers=2), tokenizer.size)
    random = np.random.default_rng(0)
    params = tree.map_with_path(
        lambda path, leaf: jnp.float32(random.normal(size=leaf.shape) * 0.3 + path.endswith("scale")),
        jax.eval_shape(model.init, key()),
    )
    return Loaded(model, params, tokenizer, 16, "here")


@pytest.fixture(scope="module")
def found(loaded):
    return explain(loaded, TEXT, target="dog", top_k=3)


@pytest.fixture(scope="module")
def direct(loaded):
    """log p(dog) at PLACE by the model itself, of ids i32[t] with word vectors [t,e] or those of its table."""
    dog, row = loaded.tokenizer.pieces.index(DOG), batches.batch(np.zeros((1, len(IDS))))

    def log_probability(ids, words=None):
        words = None if words is None else words[None]
        batch = dataclasses.replace(row, tokens=ids[None])
        hidden = loaded.model.apply(loaded.params, batch, words=words).hidden[0, PLACE]
        return jax.nn.log_softmax(loaded.model.logits(loaded.params, hidden[None])[0, : loaded.tokenizer.size])[dog]

    return jax.jit(log_probability)


def ids_of(loaded):
    return np.array([loaded.tokenizer.pieces.index(piece) for piece in IDS], np.int32)


def table_of(loaded):
    return np.asarray(loaded.params["embeddings"]["word"]["table"])


def context_masked(loaded):
    ids = ids_of(loaded)
    ids[1:-1] = loaded.tokenizer.mask
    return ids


def test_words_of_a_text(loaded, found):
    gap = found["masks"][0]
    assert gap["tokens"] == IDS and gap["place"] == PLACE
    assert " ".join(word["text"] for word in gap["words"]) == "[CLS] the cat [MASK] sleeps , well . [SEP]"
    assert [word["space"] for word in gap["words"]][1:-1] == [True, True, True, True, False, True, False]
    # what follows a gap without white space is a word of its own here; MASK is never one with its neighbours
    words = questions(loaded, "the cat [MASK]s [MASK]")[0].words
    assert " ".join(word.text for word in words) == "[CLS] the cat [MASK] s [MASK] [SEP]"


def test_word_vectors_by_hand_are_those_of_the_table(loaded, direct):
    ids = ids_of(loaded)
    words = table_of(loaded)[ids]
    assert direct(ids) == direct(ids, words)
    assert abs(direct(ids) - direct(ids, words[::-1])) > 0.01


def test_predictions_and_leave_one_out_are_those_of_direct_runs(loaded, found, direct):
    gap, ids = found["masks"][0], ids_of(loaded)
    whole = float(direct(ids))
    assert gap["log_probability"] == pytest.approx(whole, abs=1e-5)
    chances = [guess["probability"] for guess in gap["predictions"]]
    assert len(chances) == 3 and chances == sorted(chances, reverse=True)
    expected = []
    for first, last in [(1, 2), (2, 3), (4, 6), (6, 7), (7, 8), (8, 9)]:
        changed = ids.copy()
        changed[first:last] = loaded.tokenizer.mask
        expected.append(whole - float(direct(changed)))
    assert [gap["leave_one_out"][i] for i in (0, 3, 8)] == [None] * 3
    got = [score for score in gap["leave_one_out"] if score is not None]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    left = [share for share in gap["left"] if share is not None]
    np.testing.assert_allclose(left, np.exp(whole - np.array(expected)), atol=1e-6)


def test_integrated_gradients_are_a_plain_sum_of_many_points(loaded, found, direct):
    """Equation 3 of the paper, with 2,000 equal steps taken in their middle."""
    gradients = found["masks"][0]["integrated_gradients"]
    ids, away = ids_of(loaded), context_masked(loaded)
    table = table_of(loaded)
    difference = table[ids] - table[away]
    slope = jax.jit(jax.vmap(lambda a: jax.grad(lambda words: direct(ids, words))(table[away] + a * difference)))
    points = (np.arange(2000, dtype=np.float32) + 0.5) / 2000
    plain = (np.asarray(slope(jnp.asarray(points)), np.float64).mean(0) * difference).sum(1)
    np.testing.assert_allclose(gradients["by_token"], plain, atol=2e-5)
    assert np.abs(plain).max() > 0.05 and plain[[0, PLACE, 9]].tolist() == [0, 0, 0]
    change = float(direct(ids) - direct(away))
    assert gradients["expected"] == pytest.approx(change, abs=1e-5)
    assert gradients["complete"] and gradients["gap"] < 0.01
    assert gradients["sum"] == pytest.approx(change, rel=0.01)
    assert gradients["words"][4] == pytest.approx(plain[4] + plain[5], abs=4e-5)  # sleep|s


def test_integrated_gradients_of_a_sum_share_out_by_its_terms(loaded):
    """f depends on s = sum of x_i alone: each token gets (x_i - x'_i) / (s - s') of f(x) - f(x')."""

    def apply(params, batch, *, at, words):
        return Encoded((words * (batch.segments > 0)[..., None]).sum((1, 2))[:, None, None], {})

    def logits(params, hidden):
        return jnp.concatenate([hidden, jnp.zeros((*hidden.shape[:2], loaded.tokenizer.size - 1))], -1)

    ids, away = ids_of(loaded), context_masked(loaded)
    summed = loaded._replace(model=loaded.model._replace(apply=apply, logits=logits))
    x, base = (table_of(loaded)[which].sum(1).astype(np.float64) for which in (ids, away))
    value, nothing = (s - np.log(np.exp(s) + loaded.tokenizer.size - 1) for s in (x.sum(), base.sum()))
    got = attributions.integrated_gradients(summed, ids, PLACE, 0, value - nothing, 32)
    expected = (x - base) / (x.sum() - base.sum()) * (value - nothing)
    np.testing.assert_allclose(got.scores, expected, atol=1e-5)
    assert got.steps == 32 and got.gap < 1e-4


def test_points_are_doubled_until_scores_add_up_or_there_are_too_many(loaded, found):
    ids, gradients = ids_of(loaded), found["masks"][0]["integrated_gradients"]
    dog = loaded.tokenizer.pieces.index(DOG)
    one = attributions.path_integral(loaded, ids, PLACE, dog, *attributions.gauss_legendre(1)).sum()
    assert abs(one / gradients["expected"] - 1) > 0.02  # one point is not enough here
    got = attributions.integrated_gradients(loaded, ids, PLACE, dog, gradients["expected"], 1)
    assert 1 < got.steps <= 32 and got.gap < 0.02
    never = attributions.integrated_gradients(loaded, ids, PLACE, dog, 10 * gradients["expected"], 200)
    assert never.steps == 400 and never.gap == pytest.approx(0.9, abs=0.01)


def test_gauss_legendre_is_exact_for_polynomials():
    points, weights = attributions.gauss_legendre(3)
    np.testing.assert_allclose((weights * points**5).sum(), 1 / 6)
    np.testing.assert_allclose(weights.sum(), 1)


def test_rollout_and_attention(loaded, found):
    gap = found["masks"][0]
    out = loaded.model.apply(loaded.params, batches.batch(ids_of(loaded)[None]), want=("attention",)).out
    attention = np.asarray(out["attention"], np.float64)[:, 0]  # [l,h,n,n]
    flow = np.eye(10)
    for layer in attention:
        mixed = 0.5 * layer.mean(0) + 0.5 * np.eye(10)
        flow = np.matmul(mixed / mixed.sum(-1, keepdims=True), flow)
    np.testing.assert_allclose(gap["rollout_by_token"], flow[PLACE], atol=1e-6)
    assert sum(gap["rollout"]) == pytest.approx(1, abs=1e-6)
    assert len(gap["rollout"]) == len(gap["words"]) == 9
    by_word = np.delete(attention[:, :, PLACE], 5, -1)
    by_word[..., 4] = attention[:, :, PLACE, 4:6].sum(-1)
    np.testing.assert_allclose(gap["attention"], by_word, atol=1e-6)


def test_rollout_by_hand():
    """Two places that swap in layer 1; in layer 2 the first one reads the second alone."""
    layers = np.array([[[0, 1], [1, 0]], [[0, 1], [0, 1]]], np.float64)
    np.testing.assert_allclose(rollout.rollout(layers), [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(rollout.rollout(layers[1:]), [[0.5, 0.5], [0, 1]])


def test_several_gaps_and_texts_longer_than_the_model_reads(loaded):
    many = explain(loaded, "[MASK] " + "the cat sleeps well. " * 4 + "[MASK]", steps=8)["masks"]
    assert [len(gap["tokens"]) for gap in many] == [16, 16]
    assert [(gap["start"], gap["place"]) for gap in many] == [(0, 1), (12, 14)]
    assert all(gap["tokens"][gap["place"]] == "[MASK]" for gap in many)
    cut = {"masks": many}
    assert CUT in html(cut, "here") and CUT in terminal(cut | {"text": ""}) and not many[0]["whole"]
    alone = explain(loaded, "[MASK]", steps=8)
    assert alone["masks"][0]["whole"] and CUT not in html(alone, "here")
    gradients = alone["masks"][0]["integrated_gradients"]
    assert gradients["complete"] and gradients["sum"] == 0 and abs(gradients["expected"]) < 1e-5
    assert "no other word" in html(alone, "here")
    assert "why" in terminal(alone)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("no gap", {}, "holds no [MASK]"),
        ("a [MASK]", {"target": "sleeps"}, "▁sleep s"),
        ("a [MASK]", {"target": "猫"}, "not in the vocabulary"),
        ("a [MASK]", {"target": ""}, "one piece"),
        ("a [MASK]", {"steps": 0}, "from 1 to 512"),
        ("a [MASK]", {"top_k": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_explained(loaded, text, options, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        explain(loaded, text, **options)


def test_a_model_without_a_head_fills_no_gap(loaded):
    bare = loaded._replace(params={name: leaf for name, leaf in loaded.params.items() if name != "head"})
    with pytest.raises(ConfigError, match="no head"):
        explain(bare, TEXT)


def test_page_is_whole_runs_nothing_and_has_a_view_of_each_head(found):
    assert json.loads(json.dumps(found)) == found
    found = json.loads(json.dumps(found))
    found["masks"][0]["words"][1]["text"] = "<script>"
    page = html(found, "here")
    elements = Elements(page).elements
    names = {name for name, _ in elements}
    assert not names & {"script", "link", "img", "iframe"} and "&lt;script&gt;" in page
    assert not re.search(r"https?:|url\(|@import", page)
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    views = [attributes["class"] for _, attributes in elements if " head-" in attributes.get("class", "")]
    assert [view.removeprefix("panel ") for view in views] == [
        f"layer-{layer} head-{head}" for layer in (1, 2) for head in ("mean", 1, 2, 3)
    ]
    for view in views:  # each is shown by the choice of its layer and head
        layer, head = re.findall(r"(?:layer|head)-(\w+)", view)
        assert f"#layer-1-{layer}:checked):has(#head-1-{head}:checked) .layer-{layer}.head-{head}" in page
        assert {f"layer-1-{layer}", f"head-1-{head}"} <= set(ids)


def test_terminal_shows_the_sign_of_each_word(found):
    lines = terminal(found).splitlines()
    gap = found["masks"][0]
    line = next(line.split() for line in lines if line.strip().startswith("sleeps"))
    assert line[1] == f"{gap['leave_one_out'][4]:+.2f}".replace("-", "−")
    assert ("█" in line[2]) == (gap["leave_one_out"][4] > 0)
    assert "add up" in lines[-1] and "“dog”" in "".join(lines)


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_words_of_other_tokenizers(kind, tmp_path):
    """As `Tokenizer.encode` tells them of the same text without a gap."""
    if kind == "word_pieces":
        tokenizer = vocabularies.word_pieces(tmp_path, ["the", "cat", "##s", "don", "'", "t", "sleep", "."])
    else:
        tokenizer = vocabularies.byte_pairs(tmp_path, ["Ġ c", "a t", "Ġc at", "e p"])
    encoding = tokenizer.encode("the cats don't sleep.")
    gaps = [tokenizer.cls, *encoding.ids.tolist(), tokenizer.mask, tokenizer.sep]
    words = words_of(tokenizer, np.array(gaps, np.int32))
    assert [word.first for word in words] == [0, *(np.flatnonzero(encoding.word_starts) + 1), *range(len(gaps))[-2:]]
    assert " ".join(word.text for word in words) == "[CLS] the cats don ' t sleep . [MASK] [SEP]"
