"""The metrics of steps and evaluations on their way from the device to files and to the terminal."""

import math
import time
from pathlib import Path

import jax

from mlm_jax import flops
from mlm_jax.config import Config, Derived
from mlm_jax.console import evaluation_line
from mlm_jax.metrics import JsonLines, Progress, Throughput


class Logbook:
    """Metrics of steps and evaluations, to `metrics.jsonl` and to the line of progress.

    The metrics of a step are read from the device when the next one has been dispatched, so that it never waits.
    rows_before: rows read before step 1, were all steps of the present batch size.
    """

    def __init__(
        self, workdir: Path, config: Config, derived: Derived, device_kind: str, progress: Progress, rows_before: int
    ):
        self.config, self.derived, self.device_kind, self.progress = config, derived, device_kind, progress
        self.rows_before = rows_before
        self.log = JsonLines(workdir / "metrics.jsonl", progress.active)
        self.throughput = Throughput()
        self.pending: tuple[int, dict] | None = None
        self.step_flops = flops.step(
            config.model,
            config.batch_size,
            config.row_length,
            derived.capacity,
            derived.capacity,
            derived.vocab_rows,
        )
        self.resumed_at = time.monotonic()

    def step(self, number: int, values: dict) -> None:
        """Takes the metrics of a step that was dispatched, and writes those of the step before."""
        before, self.pending = self.pending, (number, values)
        if before:
            self._write(*before)

    def flush(self) -> None:
        """Waits for the pending step and writes it to the disk."""
        before, self.pending = self.pending, None
        if before:
            self._write(*before)
        self.log.sync()
        self.resumed_at = time.monotonic()

    def evaluation(self, number: int, results: dict[str, dict]) -> None:
        """Writes and shows the results of each held-out set; the time since `flush` does not count as training."""
        self.throughput.exclude(time.monotonic() - self.resumed_at)
        if not results:  # no held-out rows
            return
        named = {f"eval/{name}/{key}": value for name, result in results.items() for key, value in result.items()}
        self.log.write({"step": number, **named})
        for name, result in results.items():
            self.progress.message(f"step {number:,}  {evaluation_line(name, result)}")
            if not math.isfinite(result["loss"]):
                raise FloatingPointError(f"step {number}: the loss on {name} is {result['loss']}")

    def close(self) -> None:
        self.log.close()

    def _write(self, number: int, values: dict) -> None:
        """Raises FloatingPointError, naming the step, where its loss is not finite."""
        values = jax.device_get(values)
        self.throughput.add(values["tokens"])
        speed = self.throughput.tokens_per_second
        mfu = None
        if speed:
            places = self.derived.tokens_per_step
            mfu = flops.utilisation(self.step_flops, places, speed, self.derived.devices, self.device_kind)
        rows_read = self.rows_before + number * self.config.batch_size
        self.log.write(
            {
                "step": number,
                "epoch": rows_read / self.derived.train_rows,
                "train/loss": values["loss"],
                "train/targets": values["targets"],
                "train/grad_norm": values["grad_norm"],
                "learning_rate": values["learning_rate"],
                "mask/rate": values["mask_rate"],
                "rows/hash": values["rows_hash"],
                "mask/hash": values["mask_hash"],
                "throughput/tokens_per_second": speed,
                "throughput/mfu": mfu,
                "train/mlm/loss": values["mlm/loss"],
                "train/mlm/accuracy": values["mlm/accuracy"],
            }
        )
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                raise FloatingPointError(f"step {number}: {name} is {values[name]}")
        left = self.throughput.seconds_left(self.config.steps - number)
        self.progress.update(number, values["loss"], values["learning_rate"], speed, left)
