"""A run that is killed at random moments, again and again, against the same run left alone.

Command: python benchmarks/kills.py [--kills=20] [--steps=300] [--seed=0] [--longest=15] [--batch_size=64] [--every=10]
         [--processes=1] [--phases] [--source=TEXT]

`configs/tiny.py` on a part of the embedded text, accumulation 2, more than two epochs, a checkpoint every 10 steps.
SIGKILL comes every second time while a checkpoint is being written, the first, second or third of a start; else at a
random moment, mostly within --longest seconds of the first batch, sometimes within --longest of the start. With
--phases the run has four: another batch, learning rate and mask rate, rows twice as long, and back to the first ones;
the rows are then prepared within the run, and killed there, too. Ends with 0 if
parameters and optimizer state have the same bits, and all lines of `metrics.jsonl` but their times are the same.

With --processes=2 both runs go through launch/local.sh, parameters in parts over the processes (mesh.fsdp), and the
signal hits one of them or the whole job. With --processes=2,1 each start draws one of these numbers, and the run left
alone has the first. Bits then differ by rounding: rows, masks and targets must be the same, and losses to 1e-4.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from mlm_jax import checkpoint
from mlm_jax.prepare import pydoc

MODULES = 400
EARLY = 0.25  # share of the kills outside of saves whose moment is counted from the start, of compiling mostly
CLOSE = 1e-4  # of losses, where the number of processes changes
ROOT = Path(__file__).parents[1]


PHASES = """
from configs.tiny import get_config as tiny
from mlm_jax.config import PhaseConfig

def get_config():
    config = tiny()
    config.model.max_positions = 128
    config.phases = (
        PhaseConfig(batch_size=32, accumulation=1, mask_rate=0.3),
        PhaseConfig(begin=0.3, rate=0.5),
        PhaseConfig(begin=0.55, row_length=128, batch_size=16),
        PhaseConfig(begin=0.8, batch_size=48),
    )
    return config
"""


def command(arguments: argparse.Namespace, given: str, workdir: Path, config: str) -> list[str]:
    """Flags of a run. given: the setting that names the rows, or the text."""
    options = {
        "steps": arguments.steps,
        "batch_size": arguments.batch_size,
        "checkpoint.every_steps": arguments.every,
        "evaluate.every_steps": 100,
        "mesh.data": 1,
        "mesh.fsdp": -1,
        # accumulation 2 with as many devices as processes at first, and as it follows with another number
        "rows_per_device": arguments.batch_size // 2 // arguments.processes[0],
    }
    flags = [f"--config.{key}={value}" for key, value in options.items()]
    return [f"--config={config}", f"--workdir={workdir}", given, *flags]


def started(flags: list[str], processes: int, **files) -> subprocess.Popen:
    """A run in a session of its own, so that the whole job can be killed; several processes by launch/local.sh."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHON": sys.executable, "GRACE": "1"}
    one = [sys.executable, "-m", "mlm_jax.train"]
    program = [str(ROOT / "launch" / "local.sh"), str(processes)] if processes > 1 else one
    return subprocess.Popen([*program, *flags], env=env, start_new_session=True, **files)


def make_text(folder: Path) -> Path:
    text = folder / "text.jsonl"
    text.write_text("\n".join(pydoc.extract(pydoc.module_files()[:MODULES])), encoding="utf-8")
    return text


def make_rows(folder: Path, text: Path) -> Path:
    prepare = [sys.executable, "-m", "mlm_jax", "prepare", "--config=configs/tiny.py", f"--workdir={folder}"]
    subprocess.run([*prepare, f"--config.data.sources={text}"], check=True, capture_output=True)
    return folder / "rows"


