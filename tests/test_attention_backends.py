"""Every attention backend gives what the reference gives, and each case gets one that can serve it."""

import glob
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import random_batch
from test_attention import draws, oracle, packed

from mlm_jax import sharding
from mlm_jax.config import Config, ConfigError, MeshConfig, ModelConfig, check
from mlm_jax.config.attention import Case, obstacle
from mlm_jax.kernels import attention, cudnn, reference, splash
from mlm_jax.models import build


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


def compared(attend, t, longest, window, causal=False, k=8):
    """attend(query, key, value, segments, positions, window) against loops, and its gradients against the reference."""
    *inputs, weight = draws(t, *[(2, t, 2, k)] * 4)
    segments, positions = packed(t, t, longest)
    got, pulled = read_and_pulled(lambda *x: attend(*x, segments, positions, window), inputs, weight, segments)
    want = oracle(*map(np.asarray, (*inputs, segments, segments)), window // 2 if window else t, causal)
    np.testing.assert_allclose(got, want, atol=2e-6)
    places = (segments, segments, positions, positions)
    _, expected = read_and_pulled(
        lambda *x: reference.attend(*x, *places, window, causal=causal), inputs, weight, segments
    )
    for found, wanted in zip(pulled, expected):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


# 150: one block of 256; 300 in three blocks of 128 with a window; 600 in five of 128.
SPLASH = [(150, 80, 0, False), (300, 300, 64, False), (300, 300, 64, True), (600, 200, 0, True)]


@pytest.mark.parametrize("t, longest, window, causal", SPLASH)
def test_splash_is_what_loops_compute_and_so_are_its_gradients(t, longest, window, causal):
    """In the interpreter of the kernel's language: what a TPU would compute, not that it can."""

    def attend(query, key, value, segments, positions, window):
        return splash.attend(query, key, value, segments, window, causal)

    compared(attend, t, longest, window, causal)


@pytest.mark.parametrize("t, longest, window, causal", [(61, 30, 0, False), (90, 90, 16, False), (90, 60, 16, True)])
def test_the_mask_for_cudnn_is_what_loops_see(t, longest, window, causal):
    """Computed by XLA: the kernel itself needs a GPU."""
    compared(lambda *x: cudnn.attend(*x, causal, implementation="xla"), t, longest, window, causal)


LOCAL = {
    "splash": lambda query, key, value, segments, positions: splash.attend(query, key, value, segments, 16),
    "mask": lambda *x: cudnn.attend(*x, 16, implementation="xla"),
}


@pytest.mark.parametrize("attend", LOCAL.values(), ids=LOCAL)
def test_padding_is_finite_and_so_are_its_gradients(attend):
    """At the end of a row, and in a row of nothing else."""
    query, key, value = (x.astype(jnp.bfloat16) * 100 for x in draws(4, *[(2, 40, 2, 8)] * 3))
    segments, positions = packed(5, 40, 20)
    segments = segments.at[1].set(0)

    @jax.jit
    def both(*x):
        return jax.value_and_grad(lambda *x: attend(*x, segments, positions).astype(jnp.float32).sum(), (0, 1, 2))(*x)

    sum_, gradients = both(query, key, value)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in (sum_, *gradients))


