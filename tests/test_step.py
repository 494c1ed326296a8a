import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from batches import CLS, SEP, batch, random_batch, vocabulary

from mlm_jax import feedback, keys, masking, sharding, state, step
from mlm_jax.config import Config, MaskConfig, MeshConfig, ModelConfig, OptimizerConfig
from mlm_jax.models import build
from mlm_jax.optim import optimizer

VOCABULARY = vocabulary(40)


def config_of(**changes) -> Config:
    model = ModelConfig(layers=3, width=16, heads=2, hidden=32, max_positions=32, initializer_range=0.1)
    return Config(
        **{
            "steps": 50,
            "row_length": 32,
            "model": model,
            "mask": MaskConfig(rate=0.2),
            "optimizer": OptimizerConfig(learning_rate=1e-2, weight_decay=0.0),
            **changes,
        }
    )


def run(config, batches, shape=(1, 1, 1), accumulation=1):
    """Metrics of each step, and the last state as numpy arrays, on a mesh of this shape (data, fsdp, tensor)."""
    seen, now = run_on(config, batches, shape, accumulation)
    return seen, jax.device_get(now)


def run_on(config, batches, shape=(1, 1, 1), accumulation=1):
    """As `run`, with the last state where it lies."""
    mesh = sharding.make_mesh(dict(zip(("data", "fsdp", "tensor"), shape)), jax.devices()[: int(np.prod(shape))])
    model, update = build(config.model, VOCABULARY.size, config.objectives), optimizer(config.optimizer, config.steps)
    fed = feedback.start(model, VOCABULARY, config.mask)
    key = keys.root(config.seed, keys.INIT)
    now = state.create(model, update, mesh, config.mesh, key, fed, config.optimizer)
    train_step = step.make_train_step(model, update, VOCABULARY, config, mesh)
    seen = []
    with sharding.activate(mesh, config.mesh):
        for rows in batches:
            folded = jax.tree.map(lambda x: x.reshape(accumulation, -1, *x.shape[1:]), rows)
            placed = jax.device_put(folded, sharding.batch_sharding(mesh, leading=1))
            now, metrics = train_step(now, placed, keys.roots(config.seed))
            seen.append(jax.device_get(metrics))
    return seen, now


@functools.cache
def rows_of_steps(steps):
    batches = [random_batch(seed, b=16, t=32) for seed in range(steps)]
    return [
        dataclasses.replace(rows, row=jnp.arange(16) + 16 * i, visit=jnp.full(16, i % 2))
        for i, rows in enumerate(batches)
    ]


def one_layer(**changes) -> ModelConfig:
    """Where the depth is not the point."""
    return dataclasses.replace(config_of().model, layers=1, **changes)


@functools.cache
def twenty_steps(accumulation=1):
    return run(config_of(), rows_of_steps(20), accumulation=accumulation)


def test_accumulation_changes_nothing():
    """Meshes: test_meshes."""
    (expected, _), (got, _) = twenty_steps(), twenty_steps(accumulation=4)
    for one, other in zip(expected, got):
        for name in ("rows_hash", "mask_hash", "targets", "tokens", "mask_rate", "learning_rate"):
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-5)
        np.testing.assert_allclose(one["grad_norm"], other["grad_norm"], rtol=1e-3)
    assert len({float(one["mask_hash"]) for one in expected}) == 20


