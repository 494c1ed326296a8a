"""Signs of life on stderr: bars with rates on a terminal, one line per stage elsewhere."""

import sys
import time

from tqdm import tqdm


class Stage:
    """One stage of the work, counted in bytes and in documents (or whatever `things` names)."""

    def __init__(self, name: str, show: bool, total: int | None = None, things: str = "documents"):
        self.name, self.things = name, things
        self.bytes = self.count = 0
        self._lines = show and not sys.stderr.isatty()
        hidden = not show or self._lines
        self._bar = tqdm(desc=name, total=total, unit="B", unit_scale=True, file=sys.stderr, disable=hidden)
        self._begun = time.monotonic()

    def __enter__(self) -> "Stage":
        return self

    def add(self, size: int, count: int) -> None:
        """Another `size` bytes and `count` documents are done."""
        self.bytes += size
        self.count += count
        seconds = max(time.monotonic() - self._begun, 1e-3)
        self._bar.set_postfix_str(f"{self.count / seconds:,.0f} {self.things}/s", refresh=False)
        self._bar.update(size)

    def __exit__(self, kind: type | None, *error: object) -> None:
        self._bar.close()
        if self._lines and kind is None:
            seconds = max(time.monotonic() - self._begun, 1e-3)
            done = f"{self.bytes / 1e6:,.1f} MB, {self.count:,} {self.things} in {seconds:.1f} s"
            rates = f"{self.bytes / 1e6 / seconds:,.1f} MB/s, {self.count / seconds:,.0f} {self.things}/s"
            print(f"{self.name}: {done} ({rates})", file=sys.stderr)
