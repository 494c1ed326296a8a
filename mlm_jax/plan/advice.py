"""What to change before paying: lines that name numbers, of a plan that is compiled."""

import dataclasses
from collections.abc import Callable

from mlm_jax import flops
from mlm_jax.config import capacity, is_local, resolve, together
from mlm_jax.config.mask import largest_rate
from mlm_jax.metrics import short
from mlm_jax.plan.collectives import SENT
from mlm_jax.plan.outcome import Plan, gib
from mlm_jax.sharding import between_slices

LANES = 128  # columns that a TPU works on at a time; 256 wide are the matrix units of v6e and 7x
WIDE_UNITS = ("TPU v6", "TPU7", "TPU v7")
MOST_KEPT = 5
MATTERS = 0.005  # shares of a step below it are not worth a line


def advise(plan: Plan) -> list[str]:
    """The lines that have something to say, in the order of the table below."""
    return [line for line in (rule(plan) for rule in RULES) if line]


def microbatch(plan: Plan) -> str | None:
    """What fits, and the accumulation that goes with it."""
    now, limit, found = plan.compiled.derived.rows_per_device, gib(plan.topology.limit), plan.largest
    if found is None:
        if plan.compiled.fits:
            return None
        fewer = "lower rows_per_device" if plan.config.rows_per_device else "raise accumulation (fewer rows at a time)"
        return (
            f"{now} rows a device do not fit, they need {gib(plan.compiled.memory.needs)} of {limit}: {fewer},"
            " set model.remat, or raise mesh.fsdp (the state in shards)"
        )
    by_rows = plan.config.rows_per_device
    setting = f"--config.rows_per_device={found.rows}" if by_rows else f"--config.accumulation={found.accumulation}"
    if found.next_rows is None:
        more = "that is all it has of a batch"
    else:
        needs = f"{'need' if found.next_compiled else 'would need about'} {gib(found.next_needs)}"
        more = f"{found.next_rows} {needs}"
    fits = f"{found.rows} rows a device at a time fit ({gib(found.needs)} of {limit}, compiled; {more})"
    if found.rows == now:
        return f"{fits}: the config has it"
    return f"{fits}, the config has {now}: {setting} gives the same batch_size"


def kept(plan: Plan) -> str | None:
    """The largest arrays that loops over layers and microbatches keep."""
    large = [(name, size) for name, size in plan.carried[:MOST_KEPT] if size > 0.05 * plan.compiled.memory.needs]
    if not large:
        return None
    listed = ", ".join(f"{name} {gib(size)}" for name, size in large)
    return f"of {gib(plan.compiled.memory.needs)} loops keep, most of it for the backward pass: {listed}"


def accumulated(plan: Plan) -> str | None:
    """What each further microbatch costs whatever its size: gradients are read, added and written."""
    k, parameters = plan.config.accumulation, plan.compiled.memory.parameters
    if k == 1 or plan.seconds is None:
        return None
    moved = 3 * parameters * k
    share = moved / plan.topology.chip.memory_bandwidth / plan.seconds.step
    if share < MATTERS:
        return None
    return f"accumulation {k} adds up gradients {k} times: {gib(moved)} to and from memory, {share:.1%} of the step"


def slices(plan: Plan) -> str | None:
    """What crosses the slower links between slices, in each of which stands a part of the mesh."""
    count, network = plan.topology.slices, plan.topology.chip.network
    if count == 1:
        return None
    outer = between_slices(plan.compiled.derived.mesh, count)
    inside = [f"mesh.{axis}" for axis, parts in outer.items() if parts > 1 and axis != "data"]
    if inside:
        return (
            f"{' and '.join(inside)} crosses the {count} slices, whose links are much slower than those inside: make"
            f" mesh.data a multiple of {count}"
        )
    mesh = plan.compiled.derived.mesh
    sent = SENT["all-reduce"](count) * plan.compiled.memory.parameters * count / mesh["data"]
    line = f"data alone crosses the {count} slices: the gradient's reduction sends {gib(sent)} from a chip to others"
    took = f", {sent / network * 1e3:.3g} ms at the published {network / 1e9:.3g} GB/s" if network else ""
    return f"{line}{took}, which the roofline does not know"


def slots(plan: Plan) -> str | None:
    """Slots of the head and the last layer that no target fills."""
    config, m = plan.config, plan.compiled.derived.capacity
    targets = largest_rate(config.mask) * config.row_length * plan.fill
    spent = 1 - _step(plan, m=round(targets)) / plan.flops
    if spent < MATTERS:
        return None
    why = "the margin for rows with more"
    least = capacity(dataclasses.replace(config.mask, max_rate=None), config.row_length, config.data.max_segments)
    if least < m:
        why = f"mask.max_rate asks for them, {least} would be enough"
    return f"{m} slots a row for about {targets:.0f} targets: {spent:.1%} of the FLOPs go into empty ones ({why})"


def vocabulary(plan: Plan) -> str | None:
    """Columns of the logits that stand for no id."""
    rows, size = plan.compiled.derived.vocab_rows, plan.compiled.derived.vocab_size
    spent = 1 - _step(plan, vocab_rows=size) / plan.flops
    if spent < MATTERS:
        return None
    return f"{rows - size} of {rows:,} columns of the logits stand for no id: {spent:.1%} of the FLOPs"