def test_mesh_and_accumulation_change_nothing_for_modernbert():
    """A layer, a group of two, a layer; local attention in blocks."""
    sizes = {"layers": 4, "width": 16, "heads": 2, "hidden": 32, "max_positions": 64, "initializer_range": 0.1}
    local = {"local_window": 8, "global_every": 2, "dropout": 0.0, "attention_dropout": 0.0}
    config = config_of(model=ModelConfig(family="modernbert", **sizes, **local), row_length=64)
    batches = [random_batch(seed, b=16, t=64) for seed in range(3)]
    (one, _), (other, last) = (run(config, batches, *how) for how in (((1, 1, 1), 1), ((2, 2, 2), 2)))
    for expected, got in zip(one, other):
        assert expected["mask_hash"] == got["mask_hash"]
        np.testing.assert_allclose(expected["loss"], got["loss"], rtol=1e-5)
        np.testing.assert_allclose(expected["grad_norm"], got["grad_norm"], rtol=1e-3)
    assert one[-1]["loss"] != one[0]["loss"]
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    where = sharding.shardings(mesh, last.params, config.mesh)
    assert where["body"]["1"]["ffn"]["gate"]["kernel"].spec == jax.sharding.PartitionSpec(None, "fsdp", "tensor")
    assert where["norm"]["scale"].spec == jax.sharding.PartitionSpec(None)


def test_same_again_is_bit_identical():
    (_, one), (_, other) = twenty_steps(), run(config_of(), rows_of_steps(20))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def gradients_of(config, rows, accumulation):
    """The gradient that reaches the optimizer, read from Adam's first moment after one unclipped step."""
    plain = dataclasses.replace(config.optimizer, clip_norm=0.0, b1=0.5)
    _, last = run(dataclasses.replace(config, optimizer=plain), [rows], accumulation=accumulation)
    return jax.tree.map(lambda moment: 2 * moment, last.optimizer[1].mu)


