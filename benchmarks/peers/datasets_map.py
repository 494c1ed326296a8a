"""Blocks of ids by `datasets`: python datasets_map.py TOKENIZER TEXT FOLDER WORKERS ROW_LENGTH.

The usual way of pretraining scripts: a batched `map` that tokenizes, a second one that joins the documents of a batch
and cuts them into blocks; what is left over of a batch is dropped.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from itertools import chain

import datasets
from transformers import AutoTokenizer


def main(tokenizer: str, text: str, folder: str, workers: str, row_length: str) -> None:
    size, count = int(row_length), int(workers)
    datasets.disable_progress_bars()
    library = AutoTokenizer.from_pretrained(tokenizer)

    def tokenize(batch: dict) -> dict:
        return library(batch["text"], return_special_tokens_mask=True)

    def group(batch: dict) -> dict:
        joined = {key: list(chain.from_iterable(values)) for key, values in batch.items()}
        whole = len(next(iter(joined.values()))) // size * size
        return {key: [values[at : at + size] for at in range(0, whole, size)] for key, values in joined.items()}

    begun = time.perf_counter()
    raw = datasets.load_dataset("json", data_files=text, cache_dir=folder, split="train")
    loaded, before = time.perf_counter(), os.times()
    ids = raw.map(tokenize, batched=True, num_proc=count, remove_columns=raw.column_names)
    mapped = time.perf_counter()
    blocks = ids.map(group, batched=True, num_proc=count)
    done, after = time.perf_counter(), os.times()
    seconds = {"": done - loaded, "with loading": done - begun, "tokenizing": mapped - loaded}
    versions = ", ".join(f"{name} {version(name)}" for name in ("datasets", "transformers", "tokenizers"))
    work = sum(after[:4]) - sum(before[:4])  # that of the workers included
    print(json.dumps({"seconds": seconds, "work": work, "tokens": len(blocks) * size, "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
