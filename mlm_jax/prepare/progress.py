"""Signs of life on stderr: bars with rates on a terminal; elsewhere lines, at the end of a stage and on the way."""

import resource
import sys
import threading
import time

from tqdm import tqdm

EVERY_SECONDS = 30  # between two lines on the way


class Stage:
    """One stage of the work, counted in bytes and in documents (or whatever `things` names).

    total: bytes of the inputs as they are stored, compressed or not. What is left is known from how many of them were
    read; the speed is that of the text inside.
    """

    def __init__(self, name: str, show: bool, total: int | None = None, things: str = "documents"):
        self.name, self.things, self.total = name, things, total
        self.bytes = self.count = self.stored = 0
        self._lines = show and not sys.stderr.isatty()
        hidden = not show or self._lines
        self._bar = tqdm(desc=name, total=total, unit="B", unit_scale=True, file=sys.stderr, disable=hidden)
        self._begun = self._said = time.monotonic()

    def __enter__(self) -> "Stage":
        return self

    def add(self, size: int, count: int, stored: int | None = None) -> None:
        """Another `size` bytes and `count` documents are done, for which `stored` bytes of the inputs were read."""
        self.bytes += size
        self.count += count
        self.stored += size if stored is None else stored
        self._bar.set_postfix_str(self._rates(), refresh=False)
        self._bar.update(size if stored is None else stored)
        now = time.monotonic()
        if self._lines and now - self._said >= EVERY_SECONDS:
            self._said = now
            print(f"{self.name}: {self._done()} ({self._rates()}){self._left()}", file=sys.stderr, flush=True)

    def __exit__(self, kind: type | None, *error: object) -> None:
        self._bar.close()
        if self._lines and kind is None:
            print(f"{self.name}: {self._done()} in {self._seconds():.1f} s ({self._rates()})", file=sys.stderr)

    def _seconds(self) -> float:
        return max(time.monotonic() - self._begun, 1e-3)

    def _done(self) -> str:
        return f"{self.bytes / 1e6:,.1f} MB, {self.count:,} {self.things}"

    def _rates(self) -> str:
        seconds = self._seconds()
        return f"{self.bytes / 1e6 / seconds:,.1f} MB/s, {self.count / seconds:,.0f} {self.things}/s"

    def _left(self) -> str:
        """How much of the inputs is read, and how long the rest takes at the speed so far."""
        if not self.total or not self.stored:
            return ""
        share = min(1.0, self.stored / self.total)
        minutes, seconds = divmod(round(self._seconds() * (1 - share) / share), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {share:.0%} of the files, {hours}:{minutes:02}:{seconds:02} left"


PULSE_SECONDS = 15


class Pulse:
    """A line every so often while something runs that cannot tell how far it is."""

    def __init__(self, name: str, show: bool, seconds: float = PULSE_SECONDS):
        self.name, self.show, self.seconds = name, show, seconds
        self._done = threading.Event()
        self._begun = time.monotonic()

    def __enter__(self) -> "Pulse":
        if self.show:
            threading.Thread(target=self._beat, daemon=True).start()
        return self

    def _beat(self) -> None:
        while not self._done.wait(self.seconds):
            seconds = time.monotonic() - self._begun
            memory = f"peak memory {peak_memory_bytes() / 1e6:,.0f} MB"
            print(f"{self.name}: at work for {seconds:,.0f} s, {memory}", file=sys.stderr)

    def __exit__(self, *error: object) -> None:
        self._done.set()


def peak_memory_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
