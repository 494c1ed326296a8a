"""Worker processes: results in the order of the tasks, few tasks in flight, no process left behind."""

import concurrent.futures.process
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mlm_jax.config import RunError
from mlm_jax.memory import keep_freed

IN_FLIGHT = 3  # tasks per worker that wait or run: bounds memory
KILLED = (
    "a worker process was killed, perhaps since memory ran out: fewer of them need less (config.data.workers). "
    "What is done is kept, the same command goes on"
)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of processes, started at the first task; one worker is this process itself."""

    def __init__(self, count: int):
        self.count = count or cores()
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """function(task) for each task, in order. Both must be importable by name: the processes share nothing.

        Raises RunError where a process is killed.
        """
        if self.count == 1:
            yield from map(function, tasks)
            return
        try:
            yield from self._shared(function, tasks)
        except concurrent.futures.process.BrokenProcessPool:
            raise RunError(KILLED) from None

    def _shared(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        waiting: deque[concurrent.futures.Future] = deque()
        for task in tasks:
            waiting.append(self._submit(function, task))
            if len(waiting) >= IN_FLIGHT * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _submit(self, function: Callable[[Any], Any], task: Any) -> concurrent.futures.Future:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(self.count, context, initializer=_begin)
        with _no_main():
            return self._pool.submit(function, task)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Hides the main program from processes that start: they need none of it, and it may import jax."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin() -> None:
    """Leaves interrupts to the parent, and ends this process when the parent is gone, however it went."""
    keep_freed(1 << 26, 1 << 28)  # arrays of a unit of text: a fifth of a worker's time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
