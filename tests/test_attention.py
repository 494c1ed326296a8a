"""Attention within segments, and dropout keyed per row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlm_jax.kernels.attention import attend, probabilities
from mlm_jax.kernels.dropout import dropout, keep_mask, keep_probability
from mlm_jax.kernels.product import product

B, T, H, K = 2, 6, 3, 4
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]])


def draws(seed: int, *shapes: tuple[int, ...]) -> list[jax.Array]:
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes]


def keys(number: int) -> jax.Array:
    return jax.random.split(jax.random.key(0, impl="threefry2x32"), number)


def oracle(query, key, value, query_segments, key_segments, reach=10**6, causal=False):
    """One query at a time, over the keys that it may see and no others; padding queries stay zero.

    reach: places to either side, or with causal to the left. In a segment, that is a distance in the row.
    """
    out = np.zeros_like(query)
    for b, q, h in np.ndindex(query.shape[:3]):
        segment = query_segments[b, q]
        if segment == 0:
            continue
        near = range(max(q - reach, 0), q + 1 if causal else min(q + reach + 1, key.shape[1]))
        seen = [s for s in near if key_segments[b, s] == segment]
        scores = np.array([query[b, q, h] @ key[b, s, h] for s in seen]) / np.sqrt(query.shape[-1])
        weights = np.exp(scores) / np.exp(scores).sum()
        out[b, q, h] = sum(weight * value[b, s, h] for weight, s in zip(weights, seen))
    return out


def test_attend_is_what_loops_compute():
    query, key, value = draws(0, *[(B, T, H, K)] * 3)
    got = attend(query, key, value, query_segments=SEGMENTS, key_segments=SEGMENTS)
    want = oracle(*map(np.asarray, (query, key, value, SEGMENTS, SEGMENTS)))
    real = np.asarray(SEGMENTS) > 0
    np.testing.assert_allclose(np.asarray(got)[real], want[real], atol=1e-6)


def packed(seed, t, longest):
    """Segments and positions of two rows of t places: texts of 1 to `longest` tokens, then some padding."""
    random, rows = np.random.default_rng(seed), []
    for _ in range(2):
        lengths = random.integers(1, longest + 1, t)
        row = np.repeat(np.arange(1, t + 1), lengths)[: t - random.integers(0, 9)]
        rows.append(np.pad(row, (0, t - row.size)))
    segments = np.array(rows)
    begins = np.concatenate([np.ones((2, 1), bool), segments[:, 1:] != segments[:, :-1]], 1)
    place = np.arange(t)
    positions = (place - np.maximum.accumulate(np.where(begins, place, 0), 1)) * (segments > 0)
    return jnp.asarray(segments), jnp.asarray(positions)


WINDOWS = [  # t, longest text, window, causal: blocks of 16 but in the last ones
    (49, 80, 2, False),
    (50, 9, 4, False),
    (64, 40, 30, False),
    (64, 40, 30, True),
    (97, 97, 32, False),
    (121, 200, 40, False),
    (121, 200, 40, True),
    (200, 60, 64, False),
]


@pytest.mark.parametrize("t, longest, window, causal", WINDOWS)
def test_a_window_in_blocks_is_what_loops_compute(t, longest, window, causal):
    """And so are the gradients of the reference, which takes part in the comparison by not being aligned."""
    query, key, value, weight = draws(t, *[(2, t, 2, 4)] * 4)
    segments, positions = packed(t, t, longest)
    real = np.asarray(segments) > 0
    options = {"query_segments": segments, "key_segments": segments}
    options |= {"query_positions": positions, "key_positions": positions, "window": window, "causal": causal}
    want = oracle(*map(np.asarray, (query, key, value, segments, segments)), window // 2, causal)
    found = {}
    for aligned in (False, True):

        @jax.jit
        def both(*x, aligned=aligned):
            def total(*x):
                read = attend(*x, **options, aligned=aligned)
                return (read * weight * real[..., None, None]).sum(), read

            return jax.value_and_grad(total, (0, 1, 2), has_aux=True)(*x)

        (_, read), found[aligned] = both(query, key, value)
        np.testing.assert_allclose(np.asarray(read)[real], want[real], atol=2e-6)
    for got, expected in zip(found[True], found[False]):
        assert np.isfinite(np.asarray(got)).all()
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_blocks_are_taken_where_they_save_and_serve():
    (query,) = draws(0, (1, 200, 1, 4))
    place = jnp.arange(200)[None]
    options = {"query_segments": 1 + 0 * place, "key_segments": 1 + 0 * place, "dropout_rate": 0.1}

    def in_blocks(x, window=64, **more):
        places = {name: place[:, : x.shape[1]] for name in ("query_positions", "key_positions")}
        cut = {name: value[:, : x.shape[1]] if hasattr(value, "ndim") else value for name, value in options.items()}
        text = str(jax.make_jaxpr(lambda x: attend(x, x, x, **cut, **places, window=window, **more))(x))
        return f"{x.shape[1]},{x.shape[1]}]" not in text  # no square of all pairs

    assert in_blocks(query, aligned=True)
    assert not in_blocks(query)
    assert not in_blocks(query, aligned=True, window=0)
    assert not in_blocks(query, aligned=True, dropout_keys=keys(1))
    assert not in_blocks(query[:, :96], aligned=True)  # three blocks hold the row
    assert in_blocks(query[:, :97], aligned=True)
    assert in_blocks(query[:, :65], aligned=True, causal=True)  # two blocks do not


def test_two_documents_of_3_and_2_tokens_allow_13_pairs():
    query, key = draws(1, *[(1, T, H, K)] * 2)
    seen = np.asarray(probabilities(query, key, SEGMENTS[:1], SEGMENTS[:1]))
    assert [(head[:5] > 0).sum() for head in seen[0]] == [13] * H  # 3 x 3 + 2 x 2
    np.testing.assert_allclose(seen.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize(
    "window, wants", [(0, ["1", "11", "111", "0001", "00011"]), (2, ["1", "11", "011", "0001", "00011"])]
)
def test_causal_pairs_of_two_documents_of_3_and_2_tokens(window, wants):
    query, key = draws(1, *[(1, T, H, K)] * 2)
    positions = jnp.array([[0, 1, 2, 0, 1, 0]])
    places = (SEGMENTS[:1], SEGMENTS[:1], positions, positions)
    seen = np.asarray(probabilities(query, key, *places, window, causal=True))[0, :, :5]
    want = np.array([[int(sees) for sees in row.ljust(T, "0")] for row in wants])
    np.testing.assert_array_equal(seen > 0, np.broadcast_to(want, (H, 5, T)))
    np.testing.assert_allclose(seen.sum(-1), 1, atol=1e-6)


def test_queries_at_some_positions():
    query, key, value = draws(2, *[(B, T, H, K)] * 3)
    whole = attend(query, key, value, query_segments=SEGMENTS, key_segments=SEGMENTS)
    part = attend(query[:, 1:4], key, value, query_segments=SEGMENTS[:, 1:4], key_segments=SEGMENTS)
    np.testing.assert_allclose(part, whole[:, 1:4], atol=1e-6)


def test_another_document_in_the_row_changes_no_bit():
    query, key, value = draws(3, *[(B, T, H, K)] * 3)
    changed = [x.at[:, 3:].multiply(-7.0) for x in (query, key, value)]
    function = jax.jit(lambda *x: attend(*x, query_segments=SEGMENTS[:1], key_segments=SEGMENTS[:1]))
    before, after = (np.asarray(function(*(x[:1] for x in xs))) for xs in ((query, key, value), changed))
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert not np.array_equal(before[:, 3:5], after[:, 3:5])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_of_padding_is_finite_and_so_is_its_gradient(dtype):
    query, key, value = (x.astype(dtype) * 100 for x in draws(4, *[(B, T, H, K)] * 3))
    none = jnp.zeros_like(SEGMENTS)

    def total(*x):
        return attend(*x, query_segments=none, key_segments=none).astype(jnp.float32).sum()

    sum_, gradients = jax.value_and_grad(total, (0, 1, 2))(query, key, value)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (sum_, *gradients))


def test_a_score_of_any_size_is_no_nan():
    query, key, value = draws(5, *[(B, T, H, K)] * 3)
    got = attend(query * 1e4, key * 1e4, value, query_segments=SEGMENTS, key_segments=SEGMENTS)
    assert np.isfinite(np.asarray(got)).all()


def test_dropout_keeps_the_share_that_its_bits_give():
    # 0.9 x 65536 = 58982.4 -> 58982
    assert keep_probability(0.1) == 58982 / 65536
    kept = np.asarray(keep_mask(keys(4), (1000, 257), 0.1))
    assert kept.shape == (4, 1000, 257)
    for part in (kept, kept[..., :129], kept[..., 129:]):  # lower and upper halves of the words
        p = 58982 / 65536
        assert abs(part.mean() - p) < 4 * np.sqrt(p * (1 - p) / part.size)
    both = (kept[..., :128] & kept[..., 129:]).mean()  # the halves of one word are independent
    assert abs(both - p * p) < 4 * np.sqrt(p * p / kept[..., :128].size)


def test_dropout_scales_by_the_probability_of_keeping():
    x = jnp.ones((2, 64, 8))
    got = np.asarray(dropout(keys(2), x, 0.25))
    assert set(np.unique(got)) == {0.0, np.float32(1 / 0.75)}
    np.testing.assert_array_equal(dropout(None, x, 0.25), x)
    np.testing.assert_array_equal(dropout(keys(2), x, 0.0), x)


def test_dropout_of_a_row_depends_on_its_key_alone():
    x, *_ = draws(6, (4, 8, 8))
    rows = keys(4)
    order = jnp.array([2, 0, 3, 1])
    np.testing.assert_array_equal(dropout(rows, x, 0.5)[order], dropout(rows[order], x[order], 0.5))
    np.testing.assert_array_equal(dropout(rows, x, 0.5)[2:3], dropout(rows[2:3], x[2:3], 0.5))
    assert not np.array_equal(keep_mask(rows, (64,), 0.5)[0], keep_mask(rows, (64,), 0.5)[1])


def test_attention_dropout_has_the_mean_of_no_dropout():
    query, key, value = (x[:1] for x in draws(7, *[(B, T, H, K)] * 3))
    segments = SEGMENTS[:1]
    without = attend(query, key, value, query_segments=segments, key_segments=segments)

    def one(key_):
        options = {"query_segments": segments, "key_segments": segments}
        return attend(query, key, value, **options, dropout_keys=key_[None], dropout_rate=0.3)

    many = np.asarray(jax.vmap(one)(keys(4000)))
    np.testing.assert_allclose(many.mean(0), without, atol=5 * many.std() / np.sqrt(4000))


def test_product_sums_in_float32_and_carries_the_gradient_in_the_type_of_its_operands():
    # 257 ones: bfloat16 has no 257 and would give 256
    x, y = jnp.ones((1, 257), jnp.bfloat16), jnp.ones((1, 257), jnp.bfloat16)
    assert product("nd,vd->nv", x, y) == 257
    gradient = jax.make_jaxpr(jax.grad(lambda x, y: product("nd,vd->nv", x, y).sum(), (0, 1)))(x, y)
    operands = [v.aval.dtype for e in gradient.eqns if e.primitive.name == "dot_general" for v in e.invars]
    assert operands
    assert set(operands) == {jnp.dtype(jnp.bfloat16)}
    x, y, g = draws(8, (2, 5, 3), (7, 3), (2, 5, 7))
    for got, want in zip(
        jax.vjp(lambda x, y: product("...d,vd->...v", x, y), x, y)[1](g),
        (np.einsum("bnv,vd->bnd", g, y), np.einsum("bnv,bnd->vd", g, x)),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
