"""From sources to a folder of rows: tokenizer, encoding, duplicates, packing, manifest.

The rows follow from the inputs and options alone, whatever the number of workers and however often the work was
interrupted: what is done is kept beside the folder and found again. What the folder holds: see `manifest`. With
`data.encoded` the encoded documents stay, each set of them under the fingerprint of the inputs and of all options that
come before packing.

Memory does not grow with the text: each worker has a unit of text in work (2 MB, or one document of at most 16 MiB) and
a few wait for it, or a piece of a pack group (`encoded`); beside these stand the tokenizer's sample
(`tokenizer.sample_bytes`) and the text in which collocations are counted. What grows is a few hundred bytes for each
unit of text and 20 bytes for each document of a group (`benchmarks/prepare_memory.py`); looking for duplicates takes
what `duplicates` says.
"""

from pathlib import Path

from mlm_jax.config import Config, ConfigError, check_writable, rows_folder
from mlm_jax.prepare import pydoc, segmentation
from mlm_jax.prepare.contamination import collect
from mlm_jax.prepare.duplicates import drop_duplicates
from mlm_jax.prepare.encoding import encode, extract
from mlm_jax.prepare.folder import (
    alone,
    build_folder,
    check_replaceable,
    clean,
    encoded_folder,
    finished,
    publish,
    remove_partial,
    work_folder,
)
from mlm_jax.prepare.holdout import check_training
from mlm_jax.prepare.identity import changes, contents_of, encoding_options, find_corpus, fingerprint_of, options_of
from mlm_jax.prepare.job import Job
from mlm_jax.prepare.manifest import describe
from mlm_jax.prepare.phrase_list import list_collocations
from mlm_jax.prepare.shards import pack
from mlm_jax.prepare.signatures import minhash
from mlm_jax.prepare.tasks import forget
from mlm_jax.prepare.vocabulary import make_tokenizer
from mlm_jax.prepare.workers import Workers
from mlm_jax.records import FORMAT, MANIFEST, Layout, read_manifest, write_json
from mlm_jax.tokenizer import Tokenizer


def prepare(config: Config, folder: str | Path, progress: bool = True) -> dict:
    """Rows of `config.data.sources` in `folder`; returns their manifest.

    Does nothing where the folder already holds the rows of these inputs and options, builds them anew where it holds
    others, and goes on where an earlier call was interrupted. Raises ConfigError for what the user can mend.
    """
    folder = Path(folder).expanduser().absolute()
    corpora = [find_corpus(number, source) for number, source in enumerate(config.data.sources)]
    options = options_of(config)
    segmenter = _segmenter(config.data.segmenter, folder)
    contents = contents_of(config, corpora, segmenter)
    fingerprint = fingerprint_of(options, contents)
    if manifest := finished(folder, fingerprint):
        return manifest
    check_replaceable(folder)
    build = build_folder(folder, fingerprint)
    encoded = None
    if config.data.encoded:
        of_encoding = fingerprint_of(encoding_options(options), contents)
        encoded = encoded_folder(config.data.encoded, folder, of_encoding)
    with alone(build, progress):
        if manifest := finished(folder, fingerprint):  # thanks to the process that was waited for
            return manifest
        clean(folder, build)
        if not finished(build, fingerprint):
            with Workers(config.data.workers) as workers:
                manifest = _build(Job(config, corpora, build, encoded or work_folder(build), workers, progress))
            write_json(build / MANIFEST, {"format": FORMAT, "fingerprint": fingerprint, "options": options, **manifest})
        return publish(build, folder)


def prepare_or_keep(config: Config, workdir: Path, has_checkpoint: bool) -> list[str]:
    """Prepares the rows of a run where that is due; returns what changed since those were made that stay.

    A run that has a checkpoint keeps the rows that it has seen, and a folder that the config names is taken as it is,
    whatever became of the sources. Raises ConfigError.
    """
    folder = rows_folder(config, workdir)
    if config.data.rows and (folder / MANIFEST).exists():
        return []
    if has_checkpoint:
        return changes(config, read_manifest(folder))
    check_writable(workdir)
    prepare(config, folder)
    return []


def _segmenter(name: str, folder: Path) -> dict[str, str]:
    """Name and version of the segmenter. Where its library is missing, of that which finished rows were made with."""
    try:
        return segmentation.describe(name)
    except ConfigError:  # finished rows need it no more; where there are none, `_build` says that it is missing
        try:
            return read_manifest(folder)["segmenter"]
        except (ConfigError, KeyError):
            return {}


def _build(job: Job) -> dict[str, object]:
    """Writes tokenizer and shards; returns the manifest but for what was known before."""
    segmentation.describe(job.config.data.segmenter)  # fails at once where its library is missing
    job.work.mkdir(exist_ok=True)
    if job.config.data.duplicates == "near":
        minhash()  # where it is missing, that is said before the work begins
    with alone(job.encoded, job.progress):  # which other calls may use as well
        tokenizer, training, contamination = _encode(job)
    tokenizer.save(job.build / "tokenizer")
    duplicates = drop_duplicates(job)
    check_training(job, [(corpus.number, *key) for corpus in job.corpora for key in corpus.parts])
    collocations = list_collocations(job, tokenizer)
    layout = Layout.for_vocabulary(job.config.row_length, job.config.data.max_segments, tokenizer.size)
    shards = pack(job, layout)
    return describe(job, layout, tokenizer, training, contamination, duplicates, collocations, shards)


def _encode(job: Job) -> tuple[Tokenizer, dict, dict]:
    """Encodes all documents, or finds them encoded; their tokenizer, what its training said, what was looked for."""
    remove_partial(job.encoded)
    about = {"options": encoding_options(options_of(job.config)), "inputs": [corpus.identity for corpus in job.corpora]}
    write_json(job.encoded / "encoded.json", about)
    for corpus in job.corpora:
        if corpus.source == pydoc.NAME:
            corpus.files = [extract(job, corpus)]
    contamination = collect(job.config.data, job.contamination, job.progress)
    tokenizer, training = make_tokenizer(job)
    forget()
    for corpus in job.corpora:
        encode(job, corpus, tokenizer.hash)
    return tokenizer, training, contamination
