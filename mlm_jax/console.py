"""What a person reads on the terminal: the block at the start of a run, and the results of evaluations."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

from mlm_jax import config as config_module
from mlm_jax import flops, usage
from mlm_jax.compilation import Watched
from mlm_jax.config import Config, Derived, MaskConfig, OptimizerConfig, resolve
from mlm_jax.metrics import duration, short
from mlm_jax.optim import frozen
from mlm_jax.phases import Phase
from mlm_jax.timing import percentiles

BESIDE = ("unigram_loss", "chance", "entropy")  # what a result is measured by


def startup(phase: Phase, device_kind: str, rates: list[tuple], feedback: dict) -> str:
    """Devices, mesh, batch arithmetic, sizes that must fit each other, rates by layer, work, length of the run."""
    config, derived, manifest = phase.config, phase.derived, phase.rows.manifest
    mesh = " x ".join(f"{axis} {size}" for axis, size in derived.mesh.items())
    eval_rows = f"{derived.evaluation_rows:,} held-out rows"
    most, parallel = config.rows_per_device, derived.mesh["data"] * derived.mesh["fsdp"]
    per_device = f"{derived.rows_per_device} a device{f' (of at most {most})' * bool(most)}"
    batch = f"{config.batch_size:,} rows = {per_device} x {parallel} x accumulation {config.accumulation}"
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
            mask_line(config.mask, derived.capacity, feedback),
            steps_line(derived),
            *work_lines(flops.by_part(config, derived), derived, device_kind),
            f"parameters  {sum(row[-1] for row in rates):,}",
            *rates_by_layer(rates, config.optimizer),
        ]
    )


def work_lines(parts: Mapping[str, int], derived: Derived, device_kind: str) -> list[str]:
    """FLOPs of a step, and the peak of a device; where it is more than masked tokens, what they are spent on."""
    work, peak = sum(parts.values()), flops.peak(device_kind)
    line = (
        f"work        {short(work)}FLOP a step, {short(work / derived.tokens_per_step)}FLOP a place;"
        f" peak {f'{short(peak)}FLOP/s a device' if peak else 'not known, so no MFU'}"
    )
    shares = sorted(((part / work, name) for name, part in parts.items()), reverse=True)
    spent = ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= 0.005)
    return [line, f"            {spent}"] if len(parts) > 2 else [line]


def steps_line(derived: Derived) -> str:
    """The length of the run in all units, and of what the learning rate has at its ends."""
    cooldown = f", cool-down {derived.cooldown_steps:,}" if derived.cooldown_steps else ""
    length = f"{derived.steps:,} = {derived.epochs:.2f} epochs = {short(derived.tokens)} tokens"
    return f"steps       {length}, warm-up {derived.warmup_steps:,}{cooldown}"


def phase_lines(phases: Sequence[Phase]) -> list[str]:
    """What each phase changes, and which rows it reads; nothing where there is one only."""
    lines = []
    for before, phase in zip([None, *phases], phases if len(phases) > 1 else []):
        changed = config_module.changes(before.config, phase.config) if before else []
        rows = f"{phase.rows.folder}, {phase.derived.train_rows:,} rows of {phase.config.row_length}"
        what = "; ".join([rows, *changed]) if before is None or before.rows != phase.rows else "; ".join(changed)
        lines.append(f"phases[{phase.number}]   steps {phase.begin + 1:,} to {phase.end:,}: {what}")
    return lines


def mask_line(mask: MaskConfig, capacity: int, feedback: dict) -> str:
    """Rate and its schedule, unit, priority, regime, slots. feedback: as `feedback.start` gives it."""
    if mask.schedule == "adaptive":
        mask = dataclasses.replace(mask, rate=float(feedback["rate"]))
    ends = {"constant": "", "parts": f" in parts {mask.parts}", "adaptive": " (adaptive)"}
    schedule = ends.get(mask.schedule, f" to {mask.end_rate or 0:.0%} ({mask.schedule})")
    priority = "" if mask.priority == "uniform" else f" in the order of {mask.priority}"
    what = f"{mask.rate:.0%}{schedule} of the tokens by {mask.unit}{priority}"
    return f"mask        {what}, {mask.regime}, {capacity} slots a row"


def fill_of(manifest: dict) -> float:
    """Share of the places of the training rows that hold a token."""
    splits = [corpus["splits"]["train"] for corpus in manifest["corpora"]]
    return sum(s["tokens"] for s in splits) / (sum(s["rows"] for s in splits) * manifest["row_length"])


def rates_by_layer(rates: list[tuple], optimizer: OptimizerConfig) -> list[str]:
    """One line for neighbouring layers that have the same rates and decays; the whole table is in `print_config`."""
    layers: dict[str, list[tuple]] = {}
    for path, rate, decay, size in rates:
        part, *rest = path.split("/")
        row = (rate, decay, size, frozen(path, optimizer))
        layers.setdefault(f"layer {rest[0]}" if part == "layers" else part, []).append(row)
    lines: list[tuple[list[str], str, int]] = []
    for name, rows in layers.items():
        trained = [row for row in rows if not row[3]]
        peak = ", ".join(f"{rate:.3g}" for rate in sorted({row[0] for row in trained}))
        decay = max((row[1] for row in trained), default=0.0)
        text = f"rate {peak}, decay {decay:.3g} (0 on biases and norm scales)" if trained else "frozen"
        if trained and len(trained) < len(rows):
            text += f", {sum(row[2] for row in rows if row[3]):,} frozen"
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


def print_config(config: Config, derived: Sequence[Derived], rates: list[tuple]) -> str:
    """The whole config, all derived numbers, and every parameter's peak learning rate and decay, as JSON.

    derived: of each phase; `derived` shows that of the first, `phases` all where there are phases.

    Switches of the model that the config leaves to its family are shown as the family has them.
    """
    config = dataclasses.replace(config, model=resolve(config.model))
    names = ("learning_rate", "weight_decay", "values", "frozen")
    table = {path: dict(zip(names, (*row, frozen(path, config.optimizer)))) for path, *row in rates}
    each = list(map(dataclasses.asdict, derived))
    of_phases = {"phases": each} if config.phases else {}
    shown = {"config": dataclasses.asdict(config), "derived": each[0], **of_phases, "parameters": table}
    return json.dumps(shown, indent=2)


def evaluation_line(name: str, result: dict[str, float | int]) -> str:
    """One set's results: of masked tokens beside those of guessing by unigram frequency, then of other objectives."""
    parts = []
    if "loss" in result:
        shuffled = f", shuffled context {result['shuffled_loss']:.3f}" if "shuffled_loss" in result else ""
        parts.append(
            f"loss {result['loss']:.3f} (unigram {result['unigram_loss']:.3f}{shuffled}), perplexity"
            f" {result['perplexity']:.2f}, accuracy {result['accuracy']:.1%}, {short(result['targets'])} targets"
        )
    for prefix in [key.removesuffix("loss") for key in result if re.fullmatch(r"[a-z]+_loss", key)]:
        of = prefix.rstrip("_")
        if f"{prefix}targets" in result:
            beside = [f"{key.partition('_')[0]} {result[prefix + key]:.3f}" for key in BESIDE if prefix + key in result]
            known = f" ({', '.join(beside)})" if beside else ""
            accuracy, targets = result[f"{prefix}accuracy"], short(result[f"{prefix}targets"])
            parts.append(f"{of} loss {result[f'{prefix}loss']:.3f}{known}, accuracy {accuracy:.1%} of {targets}")
    return f"eval {name}: {'; '.join(parts)}"