@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_each_device_has_its_rows_and_heads(kernel, monkeypatch):
    """On a mesh that cuts both, nothing travels, and the result is that of one device."""
    query, key, value = draws(6, *[(4, 130, 2, 8)] * 3)
    segments, positions = (jnp.concatenate([x, x]) for x in packed(7, 130, 60))

    def attend(*x):
        if kernel == "splash":
            return splash.attend(*x, 32)
        return cudnn.attend(*x, positions, 32, implementation="xla")

    want = attend(query, key, value, segments)
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    with sharding.activate(mesh, MeshConfig()):
        assert sharding.parts("batch") == 4 and sharding.parts("heads") == 2 and sharding.parts("nothing") == 1
        heads = jax.NamedSharding(mesh, jax.P(("data", "fsdp"), None, "tensor"))
        placed = [jax.device_put(x, heads) for x in (query, key, value)]
        placed.append(jax.device_put(segments, sharding.batch_sharding(mesh)))
        compiled = jax.jit(attend).lower(*placed).compile()
        got = compiled(*placed)
    assert {shard.data.shape for shard in got.addressable_shards} == {(1, 130, 1, 8)}
    assert not any(word in compiled.as_text() for word in ("all-gather", "all-reduce", "all-to-all"))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_cudnn_lowers_for_cuda(monkeypatch):
    """With the segments as a mask, forward and backward, on each device's rows and heads; causal as it is."""
    from jax._src.cudnn import fused_attention_stablehlo

    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)  # the library is not here
    query = jax.ShapeDtypeStruct((8, 64, 4, 16), jnp.bfloat16)
    places = jax.ShapeDtypeStruct((8, 64), jnp.int32)

    def lowered(causal):
        def gradients(*x):
            return jax.grad(lambda *x: cudnn.attend(*x, 8, causal).astype(jnp.float32).sum(), (0, 1, 2))(*x)

        traced = jax.jit(gradients).trace(query, query, query, places, places)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    with sharding.activate(sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2}), MeshConfig()):
        text, causal = lowered(False), lowered(True)
    assert causal.count("CAUSAL") == 2 and "CAUSAL" not in text
    (forward,) = (line for line in text.splitlines() if "@__cudnn$fmhaScaleBiasSoftmax(" in line)
    assert "tensor<2x64x2x16xbf16>, tensor<2x64x2x16xbf16>, tensor<2x64x2x16xbf16>, tensor<2x1x64x64xbf16>" in forward
    assert text.count("@__cudnn$fmhaScaleBiasSoftmaxBackward(") == 1


# ---- which one ----

TPU, GPU = Case("tpu", 512, 64, "bfloat16", 0), Case("gpu", 512, 64, "bfloat16", 0)
CPU = Case("cpu", 512, 64, "float32", 0)
CHOICES = [  # what is asked for, the case, what serves
    ("auto", TPU, {}, "splash"),
    ("auto", TPU, {"window": 128}, "splash"),
    ("auto", TPU, {"row_length": 128}, "reference"),
    ("auto", TPU, {"dropout": 0.1}, "reference"),
    ("auto", TPU, {"causal": True}, "splash"),
    ("auto", GPU, {}, "cudnn"),
    ("auto", GPU, {"window": 128}, "cudnn"),
    ("auto", GPU, {"causal": True}, "cudnn"),
    ("auto", GPU, {"window": 128, "row_length": 2048}, "blocks"),
    ("auto", GPU, {"row_length": 511}, "reference"),
    ("auto", GPU, {"dtype": "float32"}, "reference"),
    ("auto", GPU, {"dtype": "float32", "window": 128}, "blocks"),
    ("auto", GPU, {"head_size": 160}, "reference"),
    ("auto", CPU, {}, "reference"),
    ("auto", CPU, {"window": 128}, "blocks"),
    ("auto", CPU, {"window": 128, "row_length": 192, "causal": True}, "blocks"),  # two do not
    ("auto", CPU, {"window": 128, "dropout": 0.1}, "reference"),
    ("auto", CPU, {"window": 128, "row_length": 192}, "reference"),  # three blocks hold the row
    ("auto", Case("metal", 512, 64, "float32", 0), {}, "reference"),
    ("reference", TPU, {}, "reference"),
    ("blocks", TPU, {"window": 128}, "blocks"),
    ("blocks", CPU, {"window": 128, "row_length": 100}, "blocks"),
    # cannot serve: as with auto
    ("blocks", TPU, {}, "splash"),
    ("splash", CPU, {"window": 128}, "blocks"),
    ("splash", TPU, {"dropout": 0.1}, "reference"),
    ("cudnn", GPU, {"head_size": 20}, "reference"),
]


