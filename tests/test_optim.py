import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlm_jax.config import ConfigError, ModelConfig, OptimizerConfig
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
    return transformation.update(gradients, transformation.init(params), params)[0]


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
