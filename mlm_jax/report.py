"""What a person reads of a run: the block at its start, and the results of evaluations."""

import dataclasses
import json
import math
import time
from pathlib import Path

import jax

from mlm_jax import flops
from mlm_jax.config import Config, Derived
from mlm_jax.metrics import JsonLines, Progress, Throughput, short


def startup(config: Config, derived: Derived, device_kind: str, rates: list[tuple], manifest: dict) -> str:
    """Devices, mesh, batch arithmetic, sizes that must fit each other, rates by layer, length of the run."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in derived.mesh.items())
    eval_rows = f"{derived.evaluation_rows:,} held-out rows"
    per_device, parallel = derived.rows_per_device, derived.mesh["data"] * derived.mesh["fsdp"]
    batch = f"{config.batch_size:,} rows = {per_device} a device x {parallel} x accumulation {config.accumulation}"
    vocabulary = manifest["tokenizer"]["vocab_size"]
    fill = fill_of(manifest)
    return "\n".join(
        [
            f"devices     {derived.devices} x {device_kind}, {derived.processes} process(es), mesh {mesh}",
            f"batch       {batch} = {derived.tokens_per_step:,} places of row_length {config.row_length}",
            f"rows        {derived.train_rows:,} rows, {fill:.1%} full, {eval_rows}; positions up to"
            f" {config.model.max_positions}",
            f"vocabulary  {vocabulary:,} ids of the tokenizer, {derived.vocab_size:,} of the model,"
            f" {derived.vocab_rows:,} rows inside",
            f"mask        {config.mask.rate:.0%} of the tokens by {config.mask.unit}, {config.mask.regime}, at most"
            f" {derived.capacity} a row",
            f"steps       {config.steps:,} = {derived.epochs:.2f} epochs, warm-up {derived.warmup_steps:,}",
            f"parameters  {sum(row[-1] for row in rates):,}",
            *rates_by_layer(rates),
        ]
    )


def fill_of(manifest: dict) -> float:
    """Share of the places of the training rows that hold a token."""
    splits = [corpus["splits"]["train"] for corpus in manifest["corpora"]]
    return sum(s["tokens"] for s in splits) / (sum(s["rows"] for s in splits) * manifest["row_length"])


def rates_by_layer(rates: list[tuple]) -> list[str]:
    """One line for neighbouring layers that have the same rates and decays; the whole table is in `print_config`."""
    layers: dict[str, list[tuple]] = {}
    for path, rate, decay, size in rates:
        part, *rest = path.split("/")
        layers.setdefault(f"layer {rest[0]}" if part == "layers" else part, []).append((rate, decay, size))
    lines: list[tuple[list[str], str, int]] = []
    for name, rows in layers.items():
        peak = ", ".join(f"{rate:.3g}" for rate in sorted({row[0] for row in rows}))
        decay = max(row[1] for row in rows)
        text = f"rate {peak}, decay {decay:.3g} (0 on biases and norm scales)"
        size = sum(row[2] for row in rows)
        if lines and lines[-1][1] == text and name.startswith("layer") and lines[-1][0][0].startswith("layer"):
            names, _, before = lines[-1]
            lines[-1] = (names + [name], text, before + size)
        else:
            lines.append(([name], text, size))
    shown = []
    for names, text, size in lines:
        label = names[0] if len(names) == 1 else f"layers {names[0][6:]}-{names[-1][6:]}"
        shown.append(f"  {label:12} {size:>13,}  {text}")
    return shown


def print_config(config: Config, derived: Derived, rates: list[tuple]) -> str:
    """The whole config, all derived numbers, and every parameter's peak learning rate and decay, as JSON."""
    table = {path: {"learning_rate": rate, "weight_decay": decay, "values": size} for path, rate, decay, size in rates}
    shown = {"config": dataclasses.asdict(config), "derived": dataclasses.asdict(derived), "parameters": table}
    return json.dumps(shown, indent=2)


def evaluation_line(name: str, result: dict[str, float | int]) -> str:
    """One set's result beside that of guessing by unigram frequency."""
    shuffled = f", shuffled context {result['shuffled_loss']:.3f}" if "shuffled_loss" in result else ""
    return (
        f"eval {name}: loss {result['loss']:.3f} (unigram {result['unigram_loss']:.3f}{shuffled}),"
        f" perplexity {result['perplexity']:.2f}, accuracy {result['accuracy']:.1%}, {short(result['targets'])} targets"
    )


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
