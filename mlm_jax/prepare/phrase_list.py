"""The list of collocations of the training documents, beside the rows that mark them."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator

import numpy as np

from mlm_jax.prepare import collocations
from mlm_jax.prepare.folder import SPLITS
from mlm_jax.prepare.job import Job
from mlm_jax.prepare.phrases import write_phrases
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.tasks import Part
from mlm_jax.records import write_json
from mlm_jax.tokenizer import Tokenizer

COLLOCATIONS = "collocations.tsv"


def list_collocations(job: Job, tokenizer: Tokenizer) -> dict[str, object]:
    """Writes the list of collocations of the training documents; what the manifest says of it, nothing where none is.

    The list follows from the encoded documents and the options alone: the documents' hashes decide which are counted.
    """
    data, path, info = job.config.data, job.build / COLLOCATIONS, job.work / "collocations.json"
    if not data.collocations:
        return {}
    if not info.exists():
        counted: Counter = Counter(documents=0, tokens=0)

        def texts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for documents, ids, flags in collocations.sample(_train_parts(job), data.collocation_tokens):
                counted.update(documents=documents, tokens=len(ids))
                stage.add(ids.nbytes, documents)
                yield ids, flags

        with Stage("collocations", job.progress) as stage:
            longest, least = data.collocation_longest, data.collocation_count
            phrases, by_length = collocations.collocations(texts(), tokenizer, data.collocations, longest, least)
        write_phrases(path, phrases)
        hash = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        about = {"file": COLLOCATIONS, "hash": hash, **counted, "kept": len(phrases), "by_length": by_length}
        write_json(info, about)
    about = json.loads(info.read_text(encoding="utf-8"))
    job.say(
        f"collocations: {about['kept']:,} n-grams, from {about['tokens']:,} tokens of {about['documents']:,} documents"
    )
    return about


def _train_parts(job: Job) -> list[Part]:
    of_groups = (of_group for corpus in job.corpora for of_group in sorted(corpus.parts.items()))
    return [part for (split, _), parts in of_groups for part in parts if SPLITS[split] == "train"]
