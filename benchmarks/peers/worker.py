"""How a contender talks to the driver: steps when it is told to, and says how long they took.

Imported by the contenders in their own processes and interpreters, so it needs numpy alone.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

import numpy as np


def begin() -> tuple[dict, np.ndarray, TextIO]:
    """The case, its token rows i32[n,t], and where answers go. What libraries print to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    case = json.loads(sys.argv[1])
    return case, np.load(case["tokens"]), answers


def serve(answers: TextIO, run: Callable[[int], float], about: dict) -> None:
    """Answers each line "N" with the seconds of N steps and their last loss, until stdin ends.

    run(n): takes n steps, waits for the last one, and returns its loss.
    """
    answers.write(json.dumps(about) + "\n")
    for line in sys.stdin:
        began = time.perf_counter()
        loss = run(int(line))
        answers.write(json.dumps({"seconds": time.perf_counter() - began, "loss": float(loss)}) + "\n")
