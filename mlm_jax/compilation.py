"""Compilations: how long they take, and why a step that was compiled is compiled again."""

import contextlib
import time
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from mlm_jax import tree

COMPILED = "/jax/core/compile/backend_compile_duration"  # includes the time to read it from the cache
CACHE_HIT = "/jax/compilation_cache/cache_hits"
MOST_DIFFERENCES = 5


class Watched:
    """A jitted function that says when, after its first compilation, it is compiled again, and what changed.

    name: of the function that was jitted; report: takes a line. `seconds`: compilations up to now, `hits`: how many
    of all programs came from the cache on the disk. `shapes`: of the latest arguments that it was compiled for.
    """

    def __init__(self, function: Callable, name: str, report: Callable[[str], None]):
        self.function, self.name, self.report = function, name, report
        self.count, self.seconds, self.hits = 0, 0.0, 0
        self.described: dict[str, str] | None = None
        self.shapes: tuple | None = None
        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        jax.monitoring.register_event_listener(self._hit)

    def __call__(self, *args: object) -> object:
        before = self.count
        result = self.function(*args)
        if self.count > before:
            # shapes, types and shardings are known of donated arrays too
            described = describe(args)
            if self.described is not None:
                self.report(f"{self.name} was compiled again ({self.seconds:.1f} s in all): {self._cause(described)}")
            self.described = described
            self.shapes = jax.tree.map(_shape, args)
        return result

    def memory_bytes(self) -> int | None:
        """What its program needs of a device, with arguments and results; None where that is not known."""
        if self.shapes is None:
            return None
        found = self.function.lower(*self.shapes).compile().memory_analysis()  # as it is compiled already
        if found is None:
            return None
        held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
        return held + found.temp_size_in_bytes

    def close(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._compiled)
        jax.monitoring.unregister_event_listener(self._hit)

    def _compiled(self, event: str, seconds: float, **facts: object) -> None:
        if event == COMPILED and facts.get("fun_name") in (self.name, f"jit({self.name})"):
            self.count += 1
            self.seconds += seconds

    def _hit(self, event: str, **facts: object) -> None:
        self.hits += event == CACHE_HIT

    def _cause(self, described: dict[str, str]) -> str:
        before, changes = self.described, []
        for path in sorted(before.keys() | described.keys()):
            was, now = before.get(path, "absent"), described.get(path, "absent")
            if was != now:
                changes.append(f"{path} was {was}, is {now}")
        more = [f"and {len(changes) - MOST_DIFFERENCES} more"] if len(changes) > MOST_DIFFERENCES else []
        return "; ".join(changes[:MOST_DIFFERENCES] + more) or "its arguments are as before (a setting of jax changed)"


def _shape(leaf: object) -> object:
    """What is known of an array even when it was donated."""
    if not isinstance(leaf, jax.Array):
        return leaf
    where = leaf.sharding if leaf.committed else None  # else it may go anywhere, and would be compiled anew for there
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where, weak_type=leaf.aval.weak_type)


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Within it, programs are compiled as if for the first time: the cache on the disk is left out."""
    kept = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax asks the setting once only
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)
        compilation_cache.reset_cache()


def compile_cold(function: Callable, *arguments: object) -> tuple[Callable, dict[str, float]]:
    """The compiled program of a jitted function, and the seconds of tracing with lowering and of compiling, anew.

    Where a step is in the cache of compiled programs, a run starts in less.
    """
    with without_cache():
        began = time.perf_counter()
        lowered = function.trace(*arguments).lower()
        lowered_at = time.perf_counter()
        compiled = lowered.compile()
        ended = time.perf_counter()
    return compiled, {"lower_seconds": lowered_at - began, "compile_seconds": ended - lowered_at}


def describe(args: tuple) -> dict[str, str]:
    """What a compilation depends on, by path of each argument's leaves: type, shape, sharding, or the value itself."""
    described = {}
    for path, leaf in tree.leaves(args):
        if isinstance(leaf, jax.Array):
            weak = " weak" if leaf.aval.weak_type else ""
            placed = getattr(leaf.sharding, "spec", type(leaf.sharding).__name__)
            described[path] = f"{leaf.aval.str_short(short_dtypes=True)}{weak} {placed}"
        else:
            described[path] = type(leaf).__name__
    return described
