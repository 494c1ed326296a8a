"""Memory, collectives and step time of BERT-base and -large on 8 to 256 TPU chips that are not here.

Command: python benchmarks/scaling.py --out=scaling.jsonl [--configs=base,large] [--chips=v5e,v5p,v6e]
         [--meshes=data,fsdp,mixed] [--only_tables]

Needs libtpu (pip install -e '.[tpu]'). The real training step of `configs/NAME.py` is compiled for eight chips of each
kind, once for each mesh (the mixed one for sixteen), with 7 microbatches of the config's rows; each result is a line of
--out, and what stands there is not compiled again. From one such program those of other sizes follow: what is in the
loop over microbatches runs as often as there are microbatches, the rest once (7 is a prime, so that the counts of
instructions tell them apart); collectives send by the ring formula of `plan` with their group of devices; with fsdp
over all chips the state of a chip shrinks, and what the optimizer and the sum of gradients read and write of it.
--check=base:v5e:64:data:4 (config, kind, chips, mesh, microbatches) compiles that cell, too, and tells how far the
computed one is off.

Meshes: data; fsdp; mixed (fsdp 8, the rest data). Strong scaling: the config's batch_size at every size. Weak scaling:
one microbatch for each update at every size. Both are times against eight chips (of mixed: eight chips with fsdp 8).
Nothing is measured: it is the roofline of `plan`, products, memory and links one after another (nothing overlaps), and
in brackets the longest of the three alone (all of it overlaps).
"""

import argparse
import dataclasses
import itertools
import json
import runpy
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

