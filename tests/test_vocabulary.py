"""Losses over the vocabulary, in one piece and in several, against plain logits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm_jax import sharding
from mlm_jax.config import MeshConfig
from mlm_jax.kernels import vocabulary
from mlm_jax.kernels.vocabulary import Decoding, losses
from mlm_jax.models.heads import ABSENT

B, M, D, V, USED = 8, 11, 4, 4096, 4000  # 1.4 MiB of logits


def decoding(seed: int = 0, dtype=jnp.float32) -> Decoding:
    """Random values; columns at and above USED stand for no id."""
    rng = np.random.default_rng(seed)
    states, table = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((B, M, D), (V, D)))
    bias = jnp.where(jnp.arange(V) < USED, jnp.asarray(rng.normal(size=V), jnp.float32), ABSENT)
    return Decoding(states, table, bias)


def targets_and_weights(seed: int = 1) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(0, USED, (B, M)), jnp.int32), jnp.asarray(rng.random((B, M)), jnp.float32)


def plain(decoding: Decoding, targets: jax.Array, weights: jax.Array, z_loss: float = 0.0) -> jax.Array:
    logits = vocabulary.logits(decoding)
    each = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    return (weights * (each + z_loss * jax.nn.logsumexp(logits, -1) ** 2)).sum()


def with_gradients(
    decoding: Decoding, targets: jax.Array, weights: jax.Array, most_mib: int, z_loss: float = 0.0
) -> tuple:
    """(losses, gradients of 3 times their total by decoding and weights)."""

    def total(decoding, weights):
        found = losses(decoding, targets, weights, most_mib, z_loss)
        return 3 * found.total, found

    (_, found), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(decoding, weights)
    return found, gradients


def test_zero_logits_over_the_vocabulary_of_bert():
    # ln 30522; in bfloat16 it would be 10.3125. All logits are equal, and the first of them counts as the guess
    for dtype in (jnp.float32, jnp.bfloat16):
        nothing = Decoding(jnp.zeros((1, 2, 4), dtype), jnp.zeros((30522, 4), dtype), jnp.zeros(30522))
        found = losses(nothing, jnp.array([[0, 30521]]), jnp.ones((1, 2)), 1)
        np.testing.assert_allclose(found.each, [[10.32620, 10.32620]], rtol=1e-6)
        np.testing.assert_array_equal(found.hits, [[1, 0]])


def test_by_hand():
    # softmax of (ln 1, ln 2, ln 5) is (1/8, 1/4, 5/8)
    by_bias = Decoding(jnp.zeros((1, 3, 1)), jnp.zeros((3, 1)), jnp.log(jnp.array([1.0, 2.0, 5.0])))
    found, (gradient, of_weights) = with_gradients(by_bias, jnp.array([[0, 1, 2]]), jnp.array([[0.0, 1.0, 2.0]]), 1)
    each = -np.log([1 / 8, 1 / 4, 5 / 8])
    np.testing.assert_allclose(found.each, [each], rtol=1e-6)
    np.testing.assert_allclose(found.total, each[1] + 2 * each[2], rtol=1e-6)
    np.testing.assert_array_equal(found.hits, [[0, 0, 1]])
    np.testing.assert_allclose(gradient.bias, [3 * 3 / 8, 3 * (3 / 4 - 1), 3 * (3 * 5 / 8 - 2)], rtol=1e-6)
    np.testing.assert_allclose(of_weights, [3 * each], rtol=1e-6)


def test_z_loss_by_hand():
    # the logits ln 1, ln 2, ln 5 have Z = 8; its gradient by a logit is 2 log(Z) times its probability
    by_bias = Decoding(jnp.zeros((1, 1, 1)), jnp.zeros((3, 1)), jnp.log(jnp.array([1.0, 2.0, 5.0])))
    found, (gradient, of_weights) = with_gradients(by_bias, jnp.array([[1]]), jnp.array([[2.0]]), 1, 0.1)
    np.testing.assert_allclose((found.each, found.log_z), ([[np.log(4)]], [[np.log(8)]]), rtol=1e-6)
    np.testing.assert_allclose(found.total, 2 * (np.log(4) + 0.1 * np.log(8) ** 2), rtol=1e-6)
    pulled = 1 + 0.2 * np.log(8)
    np.testing.assert_allclose(gradient.bias, 6 * np.array([pulled / 8, pulled / 4 - 1, pulled * 5 / 8]), rtol=1e-6)
    np.testing.assert_allclose(of_weights, [[3 * (np.log(4) + 0.1 * np.log(8) ** 2)]], rtol=1e-6)


@pytest.mark.parametrize("most_mib, z_loss", [(1, 0.0), (1, 0.01), (2, 0.01)])
def test_losses_and_gradients_are_those_of_plain_logits(most_mib, z_loss):
    """In two pieces, and in one."""
    given, (targets, weights) = decoding(), targets_and_weights()
    found, gradients = with_gradients(given, targets, weights, most_mib, z_loss)
    total, expected = jax.value_and_grad(plain, (0, 2))(given, targets, weights, z_loss)
    np.testing.assert_allclose(found.total, total, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, 3 * y, rtol=1e-4, atol=1e-5), gradients, expected)
    best = vocabulary.logits(given).argmax(-1)
    hits = losses(given, jnp.where(weights > 0.5, best, targets), weights, most_mib).hits
    np.testing.assert_array_equal(hits, (weights > 0.5) | (best == targets))
    # what stands for no id has probability 0, to the last bit
    assert not np.asarray(gradients[0].table)[USED:].any() and not np.asarray(gradients[0].bias)[USED:].any()
    # without differentiation
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), losses(given, targets, weights, 1, z_loss), found
    )


def test_bfloat16_sums_in_float32():
    """Every piece rounds its products, but not what is summed over positions."""
    given, (targets, weights) = decoding(dtype=jnp.bfloat16), targets_and_weights()
    found, (gradient, _) = with_gradients(given, targets, weights, 1)
    wide = Decoding(*(x.astype(jnp.float32) for x in given))
    total, (expected, _) = jax.value_and_grad(plain, (0, 2))(wide, targets, weights)
    assert found.each.dtype == jnp.float32 and gradient.table.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.total, total, rtol=1e-5)
    largest = float(jnp.abs(expected.table).max())
    np.testing.assert_allclose(gradient.table.astype(jnp.float32), 3 * expected.table, atol=0.02 * largest)


def test_a_mesh_changes_nothing_and_sums_the_table_once():
    given, (targets, weights) = decoding(), targets_and_weights()
    expected = with_gradients(given, targets, weights, 2, 0.01)
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    rows, columns = sharding.batch_sharding(mesh), jax.NamedSharding(mesh, jax.P("tensor"))
    given = Decoding(*(jax.device_put(x, where) for x, where in zip(given, (rows, columns, columns))))
    targets, weights = (jax.device_put(x, rows) for x in (targets, weights))
    # 2 rows and 2048 columns a device, 11 places: 0.17 MiB of logits, in pieces of 2 x 1/64 MiB at most
    with pytest.MonkeyPatch.context() as patch, sharding.activate(mesh, MeshConfig()):
        patch.setattr(vocabulary, "MIB", 1 << 14)
        found = with_gradients(given, targets, weights, 2, 0.01)
        text = jax.jit(lambda *x: with_gradients(*x, 2, 0.01)).lower(given, targets, weights).compile().as_text()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)
    assert " while(" in text
    lines = re.findall(r"= (.*) (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(", text)
    shapes = [shape for result, _ in lines for shape in re.findall(r"\[([\d,]+)\]", result)]
    # within the loop only what is as small as the places: the table's gradient is summed once, after it
    assert sum(np.prod([int(size) for size in shape.split(",")]) >= D * V // 2 for shape in shapes) == 1, lines
