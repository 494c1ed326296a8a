"""The encoder, against numbers that another implementation made and against its own other ways of computing."""

import dataclasses
import functools

import batches
import goldens
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from mlm_jax import convert, sharding, tree
from mlm_jax.config import MeshConfig, ModelConfig
from mlm_jax.kernels.dropout import keep_mask
from mlm_jax.kernels.product import linear
from mlm_jax.models import build

VOCAB = 40
SMALL = ModelConfig(
    layers=3, width=12, heads=3, hidden=20, max_positions=16, dropout=0.0, attention_dropout=0.0, initializer_range=0.3
)


def key(seed: int = 0) -> jax.Array:
    return jax.random.key(seed, impl="threefry2x32")


@functools.cache
def small(**changes: object):
    """A model, its jitted apply and logits, and parameters in which no bias is 0 and no scale 1."""
    model = build(dataclasses.replace(SMALL, **changes), VOCAB)
    random = np.random.default_rng(0)
    abstract = jax.eval_shape(model.init, key())
    params = tree.map_with_path(
        lambda path, leaf: np.float32(random.normal(size=leaf.shape) * 0.3 + path.endswith("scale")), abstract
    )
    return model, jax.jit(model.apply, static_argnames="want"), jax.jit(model.logits), params


@pytest.mark.parametrize("arrange", [goldens.padded, goldens.packed])
@pytest.mark.parametrize("family", goldens.CONFIGS)
def test_states_attention_and_logits_are_those_of_transformers(family, arrange):
    """Texts in rows with padding, and all in one row; those of ModernBERT are longer than its window."""
    weights, given, made = goldens.load(family)
    config, size, batch = goldens.CONFIGS[family], goldens.VOCABS[family], arrange(given)
    model = build(config, size)
    params = convert.from_hub(weights, config, size)
    encoded = jax.jit(functools.partial(model.apply, want=("hidden", "attention")))(params, batch)
    logits = np.asarray(jax.jit(model.logits)(params, encoded.hidden))
    ours, theirs = np.asarray(batch.segments) > 0, given["attention_mask"] > 0
    np.testing.assert_allclose(np.asarray(encoded.out["hidden"])[:, ours], made["hidden"][:, theirs], atol=1e-5)
    assert np.abs(logits[ours][:, :size] - made["logits"][theirs]).max() < 1e-4
    assert np.abs(made["logits"]).max() > 3
    np.testing.assert_array_equal(encoded.hidden, encoded.out["hidden"][-1])
    if arrange is goldens.padded:
        attention = np.asarray(encoded.out["attention"]).transpose(1, 3, 0, 2, 4)[ours]  # [real, l, h, s]
        np.testing.assert_allclose(attention, made["attention"].transpose(1, 3, 0, 2, 4)[theirs], atol=1e-5)


@pytest.mark.parametrize(
    "family, upto", [("bert", 1), ("bert", 2), ("bert", 3), *(("modernbert", upto) for upto in (1, 3, 5, 6))]
)
def test_the_first_layers_alone_are_those_of_transformers(family, upto):
    weights, given, made = goldens.load(family)
    config, size, batch = goldens.CONFIGS[family], goldens.VOCABS[family], goldens.padded(given)
    model = build(config, size)
    params = convert.from_hub(weights, config, size)
    some = jax.jit(functools.partial(model.apply, want=("hidden", "attention_received"), upto=upto))(params, batch)
    real = np.asarray(batch.segments) > 0
    np.testing.assert_allclose(np.asarray(some.hidden)[real], made["hidden"][upto][real], atol=1e-5)
    assert some.out["hidden"].shape[0] == upto + 1
    # the queries of a row's text, each of which gives 1 in all
    by_hand = (made["attention"][upto - 1] * real[:, None, :, None]).mean(1).sum(1)
    np.testing.assert_allclose(np.asarray(some.out["attention_received"])[real], by_hand[real], atol=1e-5)
    assert (np.asarray(some.out["attention_received"])[~real] == 0).all() and not real.all()


