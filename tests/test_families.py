"""Families and switches: rotary positions, local layers, pre-norm, GEGLU, RoBERTa's positions, in any combination."""

import dataclasses
import functools

import batches
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm_jax import tree
from mlm_jax.config import ModelConfig, is_local, resolve
from mlm_jax.models import build
from mlm_jax.models.attention import angles, turn
from mlm_jax.models.encoder import Stack

VOCAB = 40
SMALL = ModelConfig(
    family="modernbert",
    layers=4,  # one, a group of two, one
    global_every=2,
    width=16,
    heads=2,
    hidden=24,
    max_positions=24,
    local_window=6,
    dropout=0.0,
    attention_dropout=0.0,
)
BASE = ModelConfig(family="modernbert", layers=22, hidden=1152)
LARGE = ModelConfig(family="modernbert", layers=28, width=1024, heads=16, hidden=2624)


def key(seed: int = 0) -> jax.Array:
    return jax.random.key(seed, impl="threefry2x32")


def random_params(model) -> dict:
    """No bias is 0 and no scale 1."""
    random = np.random.default_rng(0)
    return tree.map_with_path(
        lambda path, leaf: np.float32(random.normal(size=leaf.shape) * 0.3 + path.endswith("scale")),
        jax.eval_shape(model.init, key()),
    )


@functools.cache
def small(**changes: object):
    model = build(dataclasses.replace(SMALL, **changes), VOCAB)
    return model, jax.jit(model.apply, static_argnames="want"), random_params(model)


# ---- sizes and places ----


@pytest.mark.parametrize(
    "config, vocab, total",
    [
        (BASE, 50368, 149_655_232),  # published as 149 M
        (LARGE, 50368, 395_881_664),  # 395 M
        (ModelConfig(family="roberta", max_positions=514), 50265, 124_697_433),  # 125 M
    ],
)
def test_published_numbers_of_parameters(config, vocab, total):
    params = jax.eval_shape(build(config, vocab).init, key())
    filling = -vocab % 128 * (config.width + 1)  # rows of the word table and of the bias up to a multiple of 128
    assert sum(leaf.size for _, leaf in tree.leaves(params)) - filling == total


def test_modernbert_base_is_a_layer_six_groups_of_three_and_three_layers():
    assert Stack.of(resolve(BASE)) == (1, 3, 6)
    assert Stack.of(resolve(LARGE)) == (1, 3, 8)
    assert [depth for depth in range(22) if not is_local(resolve(BASE), depth)] == [0, 3, 6, 9, 12, 15, 18, 21]
    params = jax.eval_shape(build(BASE, 50368).init, key())
    assert {part: list(params[part]) for part in ("first", "body", "last")} == {
        "first": ["0"],
        "body": ["0", "1", "2"],
        "last": ["0", "1", "2"],
    }
    assert params["body"]["2"]["ffn"]["gate"]["kernel"].shape == (6, 768, 1152)
    assert "norm" not in params["first"]["0"]["attention"] and "norm" in params["last"]["0"]["attention"]
    names = {path: paths.paths for path, paths in tree.layer_paths(params).items()}
    where = [f"layers/{depth}/ffn/up/kernel" for depth in (2, 5, 8, 11, 14, 17)]
    assert list(names["body/1/ffn/up/kernel"]) == where
    assert names["last/2/ffn/up/kernel"] == ("layers/21/ffn/up/kernel",)
    assert tree.layer_count(params) == 22


@pytest.mark.parametrize(
    "switches, layers, stack",
    [
        ({"local_window": 0}, 4, (1, 1, 2)),
        ({"norm": "post"}, 8, (0, 2, 3)),  # global, local
        ({}, 1, (0, 2, 0)),
        ({}, 3, (1, 2, 0)),
        ({}, 5, (1, 2, 1)),
        ({"global_every": 3}, 9, (1, 3, 2)),  # local, local, global
    ],
)
def test_stacks_of_other_depths_and_switches(switches, layers, stack):
    switches = {"global_every": None} | switches if "local_window" in switches else switches
    config = resolve(dataclasses.replace(SMALL, layers=layers, **switches))
    assert Stack.of(config) == stack
    first, size, groups = stack
    params = jax.eval_shape(build(config, VOCAB).init, key())
    assert (len(params["first"]), len(params["body"])) == (first, size if groups else 0)
    assert len(params["last"]) == layers - first - size * groups >= 1
    assert tree.layer_count(params) == layers


