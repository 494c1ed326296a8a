"""The tokenizer of the rows: trained on a sample of the corpora or given, with terms of its own."""

import dataclasses
import json
from pathlib import Path

from mlm_jax.config import ConfigError
from mlm_jax.prepare import sources
from mlm_jax.prepare.fitting import Kind
from mlm_jax.prepare.holdout import check_sample
from mlm_jax.prepare.identity import read_terms
from mlm_jax.prepare.job import Job
from mlm_jax.prepare.progress import Pulse, Stage, peak_memory_bytes
from mlm_jax.prepare.sampling import sample_texts
from mlm_jax.prepare.served import serve
from mlm_jax.prepare.training import train_tokenizer
from mlm_jax.records import write_json
from mlm_jax.tokenizer import Tokenizer

Texts = tuple[list[str], list[str]]  # of training and held-out documents


def make_tokenizer(job: Job, sample: Texts | None = None) -> tuple[Tokenizer, dict]:
    """The tokenizer of the rows with its terms, saved beside them, and what its training said.

    sample: the texts to train on and those to try it on, where they were drawn elsewhere.
    """
    tokenizer, report = _tokenizer_without_terms(job, sample)
    if terms := job.config.tokenizer.terms:
        size, asked = tokenizer.size, read_terms(terms)
        try:
            tokenizer = tokenizer.add_terms(asked)  # those that are pieces already, as after an interruption, stay so
        except ConfigError as error:
            raise ConfigError("config.tokenizer.terms", terms, f"{error.value!r} {error.fix}") from None
        tokenizer.save(job.tokenizer)
        job.say(f"tokenizer: {tokenizer.size - size:,} new pieces for {len(asked):,} terms, {tokenizer.size:,} in all")
    return tokenizer, report


def _sample(job: Job) -> Texts:
    total = sum(file.size for corpus in job.corpora for file in corpus.files)
    with Stage("sample", job.progress, total) as stage:
        pairs = [(corpus.files, job.settings(corpus)) for corpus in job.corpora]
        return sample_texts(pairs, job.config.tokenizer.sample_bytes, job.workers, stage)


def _tokenizer_without_terms(job: Job, sample: Texts | None) -> tuple[Tokenizer, dict]:
    """As it was trained, or given; then training says nothing."""
    asked, report_path = job.config.tokenizer, job.encoded / "training.json"
    if asked.path:
        tokenizer = Tokenizer.load(asked.path)
        tokenizer.save(job.tokenizer)
        return tokenizer, {}
    found = _found(job.tokenizer, report_path)
    if not found:
        texts, held_out = sample or _sample(job)
        check_sample(job, texts, held_out)
        job.say(f"tokenizer: training {asked.vocab_size:,} pieces on {sum(map(len, texts)):,} characters")
        try:
            kind = Kind(asked.kind, asked.byte_fallback, asked.lowercase, asked.strip_accents)
            with Pulse("tokenizer", job.progress):
                tokenizer, report = train_tokenizer(texts, asked.vocab_size, kind, job.say)
        except ValueError:
            fix = "hold no word to train a tokenizer on"
            raise ConfigError(sources.KEY, job.config.data.sources, fix) from None
        tokenizer.save(job.tokenizer)
        values = dataclasses.asdict(report) | {"bytes_used": report.bytes_used, "messages": report.messages()}
        write_json(report_path, values | {"held_out": serve(tokenizer, held_out, job.config.data.segmenter)})
        found = Tokenizer.load(job.tokenizer), json.loads(report_path.read_text(encoding="utf-8"))
    tokenizer, report = found
    job.say(
        f"tokenizer: {report['pieces']:,} of {report['asked']:,} pieces from {report['bytes_used']:,} bytes, "
        f"{report['bytes_skipped']:,} skipped; {report['alphabet']:,} of {report['characters']:,} characters; "
        f"peak memory {peak_memory_bytes() / 1e6:,.0f} MB"
    )
    return tokenizer, report


def _found(folder: Path, report_path: Path) -> tuple[Tokenizer, dict] | None:
    """A tokenizer that was trained before, and its report; None where one of them is missing or damaged."""
    try:
        report = json.loads(report_path.read_text(encoding="utf-8"))
        tokenizer = Tokenizer.load(folder)
        return (tokenizer, report) if tokenizer.size >= report["pieces"] else None
    except (OSError, ValueError, TypeError, KeyError):  # of which ConfigError is one
        return None
