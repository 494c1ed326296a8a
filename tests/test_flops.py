import jax
import jax.numpy as jnp
import pytest

from mlm_jax import flops
from mlm_jax.config import ModelConfig

TINY = ModelConfig(layers=2, width=4, heads=2, hidden=8, vocab_size=10)


def test_by_hand():
    """t 3, q 2, m 2, d 4, f 8, v 10; every product written out as 2 m k n."""
    first = 4 * (2 * 3 * 4 * 4) + 2 * (2 * 3 * 3 * 4) + 2 * (2 * 3 * 4 * 8)
    assert first == 384 + 144 + 384 == flops.layer(TINY, 3, 3)
    last = 2 * (2 * 3 * 4 * 4) + 2 * (2 * 2 * 4 * 4) + 2 * (2 * 2 * 3 * 4) + 2 * (2 * 2 * 4 * 8)
    assert last == 192 + 128 + 96 + 256 == flops.layer(TINY, 3, 2)
    head = 2 * 2 * 4 * 4 + 2 * 2 * 4 * 10
    assert head == 64 + 160 == flops.head(TINY, 2, 10)
    assert flops.step(TINY, rows=5, t=3, q=2, m=2, vocab_rows=10) == 3 * 5 * (912 + 672 + 224)


def test_bert_base_without_savings_is_six_per_parameter_and_token():
    """Six operations per weight and token (Kaplan et al., 2020, section 2.1), plus 12 l t d for attention."""
    model, t = ModelConfig(), 512
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 768 + 768 * 30522
    per_token = flops.step(model, rows=1, t=t, q=t, m=t, vocab_rows=30522) / t
    assert per_token == 6 * weights + 12 * 12 * t * 768


def split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1)


def plain_model(params, tokens, selected, model):
    """The same computation in plain jax.numpy, unrolled; [b, t] ids and [b, m] places -> logits [b, m, v]."""
    x = params["table"][tokens]
    for number, weights in enumerate(params["layers"]):
        q = x if number < model.layers - 1 else jnp.take_along_axis(x, selected[..., None], 1)
        query, key, value = (split(y @ weights[name], model.heads) for y, name in ((q, "q"), (x, "k"), (x, "v")))
        attention = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", query, key), -1)
        mixed = jnp.einsum("bhqs,bshk->bqhk", attention, value).reshape(q.shape)
        x = q + mixed @ weights["o"]
        x = x + jax.nn.relu(x @ weights["up"]) @ weights["down"]
    return jnp.maximum(x @ params["dense"], 0) @ params["table"].T


def test_against_the_compiler():
    b, t, m, v = 2, 128, 24, 1024
    model = ModelConfig(layers=3, width=256, heads=4, hidden=1024, vocab_size=v)
    d, f = model.width, model.hidden
    sizes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, f), "down": (f, d)}
    weights = {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}
    table, dense = (jax.ShapeDtypeStruct(size, jnp.float32) for size in ((v, d), (d, d)))
    params = {"table": table, "dense": dense, "layers": [weights] * model.layers}
    tokens, selected = (jax.ShapeDtypeStruct(size, jnp.int32) for size in ((b, t), (b, m)))

    def loss(params, tokens, selected):
        return plain_model(params, tokens, selected, model).sum()

    counted = {}
    for name, function in (("forward", loss), ("step", jax.value_and_grad(loss))):
        counted[name] = jax.jit(function).lower(params, tokens, selected).compile().cost_analysis()["flops"]
    expected = b * flops.forward(model, t=t, q=m, m=m, vocab_rows=v)
    assert counted["forward"] == pytest.approx(expected, rel=0.02)
    assert counted["step"] == pytest.approx(flops.step(model, b, t=t, q=m, m=m, vocab_rows=v), rel=0.02)


@pytest.mark.parametrize(
    "kind, rate",
    [
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5e", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU7x", 1153.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("TPU v4 lite", None),
        ("cpu", None),
    ],
)
def test_peaks(kind, rate):
    assert flops.peak(kind) == rate


def test_utilisation_counts_real_tokens():
    # 1e12 operations for 1,000 places; 80,000 real tokens a second are 80 such steps of full rows: 8e13 of 2 x 1.97e14
    assert flops.utilisation(1e12, 1000, 80_000.0, 2, "TPU v5e") == pytest.approx(8e13 / (2 * 197e12))
    assert flops.utilisation(10**12, 1000, 80_000, 2, "cpu") is None
