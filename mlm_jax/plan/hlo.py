"""The text of a compiled program: its instructions, how often each runs, and what it moves to and from memory.

Compilers count the body of a loop once. Here an instruction counts as often as it runs: bodies by the trip count that
the compiler noted, or by the constant that the loop's counter is compared with, as `lax.scan` makes them.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from mlm_jax.step import KIND_OF_STEP

# a dtype, dimensions, and the layout, in which S(n) is a memory other than HBM
ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^{}]*\})?")
HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
ASSIGNED = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
CALLED = re.compile(
    r"\b(?:calls|to_apply|body|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%[\w.\-]+)"
)
# what moves nothing by itself
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
FREE += ("while", "conditional", "call", "opt-barrier", "add-dependency", "async-start", "async-update", "async-done")
LIBRARY = re.compile(r'custom_call_target="__cu(blas|dnn)')  # matrix products, and attention, by NVIDIA's libraries
OP_NAME = r'op_name="([^"]*)"'
KIND = rf'op_name="[^"]*\b{KIND_OF_STEP}/cond/branch_(\d)_fun'
SLICES = ("dynamic-slice", "slice", "gather")


class Array(NamedTuple):
    """One array of a type: its size in bytes without the padding of a tiled layout, and whether it lies in HBM."""

    size: int
    in_hbm: bool


class Instruction(NamedTuple):
    """`name = type opcode(operands), attributes`; type and attributes as they are in the text."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def called(self) -> list[str]:
        """The computations that it runs."""
        found = (re.findall(r"[\w.\-]+", group) for group in CALLED.findall(self.attributes))
        return [name for group in found for name in group]

    def attribute(self, pattern: str) -> str | None:
        """The first group of a pattern in the attributes; None without a match."""
        found = re.search(pattern, self.attributes)
        return found and found.group(1)


def arrays(type_text: str) -> list[Array]:
    """The arrays of a type or a tuple of types."""
    found = []
    for kind, dimensions, layout in ARRAY.findall(type_text):
        bits = 8 if kind == "pred" else int((re.search(r"\d+", kind) or [0])[0])  # none in a token
        count = math.prod(int(size) for size in dimensions.split(",") if size)
        found.append(Array(math.ceil(count * bits / 8), not re.search(r"S\([1-9]", layout or "")))
    return found


def size(type_text: str) -> int:
    """Bytes of all arrays of a type."""
    return sum(array.size for array in arrays(type_text))


def hbm_size(type_text: str) -> int:
    """Bytes of those arrays of a type that lie in HBM."""
    return sum(array.size for array in arrays(type_text) if array.in_hbm)


