"""What a plan finds for one topology, and the same as numbers for programs."""

import dataclasses
from typing import NamedTuple

from mlm_jax.config import Config
from mlm_jax.plan import roofline
from mlm_jax.plan.ahead import Compiled, Topology
from mlm_jax.plan.collectives import Collective, totals
from mlm_jax.plan.fit import Largest
from mlm_jax.plan.roofline import Seconds

MOST_SHOWN = 12  # collectives one by one, in the numbers for programs


class Moved(NamedTuple):
    """Bytes that a device moves to and from memory in a step."""

    products: int  # by instructions with a matrix product
    others: int
    scores: int  # of both, by instructions that touch arrays [.., t, t] of attention scores or probabilities


@dataclasses.dataclass(frozen=True)
class Plan:
    """A config on a topology. What needs the compiled program is None, or empty, where it does not fit."""

    config: Config
    topology: Topology
    compiled: Compiled
    fill: float  # share of the places that hold a token, as assumed
    utilisation: float  # model FLOP utilisation, as assumed beside the roofline
    flops: int  # forward and backward pass of a step by formula, over all devices
    collectives: list[Collective]
    carried: list[tuple[str, int]]  # arrays that loops keep, by type, and their bytes; the largest first
    moved: Moved | None
    seconds: Seconds | None
    unknown_loops: int  # loops whose number of iterations was not found, counted once
    largest: Largest | None

    @property
    def device_flops(self) -> float:
        return self.flops / len(self.topology.devices)

    @property
    def tokens_per_step(self) -> float:
        """Real tokens."""
        return self.compiled.derived.tokens_per_step * self.fill

    @property
    def assumed_seconds(self) -> float:
        """A step at the assumed utilisation, which is in real tokens as that of a run is."""
        return self.device_flops * self.fill / (self.topology.chip.flops * self.utilisation)

    @property
    def reachable(self) -> float | None:
        """Model FLOP utilisation, in real tokens, at the step time of the roofline."""
        if self.seconds is None:
            return None
        return self.device_flops * self.fill / (self.topology.chip.flops * self.seconds.step)


def numbers(plan: Plan, advice: list[str]) -> dict:
    """A plan under the names that `--json` has. Bytes and seconds, of one device unless said otherwise."""
    compiled, derived, s = plan.compiled, plan.compiled.derived, plan.seconds
    steps = plan.config.steps
    return {
        "topology": plan.topology.name,
        "device": plan.topology.kind,
        "devices": derived.devices,
        "mesh": derived.mesh,
        "batch_size": plan.config.batch_size,
        "accumulation": plan.config.accumulation,
        "rows_per_device": derived.rows_per_device,
        "fits": compiled.fits,
        "memory": {
            **compiled.memory._asdict(),
            "limit": plan.topology.limit,
            "published": plan.topology.chip.memory,
        },
        "flops_per_step": plan.flops,
        "flops_per_device": plan.device_flops,
        "flops_traced": compiled.traced_flops,
        "moved": plan.moved and plan.moved._asdict(),
        "collectives": {kind: dataclasses.asdict(total) for kind, total in totals(plan.collectives).items()},
        "largest_collectives": [{**one._asdict(), "sent": one.sent} for one in plan.collectives[:MOST_SHOWN]],
        "carried": [{"type": name, "size": size} for name, size in plan.carried[:MOST_SHOWN]],
        "unknown_loops": plan.unknown_loops,
        "seconds": s and {**s._asdict(), "step": s.step},
        "mfu_reachable": plan.reachable,
        "mfu_assumed": plan.utilisation,
        "step_seconds_assumed": plan.assumed_seconds,
        "days_reachable": s and roofline.days(steps, s.step),
        "days_assumed": roofline.days(steps, plan.assumed_seconds),
        "steps": steps,
        "fill_assumed": plan.fill,
        "tokens_per_step": plan.tokens_per_step,
        "tokens": steps * plan.tokens_per_step,
        "lower_seconds": compiled.lower_seconds,
        "compile_seconds": compiled.compile_seconds,
        "largest": plan.largest and plan.largest._asdict(),
        "advice": advice,
    }


def gib(number: float | int) -> str:
    """Bytes as GiB, MiB or KiB."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 99.5 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.0f} B"