def test_what_writes_into_the_residual_stream_begins_smaller():
    config = dataclasses.replace(SMALL, width=64, heads=2, hidden=128, layers=2, initializer_range=0.02)
    params = jax.jit(build(config, VOCAB).init)(key())
    for path, leaf in tree.leaves(params):
        if path.endswith("kernel"):
            small = path.endswith(("attention/out/kernel", "ffn/down/kernel", "head/dense/kernel"))
            # a normal cut at two deviations has 0.8796 of its deviation; 1 / sqrt(2 x 2) = 0.5
            assert np.std(leaf) / 0.02 == pytest.approx(0.8796 * (0.5 if small else 1), rel=0.05), path
        elif path.endswith("scale"):
            np.testing.assert_array_equal(leaf, 1)
    bert = jax.eval_shape(
        build(dataclasses.replace(config, family="bert", local_window=None, global_every=None), VOCAB).init, key()
    )
    assert "norm" not in bert and not any("gate" in path for path, _ in tree.leaves(bert))


# ---- rotary positions ----


def test_angles_and_turns_by_hand():
    # a head of 4: pairs (0, 2) and (1, 3) turn by position and by position / 100 ** (2 / 4)
    cos, sin = angles(jnp.array([[0, 3]]), 100.0, 4)
    np.testing.assert_allclose(cos[0], [[1, 1], np.cos([3, 0.3])], atol=1e-6)
    x = jnp.array([1.0, 2.0, 0.5, -1.0])
    turned = turn(jnp.tile(x, (1, 2, 1, 1)), (cos, sin))[0, :, 0]
    np.testing.assert_allclose(turned[0], x, atol=1e-6)
    plane = [(1 + 0.5j) * np.exp(3j), (2 - 1j) * np.exp(0.3j)]
    np.testing.assert_allclose(turned[1], np.concatenate([np.real(plane), np.imag(plane)]), atol=1e-5)


