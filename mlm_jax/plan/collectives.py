"""Collectives of a compiled program: which there are, how often each runs, and what it sends over the links."""

import dataclasses
import math
import re
from typing import NamedTuple

from mlm_jax.plan import hlo

KINDS = {
    "all-reduce": "all-reduce",
    "all-reduce-start": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-gather": "all-gather",
    "all-gather-start": "all-gather",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "permute",
    "collective-permute-start": "permute",
    "collective-broadcast": "broadcast",
}
# Bytes that each of n devices sends for a whole array of one byte, by the ring algorithms of the textbooks (Thakur,
# Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", section 4).
SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "permute": lambda n: 1.0,
    "broadcast": lambda n: 1.0,
}


class Collective(NamedTuple):
    """One instruction. size: bytes of the whole array on a device, before a scatter or after a gather."""

    kind: str
    times: int | float  # in one run of the program
    size: int
    group: int  # devices that take part together
    type: str  # of what it is given, such as f32[50048,768]
    source: str  # the operation of the traced program that it comes from

    @property
    def sent(self) -> float:
        """Bytes that a device sends in one run of the program."""
        return self.times * self.size * SENT[self.kind](self.group)


@dataclasses.dataclass(frozen=True)
class Total:
    """All collectives of a kind in one run of a program, by device."""

    count: int | float  # how often one runs
    size: int  # bytes of whole arrays
    sent: float


def read(program: hlo.Program, devices: int) -> list[Collective]:
    """Every collective of a program that is no exchange with itself, the one that sends most first.

    The compiler for TPUs may cut one into several fusions, to compute other things meanwhile; all of them bear its
    channel, and it counts once.
    """
    found, seen = [], set()
    for computation, instruction, times in program.executed():
        scatters = instruction.opcode == "fusion" and any("all-reduce-scatter" in name for name in instruction.called)
        for around, one in [(computation, instruction), *program.within(instruction)]:
            kind = KINDS.get(one.opcode)
            group = kind and group_size(one, devices)
            channel = one.attribute(r"channel_id=(\d+)")
            part = (id(computation), one.opcode, channel)
            if kind and group > 1 and not (channel and around is not computation and part in seen):
                seen.add(part)
                kind = "reduce-scatter" if scatters and kind == "all-reduce" else kind
                found.append(_collective(around, one, kind, times, group))
    return sorted(found, key=lambda one: one.sent, reverse=True)


def totals(found: list[Collective]) -> dict[str, Total]:
    """Sums by kind, the one that sends most first."""
    kinds: dict[str, list[Collective]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    return {
        kind: Total(sum(x.times for x in some), round(sum(x.times * x.size for x in some)), sum(x.sent for x in some))
        for kind, some in kinds.items()
    }


def _collective(around: dict, one: hlo.Instruction, kind: str, times: int | float, group: int) -> Collective:
    types = [around[name].type for name in one.operands]
    given = sum(map(hlo.size, types))
    result = "(" + ", ".join(types) + ")" if len(types) > 1 else types[0]
    shapes = ", ".join(f"{dtype}[{sizes}]" for dtype, sizes, _ in hlo.ARRAY.findall(result))
    source = one.attribute(hlo.OP_NAME) or ""
    return Collective(kind, times, given * group if kind == "all-gather" else given, group, shapes, source)


def group_size(instruction: hlo.Instruction, devices: int) -> int:
    """Devices that take part together, from the groups in any of the forms in which compilers write them.

    `{{0,1},{2,3}}` or `{}` for all; `[4,2]<=[8]`, 4 groups of 2; `mesh['a'=4,'b'=2] {'b'}`, groups along axes of a
    mesh, an axis cut as `'a':(2)2` counting 2; the order of the devices may stand between them. A permutation has
    pairs instead. Raises ValueError for another form.
    """
    if instruction.attribute(r"(source_target_pairs)="):
        pairs = re.findall(r"\{(\d+),(\d+)\}", instruction.attribute(r"source_target_pairs=\{(.*?\})\}") or "")
        return 2 if any(source != target for source, target in pairs) else 1
    if counted := instruction.attribute(r"replica_groups=\[\d+,(\d+)\]<="):
        return int(counted)
    if listed := instruction.attribute(r"replica_groups=\{\{([\d,]*)\}"):
        return len(listed.split(","))
    mesh = re.search(r"replica_groups=@?\w*mesh\w*\[([^\]]*)\][^{]*\{([^}]*)\}", instruction.attributes)
    if mesh:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh.group(1)))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh.group(2))
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    if re.search(r"replica_groups=(?!\{\})", instruction.attributes):
        raise ValueError(f"{instruction.name}: groups of devices in an unknown form: {instruction.attributes[:200]}")
    return devices