SIZES = (8, 16, 32, 64, 128, 256)
TOPOLOGIES = {  # by chips
    "v5e": dict(zip(SIZES, ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16"))),
    "v6e": dict(zip(SIZES, ("2x4", "4x4", "4x8", "8x8", "8x16", "16x16"))),
    "v5p": dict(zip(SIZES, ("2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"))),
}
MESHES = {"data": 8, "fsdp": 8, "mixed": 16}  # chips for which each is compiled
FSDP = 8  # of the mixed mesh
MICROBATCHES = 7
UPDATE, ADDITION = 7, 3  # times that AdamW, and adding up gradients, read or write an array as large as the parameters
ENDS = 0.7  # of the efficiency on eight chips


class Cell(NamedTuple):
    """What is compiled: a config on so many chips, with so many microbatches a step."""

    config: str
    chip: str
    chips: int
    mesh: str
    accumulation: int

    @property
    def key(self) -> str:
        return ":".join(map(str, self))


def axes(mesh: str, chips: int) -> dict[str, int]:
    fsdp = {"data": 1, "fsdp": chips, "mixed": FSDP}[mesh]
    return {"data": chips // fsdp, "fsdp": fsdp, "tensor": 1}


# ---- one compilation, in a process of its own ----


def compiled(cell: Cell) -> dict:
    """The program of a cell in numbers of one chip: what is within the loop over microbatches, and what is not."""
    from mlm_jax import flops, plan
    from mlm_jax.cli.common import vocabulary_of
    from mlm_jax.config import MeshConfig
    from mlm_jax.plan import ahead, collectives, hlo

    plan.set_environment()
    config = runpy.run_path(f"configs/{cell.config}.py")["get_config"]()
    rows = rows_of(config)
    config = dataclasses.replace(
        config,
        rows_per_device=rows,
        batch_size=rows * cell.chips * cell.accumulation,
        mesh=dataclasses.replace(MeshConfig(), **axes(cell.mesh, cell.chips)),
    )
    on = plan.topology(f"{cell.chip}:{TOPOLOGIES[cell.chip][cell.chips]}")
    vocabulary = vocabulary_of(config)
    accumulation = plan.check(config, vocabulary, on).accumulation
    assert accumulation == cell.accumulation and len(on.devices) == cell.chips
    began = time.process_time()
    config = dataclasses.replace(config, accumulation=accumulation)
    found = ahead.compile_step(config, vocabulary, on)
    result = {
        "cell": cell.key,
        "rows": rows,
        "versions": {name: version(name) for name in ("jax", "libtpu")},
        "cpu_seconds": time.process_time() - began,
        "compile_seconds": found.lower_seconds + found.compile_seconds,
        "limit": on.limit,
        "memory": found.memory._asdict(),
        "peak": [on.chip.flops, on.chip.memory_bandwidth, on.chip.link_bandwidth, on.chip.clock],
        "flops": max(found.traced_flops, flops.of_run(config, found.derived)) / cell.chips / accumulation,
        "fits": found.fits,
    }
    if found.program:
        program = found.program
        result["inside"], result["outside"] = split(program, accumulation, hlo)
        result["collectives"] = [
            {**one._asdict(), "inside": within(one.times, accumulation)}
            for one in collectives.read(program, cell.chips)
        ]
        result["unknown_loops"] = len(program.unknown_loops)
    return result


def rows_of(config) -> int:
    """Rows that a chip has at once."""
    return config.rows_per_device or 8


def within(times: int, accumulation: int) -> bool:
    return accumulation > 1 and times % accumulation == 0


def split(program, accumulation: int, hlo) -> tuple[dict, dict]:
    """Bytes moved with and without a product, and estimated cycles: of one microbatch, and of the step beside them."""
    parts = [{"products": 0, "others": 0, "cycles": 0} for _ in range(2)]
    for computation, instruction, times in program.executed():
        inside = within(times, accumulation)
        part, count = parts[not inside], times // accumulation if inside else times
        kind = "products" if hlo.has_product(program, instruction) else "others"
        part[kind] += count * hlo.traffic(program, computation, instruction)
        part["cycles"] += count * int(instruction.attribute(r'"estimated_cycles":"(\d+)"') or 0)
    return parts[0], parts[1]


def measured(cells: list[Cell], out: Path) -> dict[str, dict]:
    """What --out knows of the cells, after compiling those that it does not know."""
    known = {}
    if out.exists():
        known = {line["cell"]: line for line in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
    for cell in cells:
        if cell.key in known:
            continue
        print(f"compiling {cell.key}", file=sys.stderr, flush=True)
        one = [sys.executable, __file__, f"--cell={cell.key}"]
        done = subprocess.run(one, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{cell.key} ended with {done.returncode}")
        known[cell.key] = json.loads(done.stdout.splitlines()[-1])
        with open(out, "a", encoding="utf-8") as file:
            print(json.dumps(known[cell.key]), file=file)
    return known


# ---- other sizes ----


class Estimate(NamedTuple):
    """Of one chip and step: bytes and seconds."""

    needs: float
    sent: float
    products: float  # seconds
    others: float
    links: float
    step: float  # one after another
    overlapped: float  # the longest part alone


def estimate(found: dict, chips: int, accumulation: int) -> Estimate:
    """A step on so many chips, with so many microbatches, from the program of another size of the same mesh."""
    from mlm_jax.flops import Chip
    from mlm_jax.plan import roofline
    from mlm_jax.plan.collectives import SENT

    _, _, before, mesh, k = found["cell"].split(":")
    before, k = int(before), int(k)
    left = before / chips if mesh == "fsdp" else 1.0  # of a chip's part of the state
    memory = found["memory"]
    freed = (1 - left) * memory["parameters"]
    state = freed + (1 - left) * memory["optimizer"] + freed  # the last one: gradients
    needs = memory["needs"] - state + (accumulation / k - 1) * memory["batch"]
    inside, outside, rates = found["inside"], found["outside"], found["peak"]
    moved = {kind: accumulation * inside[kind] + outside[kind] for kind in inside}
    saved = freed * (UPDATE + accumulation * ADDITION)
    moved["others"] -= saved
    moved["cycles"] -= saved / rates[1] * (rates[3] or 0)
    sent = 0.0
    for one in found["collectives"]:
        fixed = mesh == "mixed" and one["group"] == FSDP
        group = one["group"] if fixed else one["group"] * chips // before
        times = one["times"] / k * accumulation if one["inside"] else one["times"]
        sent += times * one["size"] * SENT[one["kind"]](group)
    peak, memory_rate, link_rate, clock = rates
    chip = Chip(peak, found["limit"], memory_rate, link_rate, clock)
    of_step = accumulation * found["flops"]
    s = roofline.seconds(chip, of_step, moved["products"], moved["others"], sent, moved["cycles"])
    overlapped = max(of_step / peak, (moved["products"] + moved["others"]) / memory_rate, s.links)
    return Estimate(needs, sent, s.products, s.others, s.links, s.step, overlapped)


# ---- tables ----


def tables(known: dict[str, dict], configs: list[str], chips: list[str], meshes: list[str]) -> str:
    lines = []
    for name in configs:
        batch = runpy.run_path(f"configs/{name}.py")["get_config"]().batch_size
        for chip in chips:
            found = {mesh: known.get(base_of(name, chip, mesh).key) for mesh in meshes}
            found = {mesh: one for mesh, one in found.items() if one}
            if found:
                limit = f"{next(iter(found.values()))['limit'] / 2**30:.4g} GiB a chip"
                lines += ["", f"**{name} on {chip}**, a batch of {batch:,} rows, {limit}", "", *table(found, batch)]
    return "\n".join(lines)


def table(found: dict[str, dict], batch: int) -> list[str]:
    """Rows of a markdown table: a column for each size."""
    lines = ["| | " + " | ".join(f"{size} chips" for size in SIZES) + " |", "|---" * (len(SIZES) + 1) + "|"]

    def line(name: str, cells: list[str]) -> None:
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    eight = found.get("fsdp")
    for mesh, one in found.items():
        first = one if mesh != "mixed" or not eight or "inside" not in eight else eight
        if "inside" not in one:
            line(f"{mesh}: does not fit", [f"{one['memory']['needs'] / 2**30:.3g} GiB"] + [""] * (len(SIZES) - 1))
            continue
        counts = [batch // (one["rows"] * size) for size in SIZES]
        strong = [estimate(one, size, k) for size, k in zip(SIZES, counts)]
        weak = [estimate(one, size, 1) for size in SIZES]
        line(f"{mesh}: {one['rows']} rows at once x", [f"{k}" for k in counts])
        line("memory of a chip, GiB", [f"{e.needs / 2**30:.3g}" for e in strong])
        line("sent by a chip, GiB", [f"{e.sent / 2**30:.3g}" for e in strong])
        line("step (all overlapped)", [f"{duration(e.step)} ({duration(e.overlapped)})" for e in strong])
        line("links of it", [f"{e.links / e.step:.1%}" for e in strong])
        before = [estimate(first, SIZES[0], k) for k in (counts[0], 1)]
        line("strong scaling", [shares(before[0], e, SIZES[0] / size) for e, size in zip(strong, SIZES)])
        line("weak scaling", [shares(before[1], e, 1.0) for e in weak])
        line(f"strong scaling under {ENDS:.0%}", [ends(before[0], one, batch)] + [""] * (len(SIZES) - 1))
    return lines


def shares(first: Estimate, now: Estimate, chips: float) -> str:
    return f"{first.step / now.step * chips:.0%} ({first.overlapped / now.overlapped * chips:.0%})"


def ends(first: Estimate, found: dict, batch: int) -> str:
    """From where on strong scaling is under 70 % if nothing overlaps.

    Where a chip has less than the config's rows, its time is taken to fall with them, which is too good.
    """
    size = SIZES[0]
    while size <= 2**16:
        k = batch / (found["rows"] * size)
        if first.step / estimate(found, size, k).step * SIZES[0] / size < ENDS:
            return f"from {size:,} chips on"
        size *= 2
    return "never"


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def checked(known: dict[str, dict], cells: list[Cell]) -> list[str]:
    """How far cells that were compiled are from those that are computed."""
    lines = ["| compiled | needs | sent | step | its time to compile |", "|---|---|---|---|---|"]
    for cell in cells:
        base = known[base_of(cell.config, cell.chip, cell.mesh).key]
        real = estimate(known[cell.key], cell.chips, cell.accumulation)
        guess = estimate(base, cell.chips, cell.accumulation)
        cells_of = [
            f"{getattr(real, name):.4g}, computed {getattr(guess, name) / getattr(real, name) - 1:+.1%}"
            for name in ("needs", "sent", "step")
        ]
        lines.append(f"| {cell.key} | {' | '.join(cells_of)} | {known[cell.key]['cpu_seconds']:.0f} s of CPU |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scaling.jsonl"))
    parser.add_argument("--configs", default="base,large")
    parser.add_argument("--chips", default="v5e,v5p,v6e")
    parser.add_argument("--meshes", default=",".join(MESHES))
    parser.add_argument("--check", action="append", default=[])
    parser.add_argument("--only_tables", action="store_true", help="of what is in --out")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(compiled(cell_of(arguments.cell))))
        return 0
    lists = [value.split(",") for value in (arguments.configs, arguments.chips, arguments.meshes)]
    cells = [base_of(*key) for key in itertools.product(*lists)]
    checks = list(map(cell_of, arguments.check))
    known = measured([] if arguments.only_tables else [*cells, *checks], arguments.out)
    print(tables(known, *lists))
    print("\n".join(["", *checked(known, checks)]) if checks else "")
    return 0


def base_of(config: str, chip: str, mesh: str) -> Cell:
    """The cell from which those of other sizes are computed."""
    return Cell(config, chip, MESHES[mesh], mesh, MICROBATCHES)


def cell_of(key: str) -> Cell:
    config, chip, chips, mesh, accumulation = key.split(":")
    return Cell(config, chip, int(chips), mesh, int(accumulation))


if __name__ == "__main__":
    sys.exit(main())
