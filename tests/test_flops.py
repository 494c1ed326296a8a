import dataclasses

import jax
import jax.numpy as jnp
import pytest

from mlm_jax import flops
from mlm_jax.config import (
    CausalConfig,
    Config,
    ContrastiveConfig,
    DataConfig,
    Derived,
    MlmConfig,
    ModelConfig,
    ObjectiveConfig,
    ObjectivesConfig,
    ReplacedConfig,
    is_local,
    resolve,
)

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
    # tables of width 6: a projection of all tokens from 6 to 4, and a head from 4 to 6 to 10
    wide = dataclasses.replace(TINY, embedding_width=6)
    more = 2 * 3 * 6 * 4 + 2 * 2 * 4 * 6 + 2 * 2 * 6 * 10 - head
    assert flops.step(wide, rows=5, t=3, q=2, m=2, vocab_rows=10) == 3 * 5 * (912 + 672 + 224 + more)


def test_bert_base_without_savings_is_six_per_parameter_and_token():
    """Six operations per weight and token (Kaplan et al., 2020, section 2.1), plus 12 l t d for attention."""
    model, t = ModelConfig(), 512
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 768 + 768 * 30522
    per_token = flops.step(model, rows=1, t=t, q=t, m=t, vocab_rows=30522) / t
    assert per_token == 6 * weights + 12 * 12 * t * 768


MODERN = ModelConfig(family="modernbert", layers=3, width=4, heads=2, hidden=8, local_window=2)


def test_modernbert_by_hand():
    """t 5, q 2; a window of one to either side: 2 + 3 + 3 + 3 + 2 = 13 pairs; three products in the feed-forward."""
    assert flops.attended(5, 2) == 13 == flops.attended(5, 3)
    assert flops.attended(5, 0) == flops.attended(5, 8) == flops.attended(5, 100) == 25
    assert flops.attended(200, 128) == sum(min(i + 64, 199) - max(i - 64, 0) + 1 for i in range(200))
    linear = 4 * (2 * 5 * 4 * 4) + 3 * (2 * 5 * 4 * 8)
    assert flops.layer(MODERN, 5, 5, depth=0) == linear + 2 * (2 * 25 * 4)
    assert flops.layer(MODERN, 5, 5, depth=1) == linear + 2 * (2 * 13 * 4)
    last = 2 * (2 * 5 * 4 * 4) + 2 * (2 * 2 * 4 * 4) + 2 * (2 * 5 * 4) + 3 * (2 * 2 * 4 * 8)  # 2 of 5 have 5 pairs
    assert flops.layer(MODERN, 5, 2, depth=2) == last
    head = 2 * 2 * 4 * 4 + 2 * 2 * 4 * 10
    both = flops.layer(MODERN, 5, 5, depth=0) + flops.layer(MODERN, 5, 5, depth=1)
    assert flops.forward(MODERN, t=5, q=2, m=2, vocab_rows=10) == both + last + head


def test_causal_pairs_by_hand():
    """5 tokens: 1 + 2 + 3 + 4 + 5; within one to the left 1 + 2 + 2 + 2 + 2."""
    assert flops.attended(5, 0, causal=True) == 15 and flops.attended(5, 2, causal=True) == 9
    assert flops.attended(200, 128, causal=True) == sum(min(i, 64) + 1 for i in range(200))
    assert flops.layer(TINY, 5, 5) - flops.layer(TINY, 5, 5, causal=True) == 2 * (2 * 10 * 4)
    local = [flops.layer(MODERN, 5, 5, depth=1, causal=causal) for causal in (False, True)]
    assert local[0] - local[1] == 2 * (2 * 4 * 4)


def derived(config):
    """t 3, m 2, v 10 of rows of one step."""
    return Derived(
        devices=1,
        processes=1,
        mesh={},
        accumulation=1,
        microbatch=config.batch_size,
        rows_per_device=config.batch_size,
        tokens_per_step=3 * config.batch_size,
        capacity=2,
        steps=1,
        warmup_steps=0,
        cooldown_steps=0,
        vocab_rows=10,
    )


