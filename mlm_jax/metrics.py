"""What a run says of itself: metrics.jsonl, TensorBoard events, and one line of progress."""

import errno
import io
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

import numpy as np

Number = SupportsFloat  # a Python number, or a numpy or device scalar


class JsonLines:
    """Appends one JSON object a line to a file; does nothing where it is not active (all processes but the first)."""

    def __init__(self, path: str | Path, active: bool = True):
        self.file = None
        if active:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the run)

    def write(self, record: Mapping) -> None:
        """Writes a whole line at once. NaN and infinities, which JSON does not have, become null."""
        if self.file:
            try:
                self.file.write(json.dumps(_plain(record), allow_nan=False) + "\n")
                self.file.flush()
            except OSError as error:  # a full disk does not say which
                raise OSError(error.errno, error.strerror, self.file.name) from error

    def sync(self) -> None:
        """Returns when what was written is on the disk."""
        if self.file:
            self.file.flush()
            os.fsync(self.file.fileno())

    def close(self) -> None:
        if self.file:
            self.sync()
            self.file.close()
            self.file = None


class TensorBoard:
    """Writes the numbers of records as TensorBoard events; does nothing where it is not active.

    after: the step that the run goes on from; what an earlier start wrote of later steps is hidden.
    """

    def __init__(self, folder: str | Path, after: int, active: bool = True):
        self.writer = None
        if active:
            from tensorboardX import SummaryWriter

            self.writer = SummaryWriter(str(folder), purge_step=after + 1)

    def write(self, record: Mapping) -> None:
        """One event at `record["step"]` with all its numbers; hashes, which mean nothing as numbers, are left out."""
        if not self.writer:
            return
        from tensorboardX.proto.summary_pb2 import Summary

        values = {name: value for name, value in _plain(record).items() if isinstance(value, (int, float))}
        step = values.pop("step")
        kept = {name: value for name, value in values.items() if not name.endswith("/hash")}
        if (
            not self.writer.file_writer.event_writer._worker.is_alive()
        ):  # it died of an error, and its queue would block
            raise OSError(errno.EIO, "TensorBoard events cannot be written", str(self.writer.logdir))
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in kept.items()])
        self.writer.file_writer.add_summary(summary, step)

    def sync(self) -> None:
        if self.writer:
            self.writer.flush()

    def close(self) -> None:
        if self.writer:
            self.writer.close()
            self.writer = None


def _plain(value: object) -> object:
    """JSON's own types from numpy and device scalars and arrays."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _plain(np.asarray(value).tolist())


def truncate(path: str | Path, step: int) -> int:
    """Removes the lines of later steps, and lines that are not whole; returns how many. The file may be missing.

    A run that goes on from `step` calls it before it writes, so that every step has its lines once.
    """
    path = Path(path)
    if not path.exists():
        return 0
    partial, removed = path.with_name(path.name + ".partial"), 0
    with open(path, "rb") as old, open(partial, "wb") as new:
        for line in old:
            if _is_up_to(line, step):
                new.write(line)
            else:
                removed += 1
        new.flush()
        os.fsync(new.fileno())
    os.replace(partial, path)
    return removed


def _is_up_to(line: bytes, step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:  # torn by a crash
        return False
    return line.endswith(b"\n") and isinstance(record, dict) and record.get("step", 0) <= step


class Progress:
    """One line of progress: rewritten in place on a terminal, a plain line every `every_seconds` elsewhere."""

    def __init__(
        self, steps: int, stream: io.TextIOBase | None = None, active: bool = True, every_seconds: Number | None = None
    ):
        self.steps = steps
        self.stream = sys.stderr if stream is None else stream
        self.active = active
        self.terminal = self.stream.isatty()
        self.every_seconds = every_seconds if every_seconds is not None else (0.2 if self.terminal else 10.0)
        self.shown_at = -math.inf
        self.open = False  # a line without its end stands on the terminal

    def update(
        self,
        step: int,
        loss: Number,
        learning_rate: Number,
        tokens_per_second: Number | None = None,
        seconds_left: Number | None = None,
        mfu: Number | None = None,
        now: float | None = None,
    ) -> None:
        """Shows the state after `step`, if it is the last step or enough time has passed."""
        now = time.monotonic() if now is None else now
        if not self.active or (now - self.shown_at < self.every_seconds and step < self.steps):
            return
        self.shown_at = now
        parts = [f"step {step:,}/{self.steps:,}", f"loss {float(loss):.3f}", f"lr {float(learning_rate):.1e}"]
        if tokens_per_second is not None:
            parts.append(f"{short(tokens_per_second)} tokens/s")
        if mfu is not None:
            parts.append(f"MFU {float(mfu):.1%}")
        if seconds_left is not None:
            parts.append(f"left {duration(seconds_left)}")
        self._show("  ".join(parts))

    def message(self, text: str) -> None:
        """A line that stays, such as the result of an evaluation."""
        if self.active:
            self._end()
            self.stream.write(text + "\n")
            self.stream.flush()

    def close(self) -> None:
        if self.active and self.open:
            self.stream.write("\n")
            self.stream.flush()
            self.open = False

    def _show(self, line: str) -> None:
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be rewritten
            self.stream.write(f"\r\x1b[K{line[:width]}")
            self.open = True
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def _end(self) -> None:
        if self.open:
            self.stream.write("\r\x1b[K")
            self.open = False


def short(number: Number) -> str:
    """Three figures and a unit: 950, 31.2k, 1.25M."""
    number = float(number)
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size * 0.9995:
            scaled = number / size
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{number:.0f}"


def duration(seconds: Number) -> str:
    """Minutes and seconds 03:12, with hours 1:03:12, with days 2d 03:12:05."""
    minutes, second = divmod(round(float(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute:02}:{second:02}"
