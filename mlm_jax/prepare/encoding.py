"""From the files of a corpus to encoded documents on disk, by units of text that workers take."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.prepare import pydoc, sources
from mlm_jax.prepare.contamination import EXAMPLES
from mlm_jax.prepare.job import Corpus, Job
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.tasks import EncodeTask, Part, Settings, encode_unit
from mlm_jax.records import write_json


def extract(job: Job, corpus: Corpus) -> sources.File:
    """The docstrings of `builtin:pydoc` as a file of JSON lines."""
    path = job.encoded / f"{corpus.number}.jsonl"
    if not path.exists():
        partial, room = path.with_name(f"{path.name}.partial"), pydoc.MOST_BYTES
        batches = list(pydoc.batches(corpus.files))
        with Stage("docstrings", job.progress, corpus.identity["bytes"], "modules") as stage, open(partial, "w") as out:
            for batch, lines in zip(batches, job.workers.map(pydoc.extract, batches)):
                for line in lines:
                    room -= len(line)
                    if room >= 0:
                        out.write(line + "\n")
                stage.add(sum(file.size for file in batch), len(batch))
        partial.rename(path)
    return sources.File(str(path), "modules", sources.JSON)


def encode(job: Job, corpus: Corpus, tokenizer: str) -> None:
    """Encodes what is not encoded yet; sets the corpus's counts and parts. Raises ConfigError where no text is.

    tokenizer: hash. What was encoded with another one is encoded anew, and so is what is damaged.
    """
    folder, settings = job.encoded / f"units-{corpus.number}", job.settings(corpus)
    folder.mkdir(exist_ok=True)
    done = folder.with_suffix(".json")  # how many units there are, once all are encoded
    total = sum(file.size for file in corpus.files)
    counts, dropped, first_problem = Counter(read=0, bytes=0, tokens=0), Counter(), None
    contaminated, examples = 0, []
    infos = _found(folder, done, settings, tokenizer)
    if infos is not None:
        job.say(f"encode {corpus.source}: found in {folder}")
    with Stage(f"encode {corpus.source}", job.progress and infos is None, total) as stage:
        number = -1
        for number, info in enumerate(_encoded(job, corpus, folder, settings, tokenizer) if infos is None else infos):
            counts.update({key: info[key] for key in counts})
            dropped.update(info["dropped"])
            first_problem = first_problem or info["first_problem"]
            contaminated += info["contaminated"]
            examples = [*examples, *info["examples"]][:EXAMPLES]
            for split, group, *place in info["parts"]:
                corpus.parts.setdefault((split, group), []).append(Part(str(folder / f"{number:06d}.bin"), *place))
            stage.add(info["bytes"], info["read"], info["stored"])
    write_json(done, {"units": number + 1})
    set_counts(corpus, counts, dropped, first_problem, contaminated, examples)


def set_counts(
    corpus: Corpus,
    counts: dict[str, int],
    dropped: dict[str, int],
    first_problem: list | None,
    contaminated: int = 0,
    examples: Sequence = (),
) -> None:
    """What the manifest says of the documents, from what `encode_unit` says of units. Raises ConfigError without text.

    counts: read, bytes, tokens.
    """
    kept = counts["read"] - sum(dropped.values())
    corpus.counts = {**counts, "kept": kept, "dropped": dict(sorted(dropped.items()))}
    named = [{"document": document, "words": words} for document, words in examples]
    corpus.contaminated = {"documents": contaminated, "examples": named}
    if not kept and first_problem:
        place, problem = first_problem
        raise ConfigError(sources.KEY, place, f"{problem}; and so in all {counts['read']} records of {corpus.source}")
    if not kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in corpus.counts["dropped"].items()) or "none"
        raise ConfigError(sources.KEY, corpus.source, f"holds no text ({counts['read']} documents; dropped: {reasons})")


def _encoded(job: Job, corpus: Corpus, folder: Path, settings: Settings, tokenizer: str) -> Iterator[dict]:
    """What `encode_unit` said of each unit."""
    tasks = (
        EncodeTask(settings, unit, str(folder / f"{unit.number:06d}"), tokenizer)
        for unit in sources.units(corpus.files, settings.fields)
    )
    return job.workers.map(_encode_once, tasks)


def _found(folder: Path, done: Path, settings: Settings, tokenizer: str) -> list[dict] | None:
    """The same where all units are there; else None."""
    try:
        count = int(json.loads(done.read_text(encoding="utf-8"))["units"])
    except (OSError, ValueError, TypeError, KeyError):  # or damaged
        return None
    infos = [_info(folder / f"{number:06d}", settings, tokenizer) for number in range(count)]
    return infos if all(infos) else None


def _encode_once(task: EncodeTask) -> dict:
    return _info(Path(task.path), task.settings, task.tokenizer) or encode_unit(task)


def _info(path: Path, settings: Settings, tokenizer: str) -> dict | None:
    """What `encode_unit` said of the unit that it wrote to this path; None where something of it is missing or cut.

    None too where it was encoded with a tokenizer of another hash.
    """
    try:
        info = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
        parts = [Part("", *place) for _, _, *place in info["parts"]]
        whole = info["tokenizer"] == tokenizer and Path(f"{path}.bin").stat().st_size == sum(p.size for p in parts)
        if settings.screening.duplicates != "keep":
            whole = whole and len(np.load(f"{path}.npy", "r")) == sum(part.documents for part in parts)
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None
    return info if whole else None
