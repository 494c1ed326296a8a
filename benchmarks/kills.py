"""A run that is killed at random moments, again and again, against the same run left alone.

Command: python benchmarks/kills.py [--kills=20] [--steps=300] [--seed=0] [--longest=15] [--phases] [--source=TEXT]

`configs/tiny.py` on a part of the embedded text, accumulation 2, more than two epochs, a checkpoint every 10 steps.
SIGKILL comes at a random moment after the start (importing, compiling, training), every second time as soon as a
checkpoint is being written. With --phases the run has four: another batch, learning rate and mask rate, rows twice as
long, and back to the first ones; the rows are then prepared within the run, and killed there, too. Ends with 0 if
parameters and optimizer state have the same bits, and all lines of `metrics.jsonl` but their times are the same.
"""

import argparse
import json
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


def command(given: str, workdir: Path, steps: int, config: str) -> list[str]:
    """given: the setting that names the rows, or the text."""
    options = {"steps": steps, "accumulation": 2, "checkpoint.every_steps": 10, "evaluate.every_steps": 100}
    flags = [f"--config.{key}={value}" for key, value in options.items()]
    return [sys.executable, "-m", "mlm_jax.train", f"--config={config}", f"--workdir={workdir}", given, *flags]


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


def killed(run: list[str], workdir: Path, longest: float, in_save: bool, rng: random.Random) -> str:
    """Starts the run and kills it; returns a line of the report."""
    before, starts = checkpoint.newest(workdir), count_starts(workdir)
    process = subprocess.Popen(run, stderr=subprocess.DEVNULL)
    began, moment = time.monotonic(), rng.uniform(0.2, longest)
    while process.poll() is None:
        begun = count_starts(workdir) > starts
        if in_save and begun and saving(workdir):
            time.sleep(rng.uniform(0, 0.03))
            break
        if not in_save and time.monotonic() - began > moment:
            break
        time.sleep(0.0005)
    seconds, was_saving = time.monotonic() - began, saving(workdir)
    process.send_signal(signal.SIGKILL)
    process.wait()
    phase = "saving" if was_saving else "training" if count_starts(workdir) > starts else "starting"
    return f"from {before or 0:>4}  killed after {seconds:5.1f} s at step {last_step(workdir):>4}, {phase}"


def count_starts(workdir: Path) -> int:
    path = workdir / "starts.jsonl"
    return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0


def untimed(workdir: Path) -> list[dict]:
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in record.items() if not k.startswith(("time/", "throughput/"))} for record in records]


def state(workdir: Path, step: int) -> list:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return [checkpoint.read_part(workdir, step, part, here) for part in ("step", "params", "optimizer")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=15.0, help="seconds after a start")
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
        straight, shaken = base / "straight", base / "shaken"
        subprocess.run(command(given, straight, arguments.steps, config), check=True, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        run = command(given, shaken, arguments.steps, config)
        for number in range(1, arguments.kills + 1):
            print(f"{number:>3}  {killed(run, shaken, arguments.longest, number % 2 == 0, rng)}", flush=True)
        done = subprocess.run(run, capture_output=True, text=True)
        print(done.stderr.splitlines()[-4] if done.returncode == 0 else done.stderr)
        seconds, damaged = time.monotonic() - began, len(list(shaken.glob("bad/*")))
        print(f"{arguments.kills} kills and the rest: {seconds:.0f} s; checkpoints moved to bad/: {damaged}")
        same = untimed(straight) == untimed(shaken)
        print(f"lines of metrics.jsonl: {len(untimed(straight))}, {'the same' if same else 'DIFFERENT'}")
        leaves = [jax.tree.leaves(state(workdir, arguments.steps)) for workdir in (straight, shaken)]
        bits = all(np.array_equal(one, other) for one, other in zip(*leaves, strict=True))
        print(f"arrays of the state: {len(leaves[0])}, {'the same bits' if bits else 'DIFFERENT'}")
        print(f"epochs: {untimed(straight)[-2]['epoch']:.2f}")
    return 0 if done.returncode == 0 and same and bits else 1


if __name__ == "__main__":
    sys.exit(main())