def last_step(workdir: Path) -> int:
    """The step of the last whole line of metrics.jsonl."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def saving(workdir: Path) -> bool:
    """Whether a checkpoint is being written, or written and not yet listed."""
    folder = workdir / "checkpoints"
    found = list(folder.iterdir()) if folder.is_dir() else []
    return any("tmp" in path.name or not (path / checkpoint.FILES).exists() for path in found)


def killed(
    flags: list[str], workdir: Path, processes: int, longest: float, every: int, in_save: bool, rng: random.Random
) -> tuple | None:
    """Starts the run and kills it; returns (when, whom, a line of the report), None where it came to its end before.

    every: steps from one checkpoint to the next.
    """
    before, starts = checkpoint.newest(workdir), count_starts(workdir)
    said = workdir.with_suffix(".said")
    with open(said, "wb") as file:
        process = started(flags, processes, stdout=file, stderr=subprocess.STDOUT)
    began, moment, early = time.monotonic(), rng.uniform(0.2, longest), rng.random() < EARLY
    waits_from, saved = began if early else None, (before or 0) + every * rng.randint(1, 3)
    while process.poll() is None:
        begun = count_starts(workdir) > starts
        waits_from = waits_from or (time.monotonic() if begun else None)
        if in_save and begun and last_step(workdir) >= saved and saving(workdir):
            time.sleep(rng.uniform(0, 0.03))
            break
        if not in_save and waits_from and time.monotonic() - waits_from > moment:
            break
        time.sleep(0.001)
    seconds, was_saving = time.monotonic() - began, saving(workdir)
    if process.poll() == 0:
        return None
    if process.returncode is not None:
        sys.exit(f"it ended by itself with {process.returncode}:\n{said.read_text()[-3000:]}")
    whom = kill(process, processes, rng)
    # what an earlier save left behind is there until the next one
    when = "starting" if count_starts(workdir) == starts else "saving" if was_saving else "training"
    where = f"from {before or 0:>4}  {whom} killed after {seconds:5.1f} s at step {last_step(workdir):>4}, {when}"
    return when, whom, where


def kill(process: subprocess.Popen, processes: int, rng: random.Random) -> str:
    """SIGKILL to the whole job or to one of its processes, after which the job must end by itself, and not with 0."""
    children = [child for child in children_of(process.pid) if b"mlm_jax.train" in command_line(child)]
    if processes == 1 or len(children) < processes or rng.random() < 0.5:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "all" if processes > 1 else "it"
    number = rng.randrange(processes)
    os.kill(children[number], signal.SIGKILL)
    if process.wait(timeout=120) == 0:
        sys.exit("one process was killed, and the job ended with 0")
    return f"process {number}"


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def count_starts(workdir: Path) -> int:
    path = workdir / "starts.jsonl"
    return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0


def untimed(workdir: Path) -> list[dict]:
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        {k: v for k, v in record.items() if not k.startswith(("time/", "throughput/", "memory/"))} for record in records
    ]


def state(workdir: Path, step: int) -> list:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return [checkpoint.read_part(workdir, step, part, here) for part in ("step", "params", "optimizer")]


def close(straight: list[dict], shaken: list[dict]) -> tuple[bool, float]:
    """Whether rows, masks and targets are the same, and the largest relative difference of losses."""
    same, largest = len(straight) == len(shaken), 0.0
    for one, other in zip(straight, shaken):
        for key in one:
            if key.endswith("hash") or key in ("step", "train/targets", "epoch"):
                same = same and one[key] == other[key]
            elif key.endswith("loss"):
                largest = max(largest, abs(one[key] / other[key] - 1))
    return same, largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=15.0, help="seconds")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--processes", type=lambda text: [int(one) for one in text.split(",")], default=[1])
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--source", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        text, config = arguments.source or make_text(base), "configs/tiny.py"
        given = f"--config.data.sources={text}"
        if arguments.phases:
            config = str(base / "phases.py")
            Path(config).write_text(PHASES, encoding="utf-8")
        else:
            given = f"--config.data.rows={make_rows(base, text)}"
        return compare(arguments, base, given, config, rng)


def compare(arguments: argparse.Namespace, base: Path, given: str, config: str, rng: random.Random) -> int:
    straight, shaken = base / "straight", base / "shaken"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    alone = started(command(arguments, given, straight, config), arguments.processes[0], **quiet)
    if alone.wait():
        sys.exit(f"left alone it ended with {alone.returncode}")
    began, kinds, flags = time.monotonic(), collections.Counter(), command(arguments, given, shaken, config)
    for number in range(1, arguments.kills + 1):
        processes = rng.choice(arguments.processes)
        done = killed(flags, shaken, processes, arguments.longest, arguments.every, number % 2 == 0, rng)
        if done is None:
            print("it came to its end; the kills that are left would need more --steps")
            break
        when, whom, line = done
        kinds[f"{when}, {whom} of {processes}" if processes > 1 else when] += 1
        print(f"{number:>3}  {processes} process(es), {line}", flush=True)
    last = started(flags, rng.choice(arguments.processes), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, said = last.communicate()
    print(said.splitlines()[-4] if last.returncode == 0 else said)
    seconds, damaged = time.monotonic() - began, len(list(shaken.glob("bad/*")))
    print(f"{sum(kinds.values())} kills and the rest: {seconds:.0f} s; checkpoints moved to bad/: {damaged}")
    print("kills:", "; ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    if last.returncode:
        return 1
    lines = [untimed(workdir) for workdir in (straight, shaken)]
    leaves = [jax.tree.leaves(state(workdir, arguments.steps)) for workdir in (straight, shaken)]
    print(f"epochs: {lines[0][-2]['epoch']:.2f}")
    if len(set(arguments.processes)) > 1:
        same, largest = close(*lines)
        print(f"lines of metrics.jsonl: {len(lines[0])}, rows, masks and targets {'the same' if same else 'DIFFERENT'}")
        apart = max(float(np.max(np.abs(one - other), initial=0.0)) for one, other in zip(*leaves, strict=True))
        print(f"losses differ by {largest:.1e} at most, arrays of the state by {apart:.1e}")
        return 0 if same and largest < CLOSE else 1
    same = lines[0] == lines[1]
    print(f"lines of metrics.jsonl: {len(lines[0])}, {'the same' if same else 'DIFFERENT'}")
    bits = all(np.array_equal(one, other) for one, other in zip(*leaves, strict=True))
    print(f"arrays of the state: {len(leaves[0])}, {'the same bits' if bits else 'DIFFERENT'}")
    return 0 if same and bits else 1


if __name__ == "__main__":
    sys.exit(main())
