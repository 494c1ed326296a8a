"""How much memory `prepare` takes for a corpus of any size: resident memory of all its processes together.

    python benchmarks/prepare_memory.py --gigabytes=2 --folder=/tmp/memory

Writes a corpus of JSON lines (documents of 20 to 20,000 characters, words by Zipf's law) into the folder, prepares it
in another process, looks at /proc every half a second, and removes what it wrote. Text, intermediate results and rows
need about three times the size of the corpus on disk.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

PARAGRAPHS, FILE_BYTES = 20_000, 500_000_000
EVERY_SECONDS = 0.5
PREPARE = """
import dataclasses, sys
from mlm_jax.config import Config, DataConfig, TokenizerConfig
from mlm_jax.prepare import prepare
if __name__ == "__main__":
    source, rows, row_length, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    prepare(Config(row_length=row_length, data=DataConfig(sources=(source,), workers=workers)), rows)
"""


def paragraphs(draw: random.Random) -> list[str]:
    """Sentences of invented words, the word of rank r with weight 1 / r; as JSON writes them."""
    words = list({"".join(draw.choices("etaoinshrdlucmfw", k=draw.randint(1, 9))) for _ in range(30_000)})
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    made = []
    for _ in range(PARAGRAPHS):
        sentences = (
            " ".join(draw.choices(words, cum_weights=weights, k=draw.randint(3, 30))) for _ in range(draw.randint(1, 6))
        )
        made.append(" ".join(f"{sentence}.".capitalize() for sentence in sentences))
    return made


def generate(folder: Path, size: int) -> None:
    draw = random.Random(0)
    pool = paragraphs(draw)
    folder.mkdir(parents=True)
    written = 0
    while written < size:
        with open(folder / f"{written // FILE_BYTES:04d}.jsonl", "w", encoding="ascii") as out:
            limit = min(size, written + FILE_BYTES)
            while written < limit:
                count = min(50, int(draw.paretovariate(1.0)))
                written += out.write('{"text": "' + "\\n".join(draw.choices(pool, k=count)) + '"}\n')


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in tree(int(child)))]


def resident(pid: int) -> int:
    """Bytes; shared ones count in each process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def measure(process: subprocess.Popen) -> tuple[int, int, float]:
    """Most bytes of all processes together and of one, and the seconds it took."""
    together = single = 0
    begun = time.monotonic()
    while process.poll() is None:
        sizes = [resident(pid) for pid in tree(process.pid)] or [0]
        together, single = max(together, sum(sizes)), max(single, *sizes)
        time.sleep(EVERY_SECONDS)
    return together, single, time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, required=True, help="a new folder, removed at the end")
    parser.add_argument("--row_length", type=int, default=512)
    parser.add_argument("--workers", type=int, default=0, help="0: one per core")
    asked = parser.parse_args()
    begun = time.monotonic()
    try:
        generate(asked.folder / "text", int(asked.gigabytes * 1e9))
        print(f"generated {asked.gigabytes:g} GB in {time.monotonic() - begun:.0f} s", flush=True)
        arguments = [str(asked.folder / "text"), str(asked.folder / "rows"), str(asked.row_length), str(asked.workers)]
        process = subprocess.Popen([sys.executable, "-c", PREPARE, *arguments])
        together, single, seconds = measure(process)
        if process.returncode:
            return process.returncode
        manifest = json.loads((asked.folder / "rows/manifest.json").read_text(encoding="utf-8"))
        (corpus,) = manifest["corpora"]
        print(f"{corpus['counts']['read']:,} documents, {corpus['counts']['tokens']:,} tokens in {seconds:.0f} s")
        print(f"peak resident memory: {together / 1e6:,.0f} MB in all, {single / 1e6:,.0f} MB in one process")
        return 0
    finally:
        shutil.rmtree(asked.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
