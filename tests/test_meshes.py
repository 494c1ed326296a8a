"""The training step on six meshes of eight devices against one device: numbers, and where every array lies.

Rows, masks and dropout are the same draws on any mesh, losses are sums over counts wherever a row lies, and a device
that has nothing to predict adds nothing.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import DictKey, tree_flatten_with_path
from test_step import config_of, rows_of_steps, run_on

from mlm_jax import sharding
from mlm_jax.config import ModelConfig, OptimizerConfig

STEPS = 6
WIDTH, HEADS, HIDDEN, VOCAB = 16, 8, 32, 128  # 40 ids, padded
MESHES = {  # data, fsdp, tensor
    "data": (8, 1, 1),
    "fsdp": (1, 8, 1),
    "tensor": (1, 1, 8),
    "data x fsdp": (4, 2, 1),
    "data x tensor": (2, 1, 4),
    "data x fsdp x tensor": (2, 2, 2),
}
# Parameter -> its shape without the axis of layers, each axis with what cuts it.
LIES = {
    "embeddings/word/table": ((VOCAB, "tensor"), (WIDTH, "fsdp")),
    "embeddings/position/table": ((32, None), (WIDTH, "fsdp")),
    "embeddings/type/table": ((2, None), (WIDTH, "fsdp")),
    "attention/query/kernel": ((WIDTH, "fsdp"), (HEADS, "tensor"), (2, None)),
    "attention/key/kernel": ((WIDTH, "fsdp"), (HEADS, "tensor"), (2, None)),
    "attention/value/kernel": ((WIDTH, "fsdp"), (HEADS, "tensor"), (2, None)),
    "attention/query/bias": ((HEADS, "tensor"), (2, None)),
    "attention/key/bias": ((HEADS, "tensor"), (2, None)),
    "attention/value/bias": ((HEADS, "tensor"), (2, None)),
    "attention/out/kernel": ((HEADS, "tensor"), (2, None), (WIDTH, "fsdp")),
    "ffn/up/kernel": ((WIDTH, "fsdp"), (HIDDEN, "tensor")),
    "ffn/up/bias": ((HIDDEN, "tensor"),),
    "ffn/down/kernel": ((HIDDEN, "tensor"), (WIDTH, "fsdp")),
    "head/dense/kernel": ((WIDTH, "fsdp"), (WIDTH, None)),
    "head/bias": ((VOCAB, "tensor"),),
}
WHOLE = ("norm/scale", "norm/bias", "out/bias", "down/bias", "dense/bias")  # vectors of a width, on every device


def config():
    """Dropout as in BERT. A large epsilon keeps Adam from blowing up the rounding of a gradient near zero."""
    sizes = {"layers": 2, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "max_positions": 32}
    optimizer = OptimizerConfig(learning_rate=1e-2, epsilon=1e-3)
    return config_of(model=ModelConfig(**sizes, initializer_range=0.1), optimizer=optimizer)


def rows():
    """In the second step one device of eight, if rows alone are cut, has nothing to predict in both microbatches."""
    first, second, *others = rows_of_steps(STEPS)
    lonely = jnp.arange(16) % 8 == 3
    return [first, dataclasses.replace(second, weight=jnp.where(lonely, 0.0, second.weight)), *others]


@functools.cache
def trained(shape):
    return run_on(config(), rows(), shape, accumulation=1 if shape == (1, 1, 1) else 2)


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_changes_nothing_but_rounding(name):
    (expected, one), (got, other) = trained((1, 1, 1)), trained(MESHES[name])
    for before, after in zip(expected, got, strict=True):
        assert before.keys() == after.keys()
        for key, value in before.items():
            if key.endswith("hash") or key in ("targets", "tokens", "learning_rate"):
                assert value == after[key], key
            else:
                np.testing.assert_allclose(value, after[key], rtol=2e-5, atol=1e-6, err_msg=key)
    assert len({float(metrics["mask_hash"]) for metrics in got}) == STEPS
    assert got[1]["targets"] < got[0]["targets"] and np.isfinite(got[1]["loss"])
    for part in ("params", "optimizer"):
        before, after = (tree_flatten_with_path(jax.device_get(getattr(now, part)))[0] for now in (one, other))
        for (path, x), (_, y) in zip(before, after, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-6, err_msg=f"{part} {path}")


@pytest.mark.parametrize("name", MESHES)
def test_every_array_of_the_state_is_cut_as_by_hand(name):
    """After six steps, parameters and both moments alike: none lies whole where it should be cut."""
    sizes = dict(zip(("data", "fsdp", "tensor"), MESHES[name]))
    _, now = trained(MESHES[name])
    adam = now.optimizer[1]
    seen = set()
    for part in (now.params, adam.mu, adam.nu):
        for path, leaf in tree_flatten_with_path(part)[0]:
            names = "/".join(str(key.key) for key in path if isinstance(key, DictKey))
            stacked = (leaf.shape[0],) if names.startswith("body/") else ()
            entry = next((entry for entry in LIES if names.endswith(entry)), None)
            axes = LIES[entry] if entry else tuple((size, None) for size in leaf.shape[len(stacked) :])
            assert entry or (names.endswith(WHOLE) and axes == ((WIDTH, None),)), names
            assert leaf.shape == stacked + tuple(size for size, _ in axes), names
            cut = stacked + tuple(size // sizes.get(axis, 1) for size, axis in axes)
            assert {shard.data.shape for shard in leaf.addressable_shards} == {cut}, names
            seen.add(entry)
    assert seen == {*LIES, None}


@dataclasses.dataclass(frozen=True)
class Device:
    """What a mesh asks a device for."""

    id: int
    slice_index: int
    process_index: int = 0
    platform: str = "cpu"
    device_kind: str = "cpu"


@pytest.mark.parametrize(
    "shape, slices, outer",
    [
        ((8, 1, 1), 2, (2, 1, 1)),
        ((2, 4, 1), 2, (2, 1, 1)),
        ((2, 2, 2), 4, (2, 2, 1)),  # data has no more to give
        ((1, 4, 2), 2, (1, 2, 1)),
        ((6, 4, 1), 12, (6, 2, 1)),
    ],
)
def test_the_outer_axes_cross_the_borders_of_slices(shape, slices, outer):
    """Of all devices along an axis, so many neighbours stand in one slice as the axis has places inside of one."""
    count = int(np.prod(shape))
    devices = [Device(i, i * slices // count) for i in range(count)]
    named = dict(zip(("data", "fsdp", "tensor"), shape))
    assert tuple(sharding.between_slices(named, slices).values()) == outer
    found = np.vectorize(lambda device: device.slice_index)(sharding.make_mesh(named, devices).devices)
    assert found.shape == shape
    for axis, parts in enumerate(outer):
        along = np.moveaxis(found, axis, -1).reshape(-1, shape[axis])
        for line in along:
            assert len(set(line)) == parts and (np.diff(line) != 0).sum() == parts - 1
