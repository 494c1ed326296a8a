"""Text to rows, beside the tokenizer's own encoding alone and beside `datasets.map`.

    python benchmarks/preparation.py --kind=sentencepiece --peer_python=PATH [--text=PATH/en.jsonl.gz]

Contenders (see peers/), each a new process in turn, on the same text and with the same number of threads or processes:

- encode: the library's batch encoding of the paragraphs, nothing else: `SentencePieceProcessor.encode`, or
  `tokenizers.Tokenizer.encode_batch`
- prepare: `mlm_jax.prepare` with a given tokenizer, from JSON lines on the disk to shards and manifest, the start of
  its worker processes included
- datasets: two batched maps with the same tokenizer, tokenizing and grouping into blocks (a Python with datasets and
  transformers: --peer_python); reading the JSON lines is not in its time

Ratios are of the same round. Core-seconds are those of all processes of a contender in that time, which other work on
the machine changes less. The tokenizer is trained before, on a part of the text. Without --text, words of Zipf's
law.
"""

import argparse
import gzip
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from mlm_jax.prepare.documents import paragraphs_of
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.tokenizer import Tokenizer

PEERS = Path(__file__).parent / "peers"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
TRAINING = 5_000_000  # characters


def invented(characters: int) -> Iterator[str]:
    """Documents of invented words, whose frequencies follow Zipf's law, in sentences and paragraphs."""
    draw, rng = random.Random(0), np.random.default_rng(0)
    words = ["".join(draw.choices(LETTERS, range(27, 1, -1), k=1 + min(11, rank % 13))) for rank in range(60_000)]
    while characters > 0:
        lines = []
        for _ in range(draw.randint(3, 12)):
            sentences = (np.exp(rng.random(draw.randint(5, 30)) * np.log(len(words))).astype(int) - 1 for _ in range(5))
            lines.append(" ".join(" ".join(words[i] for i in each).capitalize() + "." for each in sentences))
        text = "\n".join(lines)
        characters -= len(text)
        yield text


def given(path: Path, characters: int) -> Iterator[str]:
    """The first documents of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as handle:
        for line in handle:
            text = json.loads(line)["text"]
            yield text
            characters -= len(text)
            if characters <= 0:
                return


def write_text(texts: list[str], folder: Path) -> None:
    """The same text as documents, for those that read a file, and as paragraphs."""
    with open(folder / "text.jsonl", "w", encoding="utf-8") as handle:
        handle.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    with open(folder / "paragraphs.txt", "w", encoding="utf-8") as handle:
        handle.writelines(f"{line}\n" for text in texts for line in paragraphs_of(text))


def make_tokenizer(kind: str, texts: list[str], size: int, folder: Path) -> None:
    """Trains a tokenizer; `folder/own` holds what `prepare` is given, `folder/hub` the same for the peers."""
    upto = itertools.accumulate(map(len, texts))
    sample = [text for text, before in zip(texts, itertools.chain([0], upto)) if before < TRAINING]
    if kind == "sentencepiece":
        tokenizer, _ = train_tokenizer(sample, size)
        tokenizer.save(folder / "own")
    else:
        (folder / "own").mkdir()
        _library(kind, sample, size).save(str(folder / "own" / "tokenizer.json"))
        tokenizer = Tokenizer.load(folder / "own")
    tokenizer.save_hub(folder / "hub")


def _library(kind: str, sample: list[str], size: int):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIALS, show_progress=False)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        options = {"special_tokens": SPECIALS, "initial_alphabet": alphabet, "show_progress": False}
        trainer = trainers.BpeTrainer(vocab_size=size, **options)
    made.train_from_iterator(sample, trainer)
    return made


def take(python: str, script: str, words: list[str]) -> dict:
    """What one contender says of one run."""
    done = subprocess.run([python, str(PEERS / script), *words], capture_output=True, text=True, env=environment())
    if done.returncode:
        sys.exit(f"{script} ended:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def environment() -> dict[str, str]:
    """This one, with the package beside this file before an installed one, compiled once, and without a net."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    root = str(PEERS.parents[1])
    return {**kept, "PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def spread(values: list[float], digits: int = 2) -> str:
    """Median, and the lowest and highest in brackets."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} {max(values):.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("sentencepiece", "wordpiece", "bpe"), default="sentencepiece")
    parser.add_argument("--text", type=Path, help="JSON lines with a field text, plain or .gz; default: invented words")
    parser.add_argument("--characters", type=int, default=34_000_000, help="of text")
    parser.add_argument("--vocab_size", type=int, default=16384)
    parser.add_argument("--row_length", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer_python", help="python with datasets and transformers")
    arguments = parser.parse_args()
    texts = list(given(arguments.text, arguments.characters) if arguments.text else invented(arguments.characters))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(texts, folder)
        make_tokenizer(arguments.kind, texts, arguments.vocab_size, folder)
        compare(arguments, folder, sum(map(len, texts)))


def compare(arguments: argparse.Namespace, folder: Path, characters: int) -> None:
    text, workers, size = str(folder / "text.jsonl"), str(arguments.workers), str(arguments.row_length)
    encode = [arguments.kind, str(folder / "own"), str(folder / "paragraphs.txt"), workers]
    contenders = {
        "prepare": (sys.executable, "prepare_rows.py", [str(folder / "own"), text, "{}", workers, size]),
        "encode": (sys.executable, "bare_encode.py", encode),
    }
    if arguments.peer_python:
        words = [str(folder / "hub"), text, "{}", workers, size]
        contenders["datasets"] = (arguments.peer_python, "datasets_map.py", words)
    found: dict[str, list[dict]] = {contender: [] for contender in contenders}
    for number in range(arguments.rounds):
        # every other round backwards, so that nobody always comes after the same one
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            python, script, words = contenders[contender]
            with tempfile.TemporaryDirectory() as place:
                result = take(python, script, [word.replace("{}", f"{place}/rows") for word in words])
            found[contender].append(result)
            print(f"round {number + 1}: {contender} {result['seconds']['']:.2f} s", flush=True)
    print(f"{arguments.kind}, {characters / 1e6:.1f} million characters, {arguments.workers} of {os.cpu_count()} cores")
    print(f"mlm_jax beside sentencepiece {version('sentencepiece')}, tokenizers {version('tokenizers')}")
    print(f"{'':24} {'seconds, median [range]':26} {'million tokens/s':22} times prepare's")
    for contender, results in found.items():
        for part in results[0]["seconds"]:
            seconds = [result["seconds"][part] for result in results]
            rates = [result["tokens"] / 1e6 / second for result, second in zip(results, seconds)]
            ratios = [second / own["seconds"][""] for second, own in zip(seconds, found["prepare"])]
            label = f"{contender} {part}".strip()
            print(f"{label:24} {spread(seconds):26} {spread(rates):22} {spread(ratios)}")
        work = [result["work"] for result in results]
        ratios = [result["work"] / own["work"] for result, own in zip(results, found["prepare"])]
        print(f"{'  core-seconds':24} {spread(work):49} {spread(ratios)}")
        print(f"{'':24} {results[0]['tokens']:,} tokens; {results[0]['versions']}")


if __name__ == "__main__":
    main()