@dataclasses.dataclass
class Program:
    """The computations of a module by name, each {name of an instruction: Instruction}, and which of them is entered.

    `unknown_loops` are those whose number of iterations the text does not tell; they count once. causal_ratio: the
    share of the steps that are causal, by which both branches count of the conditional that chooses the kind of a step;
    of any other both count in full.
    """

    computations: dict[str, dict[str, Instruction]]
    entry: str
    causal_ratio: int | float = 0
    unknown_loops: list[str] = dataclasses.field(default_factory=list)

    def executed(self) -> Iterator[tuple[dict[str, Instruction], Instruction, int | float]]:
        """(its computation, instruction, how often it runs); the inside of a fusion is not looked at."""
        self.unknown_loops.clear()
        yield from self._executed(self.entry, 1, chosen=False)

    def _executed(
        self, name: str, times: int | float, chosen: bool
    ) -> Iterator[tuple[dict[str, Instruction], Instruction, int | float]]:
        """chosen: what is executed is of one kind of step already."""
        computation = self.computations[name]
        for instruction in computation.values():
            yield computation, instruction, times
            if instruction.opcode == "while":
                yield from self._executed(instruction.called[0], times * self.trips(instruction), chosen)
            elif instruction.opcode in ("call", "conditional", "async-start"):
                for called in instruction.called:
                    choice = None if chosen or instruction.opcode != "conditional" else self._share(called)
                    share = 1 if choice is None else choice
                    yield from self._executed(called, times * share, chosen or choice is not None)

    def _share(self, name: str) -> int | float | None:
        """How often the computation of a kind of step runs; None for another one.

        Its instructions tell, since a compiler may give the conditional itself another name.
        """
        kinds = (instruction.attribute(KIND) for instruction in self.computations[name].values())
        kind = next((kind for kind in kinds if kind), None)  # 1: the condition holds
        return None if kind is None else self.causal_ratio if kind == "1" else 1 - self.causal_ratio

    def trips(self, loop: Instruction) -> int:
        """Iterations of a while instruction."""
        known = loop.attribute(r'known_trip_count"?:\s*\{"?n"?:"?(\d+)')
        if known is None:
            condition = self.computations[loop.attribute(r"condition=%?([\w.\-]+)")]
            root = next(instruction for instruction in condition.values() if instruction.root)
            constants = [condition[name] for name in root.operands if condition[name].opcode == "constant"]
            if root.opcode == "compare" and "direction=LT" in root.attributes and len(constants) == 1:
                known = re.fullmatch(r"\d+", constants[0].operands[0] if constants[0].operands else "")
                known = known and known.group()
        if known is None:
            self.unknown_loops.append(loop.name)
        return int(known or 1)

    def within(self, instruction: Instruction) -> Iterator[tuple[dict[str, Instruction], Instruction]]:
        """The instruction, and for a fusion all that is fused, each with its computation."""
        for called in instruction.called if instruction.opcode == "fusion" else ():
            computation = self.computations[called]
            for inner in computation.values():
                yield computation, inner
                yield from self.within(inner)


def parse(text: str, causal_ratio: int | float = 0) -> Program:
    """Reads the text of a compiled module, `compiled.as_text()`. Raises ValueError where it has no entry."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        if current is None:
            header = HEADER.match(line)
            if header and not line.startswith("HloModule"):
                current = computations.setdefault(header.group(2), {})
                entry = header.group(2) if header.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif found := ASSIGNED.match(line):
            instruction = _instruction(found.group(2), line[found.end() :], bool(found.group(1)))
            current[instruction.name] = instruction
    if entry is None:
        raise ValueError("the text has no ENTRY computation")
    return Program(computations, entry, causal_ratio)


def _instruction(name: str, rest: str, root: bool) -> Instruction:
    """From what stands behind `name = `."""
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    opcode = rest[end:opening].strip()
    # operands are %names; those of a constant are its value, of a parameter its number
    operands = re.findall(r"%([\w.\-]+)", inside) or ([inside] if opcode in ("constant", "parameter") else [])
    return Instruction(name, rest[:end], opcode, tuple(operands), rest[closing + 1 :], root)


def _closing(text: str, opening: int) -> int:
    """Where the bracket that opens at `opening` closes."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"a bracket is not closed in {text[:80]!r}")


# ---- bytes to and from HBM ----


def moved(program: Program) -> tuple[int, int]:
    """Bytes that a device moves to and from HBM in one run: by instructions with a matrix product, and by all others.

    An instruction reads its operands and writes its result. Of an array of which only slices are read, or that is
    updated in place, the slices count. What stays in the chip's own memory costs nothing.
    """
    products = others = 0
    for computation, instruction, times in program.executed():
        amount = times * traffic(program, computation, instruction)
        if has_product(program, instruction):
            products += amount
        else:
            others += amount
    return round(products), round(others)


def touching(program: Program, pattern: str) -> int:
    """Bytes moved by those instructions that read or write an array whose type matches a pattern."""
    found = re.compile(pattern)
    total = 0
    for computation, instruction, times in program.executed():
        if instruction.opcode in FREE:
            continue
        types = [computation[name].type for name in instruction.operands if name in computation]
        if any(found.search(one) for one in [instruction.type, *types]):
            total += times * traffic(program, computation, instruction)
    return round(total)


