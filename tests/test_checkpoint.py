import functools
import json
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from mlm_jax import checkpoint
from mlm_jax.config import ConfigError, OptimizerConfig, SaveError
from mlm_jax.optim import guard
from mlm_jax.state import LATER, State, completed

ROOT = Path(__file__).parents[1]
META = {"rows_read": 12, "config": {"seed": 0, "weights": [0.5, None]}, "tokenizer": "abc"}


def make_state(layers=2, width=8, value=0.0):
    """Parameters with an empty subtree and a stack of layers, AdamW's state, and the step."""
    kernel = jnp.arange(layers * width * 4, dtype=jnp.float32).reshape(layers, width, 4) + value
    params = {"first": {}, "body": {"0": {"kernel": kernel}}, "head": {"bias": jnp.full(width, value)}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return {"params": params, "optimizer": optimizer.init(params), "step": jnp.int32(value)}


def abstract(state, sharding=None):
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state)


def assert_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def saved(workdir, *steps, keep=10):
    """A workdir with a checkpoint at each step, whose values are the step."""
    store = checkpoint.Checkpoints(workdir, keep)
    for step in steps:
        store.save(step, make_state(value=float(step)), META | {"step": step})
    store.close()
    return workdir


def test_round_trip(tmp_path):
    store = checkpoint.Checkpoints(tmp_path, keep=2)
    assert store.latest is None
    state = make_state(value=3.0)
    store.save(3, state, META)
    store.wait()
    assert store.latest == 3
    store.verify(3)
    store.close()
    again = checkpoint.Checkpoints(tmp_path, keep=2)
    assert again.latest == 3 == checkpoint.newest(tmp_path)
    restored = again.restore(3, abstract(state))
    assert_equal(restored, state)
    assert type(restored["optimizer"]) is type(state["optimizer"])
    assert checkpoint.read_meta(tmp_path, 3) == META


def test_only_the_newest_are_kept(tmp_path):
    saved(tmp_path, 1, 2, 3, 4, keep=2)
    assert checkpoint.steps_in(tmp_path) == [3, 4]