@pytest.mark.parametrize("asked, case, changes, serves", CHOICES)
def test_the_backend_of_a_case(asked, case, changes, serves, monkeypatch):
    monkeypatch.setattr(attention, "has_flash_attention", lambda: True)
    case = Case(**(vars(case) | changes))
    assert attention.choose(asked, case) == serves


def test_a_kernel_needs_devices_that_have_equal_parts(monkeypatch):
    assert attention.choose("auto", TPU, kernels=False) == "reference"
    assert attention.choose("auto", Case("tpu", 1024, 64, "bfloat16", window=128), kernels=False) == "blocks"
    assert not attention.has_flash_attention()  # of a CPU
    for capability, has in (("7.5", False), ("8.0", True), ("12.0", True), ("gfx90a", False)):
        device = type("Device", (), {"compute_capability": capability})
        monkeypatch.setattr(jax, "local_devices", lambda device=device: [device])
        assert attention.has_flash_attention() == has


def test_the_key_of_the_config_reaches_the_kernels():
    batch = random_batch(0, 2, 200)

    def in_blocks(name):
        sizes = {"layers": 3, "width": 8, "heads": 2, "hidden": 8, "max_positions": 200, "local_window": 64}
        model = build(ModelConfig(family="modernbert", attention=name, attention_dropout=0.0, **sizes), 40)
        traced = jax.make_jaxpr(lambda params: model.apply(params, batch).hidden)(
            jax.eval_shape(model.init, jax.random.key(0))
        )
        return ",32,96]" in str(traced)

    assert in_blocks("auto") and in_blocks("blocks") and in_blocks("splash")
    assert not in_blocks("reference")


def test_the_platform_is_that_of_the_mesh():
    assert sharding.platform() == "cpu"
    device = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("data",), abstract_device=device)):
        assert sharding.platform() == "tpu"


REFUSED = [
    ("splash", {}, "cpu", "needs a TPU, and this is a CPU"),
    ("cudnn", {}, "tpu", "needs a GPU, and this is a TPU"),
    ("cudnn", {"dtype": "float32"}, "gpu", "makes it float32"),
    ("cudnn", {"dtype": "float32"}, None, "makes it float32"),
    ("cudnn", {"width": 160, "heads": 1}, "gpu", "width / heads = 160"),
    ("blocks", {}, None, "local_window = 0 makes none"),
    ("splash", {"attention_dropout": 0.1}, "tpu", "attention_dropout = 0"),
    ("flash", {}, None, "one of auto, reference, blocks, cudnn, splash"),
]


@pytest.mark.parametrize("backend, changes, platform, says", REFUSED)
def test_a_backend_that_cannot_serve_is_refused_at_the_start(backend, changes, platform, says):
    model = ModelConfig(**({"attention": backend, "attention_dropout": 0.0} | changes))
    with pytest.raises(ConfigError, match=f"config.model.attention = '{backend}'.*{says}"):
        check(Config(model=model), 1, platform=platform)


def test_a_backend_that_can_serve_is_not():
    for backend, platform in (("splash", "tpu"), ("splash", None), ("cudnn", "gpu"), ("reference", "cpu")):
        check(Config(model=ModelConfig(attention=backend, attention_dropout=0.0)), 1, platform=platform)
    check(Config(model=ModelConfig(family="modernbert", attention="blocks", attention_dropout=0.0)), 1, platform="cpu")
    assert obstacle("reference", Case("cpu", 7, 3, "float32", 0, 0.5)) is None


ACCELERATORS = glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/accel[0-9]*")


@pytest.mark.skipif(not ACCELERATORS, reason="needs a GPU or a TPU")
def test_the_backend_of_the_accelerator_that_is_present():
    program = Path(__file__).parent / "on_accelerator.py"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    if done.returncode == 2:
        pytest.skip("jax has no support for the accelerator that is present")
    assert done.returncode == 0, done.stdout + done.stderr
