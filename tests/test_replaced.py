"""Replaced token detection: samples, labels, and the generator beside the model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import batch, random_batch

from mlm_jax import keys, optim, replaced, sharding, tree
from mlm_jax.batch import Masked
from mlm_jax.config import (
    Config,
    ConfigError,
    MeshConfig,
    MlmConfig,
    ModelConfig,
    ObjectivesConfig,
    OptimizerConfig,
    ReplacedConfig,
    check,
    generator_of,
)
from mlm_jax.kernels import vocabulary
from mlm_jax.kernels.vocabulary import Decoding
from mlm_jax.models import build
from mlm_jax.optim.updates import matrix

OBJECTIVES = ObjectivesConfig(mlm=MlmConfig(weight=0.0), replaced=ReplacedConfig(weight=50.0))
SMALL = ModelConfig(
    family="electra", layers=3, width=32, embedding_width=16, heads=4, hidden=64, max_positions=16, dropout=0.0
)


# ---- samples ----


def by_numpy(decoding: Decoding, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids by the inverse of the summed probabilities, in float64, and how far the numbers are from the next border."""
    states, table, bias = (np.asarray(x, np.float64) for x in decoding)
    logits = states @ table.T + bias
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    sums = np.cumsum(chances / chances.sum(-1, keepdims=True), -1)
    return (sums <= uniforms[..., None]).sum(-1), np.abs(sums - uniforms[..., None]).min(-1)


def random_decoding(b: int, m: int, v: int = 384, used: int = 300) -> Decoding:
    random = np.random.default_rng(0)
    states, table = random.normal(size=(b, m, 8)), random.normal(size=(v, 8))
    bias = np.where(np.arange(v) < used, random.normal(size=v), -1e30)
    return Decoding(*(jnp.asarray(x, jnp.float32) for x in (states, table, bias)))


def test_samples_are_those_of_numpy_in_pieces_and_on_a_sharded_vocabulary():
    decoding, uniforms = random_decoding(8, 50), np.random.default_rng(1).random((8, 50), np.float32)
    uniforms[0, :2] = 0.0, np.float32(1 - 2**-24)
    ids, margin = by_numpy(decoding, uniforms)
    sample = jax.jit(vocabulary.sample, static_argnums=2)
    whole = np.asarray(sample(decoding, uniforms, 100))
    sure = margin > 1e-6
    assert sure.mean() > 0.98
    np.testing.assert_array_equal(whole[sure], ids[sure])
    assert whole.min() >= 0 and whole.max() < 300
    assert whole[0, 0] == 0 and whole[0, 1] > 290  # the ends of the row of ids
    mesh = sharding.make_mesh({"data": 2, "fsdp": 1, "tensor": 4})
    with sharding.activate(mesh, MeshConfig()):
        sharded = np.asarray(jax.jit(vocabulary.sample, static_argnums=2)(decoding, uniforms, 100))
    np.testing.assert_array_equal(sharded[sure], ids[sure])
    decoding, uniforms = random_decoding(8, 1000), np.random.default_rng(2).random((8, 1000), np.float32)
    ids, margin = by_numpy(decoding, uniforms)
    pieces = np.asarray(sample(decoding, uniforms, 1))  # of 11.7 MiB of logits
    np.testing.assert_array_equal(pieces[margin > 1e-6], ids[margin > 1e-6])


def test_frequencies_of_samples_are_the_probabilities():
    """100,000 draws at one place; chi-squared of 20 ids has mean 19 and deviation 6.2."""
    states = jnp.ones((100, 1000, 1))
    logits = np.random.default_rng(3).normal(size=128).astype(np.float32)
    bias = jnp.asarray(np.where(np.arange(128) < 20, 0.0, -1e30), jnp.float32)
    uniforms = jax.random.uniform(keys.root(0, keys.SAMPLE), (100, 1000))
    sample = jax.jit(vocabulary.sample, static_argnums=2)
    ids = sample(Decoding(states, jnp.asarray(logits)[:, None], bias), uniforms, 100)
    chances = np.exp(logits[:20]) / np.exp(logits[:20]).sum()
    counts = np.bincount(np.asarray(ids).reshape(-1), minlength=128)
    assert counts[20:].sum() == 0
    assert ((counts[:20] - 1e5 * chances) ** 2 / (1e5 * chances)).sum() < 19 + 4 * 6.2


