import jax
import jax.numpy as jnp

from mlm_jax.compilation import Watched


def test_a_second_compilation_is_reported_with_its_cause():
    def scaled(values, batch):
        return {name: value * batch.sum() for name, value in values.items()}

    lines = []
    step = Watched(jax.jit(scaled, donate_argnums=0), "scaled", lines.append)
    for size in (3, 3, 4, 4):
        step({"table": jnp.ones((2, 2))}, jnp.ones(size))
    assert step.count == 2 and step.seconds > 0 and len(lines) == 1
    # a table and a batch of four go in, a table comes out, of which none is kept: no compilation is needed to know
    assert step.memory_bytes() >= 4 * (4 + 4) and step.count == 2
    assert lines[0].startswith("scaled was compiled again (")
    assert lines[0].endswith("1 was f32[3] SingleDeviceSharding, is f32[4] SingleDeviceSharding")
    step({"table": jnp.ones((2, 2)), "more": jnp.ones(1)}, jnp.ones(4))
    assert "0/more was absent, is f32[1]" in lines[1]
    step.close()
    step({"table": jnp.ones((2, 2))}, jnp.ones(5))
    assert step.count == 3  # it no longer listens


def test_other_functions_do_not_count():
    lines = []
    step = Watched(jax.jit(lambda x: x + 1), "step", lines.append)
    step(jnp.ones(3))
    jax.jit(lambda x: x * 2)(jnp.ones(7))
    assert step.count == 0 and not lines
    step.close()