def test_what_is_saved_is_the_step_before_the_donation(tmp_path):
    """The jitted step reuses the buffers of the state that is still being written."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state):
        return jax.tree.map(lambda leaf: leaf * 2 + 1, state)

    store = checkpoint.Checkpoints(tmp_path, keep=2)
    state = {"params": {"table": jnp.ones((2048, 2048)), "small": jnp.ones(3)}}
    for number in range(1, 7):
        before, state = state, step(state)
        if number == 2:
            store.save(number, state, {})
    assert before["params"]["table"].is_deleted()  # the steps do reuse buffers
    store.close()
    restored = store.restore(2, abstract(state))
    np.testing.assert_array_equal(restored["params"]["table"], np.full((2048, 2048), 7.0))
    np.testing.assert_array_equal(restored["params"]["small"], np.full(3, 7.0))
    np.testing.assert_array_equal(state["params"]["small"], np.full(3, 127.0))


@pytest.mark.parametrize("shape", [(1,), (4,), (8,)])
def test_another_number_of_devices(tmp_path, shape):
    """Saved on eight with a table in parts, restored on one, four and eight; by processes: test_survive."""

    def sharded(shape):
        mesh = jax.make_mesh(shape, ("data",), (AxisType.Auto,), devices=jax.devices()[: shape[0]])
        return lambda leaf: NamedSharding(mesh, P(None, "data") if leaf.ndim == 3 else P())

    state = make_state(width=8)  # kernels [2, 8, 4]
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, sharded((8,))(leaf)), state)
    store = checkpoint.Checkpoints(tmp_path, keep=1)
    store.save(1, placed, META)
    store.wait()
    to = sharded(shape)
    wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to(leaf)), state)
    restored = store.restore(1, wanted)
    assert_equal(restored, state)
    kernel = restored["params"]["body"]["0"]["kernel"]
    assert len(kernel.sharding.device_set) == shape[0]
    assert kernel.addressable_shards[0].data.shape == (2, 8 // shape[0], 4)
    store.close()


def test_one_part_alone(tmp_path):
    saved(tmp_path, 5)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert_equal(checkpoint.read_part(tmp_path, 5, "params", sharding), make_state(value=5.0)["params"])
    with pytest.raises(KeyError, match="'nothing', but 'optimizer', 'params', 'step'"):
        checkpoint.read_part(tmp_path, 5, "nothing", sharding)


def test_a_state_of_before_a_part_came_that_is_empty(tmp_path):
    parts = {"step": jnp.int32(1), "params": {"x": jnp.ones(3)}, "optimizer": {"y": jnp.ones(3)}}
    store = checkpoint.Checkpoints(tmp_path, keep=1)
    store.save(1, parts, META)
    store.wait()
    restored = store.restore(1, abstract(State(**parts, feedback={})))
    assert_equal(restored, State(**parts, feedback={}))
    with pytest.raises(ConfigError, match=r"feedback/rate: float32\[\] here, not in the checkpoint"):
        store.restore(1, abstract(State(**parts, feedback={"rate": jnp.ones(())})))
    store.close()


def test_parts_that_only_one_side_has(tmp_path):
    parts = {"step": jnp.int32(1), "params": {"x": jnp.arange(3.0)}, "optimizer": {"y": jnp.ones(3)}}
    settings = OptimizerConfig(ema=0.5, bad_gradients="skip")
    ema = {"params": {"x": jnp.full(3, 7.0)}, "updates": jnp.int32(5)}
    store = checkpoint.Checkpoints(tmp_path, keep=9)
    store.save(1, State(**parts), META)
    store.save(2, State(**parts, ema=ema, guard={"good": jnp.int32(4)}), META)
    store.wait()
    now = abstract(State(**parts, ema=ema, guard=guard.start(settings)))
    with pytest.raises(ConfigError, match="ema/params/x"):
        store.restore(1, now)
    restored, lines = completed(store.restore(1, now, LATER), settings)
    assert_equal(restored.ema, {"params": parts["params"], "updates": jnp.int32(0)})
    assert_equal(restored.guard, guard.start(settings))
    assert len(lines) == 2 and restored.ema["params"]["x"] is not restored.params["x"]
    assert_equal(store.restore(2, abstract(State(**parts, ema=ema)), LATER), State(**parts, ema=ema))
    assert_equal(checkpoint.read_params(tmp_path, 1, now.step.sharding), parts["params"])
    assert_equal(checkpoint.read_params(tmp_path, 2, now.step.sharding), ema["params"])
    store.close()


def test_a_state_of_other_shapes_is_refused_by_name(tmp_path):
    saved(tmp_path, 1)
    store = checkpoint.Checkpoints(tmp_path, keep=1)
    with pytest.raises(ConfigError) as error:
        store.restore(1, abstract(make_state(layers=3)))
    assert "params/body/0/kernel: float32[3,8,4] here, float32[2,8,4] in the checkpoint" in str(error.value)
    assert "optimizer/1/0/mu/body/0/kernel: float32[3,8,4]" in str(error.value)
    with pytest.raises(ConfigError, match=r"and \d+ more"):
        store.restore(1, {"params": {}})
    wanted = make_state()
    wanted["params"]["head"]["scale"] = wanted["params"]["head"].pop("bias").astype(jnp.bfloat16)
    with pytest.raises(ConfigError) as error:
        store.restore(1, abstract(wanted))
    assert "params/head/scale: bfloat16[8] here, not in the checkpoint" in str(error.value)
    assert "params/head/bias: not here, float32[8] in the checkpoint" in str(error.value)
    wanted = make_state()
    wanted["params"]["head"]["bias"] = wanted["params"]["head"]["bias"].astype(jnp.bfloat16)
    with pytest.raises(ConfigError, match=r"params/head/bias: bfloat16\[8\] here, float32\[8\] in the checkpoint"):
        store.restore(1, abstract(wanted))


def largest_file(folder):
    return max((path for path in (folder / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


DAMAGES = {
    "empty": lambda folder: [path.unlink() for path in folder.rglob("*") if path.is_file()],
    "no list": lambda folder: (folder / checkpoint.FILES).unlink(),
    "no commit": lambda folder: (folder / "_CHECKPOINT_METADATA").unlink(),
    "truncated": lambda folder: largest_file(folder).write_bytes(largest_file(folder).read_bytes()[:-7]),
    "flipped": lambda folder: largest_file(folder).write_bytes(largest_file(folder).read_bytes()[:-1] + b"\x55"),
    "torn list": lambda folder: (folder / checkpoint.FILES).write_text('{"a": ['),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_whole_one_is_taken(tmp_path, damage):
    saved(tmp_path, 1, 2, 3)
    DAMAGES[damage](checkpoint.folder_of(tmp_path, 3))
    (tmp_path / "checkpoints" / "9").mkdir()
    (tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp-9").mkdir()
    assert checkpoint.newest(tmp_path) == 2
    assert checkpoint.steps_in(tmp_path) == [1, 2, 3, 9]  # looking moves nothing
    lines = []
    store = checkpoint.Checkpoints(tmp_path, keep=2, report=lines.append)
    assert store.latest == 2
    assert [line.split(":")[0].rsplit("/", 1)[-1] for line in lines] == ["9", "3"]
    assert sorted(path.name for path in (tmp_path / "bad").iterdir()) == ["3", "9"]
    assert checkpoint.steps_in(tmp_path) == [1, 2]
    assert not list((tmp_path / "checkpoints").glob("*tmp*"))
    assert_equal(store.restore(2, abstract(make_state())), make_state(value=2.0))
    store.save(3, make_state(value=33.0), META)
    store.close()
    assert store.latest == 3 and checkpoint.steps_in(tmp_path) == [2, 3]
    DAMAGES["no list"](checkpoint.folder_of(tmp_path, 3))
    assert checkpoint.Checkpoints(tmp_path, keep=2, report=lines.append).latest == 2
    assert lines[-1].endswith("/bad/3-2")


def test_an_interrupted_removal_leaves_nothing_that_looks_whole(tmp_path):
    saved(tmp_path, 1, 2)
    DAMAGES["no list"](checkpoint.folder_of(tmp_path, 1))
    saved(tmp_path, 3, keep=2)
    assert checkpoint.steps_in(tmp_path) == [2, 3]


def test_a_failed_save_surfaces_at_the_next_one_and_at_the_end(tmp_path, monkeypatch):
    store = checkpoint.Checkpoints(tmp_path, keep=2)
    store.save(1, make_state(), META)

    class Full:
        def result(self):
            raise OSError(28, "No space left on device")

    store.wait()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.ocp, "save_async", lambda *args, **kwargs: Full())
        store.save(2, make_state(), META)
        with pytest.raises(SaveError, match=r"checkpoints/2: not saved: .*No space left"):
            store.save(3, make_state(), META)
        store.save(4, make_state(), META)
        with pytest.raises(SaveError, match=r"checkpoints/4: not saved"):
            store.close()
        assert store.latest == 1


@pytest.mark.parametrize("answer", [None, False])
def test_a_save_that_is_declined_is_an_error(tmp_path, monkeypatch, answer):
    class Response:
        def result(self):
            return answer

    declined = None if answer is None else Response()
    monkeypatch.setattr(checkpoint.ocp, "save_async", lambda *args, **kwargs: declined)
    store = checkpoint.Checkpoints(tmp_path, keep=2)
    with pytest.raises(SaveError, match="declined"):
        store.save(1, make_state(), META)
        store.close()


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    store = checkpoint.Checkpoints(tmp_path, keep=2)
    with pytest.raises(SaveError, match=r"checkpoints/1: not saved: .*File exists"):
        store.save(1, make_state(), META)


def test_a_step_that_exists_is_not_overwritten(tmp_path):
    saved(tmp_path, 1)
    store = checkpoint.Checkpoints(tmp_path, keep=2)
    with pytest.raises(FileExistsError, match="checkpoints/1: exists already"):
        store.save(1, make_state(), META)


def test_verify_reads_the_files_again(tmp_path):
    store = checkpoint.Checkpoints(saved(tmp_path, 1), keep=2)
    store.verify(1)
    DAMAGES["flipped"](checkpoint.folder_of(tmp_path, 1))
    with pytest.raises(RuntimeError, match="is damaged"):
        store.verify(1)
    listed = json.loads((checkpoint.folder_of(tmp_path, 1) / checkpoint.FILES).read_text())
    assert checkpoint.FILES not in listed and "_CHECKPOINT_METADATA" in listed


WORKER = """
import sys
import jax, numpy as np
port, process, workdir = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(process))
from jax.sharding import NamedSharding, PartitionSpec as P
from mlm_jax.checkpoint import Checkpoints
mesh = jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,))
table = np.arange(32.0, dtype=np.float32).reshape(8, 4)
place = lambda x, spec: jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])
lines = []
store = Checkpoints(workdir, keep=2, report=lines.append)
assert store.latest == 1 and len(lines) == (process == "0"), (store.latest, lines)
state = {"params": {"table": place(table, P("data"))}, "step": place(np.int32(2), P())}
store.save(2, state, {"rows_read": 7})
store.close()
store.verify(2)
abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
again = store.restore(2, abstract)
for shard in again["params"]["table"].addressable_shards:
    np.testing.assert_array_equal(shard.data, table[shard.index])
"""


def test_saved_by_two_processes_restored_by_one(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "checkpoints" / "9").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = [[sys.executable, "-c", WORKER, port, str(i), str(tmp_path)] for i in range(2)]
    started = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [process.wait(timeout=100) for process in started] == [0, 0]
    assert (tmp_path / "bad" / "9").is_dir()
    store = checkpoint.Checkpoints(tmp_path, keep=2)
    assert store.latest == 2 and checkpoint.read_meta(tmp_path, 2) == {"rows_read": 7}
    state = {"params": {"table": jnp.arange(32.0).reshape(8, 4)}, "step": jnp.int32(2)}
    assert_equal(store.restore(2, abstract(state)), state)
