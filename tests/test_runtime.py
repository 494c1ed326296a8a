import os
import re
import signal

import jax
import pytest

from mlm_jax import runtime
from mlm_jax.config import ConfigError, RunError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_to_stop_and_close_gives_it_back(number):
    before = signal.getsignal(number)
    stop = runtime.Stop()
    assert not stop.now()
    os.kill(os.getpid(), number)
    assert stop.now() and stop.signal == number.name
    stop.close()
    assert signal.getsignal(number) is before


def test_the_second_interrupt_is_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    stop = runtime.Stop()
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.now()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    stop.close()
    signal.signal(signal.SIGINT, before)


def test_the_cache_of_programs_is_where_the_user_says(monkeypatch, tmp_path):
    chosen = jax.config.jax_compilation_cache_dir
    runtime.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == chosen  # by JAX_COMPILATION_CACHE_DIR, in this suite
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        runtime.keep_compiled_programs()
        assert jax.config.jax_compilation_cache_dir.startswith(f"{tmp_path}/mlm_jax/cpu-")
    finally:
        jax.config.update("jax_compilation_cache_dir", chosen)


def test_masks_that_would_depend_on_the_mesh_are_refused():
    jax.config.update("jax_threefry_partitionable", False)
    try:
        with pytest.raises(ConfigError, match="THREEFRY"):
            runtime.start()
    finally:
        jax.config.update("jax_threefry_partitionable", True)


def test_a_profile_of_two_steps(tmp_path):
    lines = []
    profile = runtime.Profile(tmp_path / "profile", 2, lines.append)
    for number in range(8):
        profile.step(jax.numpy.ones(3) * number)
        assert bool(lines) == (number >= 4)
    profile.close()
    assert len(lines) == 1
    assert [path for path in (tmp_path / "profile").rglob("*.xplane.pb")]
    assert [path for path in (tmp_path / "profile").rglob("perfetto_trace.json.gz")]


def test_without_a_profile_nothing_is_written(tmp_path):
    profile = runtime.Profile(tmp_path / "profile", 0, pytest.fail)
    for number in range(8):
        profile.step(number)
    profile.close()
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("error", [ConfigError("config.steps", "0", "must be 1"), RunError("lost")])
def test_a_mistake_of_the_first_process_is_raised_in_all(monkeypatch, error):
    """The second one hears what the first one sent, and does nothing itself."""

    def make():
        raise error

    sent = []
    monkeypatch.setattr(runtime, "shared", lambda value: sent.append(value) or value)
    with pytest.raises(type(error)) as raised:
        runtime.by_first(make)
    assert raised.value is error
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(runtime, "shared", lambda value: sent[0])
    with pytest.raises(type(error), match=re.escape(str(error))):
        runtime.by_first(lambda: pytest.fail("only the first one makes it"))
    monkeypatch.setattr(runtime, "shared", lambda value: {"value": [7]})
    assert runtime.by_first(lambda: pytest.fail("only the first one makes it")) == [7]