def test_gradient_of_four_microbatches_is_that_of_one_batch():
    rows = rows_of_steps(1)[0]
    # the second of four microbatches has nothing to predict
    empty = dataclasses.replace(rows, weight=jnp.where(jnp.arange(16) // 4 == 1, 0.0, 1.0))
    one, four = (gradients_of(config_of(), empty, k) for k in (1, 4))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(four)):
        np.testing.assert_allclose(x, y, atol=1e-6)
    assert max(np.abs(x).max() for x in jax.tree.leaves(one)) > 1e-3


def test_loss_is_a_sum_over_all_targets_divided_once():
    """One row with one target, one with three, in microbatches and on devices of their own: no mean of means."""
    rows = batch([[CLS, 9, SEP, 0, 0, 0], [CLS, 8, 7, 6, SEP, 0]], [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    config = config_of(mask=MaskConfig(rate=1.0), model=one_layer(dropout=0.0, attention_dropout=0.0))
    model = build(config.model, VOCABULARY.size, config.objectives)

    @jax.jit
    def guess(params):
        masked = masking.mask(keys.roots(0)["mask"], rows, VOCABULARY, config.mask, 1.0)
        encoded = model.apply(params, dataclasses.replace(rows, tokens=masked.inputs), at=masked.indices)
        return masked, jax.nn.log_softmax(model.logits(params, encoded.hidden))

    masked, chances = guess(run(config, [])[1].params)
    losses = -np.take_along_axis(np.asarray(chances), np.asarray(masked.targets)[..., None], -1)[..., 0]
    by_hand = (losses[0, 0] + losses[1, :3].sum()) / 4
    for shape, accumulation in (((1, 1, 1), 1), ((1, 1, 1), 2), ((2, 1, 1), 1)):
        metrics, _ = run(config, [rows], shape, accumulation)
        np.testing.assert_allclose(metrics[0]["loss"], by_hand, rtol=1e-5)
        assert metrics[0]["targets"] == 4


def test_a_batch_without_targets_is_harmless():
    rows = batch([[CLS, SEP, 0, 0]] * 4, [[1, 1, 0, 0]] * 4)
    for mask in (MaskConfig(rate=0.2), MaskConfig(rate=0.0, max_rate=0.5)):
        config = config_of(mask=mask, model=one_layer())
        (_, before), (metrics, after) = run(config, []), run(config, [rows], accumulation=2)
        assert metrics[0]["loss"] == 0 and metrics[0]["grad_norm"] == 0 and metrics[0]["targets"] == 0
        jax.tree.map(np.testing.assert_array_equal, before.params, after.params)


def test_learning_rate_counts_updates_not_microbatches():
    (one, _), (four, _) = twenty_steps(), twenty_steps(accumulation=4)
    assert [m["learning_rate"] for m in one] == [m["learning_rate"] for m in four]
    np.testing.assert_allclose([m["learning_rate"] for m in one[:4]], [1e-2 / 3, 2e-2 / 3, 1e-2, 1e-2], rtol=1e-5)


def test_master_weights_and_moments_stay_float32_under_bfloat16():
    config = config_of(model=one_layer(dtype="bfloat16"))
    metrics, last = run(config, rows_of_steps(2))
    assert {x.dtype for x in jax.tree.leaves((last.params, last.optimizer[1].mu, last.optimizer[1].nu))} == {
        np.dtype("float32")
    }
    assert metrics[0]["loss"].dtype == np.float32
    # not on the grid of bfloat16, which has steps of 1/64 near 3
    assert any(float(m["loss"]) * 64 % 1 > 1e-3 for m in metrics)


def test_the_loss_of_a_fresh_model_is_about_that_of_guessing():
    metrics, _ = run(config_of(model=dataclasses.replace(config_of().model, initializer_range=0.01)), rows_of_steps(1))
    np.testing.assert_allclose(metrics[0]["loss"], np.log(40), rtol=0.01)


def test_parameters_lie_where_the_tables_say():
    config = config_of(mesh=MeshConfig(data=2, fsdp=2, tensor=2))
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    model, update = build(config.model, VOCABULARY.size, config.objectives), optimizer(config.optimizer, config.steps)
    target = state.abstract(model, update, mesh, config.mesh)
    query = target.params["body"]["0"]["attention"]["query"]["kernel"]
    assert query.shape == (2, 16, 2, 8) and query.sharding.spec == jax.sharding.PartitionSpec(
        None, "fsdp", "tensor", None
    )
    assert target.optimizer[1].mu["body"]["0"]["attention"]["query"]["kernel"].sharding == query.sharding
    assert target.params["embeddings"]["word"]["table"].sharding.spec == jax.sharding.PartitionSpec("tensor", "fsdp")


KEPT = {"freeze": ("embeddings/word/.*", "layers/0/.*"), "bad_gradients": "skip", "exploding": 5.0, "ema": 0.8}
POISONED, WILD, STEPS = (3, 4, 8), (6, 25), 28  # the 6th gradient is too early to be judged


@functools.cache
def watched():
    """The states before the first and after each of 28 steps, and their metrics; masks go by the losses.

    A weight that is no number makes the gradient none; weights that cancel each other leave a small count.
    """
    settings = OptimizerConfig(learning_rate=1e-2, clip_norm=0.0, b1=0.5, warmup=0.0, **KEPT)
    config = config_of(optimizer=settings, mask=MaskConfig(rate=0.2, priority="importance"))
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
    model, update = build(config.model, VOCABULARY.size), optimizer(settings, config.steps)
    fed, key = feedback.start(model, VOCABULARY, config.mask), keys.root(0, keys.INIT)
    now = state.create(model, update, mesh, config.mesh, key, fed, settings)
    train_step = step.make_train_step(model, update, VOCABULARY, config, mesh)
    states, seen = [jax.device_get(now)], []
    with sharding.activate(mesh, config.mesh):
        for number in range(1, STEPS + 1):
            rows = rows_of_steps(20)[number % 20]
            if number in POISONED:
                rows = dataclasses.replace(rows, weight=rows.weight.at[2].set(jnp.nan))
            if number in WILD:
                rows = dataclasses.replace(rows, weight=jnp.where(jnp.arange(16) % 2, 1e3, -1e3))
            placed = jax.device_put(jax.tree.map(lambda x: x[None], rows), sharding.batch_sharding(mesh, leading=1))
            now, metrics = train_step(now, placed, keys.roots(0))
            states.append(jax.device_get(now))
            seen.append(jax.device_get(metrics))
    return states, seen


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_bad_gradient_changes_nothing_but_counts():
    states, seen = watched()
    for number in range(1, STEPS + 1):
        before, after, metrics = states[number - 1], states[number], seen[number - 1]
        bad = number in POISONED or number == WILD[1]
        assert after.step == number and after.optimizer[-1].count == number  # which the learning rate goes by
        assert after.guard["skipped"] == metrics["skipped"] == before.guard["skipped"] + bad
        if not bad:
            assert after.optimizer[1].count == before.optimizer[1].count + 1 and metrics["skipped_in_row"] == 0
            continue
        for part in ("params", "feedback", "ema"):
            assert_equal(getattr(before, part), getattr(after, part))
        assert_equal(before.optimizer[1], after.optimizer[1])
        assert before.guard["norm"] == after.guard["norm"] and metrics["update/layers"] == 0
    assert [metrics["skipped_in_row"] for metrics in seen[1:5]] == [0, 1, 2, 0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((states[-1].params, states[-1].feedback)))
    norms = [metrics["grad_norm"] for metrics in seen]
    good = [norm for number, norm in enumerate(norms, 1) if number not in (*POISONED, WILD[1])]
    assert norms[WILD[0] - 1] > 10 * norms[0] and norms[WILD[1] - 1] > 5 * np.mean(good)
    np.testing.assert_allclose(states[-1].guard["norm"], np.mean(good), rtol=1e-5)


def test_what_is_frozen_stays_bit_by_bit_and_is_not_in_the_norm():
    states, seen = watched()
    first, last = states[0], states[-1]
    assert_equal(first.params["embeddings"]["word"], last.params["embeddings"]["word"])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y[0]), first.params["body"], last.params["body"])
    kernels = (now.params["body"]["0"]["ffn"]["up"]["kernel"][1] for now in (first, last))
    assert not np.any(np.equal(*kernels))
    moments = states[1].optimizer[1].mu  # half the gradient that was left
    assert not np.any(moments["embeddings"]["word"]["table"]) and not np.any(
        moments["body"]["0"]["ffn"]["up"]["bias"][0]
    )
    length = 2 * np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(moments)))
    np.testing.assert_allclose(seen[0]["grad_norm"], length, rtol=1e-5)


