"""Kills `prepare` with SIGKILL at random moments and compares its rows with those of a call that nobody killed.

Command: python benchmarks/prepare_kills.py [--kills=10] [--workers=2] [--seed=0] [--sources=PATH]

With pairs, collocations and encoded documents that are kept. Where a call is done before its moment comes, its rows are
compared and the next one begins anew. Ends with 0 if all files have the same bytes.
"""

import argparse
import filecmp
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlm_jax.prepare.folder import WORK


def command(folder: Path, sources: str, workers: int) -> list[str]:
    options = {"data.pairs": "next", "data.collocations": 1000, "data.collocation_count": 5}
    options["tokenizer.sample_bytes"] = (
        1_000_000  # training, which begins anew after a kill, takes no longer than others
    )
    options |= {"data.sources": sources, "data.workers": workers, "data.encoded": folder / "encoded"}
    program = [sys.executable, "-m", "mlm_jax", "prepare", "--config=configs/tiny.py", f"--workdir={folder}"]
    return [*program, *(f"--config.{key}={value}" for key, value in options.items())]


def stage(folder: Path) -> str:
    """What the files say of how far a call came that is dead."""
    if (folder / "rows").exists():
        return "all done"
    if list(folder.glob(".rows.*/manifest.json")):
        return "before the rows were put in their place"
    if list(folder.glob(".rows.*/train/*")):
        return f"packing, {len(list(folder.glob(f'.rows.*/{WORK}/shard-*.json')))} shards done"
    if list(folder.glob(".rows.*/tokenizer/*")):
        return "listing collocations"
    if units := len(list(folder.glob("encoded/*/units-*/*.json"))):
        return f"encoding, {units} units done"
    return "training the tokenizer" if list(folder.glob("encoded/*")) else "starting"


def same(left: Path, right: Path) -> bool:
    """Whether two folders hold the same files with the same bytes."""
    names = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        for folder in (left, right)
    ]
    return names[0] == names[1] and not any(filecmp.cmpfiles(left, right, names[0], shallow=False)[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sources", default="builtin:pydoc")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as base:
        straight, shaken = Path(base, "straight"), Path(base, "shaken")
        began = time.monotonic()
        run = command(straight, arguments.sources, arguments.workers)
        if (alone := subprocess.run(run, capture_output=True, text=True)).returncode:
            print(alone.stderr)
            return 1
        whole = time.monotonic() - began
        print(f"without kills: {whole:.1f} s")
        run, kills, compared = command(shaken, arguments.sources, arguments.workers), 0, []
        while kills < arguments.kills:
            process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            moment = rng.uniform(0.2, 0.7 * whole)
            try:
                if process.wait(moment):
                    break
                compared.append(same(straight / "rows", shaken / "rows"))
                print(f"     ended by itself: {'the same bytes' if compared[-1] else 'DIFFERENT'}", flush=True)
                shutil.rmtree(shaken)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                print(f"{kills:>3}  killed after {moment:5.1f} s, {stage(shaken)}", flush=True)
        done = subprocess.run(run, capture_output=True, text=True)
        compared.append(done.returncode == 0 and same(straight / "rows", shaken / "rows"))
        print(f"     not killed: {'the same bytes' if compared[-1] else 'DIFFERENT'}")
        print(done.stderr if done.returncode else "", end="")
        left = sorted(path.name for path in shaken.iterdir())
        print(f"left in the folder: {', '.join(left)}")
    return 0 if kills == arguments.kills and all(compared) else 1


if __name__ == "__main__":
    sys.exit(main())
