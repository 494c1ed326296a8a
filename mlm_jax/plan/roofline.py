"""Step time by a roofline: what a step would take if each part of a chip worked at its published rate.

Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures".
"""

from typing import NamedTuple

from mlm_jax.flops import Chip

SECONDS_PER_DAY = 86_400


class Seconds(NamedTuple):
    """Parts of a step on one device; none of it is measured."""

    products: float  # matrix products at the peak, or as fast as their operands come from memory
    others: float  # what all other instructions read and write, at the bandwidth of memory
    links: float  # what collectives send, over all links of a chip at once
    cycles: float | None  # what the compiler estimates for its instructions, without collectives; None: not known

    @property
    def step(self) -> float:
        """One after another: products, others (or the compiler's estimate for both, where longer), links."""
        return max(self.products + self.others, self.cycles or 0.0) + self.links


def seconds(chip: Chip, flops: float, products: int, others: int, sent: float, cycles: int) -> Seconds:
    """Times of a step.

    flops: matrix products of a device; products and others: bytes that instructions with and without them move to and
    from memory; sent: bytes over the links; cycles: the compiler's estimate, 0 where it gives none.
    """
    return Seconds(
        products=max(flops / chip.flops, products / chip.memory_bandwidth),
        others=others / chip.memory_bandwidth,
        links=sent / chip.link_bandwidth,
        cycles=cycles / chip.clock if chip.clock and cycles else None,
    )


def days(steps: int, step_seconds: float) -> float:
    return steps * step_seconds / SECONDS_PER_DAY
