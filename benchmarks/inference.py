"""Embeddings and filled masks a second on this CPU, side by side with transformers in PyTorch.

    python benchmarks/inference.py --tokenizer=PATH --text=PATH/en.jsonl.gz --case=medium

Both read the same texts in the same order and the same float32 weights (random ones, exported as a hub folder), and
both turn text into answers, tokenizer included; as many threads as it may use cores. The peer takes 32 texts at a time,
padded to the longest of them, with SDPA, in inference mode: once in the order that is given, once after sorting all
texts by their length, which leaves it the least padding. They take turns, in one process, for --rounds rounds; what
compiles is done before, and told apart. Ratios are of the same round: of the time that passed, and of the core time,
which other processes change less (but threads that wait for each other spin; `taskset -c 0` leaves one of each).
Tokens are real ones, CLS and SEP among them.
--tokenizer: a folder of one, such as that of a run.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import torch
import transformers

from mlm_jax import convert, inference, runtime
from mlm_jax.config import ModelConfig, hub
from mlm_jax.convert.files import WEIGHTS, write_tensors
from mlm_jax.inference.fill import fill_mask
from mlm_jax.models import build
from mlm_jax.tokenizer import Tokenizer

SIZES = ("layers", "width", "heads", "hidden")
CASES = {
    "small": dict(zip(SIZES, (2, 128, 4, 512))),
    "medium": dict(zip(SIZES, (6, 384, 12, 1536))),
    "base": dict(zip(SIZES, (12, 768, 12, 3072))),
}
LONGEST = 126  # tokens of a cut document, without CLS and SEP
TEXTS = 32  # of a batch of the peer
SETTLE_SECONDS = 0.5  # idle threads of the other spin for a while
TOP_K = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--verb", choices=("embed", "fill-mask"), default="embed")
    parser.add_argument("--documents", action="store_true", help="cut documents instead of sentences")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runtime.start()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    tokenizer = Tokenizer.load(arguments.tokenizer)
    texts = texts_of(arguments, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), CASES[arguments.case], tokenizer)
        makers = embedders if arguments.verb == "embed" else fillers
        contenders = makers(folder, texts)
    what = "documents" if arguments.documents else "sentences"
    print(f"{arguments.verb}, {arguments.case}: {CASES[arguments.case]}, {len(texts)} {what}")
    print(f"{cores} cores, {os.getloadavg()[0]:.1f} processes wanted them in the minute before")
    print(f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
    answers, first = {}, {}
    for name, contender in contenders.items():
        began = time.perf_counter()
        answers[name] = contender()
        first[name] = time.perf_counter() - began
    times = {name: [] for name in contenders}
    for number in range(arguments.rounds):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            time.sleep(SETTLE_SECONDS)
            began, used = time.perf_counter(), time.process_time()
            contenders[name]()
            times[name].append((time.perf_counter() - began, time.process_time() - used))
    show(
        times, first, answers, sum(len(tokenizer.encode_around(text.split("[MASK]"))) + 2 for text in texts), len(texts)
    )


def show(times: dict, first: dict, answers: dict, tokens: int, count: int) -> None:
    ours = next(iter(times))
    print(f"{tokens / count:.1f} tokens a text; medians of {len(times[ours])} rounds, of ratios the range too")
    print(f"{'':20} texts/s tokens/s  first call  the peer's time, and its core time, by this project's")
    for name, taken in times.items():
        seconds = statistics.median(passed for passed, _ in taken)
        ratios = [spread([other[i] / own[i] for other, own in zip(taken, times[ours])]) for i in (0, 1)]
        print(f"{name:20} {count / seconds:7.0f} {tokens / seconds:8.0f} {first[name]:8.1f} s   {'  '.join(ratios)}")
        print(f"{'':20} greatest difference {np.abs(answers[name] - answers[ours]).max():.1e}", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f} {max(values):.2f}]"


def texts_of(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[str]:
    """Sentences, or documents cut to LONGEST tokens; for fill-mask with a MASK for one word of each."""
    found = []
    with gzip.open(arguments.text, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = " ".join(json.loads(line)["text"].split())
            parts = [cut(text, tokenizer)] if arguments.documents else re.split(r"(?<=[.!?]) ", text)
            found += [part for part in parts if len(part.split()) >= 3 and len(tokenizer.encode(part).ids) <= LONGEST]
            if len(found) >= arguments.texts:
                break
    found = found[: arguments.texts]
    return [masked(text) for text in found] if arguments.verb == "fill-mask" else found


def cut(text: str, tokenizer: Tokenizer) -> str:
    """Its first words, of at most LONGEST tokens."""
    words = text[: 10 * LONGEST].split()
    while len(tokenizer.encode(" ".join(words)).ids) > LONGEST:
        words.pop()
    return " ".join(words)


def masked(text: str) -> str:
    words = text.split()
    words[len(words) // 2] = "[MASK]"
    return " ".join(words)


def write(folder: Path, sizes: dict, tokenizer: Tokenizer) -> None:
    """A hub folder of random weights."""
    config = ModelConfig(**sizes, types=2, vocab_size=tokenizer.size)
    params = jax.device_get(build(config, tokenizer.size).init(jax.random.key(0)))
    write_tensors(folder / WEIGHTS, convert.to_hub(params, config, tokenizer.size))
    ids = {role: getattr(tokenizer, role) for role in ("pad", "cls", "sep")}
    hub.write_config(folder, hub.config_values(config, tokenizer.size, ids))
    tokenizer.save_hub(folder, config.max_positions)


def embedders(folder: str, texts: list[str]) -> dict:
    """name -> a function that returns f32[texts,d]."""
    loaded = inference.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False).eval()

    def peer(encoded: dict) -> torch.Tensor:
        hidden = model(**encoded).last_hidden_state
        counted = encoded["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * counted).sum(1) / counted.sum(1)

    return {"this project": lambda: inference.embed(loaded, texts)} | in_batches(peer, theirs, texts)


def fillers(folder: str, texts: list[str]) -> dict:
    """name -> a function that returns the TOP_K greatest probabilities, f32[texts,TOP_K]."""
    loaded = inference.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="sdpa").eval()

    def ours() -> np.ndarray:
        found = fill_mask(loaded, texts, top_k=TOP_K)
        return np.array([[guess["probability"] for guess in one["masks"][0]] for one in found])

    def peer(encoded: dict) -> torch.Tensor:
        """As the pipeline: logits of all tokens, of which those of the MASKs are looked at."""
        logits = model(**encoded).logits[encoded["input_ids"] == theirs.mask_token_id]
        return logits.softmax(-1).topk(TOP_K).values

    return {"this project": ours} | in_batches(peer, theirs, texts)


def in_batches(peer, tokenizer, texts: list[str]) -> dict:
    """The peer in the order of the texts, and in that of their lengths."""

    def run(order: list[int]) -> np.ndarray:
        found = np.zeros(0)
        for first in range(0, len(order), TEXTS):
            numbers = order[first : first + TEXTS]
            encoded = tokenizer([texts[i] for i in numbers], padding=True, return_tensors="pt")
            with torch.inference_mode():
                answer = peer(encoded).numpy()
            found = found if len(found) else np.zeros((len(texts), answer.shape[1]), np.float32)
            found[numbers] = answer
        return found

    numbers = list(range(len(texts)))
    return {
        "transformers": lambda: run(numbers),
        "transformers, sorted": lambda: run(sorted(numbers, key=lambda i: len(texts[i]))),
    }


if __name__ == "__main__":
    main()