def test_a_score_depends_on_the_distance_alone():
    random = np.random.default_rng(0)
    query, keys = (jnp.asarray(random.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def score(i: int, j: int) -> float:
        turned = (turn(x, angles(jnp.array([[at]]), 10_000.0, 8)) for x, at in ((query, i), (keys, j)))
        return float(jnp.vdot(*turned))

    assert score(700, 650) == pytest.approx(score(50, 0), abs=1e-3)
    assert score(50, 0) != pytest.approx(score(0, 50), abs=1e-2)


# ---- local layers ----


def test_a_window_of_128_shows_129_keys():
    config = dataclasses.replace(SMALL, layers=3, local_window=128, max_positions=300)
    model = build(config, VOCAB)
    params = random_params(model)
    tokens = np.random.default_rng(0).integers(5, VOCAB, (1, 300))
    segments = np.repeat([[1, 2, 0]], [200, 90, 10], axis=1)
    batch = batches.batch(tokens, segments)
    encoded = jax.jit(functools.partial(model.apply, want=("attention",)))(params, batch)
    seen = (np.asarray(encoded.out["attention"])[:, 0, 0] > 0).sum(-1)  # [l, t]
    for depth in (0, 2):
        assert (seen[depth, :200] == 200).all() and (seen[depth, 200:290] == 90).all()
    assert (seen[1, [0, 1, 64, 100, 135, 199]] == [65, 66, 129, 129, 129, 65]).all()
    assert (seen[1, [200, 289]] == 65).all()  # the window ends at the segment's ends
    in_blocks = jax.jit(model.apply)(params, batch).hidden  # nobody asks for the probabilities
    np.testing.assert_allclose(in_blocks[0, :290], encoded.hidden[0, :290], atol=2e-5)


def test_a_token_is_seen_as_far_as_the_window_reaches():
    """One local layer, in blocks: token 70 of 200 changes what places 6 to 134 read, with a window of 128."""
    config = dataclasses.replace(SMALL, layers=2, local_window=128, max_positions=200)
    model = build(config, VOCAB)
    params = random_params(model)
    params["first"]["0"] = jax.tree.map(np.zeros_like, params["first"]["0"])  # the global layer adds nothing
    tokens = np.random.default_rng(1).integers(5, VOCAB, (1, 200))
    changed = tokens.copy()
    changed[0, 70] = 5 + (tokens[0, 70] - 4) % (VOCAB - 5)
    apply = jax.jit(lambda params, batch: model.apply(params, batch).hidden)
    one, other = (np.asarray(apply(params, batches.batch(rows)))[0] for rows in (tokens, changed))
    differs = (one != other).any(-1)
    np.testing.assert_array_equal(np.flatnonzero(differs), np.arange(6, 135))


def test_a_text_is_the_same_alone_and_among_others():
    _, apply, params = small()
    tokens = np.random.default_rng(2).integers(5, VOCAB, 17)
    alone = np.asarray(apply(params, batches.batch(tokens[None])).hidden)[0]
    row, segments = np.full((3, 24), 7), np.ones((3, 24), int)
    row[1, :17], segments[1, 17:] = tokens, 0
    np.testing.assert_allclose(apply(params, batches.batch(row, segments)).hidden[1, :17], alone, atol=1e-5)
    row[2, 5:22], segments[2, 5:22], segments[2, 22:] = tokens, 2, 3
    np.testing.assert_allclose(apply(params, batches.batch(row, segments)).hidden[2, 5:22], alone, atol=1e-5)


# ---- RoBERTa ----


def test_positions_of_roberta():
    """ids 0 4 5 2 1 1 with padding 1 have positions 2 3 4 5 1 1; a second text in the row begins at 2 again."""
    config = ModelConfig(family="roberta", layers=1, width=4, heads=1, hidden=4, max_positions=8)
    model = build(config, VOCAB)
    table = np.eye(8, 4, dtype=np.float32) + np.eye(8, 4, k=-4, dtype=np.float32) * 2  # every row is another one
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), jax.eval_shape(model.init, key()))
    params["embeddings"]["position"]["table"], params["embeddings"]["norm"]["scale"] = table, np.ones(4, np.float32)
    params = jax.tree.map(jnp.asarray, params)
    batch = batches.batch([[0, 4, 5, 2, 1, 1], [0, 4, 0, 4, 2, 1]], [[1, 1, 1, 1, 0, 0], [1, 1, 2, 2, 2, 0]])
    start = model.apply(params, batch, want=("hidden",)).out["hidden"][0]
    x = table[[[2, 3, 4, 5, 1, 1], [2, 3, 2, 3, 4, 1]]]
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(start, want, atol=1e-5)


# ---- what holds for every model ----

COMBINATIONS = [
    {"layers": 1},
    {"layers": 6, "unroll": 2},
    {"norm": "post", "biases": True},
    {"positions": "learned", "types": 2, "ffn": "gelu"},
    {"family": "bert", "positions": "rotary"},
    {"family": "roberta", "local_window": None, "global_every": None, "norm": "pre", "max_positions": 26},
]


@pytest.mark.parametrize("switches", COMBINATIONS, ids=str)
def test_the_last_layer_at_some_positions_is_the_whole_gathered(switches):
    _, apply, params = small(**switches)
    batch = batches.random_batch(1, 4, 24, VOCAB)
    at = jnp.array([[0, 3, 7], [1, 1, 0], [2, 23, 4], [5, 6, 9]])
    whole = apply(params, batch).hidden
    assert np.isfinite(np.asarray(whole)).all()
    real = np.take_along_axis(np.asarray(batch.segments), np.asarray(at), 1) > 0
    some = np.asarray(apply(params, batch, at=at).hidden)
    np.testing.assert_allclose(some[real], np.take_along_axis(whole, at[:, :, None], 1)[real], atol=1e-5)