def pace_line(seconds: Sequence[float], waits: Sequence[float], goodput: float) -> str:
    """Percentiles of step times, the share of them that waited for input, and the goodput."""
    times = ", ".join(f"{name} {1000 * value:,.0f} ms" for name, value in percentiles(seconds).items())
    return f"      steps: {times}; {sum(waits) / sum(seconds):.1%} waiting for input; goodput {goodput:.1%}"


def time_line(elapsed: float, shares: Mapping[str, float]) -> str:
    """Where the time since the first start went."""
    parts = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items() if share >= 0.0005)
    return f"time  {duration(elapsed)} since the first start: {parts}"


def phase_line(phase: Phase, before: Phase, rows_read: int) -> str:
    """What is different from this phase on."""
    changed = "; ".join(config_module.changes(before.config, phase.config))
    rows = f"reads {phase.rows.folder} from row {rows_read:,} of its stream on"
    return f"phases[{phase.number}] begins after step {phase.begin:,}: {changed}; {rows}"


def compiled_line(phase: int, step: Watched, seconds: float | None) -> str:
    """How long the step of a phase took to compile, and the memory that it needs.

    seconds: since the program began; None: it went on from another.
    """
    cached = f" ({step.hits} programs came from the cache)" if step.hits else ""
    needs = f"; it needs {short(size)}B of a device" if (size := step.memory_bytes()) else ""
    if seconds is None:
        return f"phases[{phase}]: compiled in {step.seconds:.1f} s{cached}{needs}"
    return f"first step done {seconds:.1f} s after the start, {step.seconds:.1f} s of them compiling it{cached}{needs}"


def memory_line(found: Mapping[str, int]) -> str:
    """What `usage.memory` found, as far as it is known."""
    device = ""
    if usage.PEAK in found:
        limit = f" of {short(found[usage.LIMIT])}B" if usage.LIMIT in found else ""
        device = f"at most {short(found[usage.PEAK])}B{limit} on a device, "
    now = f"{short(found[usage.HOST])}B, " if usage.HOST in found else ""
    return f"      memory: {device}on the host {now}at most {short(found[usage.HOST_PEAK])}B"


def first_rows_line(rows: Sequence[Sequence[int]]) -> str:
    """The first rows that each process reads, so that one sees that they differ."""
    shown = (f"process {i}: {' '.join(map(str, some))} ..." for i, some in enumerate(rows))
    return f"first rows  {'; '.join(shown)}"


def since(saved: Mapping, config: Config, derived: Derived) -> list[str]:
    """What differs from a checkpoint: keys of the config, with the mesh and accumulation that came out, and processes.

    saved: facts of the checkpoint; derived: now, in the phase in which it was made.
    """
    before, now = saved["config"], json.loads(config_module.to_json(config))
    if "placement" in saved:
        before, now = _placed(before, saved["placement"]), _placed(now, placement(derived))
    return changes(before, now)


def placement(derived: Derived) -> dict:
    """What a checkpoint notes of the devices that it was made on, for `since`."""
    return {"mesh": derived.mesh, "accumulation": derived.accumulation, "processes": derived.processes}


def _placed(config: Mapping, placement: Mapping) -> dict:
    return {**config, **placement, "mesh": {**config["mesh"], **placement["mesh"]}}


def changes(before: Mapping, now: Mapping, prefix: str = "") -> list[str]:
    """A line for each key of a config that differs, such as `mask.rate was 0.15, is 0.3`."""
    lines = []
    for key in now:
        name = f"{prefix}{key}"
        if key not in before:
            lines.append(f"{name} is new: {now[key]!r}")
        elif isinstance(now[key], Mapping):
            lines += changes(before[key], now[key], f"{name}.")
        elif before[key] != now[key]:
            lines.append(f"{name} was {before[key]!r}, is {now[key]!r}")
    return lines
