"""The tokenizer's own batch encoding and nothing else: python bare_encode.py KIND TOKENIZER PARAGRAPHS THREADS."""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path


def main(kind: str, tokenizer: str, paragraphs: str, threads: str) -> None:
    lines = Path(paragraphs).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if kind == "sentencepiece":
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=f"{tokenizer}/spm.model")
        begun, work = time.perf_counter(), time.process_time()
        found = processor.encode(lines, num_threads=int(threads))
    else:
        os.environ |= {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        import tokenizers

        library = tokenizers.Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
        begun, work = time.perf_counter(), time.process_time()
        found = library.encode_batch(lines, add_special_tokens=False)
    seconds, work = time.perf_counter() - begun, time.process_time() - work
    name = "sentencepiece" if kind == "sentencepiece" else "tokenizers"
    about = f"{name} {version(name)}"
    print(json.dumps({"seconds": {"": seconds}, "work": work, "tokens": sum(map(len, found)), "versions": about}))


if __name__ == "__main__":
    main(*sys.argv[1:])
