import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlm_jax.config import Config, ConfigError, ModelConfig, OptimizerConfig, check
from mlm_jax.console import rates_by_layer
from mlm_jax.models import build
from mlm_jax.optim import optimizer, schedule, table


def rates(steps, at, **options):
    return [float(schedule(OptimizerConfig(learning_rate=1.0, **options), steps)(n)) for n in at]


def test_linear_by_hand():
    # 10 warm-up steps of 100: 0.1 at the first update, 1 at the tenth, then down to 1/90 at the last
    got = rates(100, [0, 4, 9, 10, 55, 99], schedule="linear", warmup=0.1)
    np.testing.assert_allclose(got, [0.1, 0.5, 1.0, 1.0, 0.5, 1 / 90], rtol=1e-5)


def test_cosine_by_hand():
    got = rates(100, [9, 10, 40, 55, 70], schedule="cosine", warmup=0.1)
    np.testing.assert_allclose(got, [1.0, 1.0, 0.75, 0.5, 0.25], rtol=1e-5)


def test_step_decay_by_hand():
    got = rates(5000, [0, 999, 1000, 2500, 4999], schedule="step", warmup=0.0, step_factor=0.9, step_every=1000)
    np.testing.assert_allclose(got, [1.0, 1.0, 0.9, 0.81, 0.6561], rtol=1e-5)


def test_constant_after_warmup():
    np.testing.assert_allclose(rates(100, [0, 19, 50, 99], schedule="constant", warmup=0.2), [0.05, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "options, at, expected",
    [
        # half of the way: a quarter of the peak is left by squares, and 0.1 + 0.9 x 0.25 of it above a tenth
        ({"schedule": "polynomial", "warmup": 0.1, "power": 2.0}, [10, 55], [1.0, 0.25]),
        ({"schedule": "polynomial", "warmup": 0.1, "end": 0.1}, [55], [0.325]),
        ({"schedule": "cosine", "warmup": 0.1, "end": 0.1}, [10, 40, 55, 70], [1.0, 0.775, 0.55, 0.325]),
        ({"schedule": "linear", "warmup": 0.0, "end": 0.5}, [0, 50, 99], [1.0, 0.75, 0.505]),
        # updates 4, 16, 64 after 4 of warm-up: 1, 1 / 2, 1 / 4
        ({"schedule": "inverse_sqrt", "warmup": 0.04}, [0, 3, 15, 63], [0.25, 1.0, 0.5, 0.25]),
        # 25 steps of cool-down: after 0, 4 and 16 of them 1 - sqrt(0, 0.16, 0.64)
        ({"schedule": "wsd", "warmup": 0.1, "cooldown": 0.25}, [9, 74, 75, 79, 91], [1.0, 1.0, 1.0, 0.6, 0.2]),
        ({"schedule": "wsd", "warmup": 0.1, "cooldown": 0.25, "end": 0.5}, [79], [0.8]),
        (
            {"schedule": "parts", "warmup": 0.02, "parts": ((0.0, 1.0), (0.5, 0.1))},
            [0, 1, 49, 50, 99],
            [0.5, 1, 1, 0.1, 0.1],
        ),
    ],
)
def test_schedules_by_hand(options, at, expected):
    np.testing.assert_allclose(rates(100, at, **options), expected, rtol=1e-5)


def params_of(layers, **options):
    model = build(ModelConfig(layers=layers, width=8, heads=2, hidden=16, max_positions=8, **options), 10)
    return jax.eval_shape(model.init, jax.random.key(0))


def test_geometric_rates_of_twelve_layers():
    rows = table(params_of(12), OptimizerConfig(learning_rate=1e-3, layer_decay=0.8))
    rate = {path: rate for path, rate, _, _ in rows}
    by_hand = {
        "head/bias": 1e-3,
        "head/norm/scale": 1e-3,
        "layers/11/ffn/up/kernel": 8e-4,
        "layers/0/ffn/up/bias": 6.872e-5,
    }
    by_hand |= {"layers/1/attention/query/kernel": 8.590e-5, "layers/10/attention/query/kernel": 6.4e-4}
    by_hand |= {f"embeddings/{name}": 5.498e-5 for name in ("word/table", "position/table", "norm/scale", "norm/bias")}
    for path, expected in by_hand.items():
        np.testing.assert_allclose(rate[path], expected, rtol=1e-3, err_msg=path)
    assert rows[0][0].startswith("embeddings/") and rows[-1][0].startswith("head/")


def test_rates_of_modernbert_count_layers_from_the_last():
    """Eight layers stand in `first`, two groups of `body`, and `last`; the norm above them has the head's rate."""
    params = params_of(8, family="modernbert")
    rate = {path: rate for path, rate, _, _ in table(params, OptimizerConfig(learning_rate=1.0, layer_decay=0.5))}
    assert (rate["head/dense/kernel"], rate["norm/scale"], rate["embeddings/word/table"]) == (1, 1, 0.5**9)
    assert [rate[f"layers/{depth}/ffn/gate/kernel"] for depth in range(8)] == [0.5 ** (8 - depth) for depth in range(8)]
    assert "layers/0/attention/norm/scale" not in rate and "layers/7/attention/norm/scale" in rate


def test_a_decoder_of_its_own_is_of_the_head():
    rows = {
        path: row for path, *row in table(params_of(2, tied=False), OptimizerConfig(learning_rate=1.0, layer_decay=0.5))
    }
    assert rows["head/decoder/table"] == [1.0, 0.01, 128 * 8] and rows["embeddings/word/table"][0] == 0.5**3


def test_weight_decay_spares_biases_and_norms():
    rows = table(params_of(2), OptimizerConfig(weight_decay=0.01))
    for path, _, decay, _ in rows:
        assert decay == (0.0 if path.endswith(("bias", "scale")) else 0.01), path
    assert sum(size for *_, size in rows) == sum(x.size for x in jax.tree.leaves(params_of(2)))


GROUPS = (("embeddings/.*", 1e-5), ("layers/(0|1)/.*", 3e-5), (r"layers/\d+/.*|head/.*", 5e-5))


def test_named_groups():
    rate = {path: rate for path, rate, _, _ in table(params_of(12), OptimizerConfig(groups=GROUPS))}
    assert rate["embeddings/word/table"] == pytest.approx(1e-5)
    assert rate["layers/1/ffn/up/kernel"] == pytest.approx(3e-5)
    assert rate["layers/11/ffn/up/kernel"] == pytest.approx(5e-5)
    assert rate["head/bias"] == pytest.approx(5e-5)


def test_a_path_without_a_group_is_an_error():
    with pytest.raises(ConfigError, match="head/"):
        table(params_of(2), OptimizerConfig(groups=(("embeddings/.*", 1e-5), ("layers/.*", 1e-5))))


def first_update(config, params, gradients):
    transformation = optimizer(config, steps=1)
    return jax.jit(transformation.update)(gradients, transformation.init(params), params)[0]


@pytest.mark.parametrize("options", [{"layer_decay": 0.5}, {"groups": GROUPS}])
def test_stacked_layers_move_at_their_own_rates(options):
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params_of(4))
    config = OptimizerConfig(
        learning_rate=1e-3, warmup=0.0, schedule="constant", weight_decay=0.1, clip_norm=0.0, **options
    )
    # Adam's first step is the sign of the gradient, so an update is -rate * (1 + decay * parameter)
    updates = first_update(config, params, params)
    for path, rate, decay, _ in table(params, config):
        part, *rest = path.split("/")
        if part != "layers":
            leaf = updates[part]
        elif rest[0] == "3":
            leaf, rest = updates["last"]["0"], rest[1:]
        else:
            leaf, layer, rest = updates["body"]["0"], int(rest[0]), rest[1:]
        for name in rest:
            leaf = leaf[name]
        value = leaf[layer] if part == "layers" and path.split("/")[1] != "3" else leaf
        np.testing.assert_allclose(value, -rate * (1 + decay), rtol=1e-4, err_msg=path)


