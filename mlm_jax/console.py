"""What a person reads on the terminal: the block at the start of a run, and the results of evaluations."""

import dataclasses
import json

from mlm_jax.config import Config, Derived
from mlm_jax.metrics import short


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
