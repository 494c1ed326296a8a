"""Generated text against loops in numpy over the probabilities of one segment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fill import chances
from test_inference import folders, loaded  # noqa: F401

from mlm_jax import keys
from mlm_jax.batch import Batch
from mlm_jax.cli import generate as verb
from mlm_jax.config import ConfigError
from mlm_jax.inference import generate
from mlm_jax.inference.fill import template
from mlm_jax.inference.generate import COLDEST, HOTTEST, ORDERS, _sampled, draws

TEXT = "the [MASK:3] sleeps [MASK]."
MASKS = TEXT.replace("[MASK:3]", "[MASK]" * 3)


def allowed(loaded, ids):  # noqa: F811
    """Probabilities [n,v] without special tokens."""
    found = chances(loaded, ids)
    found[:, loaded.tokenizer.special] = 0
    return found / found.sum(-1, keepdims=True)


def pieces(answer):
    return [piece for piece, _ in answer["tokens"]]


def test_mask_predict(loaded):  # noqa: F811
    """Of four, 4 4 3 2 1 less the rounding: 4, 2 and 1 stand in three iterations."""
    one = template(loaded.tokenizer, MASKS)
    ids, sure = one.ids.copy(), np.zeros(4)
    for count in (4, 2, 1):
        again = np.argsort(sure, kind="stable")[:count]
        ids[one.places[again]] = loaded.tokenizer.mask
        found = allowed(loaded, ids)[one.places[again]]
        ids[one.places[again]], sure[again] = found.argmax(-1), found.max(-1)
    (answer,) = generate(loaded, [TEXT], iterations=3)
    assert pieces(answer) == [loaded.tokenizer.shown[i] for i in ids[one.places]]
    np.testing.assert_allclose([value for _, value in answer["tokens"]], sure, rtol=1e-4)
    assert answer["generated"] == one.written(dict(enumerate(pieces(answer)))) and "MASK" not in answer["generated"]


def test_gibbs(loaded):  # noqa: F811
    """Two sweeps: in a keyed order, each place drawn by inverse CDF given all the others."""
    one, key, number = template(loaded.tokenizer, MASKS), keys.root(3, keys.SAMPLE), np.array([0])
    ids = one.ids.copy()
    for sweep in range(2):
        uniforms = draws(key, number, sweep, 4)[0]
        for mask in np.argsort(draws(key, number, ORDERS + sweep, 4)[0]):
            ids[one.places[mask]] = loaded.tokenizer.mask
            found = allowed(loaded, ids)[one.places[mask]] ** (1 / 0.7)
            ids[one.places[mask]] = np.searchsorted(np.cumsum(found / found.sum()), uniforms[mask], side="right")
    options = {"method": "gibbs", "iterations": 2, "temperature": 0.7}
    (answer,) = generate(loaded, [TEXT], seed=3, **options)
    assert pieces(answer) == [loaded.tokenizer.shown[i] for i in ids[one.places]]
    both = generate(loaded, [TEXT, "a [MASK]", TEXT], seed=3, **options)
    assert pieces(both[0]) == pieces(answer) and len(pieces(both[1])) == 1
    seeds = {tuple(pieces(generate(loaded, [TEXT], seed=seed, **options)[0])) for seed in range(4)}
    assert len(seeds) == 4


def test_left_to_right(loaded):  # noqa: F811
    causal = loaded._replace(causal=True)
    text = "the cat"
    ids = loaded.surrounded(loaded.tokenizer.encode(text).ids)[:-1].tolist()

    @jax.jit
    def logits(params, tokens):
        zeros, places = jnp.zeros_like(tokens), jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        of_row = (zeros[:, 0], zeros[:, 0], jnp.ones(1))
        batch = Batch(tokens, zeros + 1, places, zeros.astype(jnp.uint8), zeros[:, :1], zeros[:, :1] - 1, *of_row)
        return loaded.model.logits(params, loaded.model.apply(params, batch, causal=True).hidden)[0, :, :100]

    for _ in range(3):  # what follows does not matter, so one length serves
        row = np.pad(ids, (0, 8 - len(ids)))[None].astype(np.int32)
        found = np.array(logits(loaded.params, row))[len(ids) - 1, : loaded.tokenizer.size]
        found[loaded.tokenizer.special] = -np.inf
        ids.append(int(found.argmax()))
    options = {"method": "left-to-right", "temperature": 0.0}
    (answer,) = generate(causal, [text], new_tokens=3, **options)
    assert pieces(answer) == [loaded.tokenizer.shown[i] for i in ids[-3:]]
    with pytest.raises(ConfigError, match="has text after a MASK"):
        generate(causal, ["a [MASK]."], **options)
    with pytest.raises(ConfigError, match="was not trained to predict next tokens"):
        generate(loaded, [text], new_tokens=3, **options)


def test_draws_have_the_chances_of_the_softmax():
    logits = np.log(np.array([[0.5, 0.0, 0.3, 0.2]]) + 1e-30)
    uniforms = (np.arange(1000, dtype=np.float32) + 0.5) / 1000
    for top_k, wanted in ((0, [500, 0, 300, 200]), (2, [625, 0, 375, 0]), (9, [500, 0, 300, 200])):
        found = _sampled(jnp.asarray(np.repeat(logits, 1000, 0), jnp.float32), jnp.asarray(uniforms), top_k)
        np.testing.assert_allclose(np.bincount(np.asarray(found), minlength=4), wanted, atol=1)
    for heat, wanted in ((COLDEST, [1000, 0, 0, 0]), (HOTTEST, [333, 0, 333, 333])):  # what must not be has no chance
        row = jnp.log(jnp.asarray([[0.5, 0.0, 0.3, 0.2]])) / heat
        found = _sampled(jnp.repeat(row, 1000, 0), jnp.asarray(uniforms), 0)
        np.testing.assert_allclose(np.bincount(np.asarray(found), minlength=4), wanted, atol=1)
    key = keys.root(0, keys.SAMPLE)
    many = draws(key, np.arange(50), 1, 40)
    assert abs(many.mean() - 0.5) < 0.02 and len(np.unique(many)) > 1990
    np.testing.assert_array_equal(draws(key, np.array([7]), 1, 3)[0], many[7, :3])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "beam"}, "method = 'beam': there is mask-predict, gibbs, left-to-right"),
        ({"iterations": 0}, "iterations = 0: must be at least 1"),
        ({"method": "left-to-right", "iterations": 3}, "iterations = 3: .* left-to-right has none"),
        ({"temperature": -1.0}, "temperature = -1.0: must be 0, or 1e-06 to 1e"),
        ({"temperature": float("nan")}, "temperature = nan: must be 0, or"),
        ({"temperature": float("inf")}, "temperature = inf: must be 0, or"),
        ({"temperature": 1e-39}, "temperature = 1e-39: must be 0, or"),
        ({"top_k": -1}, "top_k = -1: must be 0 or more"),
        ({"new_tokens": -1}, "new_tokens = -1: must be 0 to 4096"),
        ({"new_tokens": 10**9}, "new_tokens = 1000000000: must be 0 to 4096"),
        ({"new_tokens": 15}, "is 24 tokens long, the model reads 16"),
    ],
)
def test_what_does_not_fit(loaded, options, says):  # noqa: F811
    with pytest.raises(ConfigError, match=says):
        generate(loaded, [MASKS], **options)


def test_texts_that_hold_nothing_to_generate(loaded, folders, capfd):  # noqa: F811
    for text, says in (("the cat", "holds no"), ("[MASK:0]", "must be 1 to 4096"), ("[MASK:99999]", "must be 1 to")):
        with pytest.raises(ConfigError, match=says):
            generate(loaded, [text])
    assert verb.main([f"--workdir={folders[0]}", "--json", TEXT]) == 0
    assert '"generated": "the ' in capfd.readouterr().out
