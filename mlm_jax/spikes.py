"""Losses that jump: found by what is usual; and the record of the rows that a run leaves out because of them.

A loss is high that stands more than `watch.spike` spreads above the median of the last `watch.window` ones. The spread
is 1.4826 times the median distance from that median, which for normal losses is their standard deviation (Hampel, 1974,
the median deviation), so that a spike does not hide itself by making the spread larger. OLMo 2 (2025) counts what
stands seven standard deviations above a rolling mean; OLMo-core's optimizer leaves out steps at six, over 128 steps.
Over 8,700 steps of six small runs, from the first loss that can be judged on, not one stood above 4.2.

What follows is a function of the losses alone, so it is the same in all processes, and after a restart.
"""

import collections
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlm_jax import jsonl
from mlm_jax.config import ConfigError, RunError, WatchConfig

NORMAL = 1.4826  # standard deviations of a normal distribution by its median distance from the median
LEAST_SPREAD = 1e-3  # of the median: less is no spread but rounding, or losses that are all alike
FILE = "skipped.jsonl"
PLACE, STREAM = "rows/place", "rows/stream"  # of lines of metrics.jsonl: how far a step has read

Hole = tuple[int, int]  # first and one past the last place of a stream's order that is left out


class Spike(NamedTuple):
    """Found at `step`, whose loss is high as all since step `first` are; usual, spread: of the losses before it."""

    step: int
    first: int
    loss: float
    usual: float
    spread: float

    def __str__(self) -> str:
        since = f", high since step {self.first:,}" if self.first < self.step else ""
        return f"the loss is {self.loss:.4g}, usual is {self.usual:.4g} with a spread of {self.spread:.2g}{since}"


class Rewind(RunError):
    """Ends the steps at a spike, for the run to go on from a checkpoint before it."""

    def __init__(self, spike: Spike):
        super().__init__(f"step {spike.step}: {spike}")
        self.spike = spike


class Detector:
    """Looks at the losses of the steps of a phase, one after another.

    Steps with the causal objective have losses of another size, and are looked at by themselves. Losses that are not
    finite are the business of `optimizer.bad_gradients`, and left out here.
    """

    def __init__(self, config: WatchConfig):
        self.config = config
        self.losses: dict[bool, collections.deque[float]] = {}
        self.high: dict[bool, list[int]] = {}  # the latest steps in a row that are

    def add(self, line: dict) -> Spike | None:
        """Takes a step's line of metrics.jsonl, as it is written or read; returns the spike that it completes."""
        loss, config, kind = _loss(line), self.config, is_causal(line)
        if not config.spike or not math.isfinite(loss):
            return None
        losses = self.losses.setdefault(kind, collections.deque(maxlen=config.window))
        usual, spread = usual_of(losses) if len(losses) == config.window else (math.inf, 0.0)
        losses.append(loss)
        if loss <= usual + config.spike * spread:
            self.high[kind] = []
            return None
        high = self.high.setdefault(kind, [])
        if len(high) <= config.spike_steps:  # one that goes on is told once
            high.append(int(line["step"]))
        return Spike(high[-1], high[0], loss, usual, spread) if len(high) == config.spike_steps else None


def usual_of(losses: Iterable[float]) -> tuple[float, float]:
    """Median, and spread in units of a standard deviation."""
    losses = np.fromiter(losses, np.float64)
    median = float(np.median(losses))
    return median, max(NORMAL * float(np.median(np.abs(losses - median))), LEAST_SPREAD * abs(median))


def is_causal(line: dict) -> bool:
    return "train/causal/loss" in line


def _loss(line: dict) -> float:
    loss = line["train/loss"]
    return math.nan if loss is None else float(loss)  # JSON has no NaN


def steps_in(path: Path, after: int, up_to: int) -> list[dict]:
    """The lines of the steps after + 1 to up_to that metrics.jsonl has, in their order; torn ones are left out."""
    return [line for line in jsonl.objects(path) if "train/loss" in line and after < line["step"] <= up_to]


