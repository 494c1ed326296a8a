"""The programs of a study, one after the other: each in a process of its own, whose output goes to a file."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlm_jax.config import ConfigError, RunError
from mlm_jax.flags import PREEMPTED

LOCK = "lock"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LAST_LINES = 8  # of the output of a program that failed, which are shown


class Stopped(Exception):
    """The study was asked to stop."""


class Failed(RunError):
    """A program that ended with another exit code than 0; `code` is that of the study."""

    def __init__(self, text: str, code: int):
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Holds the lock of a study's folder. Raises ConfigError where another study, or a program of it, is at work there.

    The programs inherit it, so that one which outlives its study is not begun a second time.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        fix = "another study, or a run that one has left, is at work there: let it end, or stop it with SIGTERM"
        raise ConfigError("workdir", str(folder), fix) from None
    try:
        yield handle
    finally:
        os.close(handle)


class Programs:
    """Runs programs; a signal to stop is passed on to the one that runs, and raises Stopped.

    Only the main thread can listen for signals. lock: is kept open in the programs.
    """

    def __init__(self, lock: int):
        self.lock = lock
        self.process: subprocess.Popen | None = None
        self.busy = False  # from before a process begins to after its end
        self.asked = False
        self.before = {number: signal.signal(number, self._asked) for number in SIGNALS}

    def _asked(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT and self.process:  # a second Ctrl-C
            self.process.kill()
        self.asked = True
        if self.process:
            self.process.terminate()  # which saves, and ends when it is ready
        elif not self.busy:
            raise Stopped

    def close(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def run(self, name: str, words: Sequence[str], log: Path) -> None:
        """`python WORDS`; what it prints is added to the file `log`. Raises Stopped, and Failed unless it ends with 0.

        It stands in a session of its own: Ctrl-C comes to it from here, as SIGTERM.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            self.busy = True
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.lock,),
            )
            if self.asked:  # before there was a process to pass it on to
                self.process.terminate()
            code = self.process.wait()
            self.process, self.busy = None, False
        if self.asked or code == PREEMPTED:
            raise Stopped
        if code:
            how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
            shown = "\n".join(f"  {line}" for line in tail(log, LAST_LINES))
            raise Failed(f"{name} ended {how}; its output is in {log}, and ends so:\n{shown}", code if code == 2 else 1)


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