def head(plan: Plan) -> str | None:
    """The share of the vocabulary head, where it is large."""
    config, derived = plan.config, plan.compiled.derived
    spent = flops.by_part(config, derived).get("vocabulary", 0) / plan.flops
    if spent < 0.05:
        return None
    places = [f"{derived.capacity} slots"] * bool({"mlm", "generator"}.intersection(together(config.objectives)))
    places += [f"all {config.row_length} places in causal steps"] * (config.objectives.causal.ratio > 0)
    where = ", ".join([*places, f"{derived.vocab_rows:,} columns"])
    return f"the vocabulary head takes {spent:.1%} of the FLOPs ({where})"


def padding(plan: Plan) -> str | None:
    """Places of rows that hold no token."""
    if 1 - plan.fill < MATTERS:
        return None
    lost = plan.compiled.derived.tokens_per_step * (1 - plan.fill)
    return f"{1 - plan.fill:.1%} of the places hold no token (assumed: --fill), {short(lost)} a step"


def recomputation(plan: Plan) -> str | None:
    """Products that the program has beyond forward and backward pass."""
    more = plan.compiled.traced_flops / plan.flops - 1
    if more < MATTERS:
        return None
    causal = plan.config.objectives.causal.ratio > 0
    what = "recomputation, or keys outside a window" + ", or keys that stand later in causal steps" * causal
    return f"the program has {more:+.1%} FLOPs beside forward and backward pass, such as {what}"


def heads(plan: Plan) -> str | None:
    """Attention products whose sums are shorter than a matrix unit of a TPU is wide."""
    if not plan.topology.kind.startswith("TPU"):
        return None
    model = resolve(plan.config.model)
    size = model.width // model.heads
    wide = 2 * LANES if plan.topology.kind.startswith(WIDE_UNITS) else LANES
    if size >= wide:
        return None
    windows = [model.local_window if is_local(model, depth) else 0 for depth in range(model.layers - 1)]
    share = 3 * plan.config.batch_size * 4 * _pairs(plan, windows) * model.width / plan.flops
    return (
        f"heads of {size} fill {size / wide:.0%} of a matrix unit {wide} wide: attention's {share:.1%} of the FLOPs run"
        " at that part of the peak at best"
    )


def _pairs(plan: Plan, windows: list[int]) -> float:
    """Pairs of query and key that a row has in a step, over its passes through the model's layers but the last."""
    t, ratio = plan.config.row_length, plan.config.objectives.causal.ratio
    both, causal = (sum(flops.attended(t, window, kind) for window in windows) for kind in (False, True))
    passes = {"masked rows", "other view", "discriminator"} & flops.by_part(plan.config, plan.compiled.derived).keys()
    return (1 - ratio) * len(passes) * both + ratio * causal


def widths(plan: Plan) -> str | None:
    """Axes that a TPU pads to whole lanes."""
    if not plan.topology.kind.startswith("TPU"):
        return None
    model = plan.config.model
    odd = [
        f"model.{name} = {value}" for name, value in (("width", model.width), ("hidden", model.hidden)) if value % LANES
    ]
    return f"{' and '.join(odd)}: no multiple of {LANES}, so that arrays are padded" if odd else None


def bound(plan: Plan) -> str | None:
    """Where the time of the roofline goes."""
    if plan.seconds is None:
        return None
    s = plan.seconds
    whole = s.products + s.others + s.links
    at_peak = plan.device_flops / plan.topology.chip.flops
    waits = (
        f" ({at_peak / s.products:.0%} of that at the peak: they wait for memory)" if at_peak < 0.9 * s.products else ""
    )
    return (
        f"by the roofline {s.products / whole:.0%} of a step is matrix products{waits}, {s.others / whole:.0%} what"
        f" else is read and written, {s.links / whole:.0%} collectives"
    )


def scores(plan: Plan) -> str | None:
    """What attention's scores move, which a kernel that never writes them would save."""
    if plan.moved is None:
        return None
    share = plan.moved.scores / (plan.moved.products + plan.moved.others)
    if share < 0.05:
        return None
    t = plan.config.row_length
    return (
        f"{share:.0%} of all that is moved to and from memory ({gib(plan.moved.scores)}) is by instructions that read"
        f" or write attention scores or probabilities [rows, heads, {t}, {t}]"
    )


def _step(plan: Plan, m: int | None = None, vocab_rows: int | None = None) -> int:
    """FLOPs of a step with another number of slots or columns."""
    derived = plan.compiled.derived
    changed = dataclasses.replace(derived, capacity=m or derived.capacity, vocab_rows=vocab_rows or derived.vocab_rows)
    return flops.of_run(plan.config, changed)


RULES: tuple[Callable[[Plan], str | None], ...] = (
    microbatch,
    kept,
    bound,
    scores,
    accumulated,
    slices,
    recomputation,
    head,
    slots,
    vocabulary,
    padding,
    heads,
    widths,
)
