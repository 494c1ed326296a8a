"""A training step side by side with peers: same sizes, same rows, same machine, one after another in turn.

    python benchmarks/step_against_peers.py --case=small --torch_python=PATH --keras_python=PATH

Each contender (see peers/) is a process of its own. All start and warm up; then each in turn takes --steps steps, and
that is repeated for --rounds rounds, so that they see the same machine and never run at the same time. A step is all
that training does for it: reading or collating the batch, masks, forward, backward, clipping, AdamW. Float32, dropout
0.1 (BERT; ModernBERT has none), rate 15 %, 80/10/10, single tokens, full rows of one document. Hugging Face three
times: SDPA, SDPA with torch.compile, eager attention; KerasHub has no ModernBERT. Ratios are of the same round. A
contender whose Python is not given, or whose name is not among --only, is left out. A round in which other processes
took more than a tenth of a core is left out and repeated, whatever its times were, but no more than three times; how
many were is shown.

With --keep_memory the peers' C library keeps freed memory as this project's does by itself (`runtime.start`): on a CPU
a good part of the peers' time can go into asking the system for the same memory again in each step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PEERS = Path(__file__).parent / "peers"
SETTLE_SECONDS = 0.5  # idle threads of the contender before spin for a while
MOST_NOISE = 0.1  # cores that other processes may take during a round
MOST_REPEATED = 3  # rounds; after so many no more are left out, so that a busy machine does not keep this one for long

# What `runtime.start` lets `memory.keep_freed` set.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}

COMMON = {"family": "bert", "dropout": 0.1, "rate": 0.15, "learning_rate": 1e-4, "schedule_steps": 10_000}
SIZES = ("layers", "width", "heads", "hidden", "rows", "row_length", "vocab_size")
CASES = {
    "small": dict(zip(SIZES, (2, 128, 4, 512, 64, 64, 4096))),
    "medium": dict(zip(SIZES, (4, 256, 4, 1024, 32, 128, 8192))),
    "base": dict(zip(SIZES, (12, 768, 12, 3072, 8, 128, 30522))),
    # four layers of which two are local; ModernBERT-base at the length of its first phase
    "modern_medium": {"family": "modernbert", **dict(zip(SIZES, (4, 256, 4, 384, 8, 512, 8192)))},
    "modern_base": {"family": "modernbert", **dict(zip(SIZES, (22, 768, 12, 1152, 1, 1024, 50368)))},
}
BATCHES = 32  # different batches of rows


def busy_seconds() -> float:
    """Core-seconds that this machine has worked since it started, those that its host took away included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds(process: int) -> float:
    """Core-seconds of a process, all its threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Contender:
    """A process that takes steps when it is told to."""

    def __init__(self, name: str, python: str, script: str, case: dict, variables: dict[str, str]):
        self.name, self.times = name, []
        line = [python, str(PEERS / script), json.dumps(case)]
        log = open(f"{case['folder']}/{name}.log", "w")  # noqa: SIM115 (lives as long as the process)
        self.log = log.name
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        self.process = subprocess.Popen(line, **pipes, text=True, bufsize=1, env={**os.environ, **variables})
        self.about = self._read()

    def take(self, steps: int) -> tuple[float, float]:
        """Seconds a step, and how many cores the other processes took meanwhile."""
        busy, own, began = busy_seconds(), own_seconds(self.process.pid), time.perf_counter()
        self.process.stdin.write(f"{steps}\n")
        seconds = self._read()["seconds"]
        others = (busy_seconds() - busy) - (own_seconds(self.process.pid) - own)
        return seconds / steps, others / (time.perf_counter() - began)

    def _read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended:\n{Path(self.log).read_text()[-3000:]}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def case_of(name: str, folder: str) -> dict:
    """The sizes of a case, and the file of its rows: CLS, ids of about Zipf's law, SEP."""
    case = {**COMMON, **CASES[name], "folder": folder, "tokens": f"{folder}/tokens.npy"}
    case |= {"max_positions": case["row_length"]}
    t, rng = case["row_length"], np.random.default_rng(0)
    # slots for predictions as this project counts them; KerasHub has as many
    wanted = int(np.ceil(case["rate"] * t - 1e-9)) + t // 32
    case["capacity"] = -(-wanted // 8) * 8
    ordinary = case["vocab_size"] - 5
    tokens = 4 + np.exp(rng.random((BATCHES * case["rows"], t)) * np.log(ordinary)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 2, 3
    np.save(case["tokens"], tokens)
    return case


def start(arguments: argparse.Namespace, case: dict) -> list[Contender]:
    """Starts and warms up one after another."""
    torch, keras = arguments.torch_python, arguments.keras_python if case["family"] == "bert" else None
    places = [
        ("this project", sys.executable, "ours.py", {}),
        ("HF sdpa", torch, "hugging_face.py", {"attention": "sdpa", "compiled": False}),
        ("HF compiled", torch, "hugging_face.py", {"attention": "sdpa", "compiled": True}),
        ("HF eager", torch, "hugging_face.py", {"attention": "eager", "compiled": False}),
        ("KerasHub", keras, "keras_masked_lm.py", {}),
    ]
    contenders = []
    for name, python, script, how in places:
        if python and (not arguments.only or not contenders or name in arguments.only):
            began = time.perf_counter()
            contender = Contender(name, python, script, case | how, KEEP_MEMORY if arguments.keep_memory else {})
            contender.take(arguments.warm_up)
            taken = time.perf_counter() - began
            print(f"{name:14} {contender.about['parameters']:,} parameters; {contender.about['versions']}")
            print(f"{'':14} ready after {taken:.1f} s", flush=True)
            contenders.append(contender)
    return contenders


def rounds(contenders: list[Contender], count: int, steps: int) -> int:
    """Takes `count` rounds into the contenders' `times`; returns how many others were not quiet enough."""
    repeated = 0
    while len(contenders[0].times) < count:
        taken, noise = {}, 0.0
        # every other round backwards, so that nobody always comes after the same one
        for contender in contenders if len(contenders[0].times) % 2 == 0 else reversed(contenders):
            time.sleep(SETTLE_SECONDS)
            taken[contender.name], others = contender.take(steps)
            noise = max(noise, others)
        if noise > MOST_NOISE and repeated < MOST_REPEATED:
            repeated += 1
            continue
        for contender in contenders:
            contender.times.append(taken[contender.name])
    return repeated


def spread(values: list[float], digits: int) -> str:
    """Median, and the lowest and highest in brackets."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--torch_python", help="python with torch and transformers")
    parser.add_argument("--keras_python", help="python with keras-hub, jax and tensorflow-text")
    parser.add_argument("--only", nargs="*", help="names of peers, as the table shows them; without it all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps a round")
    parser.add_argument("--warm_up", type=int, default=3, help="steps before the first round")
    parser.add_argument("--keep_memory", action="store_true", help="let the peers keep freed memory too")
    arguments = parser.parse_args()
    print(f"{arguments.case}: {CASES[arguments.case]}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        contenders = start(arguments, case_of(arguments.case, folder))
        repeated = rounds(contenders, arguments.rounds, arguments.steps)
        for contender in contenders:
            contender.close()
    ours = contenders[0].times
    print(f"{arguments.rounds} rounds of {arguments.steps} steps; {repeated} more left out")
    print(f"{'':14} {'ms a step, median [range]':30} times this project's")
    for contender in contenders:
        milliseconds = [1e3 * seconds for seconds in contender.times]
        ratios = [other / own for other, own in zip(contender.times, ours)]
        print(f"{contender.name:14} {spread(milliseconds, 1):30} {spread(ratios, 2)}")


if __name__ == "__main__":
    main()