def test_objectives_by_hand():
    """As in the first test, with rows of 2 segments at most: d 4, p 2, and 4 rows that are compared."""
    on = ObjectiveConfig(weight=1.0)
    config = Config(batch_size=8, row_length=3, model=TINY, data=DataConfig(max_segments=2))
    assert flops.by_part(config, derived(config)) == {"masked rows": 24 * (912 + 672), "vocabulary": 24 * 224}
    # the last layer at 2 more positions: queries and output, their pairs with 3 keys, both halves of the feed-forward
    both = 2 * (2 * 2 * 4 * 4) + 2 * (2 * 2 * 3 * 4) + 2 * (2 * 2 * 4 * 8)
    pair = 2 * 2 * 4 * 4 + 2 * 2 * 4 * 2
    config.objectives.sop = on
    found = {"masked rows": 24 * (912 + 672 + both), "vocabulary": 24 * 224, "pairs": 24 * pair}
    assert flops.by_part(config, derived(config)) == found
    config.objectives = ObjectivesConfig(
        mlm=MlmConfig(weight=0.0), contrastive=ContrastiveConfig(weight=0.5, group_rows=4)
    )
    # both views: a pass with the last layer at 2 positions, a dense layer; 2 segments against the 8 of 4 rows
    found = {"masked rows": 24 * (912 + 672), "other view": 24 * (912 + 672)}
    found["contrast"] = 24 * (2 * (2 * 2 * 4 * 4) + 2 * 2 * 8 * 4)
    assert flops.by_part(config, derived(config)) == found
    # replaced: a generator of width 2 over the tables of 4, with 4 in its feed-forward and its last layer at 2 of 3;
    # samples are a head without a backward pass
    replaced = ReplacedConfig(weight=50.0, generator_layers=1)
    config.objectives = ObjectivesConfig(mlm=MlmConfig(weight=0.0), replaced=replaced)
    last = 2 * (2 * 3 * 2 * 2) + 2 * (2 * 2 * 2 * 2) + 2 * (2 * 2 * 3 * 2) + 2 * (2 * 2 * 2 * 4)
    head = 2 * 2 * 2 * 4 + 2 * 2 * 4 * 10
    found = {"generator": 24 * (2 * 3 * 4 * 2 + last), "vocabulary": 24 * head, "samples": 8 * head}
    found["discriminator"] = 24 * (2 * 912 + 2 * 3 * 4 * 4 + 2 * 3 * 4)
    assert flops.by_part(config, derived(config)) == found
    # causal: everything at 3 positions, 6 of 9 pairs; a quarter of the steps
    config.objectives = ObjectivesConfig(causal=CausalConfig(ratio=0.25))
    causal = 2 * (912 - 2 * (2 * 3 * 4))
    head = 2 * 3 * 4 * 4 + 2 * 3 * 4 * 10
    found = {"masked rows": 18 * (912 + 672), "vocabulary": 18 * 224 + 6 * head, "causal rows": 6 * causal}
    assert flops.by_part(config, derived(config)) == found
    assert flops.of_run(config, derived(config)) == sum(found.values())


def split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1)


def attend(query, key, value, reach):
    """[b, t, h, k] each; with a reach, one product for each distance up to it, of the pairs that there are."""
    if not reach:
        weights = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", query, key), -1)
        return jnp.einsum("bhqs,bshk->bqhk", weights, value)
    t, scores, read = key.shape[1], [], 0
    ends = [(max(-shift, 0), max(shift, 0)) for shift in range(-reach, reach + 1)]  # queries and keys without partner
    for before, after in ends:
        pairs = jnp.einsum("bqhk,bqhk->bqh", query[:, before : t - after], key[:, after : t - before])
        scores.append(jnp.pad(pairs, ((0, 0), (before, after), (0, 0)), constant_values=-1e9))
    weights = jax.nn.softmax(jnp.stack(scores, -1), -1)
    for i, (before, after) in enumerate(ends):
        one = weights[:, before : t - after, :, i : i + 1] * value[:, after : t - before]
        read += jnp.pad(one, ((0, 0), (before, after), (0, 0), (0, 0)))
    return read


def plain_model(params, tokens, selected, model):
    """The same computation in plain jax.numpy, unrolled; [b, t] ids and [b, m] places -> logits [b, m, v]."""
    x = params["table"][tokens]
    for number, weights in enumerate(params["layers"]):
        q = x if number < model.layers - 1 else jnp.take_along_axis(x, selected[..., None], 1)
        query, key, value = (split(y @ weights[name], model.heads) for y, name in ((q, "q"), (x, "k"), (x, "v")))
        reach = model.local_window // 2 if is_local(model, number) else 0
        x = q + attend(query, key, value, reach).reshape(q.shape) @ weights["o"]
        up = jax.nn.relu(x @ weights["up"])
        x = x + (up * (x @ weights["gate"]) if model.ffn == "geglu" else up) @ weights["down"]
    return jnp.maximum(x @ params["dense"], 0) @ params["table"].T


SIZES = {"width": 256, "heads": 4, "vocab_size": 1024}
LOCAL = {"family": "modernbert", "local_window": 8, "global_every": 2}  # the last of three layers is global


@pytest.mark.parametrize(
    "model, b, t, m",
    [
        (ModelConfig(layers=3, hidden=1024, **SIZES), 2, 128, 24),
        (ModelConfig(layers=3, hidden=384, **SIZES, **LOCAL), 2, 48, 8),
    ],
)
def test_against_the_compiler(model, b, t, m):
    model = resolve(model)
    d, f, v = model.width, model.hidden, model.vocab_size
    sizes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (d, f), "gate": (d, f), "down": (f, d)}
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
