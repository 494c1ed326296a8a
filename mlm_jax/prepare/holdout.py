"""What is said where hashes hold out all documents of a source: each source must have some to train on."""

from collections.abc import Iterable

from mlm_jax.config import ConfigError
from mlm_jax.prepare import sources
from mlm_jax.prepare.folder import SPLITS
from mlm_jax.prepare.job import Corpus, Job

KEY = "config.data.holdout"


def check_training(job: Job, groups: Iterable[tuple[int, int, int]]) -> None:
    """Raises ConfigError for a corpus without training documents. groups: (corpus, split, group) of all documents."""
    trained = {number for number, split, _ in groups if SPLITS[split] == "train"}
    for corpus in job.corpora:
        if corpus.number not in trained:
            raise _all_held_out(job, corpus, corpus.counts["read"], corpus.counts["kept"])


def check_sample(job: Job, texts: list[str], held_out: list[str]) -> None:
    """Raises ConfigError where the sample of training text is empty since all text is held out; counts it anew."""
    if texts or not any(text.strip() for text in held_out):
        return
    for corpus in job.corpora:
        fields, read, kept = job.settings(corpus).fields, 0, 0
        for unit in sources.units(corpus.files, fields):
            for document in sources.documents(unit, fields):
                read += 1
                kept += bool(not document.problem and document.text.strip())
        if kept:
            raise _all_held_out(job, corpus, read, kept)


def _all_held_out(job: Job, corpus: Corpus, read: int, kept: int) -> ConfigError:
    what = "the only document" if kept == 1 else f"all {kept:,} documents"
    of = f"{corpus.source!r}" if kept == read else f"{corpus.source!r} (of {read:,} read, the others are dropped)"
    fix = f"{what} of {of} {'is' if kept == 1 else 'are'} held out for evaluation: none is left to train on; "
    fix += "set it to 0, or give more documents"
    if any(file.kind == sources.TEXT for file in corpus.files):
        fix += " (in a text file an empty line ends one)"
    return ConfigError(KEY, job.config.data.holdout, fix)
