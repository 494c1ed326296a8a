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

import dataclasses
from pathlib import Path

from mlm_jax.config import Config, ConfigError, TokenizerConfig, check_writable, naming, rows_folders, stream_configs
from mlm_jax.config import streams as streams_of
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


def prepare(
    config: Config, folder: str | Path, progress: bool = True, encoded_by: TokenizerConfig | None = None
) -> dict:
    """Rows of `config.data.sources` in `folder`; returns their manifest.

    Does nothing where the folder already holds the rows of these inputs and options, builds them anew where it holds
    others, and goes on where an earlier call was interrupted. encoded_by: how the tokenizer that the config names was
    made, if `data.encoded` may keep documents that it has encoded. Raises ConfigError for what the user can mend.
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
        if encoded_by:
            made_by = dataclasses.replace(config, tokenizer=encoded_by)
            of_encoding = fingerprint_of(
                encoding_options(options_of(made_by)), contents_of(made_by, corpora, segmenter)
            )
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


def prepare_or_keep(config: Config, workdir: Path, kept: int, streams: int | None = None) -> list[str]:
    """Prepares the rows of a run where that is due; returns what changed since those were made that stay.

    kept: how many streams its checkpoint has read: these keep their rows, and a folder that the config names is taken
    as it is, whatever became of the sources. streams: only the first so many are looked at. All have the tokenizer of
    the first one. Raises ConfigError.
    """
    changed, folders, configs = [], rows_folders(config, workdir), with_encoded(config, workdir)
    for number, (one, folder) in enumerate(list(zip(configs, folders))[:streams]):
        with naming(config, streams_of(config).index(number)):
            if (one.data.rows and (folder / MANIFEST).exists()) or folder in folders[:number]:
                continue
            if number < kept:
                changed += changes(_as_made(one, number, folder), read_manifest(folder))
                continue
            check_writable(workdir)
            prepare_stream(configs, folders, number)
    return changed


def prepare_stream(configs: tuple[Config, ...], folders: tuple[Path, ...], number: int) -> dict:
    """The rows of one stream, of a later one with the tokenizer of the first, whose rows are there; their manifest."""
    first, one = configs[0], configs[number]
    if not number:
        return prepare(first, folders[0])
    given = TokenizerConfig(path=str(folders[0] / "tokenizer"))
    # documents that were encoded for the first rows are packed again, if the text is the same
    same = not first.data.rows and first.data.sources == one.data.sources
    return prepare(dataclasses.replace(one, tokenizer=given), folders[number], True, first.tokenizer if same else None)


def with_encoded(config: Config, workdir: Path) -> tuple[Config, ...]:
    """The config of each stream; encoded documents are kept in WORKDIR/encoded where several are to be prepared."""
    configs = stream_configs(config)
    prepared = {folder for folder, one in zip(rows_folders(config, workdir), configs) if not one.data.rows}
    if len(prepared) < 2:
        return configs
    encoded = config.data.encoded or str(workdir / "encoded")
    return tuple(dataclasses.replace(one, data=dataclasses.replace(one.data, encoded=encoded)) for one in configs)


def _as_made(config: Config, number: int, folder: Path) -> Config:
    """The config with the tokenizer by which the rows of a later stream were made: it is that of the first ones."""
    if not number:
        return config
    made = read_manifest(folder)["options"]["tokenizer"]
    return dataclasses.replace(config, tokenizer=TokenizerConfig(**made))


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