CAUSAL = [
    {"family": "bert", "local_window": None, "global_every": None, "max_positions": 48},
    {"max_positions": 48, "remat": "dots"},  # local layers in three blocks of 16, before the last
]


@pytest.mark.parametrize("switches", CAUSAL, ids=["bert", "modernbert"])
def test_a_causal_position_reads_what_stands_before_it_in_its_text(switches):
    """A change of one token reaches it and all later ones of its text, and no other."""
    model, _, params = small(**switches)
    at = jnp.arange(48)[::-1]  # the last layer is computed at the positions in this order
    apply = jax.jit(lambda params, batch: model.apply(params, batch, at=jnp.stack([at] * 4), causal=True).hidden[:, at])
    tokens = np.random.default_rng(4).integers(5, VOCAB, (4, 48))
    segments = np.repeat([[1, 2, 0]], [20, 25, 3], axis=1).repeat(4, 0)
    reached = [range(0, 20), range(7, 20), range(19, 20), range(20, 45)]  # by a change of the first of them
    changed = tokens.copy()
    for row, of_row in enumerate(reached):
        changed[row, of_row[0]] = 5 + (tokens[row, of_row[0]] - 4) % (VOCAB - 5)
    one, other = (np.asarray(apply(params, batches.batch(rows, segments))) for rows in (tokens, changed))
    for row, of_row in enumerate(reached):
        np.testing.assert_array_equal(np.flatnonzero((one != other)[row, :45].any(-1)), of_row)
    wanted = jax.jit(functools.partial(model.apply, causal=True, want=("attention",)))
    encoded = wanted(params, batches.batch(tokens, segments))
    np.testing.assert_allclose(encoded.hidden[:, :45], one[:, :45], atol=2e-5)
    seen = np.asarray(encoded.out["attention"])[..., :45, :] > 0
    assert not np.triu(seen, 1).any() and np.diagonal(seen, axis1=-2, axis2=-1).all()


def test_what_is_computed_again_changes_no_gradient_and_saves_memory():
    """Dropout included: the masks of the second time are those of the first."""
    batch, keys = batches.random_batch(1, 8, 64, VOCAB), jax.random.split(key(), 8)
    six = {"family": "bert", "local_window": None, "global_every": None, "layers": 6, "max_positions": 64}
    memory, gradients = {}, {}
    for remat in ("none", "dots", "layer"):
        model = build(dataclasses.replace(SMALL, remat=remat, dropout=0.1, **six), VOCAB)

        def loss(params, model=model):
            return jnp.square(model.apply(params, batch, row_keys=keys).hidden).sum()

        compiled = jax.jit(jax.grad(loss)).lower(params := random_params(model)).compile()
        memory[remat], gradients[remat] = compiled.memory_analysis().temp_size_in_bytes, compiled(params)
    for remat in ("dots", "layer"):
        for (path, got), want in zip(tree.leaves(gradients[remat]), jax.tree.leaves(gradients["none"])):
            np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4, err_msg=path)
    assert memory["layer"] < 0.8 * memory["dots"] < 0.8 * 0.8 * memory["none"], memory


def test_gradients_of_packed_texts_are_those_of_texts_alone():
    model, _, params = small()
    random = np.random.default_rng(3)
    one, two = random.integers(5, VOCAB, 13), random.integers(5, VOCAB, 9)
    packed = batches.batch([[*one, *two, 0, 0]], [[1] * 13 + [2] * 9 + [0, 0]])
    alone = batches.batch([[*one], [*two, 0, 0, 0, 0]], [[1] * 13, [1] * 9 + [0] * 4])

    @jax.jit
    @jax.grad
    def gradient(params, batch):
        logits = model.logits(params, model.apply(params, batch).hidden)
        losses = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, batch.tokens[..., None], -1)[..., 0]
        return (losses * (batch.segments > 0)).sum()

    for (path, got), want in zip(tree.leaves(gradient(params, packed)), jax.tree.leaves(gradient(params, alone))):
        assert np.abs(want).max() > 0, path
        np.testing.assert_allclose(got, want, atol=3e-4, rtol=1e-4, err_msg=path)