def has_product(program: Program, instruction: Instruction) -> bool:
    """Whether a matrix product is computed by an instruction, or within a fusion."""
    inner = [instruction, *(inside for _, inside in program.within(instruction))]
    return any(one.opcode in ("dot", "convolution") or LIBRARY.search(one.attributes) for one in inner)


def traffic(program: Program, computation: dict[str, Instruction], instruction: Instruction) -> int:
    """Bytes that one run of an instruction moves to and from HBM."""
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith("-start") or "ConcatBitcast" in instruction.attributes:
        return 0
    if opcode.endswith("-done"):  # a copy or a collective counts where it ends
        begun = computation[instruction.operands[0]]
        return _traffic_of_pair(computation, begun, instruction)
    types = [computation[name].type for name in instruction.operands]
    if opcode == "fusion":
        inside = program.computations[instruction.called[0]]
        return _fusion_reads(inside, types) + _fusion_writes(inside, instruction.type)
    if opcode in SLICES:
        return 2 * hbm_size(instruction.type)
    if opcode == "dynamic-update-slice":
        return 2 * hbm_size(types[1])
    return sum(map(hbm_size, types)) + hbm_size(instruction.type)


def _traffic_of_pair(computation: dict[str, Instruction], begun: Instruction, done: Instruction) -> int:
    """An asynchronous copy or slice moves what it gives, once for each end that lies in HBM; a collective the same."""
    if begun.opcode == "async-start":
        return 0  # its computation is looked at
    sources = [computation[name].type for name in begun.operands]
    result = size(done.type)
    in_hbm = any(array.in_hbm for source in sources for array in arrays(source))
    return result * in_hbm + hbm_size(done.type)


def _fusion_reads(inside: dict[str, Instruction], types: list[str]) -> int:
    """What a fusion reads of its operands, given by type."""
    total = 0
    for parameter in (one for one in inside.values() if one.opcode == "parameter"):
        whole = hbm_size(types[int(parameter.operands[0])])
        uses = [_read(one, parameter.name) for one in inside.values() if parameter.name in one.operands]
        known = bool(uses) and None not in uses
        total += min(whole, sum(uses)) if known else whole
    return total


def _read(user: Instruction, name: str) -> int | None:
    """Bytes that an instruction within a fusion reads of an operand where that is less than all; else None."""
    if user.opcode in SLICES and user.operands[0] == name and name not in user.operands[1:]:
        return size(user.type)
    if user.opcode == "dynamic-update-slice" and user.operands[0] == name and name not in user.operands[1:]:
        return 0
    return None


def _fusion_writes(inside: dict[str, Instruction], type_text: str) -> int:
    """What a fusion writes: of an operand that it updates in place, the update."""
    root = next(one for one in inside.values() if one.root)
    results = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]
    total = 0
    for one, array in zip(results, arrays(type_text)):
        while one.opcode == "bitcast":
            one = inside[one.operands[0]]
        updates = one.opcode == "dynamic-update-slice"
        total += (size(inside[one.operands[1]].type) if updates else array.size) * array.in_hbm
    return total


def carried(program: Program) -> list[tuple[str, int]]:
    """Arrays in HBM that loops carry along, such as what a scan over layers keeps for the backward pass.

    Pairs of type and bytes, the largest first. Of equal types a loop may carry several; they count as in the loop that
    carries most of them.
    """
    kept: dict[str, int] = {}
    for _, one, _ in program.executed():
        if one.opcode == "while":
            types = [f"{kind}[{sizes}]" for kind, sizes, layout in ARRAY.findall(one.type) if "S(1)" not in layout]
            for name in set(types):
                kept[name] = max(kept.get(name, 0), types.count(name) * size(name))
    return sorted(kept.items(), key=lambda one: one[1], reverse=True)


def cycles(program: Program) -> int:
    """What the compiler for TPUs estimates for all instructions of one run, in cycles; 0 where it says nothing."""
    estimates = ((one.attribute(r'"estimated_cycles":"(\d+)"'), times) for _, one, times in program.executed())
    return round(sum(times * int(estimate) for estimate, times in estimates if estimate))
