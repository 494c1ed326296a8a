"""Every attention backend gives what the reference gives, and each case gets one that can serve it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_attention import draws, oracle, packed

from mlm_jax import sharding
from mlm_jax.config import MeshConfig
from mlm_jax.config.attention import Case
from mlm_jax.kernels import attention, cudnn, reference, splash


def read_and_pulled(attend, inputs, weight, segments):
    """What attention gives at the real places, zero elsewhere, and the gradients of its weighted sum there."""
    real = (segments > 0)[..., None, None]

    @jax.jit
    def both(*x):
        def total(*x):
            read = attend(*x) * real
            return (read * weight).sum(), read

        return jax.value_and_grad(total, (0, 1, 2), has_aux=True)(*x)

    (_, read), gradients = both(*inputs)
    return read, gradients


# t, longest text, window. 150: one block of 256; 300 in three blocks of 128 with a window; 600 in five of 128.
SPLASH = [(150, 80, 0), (300, 300, 64), (600, 200, 0)]


@pytest.mark.parametrize("t, longest, window", SPLASH)
def test_splash_is_what_loops_compute_and_so_are_its_gradients(t, longest, window):
    *inputs, weight = draws(t, *[(2, t, 2, 8)] * 4)
    segments, positions = packed(t, t, longest)
    got, pulled = read_and_pulled(lambda *x: splash.attend(*x, segments, window), inputs, weight, segments)
    want = oracle(*map(np.asarray, (*inputs, segments, segments)), reach=window // 2 if window else t)
    np.testing.assert_allclose(got, want, atol=2e-6)
    places = (segments, segments, positions, positions)
    _, expected = read_and_pulled(lambda *x: reference.attend(*x, *places, window), inputs, weight, segments)
    for found, wanted in zip(pulled, expected):
        np.testing.assert_allclose(found, wanted, atol=2e-5)