def test_clipping_is_global():
    params = {"embeddings": {"a": jnp.zeros(1)}, "first": {}, "body": {}, "last": {}, "head": {"a": jnp.zeros(1)}}
    gradients = jax.tree.map(lambda leaf: leaf, params)
    gradients["embeddings"]["a"], gradients["head"]["a"] = jnp.array([3.0]), jnp.array([4.0])
    clipped, _ = optax.clip_by_global_norm(1.0).update(gradients, None)
    np.testing.assert_allclose([clipped["embeddings"]["a"][0], clipped["head"]["a"][0]], [0.6, 0.8])
    # seen through the first moment, which is (1 - b1) times the clipped gradient
    transformation = optimizer(OptimizerConfig(clip_norm=1.0, b1=0.5), steps=10)
    _, state = transformation.update(gradients, transformation.init(params), params)
    moment = state[1].mu
    np.testing.assert_allclose([moment["embeddings"]["a"][0], moment["head"]["a"][0]], [0.3, 0.4], rtol=1e-6)


# ---- other optimizers, beside numpy ----


def random_like(tree_, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.standard_normal(leaf.shape), jnp.float32), tree_)


def of_layer(values, depth, *names):
    """The leaf of one layer of a model of three: two stacked in `body`, and `last`."""
    part = values["body"]["0"] if depth < 2 else values["last"]["0"]
    for name in names:
        part = part[name]
    return np.asarray(part[depth] if depth < 2 else part, np.float64)


OPTIONS = {"learning_rate": 1.0, "schedule": "constant", "warmup": 0.0, "clip_norm": 0.0, "weight_decay": 0.1}


