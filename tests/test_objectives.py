import jax
import jax.numpy as jnp
import numpy as np

from mlm_jax.objectives import cross_entropy


def test_zero_logits_over_the_vocabulary_of_bert():
    # ln 30522; in bfloat16 it would be 10.3125
    np.testing.assert_allclose(cross_entropy(jnp.zeros((2, 30522)), jnp.array([0, 30521])), 10.32620, rtol=1e-6)
    np.testing.assert_allclose(cross_entropy(jnp.zeros((1, 30522), jnp.bfloat16), jnp.array([5])), 10.32620, rtol=1e-6)


def test_by_hand():
    # softmax of (ln 1, ln 2, ln 5) is (1/8, 1/4, 5/8)
    logits = jnp.log(jnp.array([[1.0, 2.0, 5.0]]))
    for target, p in enumerate((1 / 8, 1 / 4, 5 / 8)):
        np.testing.assert_allclose(cross_entropy(logits, jnp.array([target])), -np.log(p), rtol=1e-6)
    gradient = jax.grad(lambda x: cross_entropy(x, jnp.array([1])).sum())(logits)
    np.testing.assert_allclose(gradient, [[1 / 8, 1 / 4 - 1, 5 / 8]], rtol=1e-6)