def test_bert_base_has_109_514_298_parameters():
    params = jax.eval_shape(build(ModelConfig(), 30522).init, key())
    leaves = dict(tree.leaves(params))
    filling = (30592 - 30522) * (768 + 1)  # rows of the word table and of the bias up to a multiple of 128
    assert sum(leaf.size for leaf in leaves.values()) - filling == 109_514_298
    assert {leaf.dtype for leaf in leaves.values()} == {jnp.dtype(jnp.float32)}
    assert leaves["body/0/attention/query/kernel"].shape == (11, 768, 12, 64)
    assert leaves["last/0/attention/out/kernel"].shape == (12, 64, 768)
    assert params["first"] == {}


def test_initialisation():
    config = dataclasses.replace(SMALL, width=96, hidden=192, initializer_range=0.02)
    params = jax.jit(build(config, VOCAB).init)(key())
    for path, leaf in tree.leaves(params):
        name = path.rsplit("/", 1)[-1]
        if name == "kernel":
            # a normal cut at two deviations has 0.8796 of its deviation
            assert abs(np.std(leaf) / 0.02 - 0.8796) < 0.02, path
            assert np.abs(leaf).max() <= 0.04
        elif name != "table":
            np.testing.assert_array_equal(leaf, float(name == "scale"), path)
    table = np.asarray(params["embeddings"]["word"]["table"])
    assert table.shape == (128, 96)
    assert abs(table[:VOCAB].std() / 0.02 - 0.8796) < 0.03
    np.testing.assert_array_equal(table[VOCAB:], 0)
    kernels = [*params["body"]["0"]["ffn"]["up"]["kernel"], params["last"]["0"]["ffn"]["up"]["kernel"]]
    assert len({np.asarray(kernel).tobytes() for kernel in kernels}) == 3


def test_a_layer_is_drawn_by_its_depth():
    two, three = (jax.jit(build(dataclasses.replace(SMALL, layers=n), VOCAB).init)(key()) for n in (2, 3))
    for i, layer in enumerate((jax.tree.map(lambda leaf: np.asarray(leaf)[0], two["body"]["0"]), two["last"]["0"])):
        same = jax.tree.map(
            lambda got, want, i=i: np.allclose(got, np.asarray(want)[i], atol=1e-7), layer, three["body"]["0"]
        )
        assert all(jax.tree.leaves(same))
    assert all(jax.tree.leaves(jax.tree.map(functools.partial(np.allclose, atol=1e-7), two["head"], three["head"])))


def test_columns_that_stand_for_no_id_have_no_probability_and_no_gradient():
    model, _, logits, params = small()
    hidden = jax.random.normal(key(1), (2, 3, 12))
    assert logits(params, hidden).shape == (2, 3, 128)
    assert np.isfinite(np.asarray(logits(params, hidden))).all()
    probability = jax.nn.softmax(logits(params, hidden))
    np.testing.assert_array_equal(probability[..., VOCAB:], 0)

    def loss(params):
        return -jax.nn.log_softmax(model.logits(params, hidden))[..., 7].sum()

    gradients = jax.jit(jax.grad(loss))(params)
    for leaf in (gradients["embeddings"]["word"]["table"], gradients["head"]["bias"]):
        np.testing.assert_array_equal(leaf[VOCAB:], 0)
        assert (np.asarray(leaf[:VOCAB]) != 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_float32(dtype):
    _, apply, logits, params = small(dtype=dtype)
    batch = batches.random_batch(0, 2, 16, VOCAB)
    encoded = apply(params, batch)
    assert encoded.hidden.dtype == dtype
    assert logits(params, encoded.hidden).dtype == jnp.float32
    # Equal logits over 30,522 ids: ln 30522 = 10.32620; in bfloat16 it would be 10.3125.
    wide = build(dataclasses.replace(SMALL, dtype=dtype), 30522)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(wide.init, key()))
    loss = -jax.nn.log_softmax(wide.logits(zeros, encoded.hidden[:1, :1]))[0, 0, 0]
    assert abs(float(loss) - 10.32620) < 1e-5