def latest(path: Path, config: WatchConfig, after: int, up_to: int) -> list[dict]:
    """Of the lines of these steps as many as a `Detector` must see to go on as one that has seen them all."""
    kept: dict[bool, collections.deque[dict]] = {}
    for line in steps_in(path, after, up_to):
        if not math.isfinite(_loss(line)):
            continue
        # the losses of a window before each step of the longest row of high ones that is told apart from longer ones
        lines = kept.setdefault(is_causal(line), collections.deque(maxlen=config.window + config.spike_steps + 1))
        lines.append({key: line[key] for key in ("step", "train/loss", "train/causal/loss") if key in line})
    return sorted((line for lines in kept.values() for line in lines), key=lambda line: line["step"])


# ---- the record ----


def read_record(workdir: Path) -> list[dict]:
    """What `skipped.jsonl` says, a line for each rewind; one without its end was none. Raises ConfigError."""
    path, found = workdir / FILE, []
    for text in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if text.endswith(b"\n"):
            try:
                found.append(json.loads(text))
            except ValueError:
                fix = (
                    f"line {len(found) + 1} is no JSON; remove the file, and what the checkpoint knows is written again"
                )
                raise ConfigError("workdir", str(path), fix) from None
    return found


def write_record(workdir: Path, record: Sequence[dict]) -> None:
    """Writes all of it anew, and returns when it is on the disk: either the old or the new one is there."""
    path, partial = workdir / FILE, workdir / f"{FILE}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in record)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(workdir, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def agreed(workdir: Path, saved: Sequence[dict]) -> list[dict]:
    """The record of a run by its file and by what its newest checkpoint, or the one that it branches from, knows of it.

    One of both is the beginning of the other: a checkpoint older than the last rewind knows less, a file that is
    missing is written again. Raises ConfigError where they are of two runs.
    """
    found, saved = read_record(workdir), list(saved)
    if found[: len(saved)] == saved:
        return found
    if saved[: len(found)] == found:
        write_record(workdir, saved)
        return saved
    fix = "tells of other rows than the checkpoint; remove it, and what the checkpoint knows is written again"
    raise ConfigError("workdir", str(workdir / FILE), fix)


def holes_of(record: Sequence[dict], streams: int) -> tuple[tuple[Hole, ...], ...]:
    """Of each stream the places that are left out: increasing, and with rows between them."""
    found: list[list[list[int]]] = [[] for _ in range(streams)]
    for stream, first, end in sorted(tuple(hole) for line in record for hole in line["rows"]):
        if stream >= streams:
            continue  # of a phase that is no more
        if found[stream] and first <= found[stream][-1][1]:
            found[stream][-1][1] = max(end, found[stream][-1][1])
        else:
            found[stream].append([first, end])
    return tuple(tuple((first, end) for first, end in holes) for holes in found)


def new_holes(lines: Sequence[dict], read: Sequence[int], since: int) -> list[list[int]]:
    """The places that the steps after `since` have read, a [stream, first, end] for each stream.

    lines: of the steps since a checkpoint, `read` of whose streams it knows. Where a line does not say how far its step
    has read, the steps after it count.
    """
    read, ends = list(read), {}
    for line in lines:
        stream = line.get(STREAM, 0)
        if PLACE not in line:
            continue
        if line["step"] <= since:
            read[stream] = line[PLACE]
        else:
            ends[stream] = line[PLACE]
    return [[stream, read[stream], end] for stream, end in sorted(ends.items())]


def left_behind(record: Sequence[dict], step: int, known: Sequence[dict]) -> str | None:
    """Why a checkpoint counts no more: it was made before a rewind to an earlier step. known: its record."""
    for line in record[len(known) :]:
        if step > line["to"]:
            return f"it was saved before the run went back from step {line['step']:,} to step {line['to']:,}"
    return None
