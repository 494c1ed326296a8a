"""A plan as a person reads it: one column for each topology, then the advice."""

from collections.abc import Callable

from mlm_jax.metrics import duration, short
from mlm_jax.plan.collectives import KINDS, totals
from mlm_jax.plan.outcome import Plan, gib
from mlm_jax.plan.roofline import SECONDS_PER_DAY

Cell = Callable[[Plan], str]
NOTHING = "-"


def show(plans: list[Plan], advice: list[list[str]]) -> str:
    """The table, what its numbers assume, and the advice for each topology."""
    lines = [_line("", [plan.topology.name for plan in plans])]
    for title, rows in SECTIONS:
        cells = [(name, [cell(plan) for plan in plans]) for name, cell in rows]
        kept = [(name, row) for name, row in cells if set(row) != {NOTHING}]
        lines += [title] * bool(kept) + [_line(f"  {name}", row) for name, row in kept]
    lines += ["", *ASSUMED, *_odd(plans)]
    for plan, some in zip(plans, advice):
        lines += ["", f"{plan.topology.name}:", *(f"  - {line}" for line in some)]
    return "\n".join(lines)


def _line(name: str, cells: list[str]) -> str:
    return f"{name:26}" + "".join(f"{cell:>22}" for cell in cells)


def _odd(plans: list[Plan]) -> list[str]:
    return [
        f"{plan.topology.name}: of {plan.unknown_loops} loops it was not found how often they run; they count once."
        for plan in plans
        if plan.unknown_loops
    ]


def _fits(plan: Plan) -> str:
    needs, limit = plan.compiled.memory.needs, plan.topology.limit
    return f"{needs / limit:.0%}" if plan.compiled.fits else "DOES NOT FIT"


def _mesh(plan: Plan) -> str:
    return " ".join(f"{axis} {size}" for axis, size in plan.compiled.derived.mesh.items() if size > 1) or "one device"


def _collective(kind: str) -> Cell:
    def cell(plan: Plan) -> str:
        total = totals(plan.collectives).get(kind)
        return NOTHING if total is None else f"{round(total.count, 1):,} x, {gib(total.size)}"

    return cell


def _of(part: str, form: Callable[[float], str]) -> Cell:
    """A cell of a field `a.b` of a plan; none where it is None."""

    def cell(plan: Plan) -> str:
        value = plan
        for name in part.split("."):
            value = None if value is None else getattr(value, name)
        return NOTHING if value is None else form(value)

    return cell


def seconds(value: float | int) -> str:
    """Three figures of a time: 4.12 s, 31.5 ms."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _length(step_seconds: Callable[[Plan], float | None]) -> Cell:
    """All steps, in days or, where it is less than one, as on a clock."""

    def cell(plan: Plan) -> str:
        found = step_seconds(plan)
        if found is None:
            return NOTHING
        whole = plan.config.steps * found
        return duration(whole) if whole < SECONDS_PER_DAY else f"{whole / SECONDS_PER_DAY:.3g} days"

    return cell


SECTIONS: tuple[tuple[str, tuple[tuple[str, Cell], ...]], ...] = (
    (
        "machine",
        (
            ("devices", lambda plan: f"{len(plan.topology.devices)} x {plan.topology.kind}"),
            ("mesh", _mesh),
            ("rows a device at a time", lambda plan: f"{plan.compiled.derived.rows_per_device}"),
            ("accumulation", lambda plan: f"{plan.config.accumulation}"),
        ),
    ),
    (
        "memory of a device",
        (
            ("parameters", _of("compiled.memory.parameters", gib)),
            ("optimizer state", _of("compiled.memory.optimizer", gib)),
            ("batch", _of("compiled.memory.batch", gib)),
            ("temporaries, program", _of("compiled.memory.rest", gib)),
            ("needs in all", _of("compiled.memory.needs", gib)),
            ("limit", _of("topology.limit", gib)),
            ("used", _fits),
        ),
    ),
    (
        "work of a step",
        (
            ("FLOPs", _of("flops", short)),
            ("FLOPs of a device", _of("device_flops", short)),
            ("moved, products", _of("moved.products", gib)),
            ("moved, others", _of("moved.others", gib)),
        ),
    ),
    ("collectives of a step", tuple((kind, _collective(kind)) for kind in dict.fromkeys(KINDS.values()))),
    (
        "time of a step",
        (
            ("matrix products", _of("seconds.products", seconds)),
            ("other instructions", _of("seconds.others", seconds)),
            ("compiler's estimate", _of("seconds.cycles", seconds)),
            ("links", _of("seconds.links", seconds)),
            ("step, roofline", _of("seconds.step", seconds)),
            ("MFU, roofline", _of("reachable", lambda value: f"{value:.1%}")),
            ("step, assumed MFU", lambda plan: f"{seconds(plan.assumed_seconds)} at {plan.utilisation:.0%}"),
        ),
    ),
    (
        "the run",
        (
            ("steps", lambda plan: f"{plan.config.steps:,}"),
            ("tokens", lambda plan: short(plan.config.steps * plan.tokens_per_step)),
            ("time, roofline", _length(lambda plan: plan.seconds and plan.seconds.step)),
            ("time, assumed MFU", _length(lambda plan: plan.assumed_seconds)),
        ),
    ),
    (
        "compilation here",
        (
            ("trace and lower", _of("compiled.lower_seconds", seconds)),
            ("compile", _of("compiled.compile_seconds", seconds)),
        ),
    ),
)
ASSUMED = (
    "The roofline takes matrix products at the chip's published peak, memory and links at their published bandwidth",
    "(all links of a chip at once), one after another; or the compiler's estimate of cycles for the first two, where",
    "that is longer. Nothing of it is measured; input, evaluation and checkpoints are left out: it is a bound, and the",
    "assumed MFU (--mfu) a guess. FLOPs are forward and backward pass by formula, MFU is in real tokens. Collectives",
    "inside loops count as often as they run; bytes are of the whole arrays, on one device.",
)