def operand_types(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    """The types of all that is multiplied in matrix products, those in inner functions too."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found |= {str(operand.aval.dtype) for operand in equation.invars}
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            found |= operand_types(inner) if hasattr(inner, "eqns") else set()
    return found


def test_bfloat16_multiplies_no_float32_and_gives_float32_gradients():
    batch = batches.random_batch(0, 8, 64, VOCAB)  # long enough for local attention in blocks

    def loss(params, model):
        logits = model.logits(params, model.apply(params, batch, at=jnp.zeros((8, 3), int)).hidden)
        return (jax.nn.logsumexp(logits, -1) - logits[..., 7]).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    for switches in ({}, {"family": "modernbert", "local_window": 2, "layers": 5}):
        model, _, _, params = small(dtype="bfloat16", max_positions=64, **switches)
        assert operand_types(gradient.trace(params, model).jaxpr.jaxpr) == {"bfloat16"}
    (model, _, _, params), (exact, *_) = small(dtype="bfloat16", layers=1), small(layers=1)
    for (path, got), want in zip(tree.leaves(gradient(params, model)), jax.tree.leaves(gradient(params, exact))):
        assert got.dtype == jnp.float32
        # The bias of the keys has no effect on a softmax: its gradient is 0 but for rounding.
        assert path.endswith("key/bias") or np.linalg.norm(got - want) < 0.1 * np.linalg.norm(want), path


def test_a_rare_gradient_is_not_lost_in_a_frequent_tokens_sum():
    """600 equal gradients of one token: a bfloat16 sum would stop growing at 256."""
    model = build(dataclasses.replace(SMALL, layers=1, dtype="bfloat16"), VOCAB)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(model.init, key()))
    params["embeddings"]["type"]["table"] += jnp.arange(24.0).reshape(2, 12)
    params["embeddings"]["norm"]["scale"] += 1
    for block in ("attention", "ffn"):
        params["last"]["0"][block]["norm"]["scale"] += 1
    direction = jnp.asarray(np.random.default_rng(0).normal(size=12), jnp.float32)

    @jax.jit
    @jax.grad
    def gradient(params, rows):
        hidden = model.apply(params, batches.batch(np.full((60, 10), 5))).hidden.astype(jnp.float32)
        return (hidden @ direction).sum(-1) @ rows

    one, many = (
        np.asarray(gradient(params, jnp.float32(jnp.arange(60) < rows))["embeddings"]["word"]["table"][5])
        for rows in (1, 60)
    )
    assert np.abs(one).max() > 0
    np.testing.assert_allclose(many, 60 * one, rtol=1e-3, atol=1e-6)


def test_the_last_layer_at_some_positions_is_the_whole_gathered():
    model, apply, _, params = small()
    batch = batches.random_batch(1, 4, 16, VOCAB)
    at = jnp.array([[0, 3, 7], [1, 1, 0], [2, 15, 4], [5, 6, 9]])
    whole = apply(params, batch).hidden
    some = apply(params, batch, at=at).hidden
    assert some.shape == (4, 3, 12)
    np.testing.assert_allclose(some, jnp.take_along_axis(whole, at[:, :, None], 1), atol=1e-5)

    def loss(params, gather):
        hidden = model.apply(params, batch, at=None if gather else at).hidden
        return jnp.square(jnp.take_along_axis(hidden, at[:, :, None], 1) if gather else hidden).sum()

    for (path, got), want in zip(
        tree.leaves(jax.jit(jax.grad(loss), static_argnums=1)(params, False)),
        jax.tree.leaves(jax.jit(jax.grad(loss), static_argnums=1)(params, True)),
    ):
        np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-4, err_msg=path)


def test_documents_packed_into_a_row_are_as_if_alone():
    model, apply, _, params = small()
    nothing = [0] * 6
    packed = batches.batch([[1, 7, 8, 1, 9, 0], nothing], [[1, 1, 1, 2, 2, 0], nothing])
    alone = batches.batch([[1, 7, 8, 0, 0, 0], [1, 9, 0, 0, 0, 0]], [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(packed.positions[0], [0, 1, 2, 0, 1, 0])
    together, apart = (np.asarray(apply(params, batch).hidden) for batch in (packed, alone))
    np.testing.assert_allclose(together[0, :5], np.concatenate([apart[0, :3], apart[1, :2]]), atol=1e-5)
    assert np.isfinite(together).all()

    other = batches.batch([[1, 7, 8, 1, 23, 0], nothing], [[1, 1, 1, 2, 2, 0], nothing])
    changed = np.asarray(apply(params, other).hidden)
    np.testing.assert_array_equal(changed[0, :3], together[0, :3])
    assert (changed[0, 3:5] != together[0, 3:5]).any()

    @jax.jit
    @jax.grad
    def gradient(params, batch):
        logits = model.logits(params, model.apply(params, batch).hidden)
        losses = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, batch.tokens[..., None], -1)[..., 0]
        return (losses * (batch.segments > 0)).sum()

    for (path, got), want in zip(tree.leaves(gradient(params, packed)), jax.tree.leaves(gradient(params, alone))):
        np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-4, err_msg=path)


def test_unrolling_the_scan_changes_nothing():
    batch = batches.random_batch(2, 2, 16, VOCAB)
    config = {"layers": 4, "dropout": 0.2}
    _, apply, _, params = small(**config)
    _, unrolled, _, _ = small(**config, unroll=2)
    rows = jax.random.split(key(3), 2)
    np.testing.assert_allclose(
        unrolled(params, batch, row_keys=rows).hidden, apply(params, batch, row_keys=rows).hidden, atol=1e-5
    )


def test_one_layer():
    _, apply, _, params = small(layers=1)
    assert params["body"] == {}
    batch = batches.random_batch(3, 2, 16, VOCAB)
    encoded = apply(params, batch, want=("hidden", "attention"))
    assert encoded.out["hidden"].shape == (2, 2, 16, 12)
    assert encoded.out["attention"].shape == (1, 2, 3, 16, 16)
    some = apply(params, batch, at=jnp.array([[4], [2]]))
    np.testing.assert_allclose(some.hidden[:, 0], encoded.hidden[jnp.arange(2), jnp.array([4, 2])], atol=1e-5)


def test_dropout_is_keyed_by_row():
    _, apply, _, params = small(dropout=0.1, attention_dropout=0.1)
    batch = batches.random_batch(4, 4, 16, VOCAB)
    rows = jax.random.split(key(5), 4)
    dropped = np.asarray(apply(params, batch, row_keys=rows).hidden)
    np.testing.assert_array_equal(dropped, apply(params, batch, row_keys=rows).hidden)
    assert (dropped != apply(params, batch, row_keys=jax.random.split(key(6), 4)).hidden).any(-1).all()
    order = jnp.array([2, 0, 3, 1])
    permuted = apply(params, jax.tree.map(lambda x: x[order], batch), row_keys=rows[order]).hidden
    np.testing.assert_array_equal(permuted, dropped[order])


def test_places_of_dropout_have_the_keys_they_should():
    """With most weights 0, the state is what numpy makes of the masks that rows, depths and places are to have."""
    b, t, h, rate = 2, 16, 3, 0.5
    model, apply, _, params = small(layers=2, dropout=rate, attention_dropout=rate)
    params = params | {part: jax.tree.map(np.zeros_like, params[part]) for part in ("body", "last")}
    for part in ("body", "last"):
        layer = params[part]["0"]
        layer["attention"]["value"]["bias"] += 1  # uniform attention: what is read is the share of kept probabilities
        layer["attention"]["out"]["kernel"] += 1 / 12  # their mean over heads
        layer["ffn"]["down"]["bias"] += 1
        for block in ("attention", "ffn"):
            layer[block]["norm"]["scale"] += 1
    rows = jax.random.split(key(7), b)
    batch = batches.batch(np.full((b, t), 5))
    # The embeddings without dropout, from the same model.
    undropped = build(dataclasses.replace(model.config, dropout=0.0, attention_dropout=0.0), VOCAB)
    x = np.asarray(jax.jit(functools.partial(undropped.apply, want=("hidden",)))(params, batch).out["hidden"][0])

    def kept(depth: int, place: int, *shape: int) -> np.ndarray:
        keys = [jax.random.fold_in(jax.random.fold_in(row, depth), place) for row in rows]
        return np.asarray(keep_mask(jnp.stack(keys), shape, rate)) / (1 - rate)

    def norm(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)

    x = x * kept(0, 0, t, 12)
    for depth in (1, 2):
        read = kept(depth, 0, h, t, t).mean(-1).mean(1)[..., None]  # [b,t,1]
        x = norm(x + read * kept(depth, 1, t, 12))
        x = norm(x + kept(depth, 2, t, 12))
    np.testing.assert_allclose(apply(params, batch, row_keys=rows).hidden, x, atol=1e-4)


def test_unknown_wants_are_errors():
    model, _, _, params = small()
    batch = batches.random_batch(0, 1, 16, VOCAB)
    with pytest.raises(ValueError, match="'states': there is hidden, attention"):
        model.apply(params, batch, want=("states",))
    with pytest.raises(ValueError, match="at=None"):
        model.apply(params, batch, at=jnp.zeros((1, 2), int), want=("hidden",))
    for upto in (0, 4):
        with pytest.raises(ValueError, match="layers 1 to 3"):
            model.apply(params, batch, upto=upto)


def test_auto_is_float32_on_a_cpu():
    _, apply, _, params = small()
    assert apply(params, batches.random_batch(0, 1, 16, VOCAB)).hidden.dtype == jnp.float32


def test_eight_devices_compute_what_one_does():
    config = dataclasses.replace(SMALL, width=16, heads=2, hidden=32, dropout=0.1, attention_dropout=0.1)
    model = build(config, VOCAB)
    batch = batches.random_batch(5, 8, 16, VOCAB)
    rows = jax.random.split(key(8), 8)
    at = jnp.zeros((8, 2), int)

    def hidden(params, batch, rows):
        return model.apply(params, batch, at=at, row_keys=rows).hidden

    params = jax.jit(model.init)(key())
    want = jax.jit(hidden)(params, batch, rows)
    mesh, rules = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2}), MeshConfig()
    where = sharding.shardings(mesh, params, rules)
    with sharding.activate(mesh, rules):
        spread = jax.jit(model.init, out_shardings=where)(key())
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), spread, params)
        batch, rows = jax.device_put((batch, rows), sharding.batch_sharding(mesh))
        got = jax.jit(hidden)(spread, batch, rows)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("axes, spec", [(1, "btd,dhk->bthk"), (2, "btcd,cdk->btk")])
def test_linear_is_einsum_and_so_is_its_gradient(axes, spec):
    rng = np.random.default_rng(0)
    sizes = {letter: size for letter, size in zip("btcdhk", (2, 3, 4, 5, 6, 7))}
    x, kernel, g = (
        jnp.asarray(rng.normal(size=[sizes[letter] for letter in letters]), jnp.float32)
        for letters in spec.replace("->", ",").split(",")
    )
    out, pull = jax.vjp(lambda x, kernel: linear(axes, x, kernel), x, kernel)
    expected, pull_expected = jax.vjp(lambda x, kernel: jnp.einsum(spec, x, kernel), x, kernel)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(pull(g), pull_expected(g)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