@pytest.fixture(scope="module")
def values():
    shapes = params_of(3)
    return random_like(shapes, 0), random_like(shapes, 1, 0.01)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_lamb_scales_each_layer_by_its_own_norms(values, depth):
    """You et al., algorithm 2: the first Adam step is g / (|g| + epsilon); r = that + 0.1 x; x / |x| is its length."""
    params, gradients = values
    updates = first_update(OptimizerConfig(name="lamb", epsilon=1e-3, **OPTIONS), params, gradients)
    for names in (("ffn", "up", "kernel"), ("attention", "query", "kernel")):
        x, g = of_layer(params, depth, *names), of_layer(gradients, depth, *names)
        r = g / (np.abs(g) + 1e-3) + 0.1 * x
        expected = -r * np.linalg.norm(x) / np.linalg.norm(r)
        np.testing.assert_allclose(of_layer(updates, depth, *names), expected, rtol=2e-4, atol=1e-5)
    g = of_layer(gradients, depth, "ffn", "up", "bias")
    np.testing.assert_allclose(of_layer(updates, depth, "ffn", "up", "bias"), -g / (np.abs(g) + 1e-3), rtol=1e-3)


@pytest.mark.parametrize("depth", [0, 2])
def test_muon_makes_matrices_of_layers_orthogonal(values, depth):
    """Of U S V' remain U and V', the singular values lie between 0.7 and 1.2 (Jordan), times 0.2 sqrt(longer side)."""
    params, gradients = values
    options = OPTIONS | {"weight_decay": 0.0}
    updates = first_update(OptimizerConfig(name="muon", **options), params, gradients)
    for names, rows, longer in (
        (("ffn", "up", "kernel"), 8, 16),
        (("attention", "query", "kernel"), 8, 8),
        (("attention", "out", "kernel"), 8, 8),  # sums over heads and their sizes
    ):
        # of `out` the first two of [heads, size of a head, width] are one side, of `query` the last two
        got, gradient = (of_layer(tree_, depth, *names).reshape(rows, -1) for tree_ in (updates, gradients))
        u, _, v = np.linalg.svd(gradient, full_matrices=False)
        inside = -(u.T @ got @ v.T) / (0.2 * longer**0.5)
        np.testing.assert_allclose(inside - np.diag(np.diag(inside)), 0, atol=1e-4)
        assert np.diag(inside).min() > 0.6 and np.diag(inside).max() < 1.25
    # all else moves by Adam, whose first step is the sign
    for got, gradient in (
        (updates["embeddings"]["word"]["table"], gradients["embeddings"]["word"]["table"]),
        (updates["head"]["dense"]["kernel"], gradients["head"]["dense"]["kernel"]),
        (updates["body"]["0"]["ffn"]["up"]["bias"], gradients["body"]["0"]["ffn"]["up"]["bias"]),
    ):
        np.testing.assert_allclose(got, -gradient / (np.abs(gradient) + 1e-6), rtol=1e-3)


def test_stable_adamw_divides_by_the_surprise_of_each_layer(values):
    """The second gradient of layer 1 alone is ten times the first: g^2 / u is 100 / ((b2 + 100) / (1 + b2)) there."""
    params, gradients = values
    config = OptimizerConfig(name="stable_adamw", b1=0.0, b2=0.9, epsilon=1e-12, **OPTIONS | {"weight_decay": 0.0})
    transformation = optimizer(config, steps=10)
    update = jax.jit(transformation.update)
    _, state = update(gradients, transformation.init(params), params)
    kernel = gradients["body"]["0"]["ffn"]["up"]["kernel"]
    larger = jax.tree.map(lambda leaf: leaf, gradients)
    larger["body"]["0"]["ffn"]["up"]["kernel"] = kernel * jnp.array([1.0, 10.0])[:, None, None]
    updates, _ = update(larger, state, params)
    # bias-corrected u = (b2 g1^2 + g2^2) / (1 + b2); without momentum the update is g2 / sqrt(u)
    ratio = np.sqrt(100 / ((0.9 + 100) / 1.9))
    np.testing.assert_allclose(np.abs(of_layer(updates, 1, "ffn", "up", "kernel")), ratio / max(1, ratio), rtol=1e-4)
    np.testing.assert_allclose(np.abs(of_layer(updates, 0, "ffn", "up", "kernel")), 1.0, rtol=1e-4)


