"""A step that does not end: said aloud, with what all threads are doing.

Nothing within a process can be relied on to tell that it hangs: a thread in Python needs the GIL, which C code may hold
for ever, and one that is stopped runs nothing at all. So a process of its own looks on (`look_on`, which needs the
standard library alone). By a pipe it hears what begins; where that does not end in time it asks for stack traces with a
signal, to which faulthandler answers in C without the GIL, through another pipe. The signal is for a thread that does
nothing else, so that it interrupts no sleep and no wait of the others. It never ends anything; when its pipe closes,
since the process has ended in whatever way, it ends itself.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

FOLDER = "stuck"  # in the workdir, a file for each process that has something to tell
SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2  # which nobody else is likely to use
ANSWER_SECONDS = 10.0  # within which a process that runs has answered
CLOSE_SECONDS = 5.0


class Watch:
    """Hears of what begins, and tells where it does not end within `seconds`; 0: it does not look.

    It begins to look with the first `mark`. Its file is WORKDIR/stuck/PROCESS.txt.
    """

    def __init__(self, workdir: Path, process: int, seconds: float | int):
        self.pipe: int | None = None
        self.last = b""
        if not seconds:
            return
        hears, self.pipe = os.pipe()
        reads, answers = os.pipe()
        os.set_blocking(self.pipe, False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(SIGNAL, signal.SIG_IGN)  # what is there when faulthandler leaves
        faulthandler.register(SIGNAL, answers, all_threads=True)
        self.answers = answers
        rests, self.rest = os.pipe()
        self.thread = threading.Thread(target=_wait, args=(rests,), name="answers how the others do", daemon=True)
        self.thread.start()
        name = f"process {process} on {socket.gethostname()}"
        path = Path(workdir).absolute() / FOLDER / f"{process}.txt"
        what = [seconds, path, name, os.getpid(), self.thread.native_id, hears, reads]
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, what)],
            pass_fds=(hears, reads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the run
        )
        os.close(hears)
        os.close(reads)

    def mark(self, doing: str, usual_seconds: float | int | None = None) -> None:
        """Something begins, and what was before has ended. usual_seconds: how long it takes, where that is known."""
        if self.pipe is not None:
            self.last = json.dumps({"doing": doing, "usual": usual_seconds}).encode() + b"\n"
            self.beat()

    def beat(self) -> None:
        """What was marked goes on: a part of it has ended, such as a batch of an evaluation."""
        if self.pipe is not None and self.last:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it is stopped, or dead: the run goes on
                os.write(self.pipe, self.last)

    def close(self) -> None:
        if self.pipe is None:
            return
        os.close(self.pipe)
        self.pipe = None
        try:
            self.child.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        faulthandler.unregister(SIGNAL)  # not before nobody sends it any more
        os.close(self.answers)
        os.close(self.rest)
        self.thread.join()


def _wait(pipe: int) -> None:
    os.read(pipe, 1)
    os.close(pipe)


# ---- the process that looks on ----


def look_on(seconds: float, path: str, name: str, pid: int, thread: int, hears: int, reads: int) -> None:
    """Until the pipe `hears` is closed: tells of each thing that has not ended after seconds, and twice, and so on."""
    doing, usual, since, due, told = "", None, 0.0, None, 0

    def say(text: str) -> None:
        tell(f"mlm_jax: {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {name}: {text}\n", path)

    while True:
        left = None if due is None else max(0.0, due - time.monotonic())
        if select.select([hears], [], [], left)[0]:
            heard = os.read(hears, 1 << 16)
            if not heard:
                return
            now = time.monotonic()
            if told:
                say(f"{doing} has ended after {in_words(now - since)}")
            line = json.loads(heard.splitlines()[-1])  # lines are short enough to come whole
            doing, usual, since, due, told = line["doing"], line["usual"], now, now + seconds, 0
        elif due is not None:
            takes = f" (it usually takes {in_words(usual)})" if usual else ""
            what = f"{doing} has not ended for {in_words(time.monotonic() - since)}{takes}"
            say(f"{what}; {traces(pid, thread, reads)}")
            told += 1
            due = since + seconds * 2**told


def traces(pid: int, thread: int, reads: int) -> str:
    """The stack traces of all threads of a process, in the words of faulthandler; or that there are none, and why.

    thread: that answers.
    """
    while select.select([reads], [], [], 0)[0] and os.read(reads, 1 << 16):
        pass  # an answer that came too late, of a process that was stopped
    try:
        ctypes.CDLL(None).tgkill(pid, thread, SIGNAL)
    except AttributeError:  # an older C library
        os.kill(pid, SIGNAL)
    found, wait = b"", ANSWER_SECONDS
    while select.select([reads], [], [], wait)[0]:
        part = os.read(reads, 1 << 16)
        if not part:
            break
        found, wait = found + part, 0.1
    if found:
        answer = found.decode(errors="replace").rstrip()
        return f"its threads, the latest call first (the current one only answers):\n{answer}"
    return f"it does not say what its threads do, state {state_of(pid)}"


def state_of(pid: int) -> str:
    """Of a process, as the system tells it, such as `T (stopped)`."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "not known"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("State:")), "not known")


def in_words(seconds: float | int) -> str:
    for size, unit in ((3600, "hours"), (60, "minutes"), (1, "s")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"


def tell(text: str, path: str) -> None:
    """To stderr, on lines of its own, and to the end of a file; what cannot be written is lost."""
    targets: tuple[Callable, ...] = (lambda: os.write(2, b"\n" + text.encode()), lambda: _append(path, text))
    for write in targets:
        with contextlib.suppress(OSError):
            write()


def _append(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    # what a scheduler sends to all processes is for the run, with which it ends
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _, of_seconds, to_path, its_name, *numbers = sys.argv
    look_on(float(of_seconds), to_path, its_name, *map(int, numbers))
