"""What a run would need on TPUs or GPUs that are not here: its real training step, compiled ahead of time and read."""

import dataclasses
from collections.abc import Callable

from mlm_jax import flops
from mlm_jax.config import Config, with_accumulation
from mlm_jax.plan import ahead, collectives, hlo, roofline
from mlm_jax.plan.advice import advise
from mlm_jax.plan.ahead import Compiled, Topology, check, set_environment, topology
from mlm_jax.plan.fit import Largest, largest
from mlm_jax.plan.outcome import Moved, Plan, numbers
from mlm_jax.plan.table import show
from mlm_jax.tokenizer import Vocabulary

__all__ = ["Plan", "advise", "check", "numbers", "plan", "set_environment", "show", "topology"]


def plan(
    config: Config,
    vocabulary: Vocabulary,
    on: Topology,
    fill: float,
    utilisation: float,
    search: bool,
    say: Callable[[str], None],
) -> Plan:
    """Compiles the step of a config for a topology and reads what it needs.

    fill: share of the places that hold a token; utilisation: an MFU to reckon with beside the roofline; search: whether
    to look for the largest microbatch, by more compilations; say: takes a line before each compilation.
    Raises ConfigError for a config that the topology cannot have.
    """

    def compile_with(accumulation: int) -> Compiled:
        changed = dataclasses.replace(config, accumulation=accumulation, rows_per_device=0)
        rows = check(changed, vocabulary, on).rows_per_device
        say(f"{on.name}: compiling with {rows} rows a device, accumulation {accumulation}")
        return ahead.compile_step(changed, vocabulary, on)

    config = with_accumulation(config, check(config, vocabulary, on).accumulation)
    compiled = compile_with(config.accumulation)
    found = largest(config, compiled, on.limit, compile_with) if search else None
    return read(config, on, compiled, fill, utilisation, found)


def read(
    config: Config, on: Topology, compiled: Compiled, fill: float, utilisation: float, found: Largest | None
) -> Plan:
    """A plan from what was compiled; found: the largest microbatch, or None."""
    of_step = flops.of_run(config, compiled.derived)
    program, exchanged, moved, seconds = compiled.program, [], None, None
    if program is not None:
        exchanged = collectives.read(program, len(on.devices))
        t = config.row_length
        moved = Moved(*hlo.moved(program), hlo.touching(program, rf"\[[\d,]*\b{t},{t}\]"))
        sent = sum(one.sent for one in exchanged)
        # products within kernels are not seen in the traced program
        device_flops = max(compiled.traced_flops, of_step) / len(on.devices)
        seconds = roofline.seconds(on.chip, device_flops, moved.products, moved.others, sent, hlo.cycles(program))
    return Plan(
        config=config,
        topology=on,
        compiled=compiled,
        fill=fill,
        utilisation=utilisation,
        flops=of_step,
        collectives=exchanged,
        carried=hlo.carried(program) if program else [],
        moved=moved,
        seconds=seconds,
        unknown_loops=len(program.unknown_loops) if program else 0,
        largest=found,
    )