def test_numbers_go_by_row_visit_and_position():
    rows = random_batch(0, b=4, t=16)
    masked = masked_at([[1, 3, 5], [1, 2, 7], [5, 8, 9], [1, 3, 0]], t=16)
    key = keys.root(0, keys.SAMPLE)
    numbers = np.asarray(replaced.uniforms(key, rows, masked))
    backwards = replaced.uniforms(key, *jax.tree.map(lambda x: x[::-1], (rows, masked)))
    np.testing.assert_array_equal(np.asarray(backwards)[::-1], numbers)
    moved = dataclasses.replace(masked, indices=masked.indices[:, ::-1])
    np.testing.assert_array_equal(np.asarray(replaced.uniforms(key, rows, moved))[:, ::-1], numbers)
    other = replaced.uniforms(key, dataclasses.replace(rows, visit=rows.visit + 1), masked)
    assert len({*numbers.reshape(-1).tolist(), *np.asarray(other).reshape(-1).tolist()}) == 24
    assert numbers.min() >= 0 and numbers.max() < 1


def masked_at(places: list[list[int]], t: int) -> Masked:
    """Selected positions, 0 for an empty slot; what stands there and what is predicted has no part here."""
    indices = jnp.asarray(places, jnp.int32)
    filled = indices > 0
    selected = jnp.zeros((len(places), t), bool)
    selected = jax.vmap(lambda row, at, on: row.at[at].max(on))(selected, indices, filled)
    tokens = jnp.zeros((len(places), t), jnp.int32)
    return Masked(tokens, indices, indices, filled.astype(jnp.float32), selected, jnp.zeros(len(places), jnp.int32))


# ---- what the discriminator is asked ----


def test_the_discriminators_input_and_labels_by_hand():
    """At places 1 and 3 the generator says 6, which is right, and 9, which is not; two places of padding."""
    rows = batch([[5, 6, 7, 8, 0, 0]], [[1, 1, 1, 1, 0, 0]])
    masked = masked_at([[1, 3, 0, 0]], t=6)
    inputs = replaced.corrupted(rows.tokens, masked, jnp.asarray([[6, 9, 33, 34]]))
    assert inputs[0].tolist() == [5, 6, 7, 9, 0, 0]
    labels, weights = replaced.labels(rows.tokens, inputs), replaced.weights(rows)
    assert labels[0].tolist() == [False, False, False, True, False, False]
    assert weights[0].tolist() == [1, 1, 1, 1, 0, 0]
    logits = jnp.asarray([[0.0, -2.0, 3.0, 3.0, 50.0, 50.0]])
    losses = replaced.cross_entropy(logits, labels)
    # ln 2; ln(1 + e^-2); ln(1 + e^3); ln(1 + e^-3)
    np.testing.assert_allclose(losses[0, :4], [0.693147, 0.126928, 3.048587, 0.048587], atol=1e-5)
    assert (losses * weights).sum() == pytest.approx(0.693147 + 0.126928 + 3.048587 + 0.048587, abs=1e-5)
    extreme = replaced.cross_entropy(jnp.asarray([[1e4, -1e4]]), jnp.asarray([[False, False]]))
    np.testing.assert_allclose(extreme, [[1e4, 0.0]])


# ---- the generator ----


def test_sizes_by_the_rule_and_by_hand():
    base = generator_of(ModelConfig(), ReplacedConfig())
    assert (base.layers, base.width, base.heads, base.hidden, base.embedding_width) == (12, 192, 3, 768, 768)
    given = ReplacedConfig(generator_layers=2, generator_width=256, generator_hidden=512)
    named = generator_of(ModelConfig(), given)
    assert (named.layers, named.width, named.heads, named.hidden) == (2, 256, 4, 512)


def test_electra_small_has_14_million_parameters():
    """Table 1 of the paper says 14M; by hand of the parts of its published model."""
    config = dataclasses.replace(SMALL, layers=12, width=256, embedding_width=128, hidden=1024, max_positions=512)
    shapes = jax.eval_shape(build(config, 30522, OBJECTIVES).init, keys.root(0, keys.INIT))
    d, e, f = 256, 128, 1024
    layer = 4 * (d * d + d) + 2 * d * f + f + d + 2 * 2 * d
    embeddings = (30522 + 512 + 2) * e + 2 * e + e * d + d
    discriminator = d * d + d + d + 1
    filling = (30592 - 30522) * e
    generator = shapes.pop("generator")
    assert tree.size(shapes) - filling == 12 * layer + embeddings + discriminator == 13_549_057
    g, f = 64, 256
    layer = 4 * (g * g + g) + 2 * g * f + f + g + 2 * 2 * g
    assert tree.size(generator) == 12 * layer + e * g + g + g * e + e + 2 * e + 30592