def test_the_average_by_hand():
    """d = min(0.8, (1 + n) / (10 + n)): 0.1, 2/11, 3/12 ..., 0.8 from n = 35 on; skipped updates are not counted."""
    states, _ = watched()
    leaf = lambda params: np.asarray(params["body"]["0"]["ffn"]["up"]["kernel"], np.float64)  # noqa: E731
    expected, n = leaf(states[0].params), 0
    assert_equal(states[0].ema["params"], states[0].params)
    for number, now in enumerate(states[1:], 1):
        if number not in (*POISONED, WILD[1]):
            decay = min(0.8, (1 + n) / (10 + n))
            expected, n = decay * expected + (1 - decay) * leaf(now.params), n + 1
        np.testing.assert_allclose(leaf(now.ema["params"]), expected, rtol=1e-5, atol=1e-7)
    assert states[-1].ema["updates"] == n == STEPS - 4 and states[-1].averaged is states[-1].ema["params"]


def test_how_far_each_part_moved_by_hand():
    states, seen = watched()
    for before, after, metrics in zip(states[:2], states[1:], seen):

        def length(values, parts):
            leaves = [np.asarray(leaf, np.float64) for part in parts for leaf in jax.tree.leaves(values[part])]
            return np.sqrt(sum(np.square(leaf).sum() for leaf in leaves))

        moved = jax.tree.map(lambda x, y: x.astype(np.float64) - y, after.params, before.params)
        for name, parts in (("embeddings", ["embeddings"]), ("layers", ["first", "body", "last"]), ("head", ["head"])):
            np.testing.assert_allclose(
                metrics[f"update/{name}"], length(moved, parts) / length(before.params, parts), rtol=1e-4
            )
        assert sum(key.startswith("update/") for key in metrics) == 3
