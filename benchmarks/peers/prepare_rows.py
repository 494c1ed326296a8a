"""This project's rows of a file of JSON lines: python prepare_rows.py TOKENIZER TEXT FOLDER WORKERS ROW_LENGTH."""

import json
import os
import platform
import sys
import time

from mlm_jax.config import Config, DataConfig, TokenizerConfig
from mlm_jax.prepare import prepare


def main(tokenizer: str, text: str, folder: str, workers: str, row_length: str) -> None:
    data = DataConfig(sources=(text,), workers=int(workers))
    config = Config(row_length=int(row_length), data=data, tokenizer=TokenizerConfig(path=tokenizer))
    begun, before = time.perf_counter(), os.times()
    manifest = prepare(config, folder, progress=False)
    seconds, after = time.perf_counter() - begun, os.times()
    work = sum(after[:4]) - sum(before[:4])  # that of the workers included
    tokens = manifest["corpora"][0]["counts"]["tokens"]
    print(
        json.dumps(
            {
                "seconds": {"": seconds},
                "work": work,
                "tokens": tokens,
                "versions": f"python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