@functools.cache
def small():
    model = build(SMALL, 40, OBJECTIVES)
    return model, jax.jit(model.init)(keys.root(0, keys.INIT))


def test_the_generator_is_a_model_beside_the_model():
    model, params = small()
    alone = jax.jit(build(SMALL, 40).init)(keys.root(0, keys.INIT))
    assert alone.keys() - {"head"} == params.keys() - {"generator", "discriminator"}
    for part in alone.keys() - {"head"}:  # its draws are the same with and without
        jax.tree.map(np.testing.assert_array_equal, alone[part], params[part])
    assert params["generator"]["embeddings"].keys() == {"project"}
    assert model.filler is model.generator
    paths = [path for leaf in tree.layer_paths(params).values() for path in leaf.paths]
    assert "generator/layers/2/ffn/up/kernel" in paths and len(set(paths)) == len(paths)
    assert tree.layer_count(params) == tree.layer_count(params["generator"]) == 3
    rates = {path: rate for path, rate, *_ in optim.table(params, OptimizerConfig(layer_decay=0.5, learning_rate=1.0))}
    assert rates["generator/layers/0/ffn/up/kernel"] == rates["discriminator/dense/kernel"] == 1.0
    assert rates["embeddings/project/kernel"] == 0.5**4
    assert matrix("generator/body/0/ffn/up/kernel", (2, 8, 16), True).longer == 16
    for name in ("generator/head/dense", "generator/embeddings/project", "discriminator/dense"):
        assert matrix(f"{name}/kernel", (8, 8), False) is None
    for path, leaf in tree.leaves(params):
        sharding.spec_of(path, leaf.ndim, MeshConfig().rules)  # each has a place


def test_its_gradient_reaches_the_shared_tables_but_not_through_samples():
    model = build(dataclasses.replace(SMALL, layers=1), 40, OBJECTIVES)
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, keys.root(0, keys.INIT))
    params = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), shapes)
    rows, at = random_batch(1, 2, 16), jnp.asarray([[1, 2], [3, 4]])

    @jax.jit
    @jax.grad
    def gradient(params, of_samples):
        hidden = model.generator.apply(params, rows, at=at).hidden
        ids = model.generator.sample(params, hidden, jnp.full((2, 2), 0.5))
        losses = model.generator.losses(params, hidden, ids, jnp.ones((2, 2)))
        inputs = dataclasses.replace(rows, tokens=rows.tokens.at[:, 1:3].set(ids))
        logits = model.discriminate(params, model.apply(params, inputs).hidden)
        return jnp.where(of_samples, logits.sum(), losses.total)

    of_generator, of_discriminator = gradient(params, False), gradient(params, True)
    zero = {name: all(not np.any(x) for x in jax.tree.leaves(part)) for name, part in of_generator.items()}
    assert not zero["embeddings"] and not zero["generator"] and zero["last"] and zero["discriminator"]
    zero = {name: all(not np.any(x) for x in jax.tree.leaves(part)) for name, part in of_discriminator.items()}
    assert zero["generator"] and not any(zero[name] for name in ("embeddings", "last", "discriminator"))


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"generator_heads": 3}, r"generator_heads = 3: must divide the generator's width = 8"),
        ({"generator_layers": 0}, "generator_layers = 0: must be at least 1"),
        ({"generator_weight": 0.0}, "generator_weight = 0.0: must be greater than 0"),
        ({"weight": 0.0, "generator_width": 8}, "generator_width = 8: there is no generator without"),
        ({"weight": -1.0}, r"replaced.weight = -1.0"),
        ({"generator_heads": 2, "generator_hidden": 9}, r"generator_hidden = 9: must be a multiple of .*tensor = 2"),
        ({}, r"generator_heads = 1: must be a multiple of config.mesh.tensor = 2"),
    ],
)
def test_what_the_user_can_mend(changes, says):
    config = Config(model=SMALL, row_length=16, batch_size=8, mesh=MeshConfig(tensor=2))
    config.objectives = ObjectivesConfig(replaced=ReplacedConfig(**{"weight": 1.0, **changes}))
    with pytest.raises(ConfigError, match=says):
        check(config, 2)