@pytest.mark.parametrize(
    "options, key",
    [
        ({"schedule": "inverse_sqrt", "warmup": 0.0}, "warmup"),
        ({"schedule": "wsd", "cooldown": 0.0}, "cooldown"),
        ({"schedule": "wsd", "warmup": 0.3, "cooldown": 0.8}, "cooldown"),
        ({"schedule": "parts"}, "parts"),
        ({"parts": ((0.0, 1.0),)}, "parts"),
        ({"schedule": "parts", "parts": ((0.1, 1.0),)}, "parts"),
        ({"schedule": "parts", "parts": ((0.0, 1.0), (0.5, -1.0))}, "parts"),
        ({"name": "sgd"}, "name"),
    ],
)
def test_contradictions_are_refused(options, key):
    with pytest.raises(ConfigError) as error:
        check(Config(optimizer=OptimizerConfig(**options)), devices=1)
    assert error.value.key == f"config.optimizer.{key}"


@pytest.mark.parametrize("momentum, forgets", [(0.0, True), (0.9, False)])
def test_muon_without_momentum_sees_the_newest_gradient_alone(values, momentum, forgets):
    params, first = values
    second = random_like(params, 2)
    options = OPTIONS | {"weight_decay": 0.0}
    transformation = optimizer(OptimizerConfig(name="muon", muon_momentum=momentum, **options), steps=10)
    update = jax.jit(transformation.update)
    _, state = update(first, transformation.init(params), params)
    after, _ = update(second, state, params)
    alone, _ = update(second, transformation.init(params), params)
    kernels = (of_layer(updates, 0, "ffn", "up", "kernel") for updates in (after, alone))
    assert np.allclose(*kernels, atol=1e-4) == forgets


# ---- what stays as it is ----

FROZEN = ("embeddings/(word|type)/.*", "layers/(0|2)/.*")


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_what_is_frozen_does_not_move(values, name):
    """Layer 0 shares its leaves with layer 1; a gradient that is no number does not matter there either."""
    params, gradients = jax.tree.map(lambda leaf: leaf, values)
    gradients["embeddings"]["word"]["table"] = jnp.full_like(params["embeddings"]["word"]["table"], jnp.nan)
    config = OptimizerConfig(name=name, freeze=FROZEN, **OPTIONS | {"clip_norm": 1.0})
    updates = first_update(config, params, gradients)
    for part in ("word", "type"):
        assert not np.any(updates["embeddings"][part]["table"])
    assert np.all(updates["embeddings"]["position"]["table"])
    for leaf in jax.tree.leaves(updates["body"]["0"]):
        assert not np.any(leaf[0]) and np.all(leaf[1])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates["last"]))


def test_what_is_frozen_is_not_clipped_with_the_rest():
    """3 is frozen, so the gradient is 4 long, not 5, and is clipped to 1: 4 / 4 instead of 4 / 5."""
    params = {"embeddings": {"a": jnp.ones(1)}, "first": {}, "body": {}, "last": {}, "head": {"a": jnp.ones(1)}}
    gradients = {**params, "embeddings": {"a": jnp.array([3.0])}, "head": {"a": jnp.array([4.0])}}
    transformation = optimizer(OptimizerConfig(b1=0.5, freeze=("embeddings/.*",)), steps=10)
    _, state = transformation.update(gradients, transformation.init(params), params)
    np.testing.assert_allclose([state[1].mu["embeddings"]["a"][0], state[1].mu["head"]["a"][0]], [0, 0.5], rtol=1e-6)


def test_the_table_shows_what_is_frozen():
    config = OptimizerConfig(learning_rate=1e-3, freeze=FROZEN, groups=((r"layers/1/.*|embeddings/.*|head/.*", 1e-4),))
    rows = {path: row for path, *row in table(params_of(3), config)}
    assert rows["embeddings/word/table"][:2] == rows["layers/2/ffn/up/kernel"][:2] == [0.0, 0.0]
    assert rows["layers/1/ffn/up/kernel"][:2] == pytest.approx([1e-4, 0.01])
    lines = rates_by_layer(table(params_of(3), config), config)
    assert [line.split()[:2] for line in lines[1:4]] == [["layer", str(depth)] for depth in range(3)]
    assert lines[1].endswith("  frozen") and lines[3].endswith("  frozen") and "rate 0.0001" in lines[2]
    assert lines[0].endswith(f"rate 0.0001, decay 0.01 (0 on biases and norm scales), {130 * 8:,} frozen")


@pytest.mark.parametrize(
    "freeze, says",
    [
        (("layers/0/ffn/up",), "nearest paths: layers/0/ffn/up/bias"),
        (("embeddings/.*", "layer/.*"), "nearest paths: layers/"),
        ((".*",), "freezes all"),
        (("(",), "no regular expression"),
    ],
)
def test_patterns_to_freeze_that_are_wrong(freeze, says):
    with pytest.raises(ConfigError, match=says) as error:
        check(Config(optimizer=OptimizerConfig(freeze=freeze)), devices=1)
        optimizer(OptimizerConfig(freeze=freeze), 10).init(params_of(2))
    assert error.value.key == "config.optimizer.freeze"
