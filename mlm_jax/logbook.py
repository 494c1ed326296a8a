"""The metrics of steps and evaluations on their way from the device to files and to the terminal."""

import collections
import contextlib
import datetime
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import jax

from mlm_jax import data, flops, runtime, spikes, usage
from mlm_jax.config import Derived, OptimizerConfig, RunError, together
from mlm_jax.console import evaluation_line, memory_line, pace_line
from mlm_jax.metrics import JsonLines, Progress, TensorBoard, truncate
from mlm_jax.objectives import CAUSAL, names_of
from mlm_jax.phases import Phase
from mlm_jax.stuck import Watch
from mlm_jax.timing import Clock, Throughput

MEMORY_EVERY = 100  # steps between those whose lines say how much is in use
LATEST_STEPS = 1000  # over which percentiles of step times and the share of waiting are stated
# what `pause` is for -> what begins; the first time programs are compiled
PAUSES = {"starting": "a look at the masks of", "evaluation": "evaluation, audit or report after", "saving": "saving"}
STARTS = "starts.jsonl"
VERSIONS = ("mlm-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
STEPS, SAMPLES = "metrics.jsonl", "samples.jsonl"  # lines of later steps are removed when a run goes on


def record_start(
    workdir: Path,
    began: float,
    step: int,
    command: str,
    derived: Derived,
    device_kind: str,
    active: bool,
    branch: Path | None = None,
    rewound_from: int | None = None,
) -> float:
    """Adds a line to `starts.jsonl`: when, from which step, by which command, versions and devices.

    began: now, or a little before, in seconds since 1970; branch: the checkpoint of another run that it goes on from,
    `branch_from`; rewound_from: the step of a spike from which this one went back. Returns when the run started first.
    """
    if not active:
        return began
    now = datetime.datetime.fromtimestamp(began, datetime.UTC)
    truncate(workdir / STARTS, sys.maxsize)  # a line that was torn by a crash
    file = JsonLines(workdir / STARTS)
    file.write(
        {
            "time": now.isoformat(),
            "step": step,
            **({"branch_from": str(branch)} if branch else {}),
            **({"rewound_from": rewound_from} if rewound_from else {}),
            "command": command,
            "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS}},
            "system": platform.platform(),
            "platform": jax.default_backend(),
            "device_kind": device_kind,
            "devices": derived.devices,
            "processes": derived.processes,
            "mesh": derived.mesh,
        }
    )
    file.close()
    with open(workdir / STARTS, encoding="utf-8") as lines:
        first = json.loads(next(lines))["time"]
    return datetime.datetime.fromisoformat(first).timestamp()


class Logbook:
    """Metrics to `metrics.jsonl`, to TensorBoard and to the line of progress; samples to `samples.jsonl`.

    The metrics of a step are read from the device when the next one has been dispatched, so that it never waits.
    `begin` says which phase the steps are of. steps: of the whole run; done: the step it goes on from; watch: hears
    what begins.
    """

    def __init__(
        self,
        workdir: Path,
        steps: int,
        device_kind: str,
        progress: Progress,
        clock: Clock,
        done: int,
        watch: Watch,
    ):
        self.watch, self.done = watch, done  # the latest step that was dispatched
        self.workdir, self.steps, self.device_kind = workdir, steps, device_kind
        self.progress, self.clock = progress, clock
        self.files = [
            JsonLines(workdir / STEPS, progress.active),
            TensorBoard(workdir / "tensorboard", done, progress.active),
        ]
        self.samples = JsonLines(workdir / SAMPLES, progress.active)
        self.pending: tuple[int, dict, float, int] | None = None
        self.waited = 0.0
        self.told_full = False

    def begin(self, phase: Phase, done: int, several: bool) -> None:
        """The steps after `done` are of this phase; until the first of them is done, time counts as `starting`.

        several: whether the lines of steps name the phase. All processes call it together.
        """
        self.flush()
        self.clock.switch("starting")
        self.config, self.derived, self.manifest = phase.config, phase.derived, phase.rows.manifest
        self.step_flops = flops.of_run(phase.config, phase.derived)
        self.stream = phase.rows.stream
        self.phase = {"phase": phase.number, spikes.STREAM: self.stream.number} if several else {}
        self.detector = spikes.Detector(phase.config.watch)
        if done > phase.begin:
            before = spikes.latest(self.workdir / STEPS, phase.config.watch, phase.begin, done)
            for line in runtime.shared(before):
                self.detector.add(line)
        self.throughput = Throughput()
        self.seconds: collections.deque[float] = collections.deque(maxlen=LATEST_STEPS)
        self.waits: collections.deque[float] = collections.deque(maxlen=LATEST_STEPS)

    def next_batch(self, batches: Iterator) -> object:
        """The next batch; the time for which the device had to wait for it is that step's `time/input_wait`."""
        began, number = time.monotonic(), self.done + 1
        self.watch.mark(f"reading the rows of step {number:,}")
        batch = next(batches)
        first = self.clock.kind == "starting" and not self.pending
        self.watch.mark(f"step {number:,}{', for which a program is compiled,' if first else ''}", self.usual_seconds)
        idle = self.pending is None or self.pending[1]["loss"].is_ready()  # else the device was still at work
        self.waited = time.monotonic() - began if idle else 0.0
        if self.clock.kind == "training":
            self.clock.assign("input", self.waited)
        return batch

    def step(self, number: int, values: dict, place: int) -> None:
        """Takes the metrics of a step that was dispatched, and writes those of the step before.

        place: to which the stream is read by it. Raises Rewind where the one before completes a spike to go back from.
        """
        before, self.pending, self.done = self.pending, (number, values, self.waited, place), number
        if before:
            self.watch.mark(f"step {before[0]:,}", self.usual_seconds)
            self._write(*before)
        self.watch.mark(f"step {number:,}", self.usual_seconds)

    @property
    def usual_seconds(self) -> float | None:
        """Of a step, of late; None until it is known."""
        return self.throughput.seconds_left(1)

    def flush(self) -> None:
        """Waits for the pending step and writes it to the disk."""
        before, self.pending = self.pending, None
        if before:
            self._write(*before)
        for file in self.files:
            file.sync()

    @contextlib.contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """Something else than steps, after the pending one; its time does not count as that of a step."""
        self.flush()
        began = time.monotonic()
        self.watch.mark(f"{PAUSES[kind]} step {self.done:,}")
        with self.clock.during(kind):
            yield
        self.watch.mark(f"what follows {PAUSES[kind]} step {self.done:,}")
        self.throughput.exclude(time.monotonic() - began)

    def evaluation(self, number: int, results: dict[str, dict], samples: list[dict]) -> None:
        """Writes and shows the results of each held-out set, and what the model guesses on samples."""
        if samples:
            self.samples.write({"step": number, "samples": samples})
            self.samples.sync()
        if results:
            named = {f"eval/{name}/{key}": value for name, result in results.items() for key, value in result.items()}
            self._to_files({"step": number, **named})
        for name, result in results.items():
            self.progress.message(f"step {number:,}  {evaluation_line(name, result)}")
        if self.seconds:
            self.progress.message(pace_line(self.seconds, self.waits, self.clock.goodput))
            self.progress.message(memory_line(usage.memory()))
        for name, result in results.items():
            for key, value in result.items():
                if key.endswith("loss") and not math.isfinite(value):
                    raise FloatingPointError(f"step {number}: the {key} on {name} is {value}")

    def _by_objective(self, values: dict) -> dict:
        """`train/nsp/loss` and the like, of the objectives that this step trained."""
        causal = bool(values.get("causal_step", "causal/loss" in values))
        names = CAUSAL if causal else together(self.config.objectives)
        own = [key for key in values if key.rpartition("/")[0] in names]
        several = len(names_of(self.config.objectives)) > 1
        return {f"train/{key}": values[key] for key in own if several or not key.endswith("/weight")}

    def close(self) -> None:
        for file in (*self.files, self.samples):
            file.close()

    def _to_files(self, record: dict) -> None:
        for file in self.files:
            file.write(record)

    def _write(self, number: int, values: dict, waited: float, place: int) -> None:
        """Writes the metrics of a step, and shows them. Raises as `_check` and `_look` do."""
        values = jax.device_get(values)
        if self.clock.kind == "starting":  # compiled, and the first step is done
            self.clock.switch("training")
        seconds = self.throughput.add(values["tokens"])
        if seconds is not None:
            self.seconds.append(seconds)
            self.waits.append(waited)
        speed = self.throughput.tokens_per_second
        mfu = None
        if speed:
            places = self.derived.tokens_per_step
            mfu = flops.utilisation(self.step_flops, places, speed, self.derived.devices, self.device_kind)
        line = {
            "step": number,
            **self.phase,
            "epoch": place / self.derived.train_rows,
            "train/loss": values["loss"],
            "train/targets": values["targets"],
            "train/grad_norm": values["grad_norm"],
            "learning_rate": values["learning_rate"],
            "mask/rate": values["mask_rate"],
            "mask/dropped": values["mask_dropped"],
            "rows/hash": values["rows_hash"],
            spikes.PLACE: place,
            "mask/hash": values["mask_hash"],
            "throughput/tokens_per_second": speed,
            "throughput/mfu": mfu,
            **self._by_objective(values),
            **{name: value for name, value in values.items() if name.startswith("update/")},
            **({"train/skipped": values["skipped"]} if "skipped" in values else {}),
            "time/step": seconds,
            "time/input_wait": waited,
            "time/goodput": self.clock.goodput,
            **(self._memory(number) if number % MEMORY_EVERY == 0 or number == self.steps else {}),
        }
        self._to_files(line)
        self._check(number, values)
        self._look(line)
        left = self.throughput.seconds_left(self.steps - number)
        self.progress.update(number, values["loss"], values["learning_rate"], speed, left, mfu)

    def _memory(self, number: int) -> dict[str, int]:
        """What is in use, for a step's line; a warning, once, where a device is nearly full."""
        found = usage.memory()
        if usage.is_full(found) and not self.told_full:
            self.told_full = True
            self.progress.message(f"warning: step {number:,}: a device is nearly full\n{memory_line(found)}")
        return found

    def _look(self, line: dict) -> None:
        """What becomes of a spike: a warning that names its rows, or Rewind."""
        spike = self.detector.add(line)
        if not spike:
            return
        if self.config.watch.action == "rewind":
            raise spikes.Rewind(spike)
        self.progress.message(f"warning: step {spike.step:,}: {spike}")
        if self.progress.active and (place := self._place_before(spike)) is not None:
            end = line[spikes.PLACE]
            first, last = data.rows_at(self.manifest, self.config, self.stream, (place, end - 1))
            look = f"; preview --first_place={place} --rows={end - place} shows them" if not self.stream.number else ""
            rows = f"rows {first[0]:,} ... {last[0]:,}, places {place:,} to {end - 1:,} of the order"
            self.progress.message(f"         of {rows}{look}")

    def _place_before(self, spike: spikes.Spike) -> int | None:
        """Where the first step of a spike began to read, by the lines on the disk; None where they do not say."""
        lines = spikes.steps_in(self.workdir / STEPS, spike.first - 2, spike.first - 1)
        return next((line.get(spikes.PLACE) for line in lines), None)

    def _check(self, number: int, values: dict) -> None:
        """What becomes of a bad gradient: FloatingPointError or a warning, RunError where too many stood in a row."""
        config, found = self.config.optimizer, bad_gradient(values, self.config.optimizer)
        if not found:
            return
        if config.bad_gradients == "stop":
            raise FloatingPointError(f"step {number}: {found}")
        self.progress.message(f"warning: step {number:,} is left out: {found}; {values['skipped']:,} so far")
        if values["skipped_in_row"] > config.most_skipped:
            fix = f"{values['skipped_in_row']} updates in a row were left out, more than config.optimizer.most_skipped"
            raise RunError(f"step {number}: {fix} = {config.most_skipped}; of the last one {found}")


def bad_gradient(values: dict, config: OptimizerConfig) -> str | None:
    """What is wrong with the gradient of a step, by its metrics; None where nothing is."""
    for name in ("loss", "grad_norm"):
        if not math.isfinite(values[name]):
            return f"{name} is {values[name]}"
    if not values.get("skipped_in_row"):
        return None
    norm, usual = float(values["grad_norm"]), float(values["usual_norm"])
    if config.exploding and norm > config.exploding * usual:
        return f"grad_norm is {norm:.3g}, more than {config.exploding:g} times its running mean {usual:.3g}"
    return "its update is not finite"
