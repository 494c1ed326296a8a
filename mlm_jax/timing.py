"""Where the time of a run goes: speed of the steps, and shares of all the time since its first start."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import SupportsFloat

import numpy as np

Number = SupportsFloat  # a Python number, or a numpy or device scalar

KINDS = ("training", "input", "evaluation", "saving", "starting")


class Clock:
    """Seconds spent on each of `KINDS`, over all starts of a run; it begins with `starting`.

    What belongs to no kind was lost: steps that were done again after a crash, and the time in which nothing ran. So
    the goodput is the share of useful training in all the time since the first start.
    started_at: when the run started first, in seconds since 1970; spent: seconds by kind as the checkpoint has them;
    since: when this start began, by default now; now: the same clock as started_at.
    """

    def __init__(
        self,
        started_at: float,
        spent: Mapping[str, float] | None = None,
        since: float | None = None,
        now: Callable[[], float] = time.time,
    ):
        self.now, self.started_at = now, started_at
        self.spent = {kind: float((spent or {}).get(kind, 0.0)) for kind in KINDS}
        self.kind, self.since = "starting", now() if since is None else since

    def switch(self, kind: str) -> float:
        """From now on time counts for `kind`; returns the seconds that the kind before it had since its switch."""
        now = self.now()
        before, seconds = self.kind, max(0.0, now - self.since)  # a clock may be set back
        self.spent[before] += seconds
        self.kind, self.since = kind, now
        return seconds

    def assign(self, kind: str, seconds: float) -> None:
        """So much of the time that counted for the present kind belongs to another."""
        self.switch(self.kind)
        self.spent[self.kind] -= seconds
        self.spent[kind] += seconds

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Counts the time within it for `kind`, then goes on with the kind before."""
        before = self.kind
        self.switch(kind)
        try:
            yield
        finally:
            self.switch(before)

    def totals(self) -> dict[str, float]:
        """Seconds by kind up to now."""
        self.switch(self.kind)
        return dict(self.spent)

    @property
    def elapsed(self) -> float:
        """Seconds since the first start."""
        return max(self.now() - self.started_at, 1e-9)

    @property
    def goodput(self) -> float:
        """Share of training in the time since the first start, in [0, 1]."""
        return min(1.0, self.totals()["training"] / self.elapsed)

    def shares(self) -> dict[str, float]:
        """Share of each kind, and of what was lost, in the time since the first start."""
        shares = {kind: seconds / self.elapsed for kind, seconds in self.totals().items()}
        return {**shares, "lost": max(0.0, 1.0 - sum(shares.values()))}


class Throughput:
    """Tokens and steps per second over the latest `window` steps.

    Times are those at which a step is known to be finished; the first one only starts the clock, so that compilation
    is not counted. Times are in seconds of one clock, `time.monotonic()` unless given.
    """

    def __init__(self, window: int = 50):
        self.marks: collections.deque[tuple[float, float]] = collections.deque(maxlen=window + 1)

    def add(self, tokens: Number, now: float | None = None) -> float | None:
        """A step with so many real tokens has finished; returns its seconds, None for the first."""
        now = time.monotonic() if now is None else now
        seconds = now - self.marks[-1][0] if self.marks else None
        self.marks.append((now, float(tokens)))
        return seconds

    def exclude(self, seconds: Number) -> None:
        """Time that was spent on something else than steps, such as an evaluation, does not count."""
        self.marks = collections.deque(((at + float(seconds), n) for at, n in self.marks), maxlen=self.marks.maxlen)

    def _seconds(self) -> float:
        return self.marks[-1][0] - self.marks[0][0] if self.marks else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """None until two steps have finished."""
        seconds = self._seconds()
        return sum(tokens for _, tokens in list(self.marks)[1:]) / seconds if seconds > 0 else None

    def seconds_left(self, steps: int) -> float | None:
        """How long `steps` more take at the present rate."""
        seconds = self._seconds()
        return steps * seconds / (len(self.marks) - 1) if seconds > 0 else None


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The 50th, 90th and 99th percentile of step times, by name: p50, p90, p99. Empty without any."""
    if not len(seconds):
        return {}
    return {f"p{p}": float(value) for p, value in zip((50, 90, 99), np.percentile(np.array(seconds), (50, 90, 99)))}
