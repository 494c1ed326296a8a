"""From sources to a folder of rows: tokenizer, encoding, packing, manifest.

The rows follow from the inputs and options alone, whatever the number of workers and however often the work was
interrupted: what is done is kept beside the folder and found again.

The folder holds `tokenizer/`, a shard per corpus and pack group, `train/CORPUS-GROUP.array_record` and
`eval/CORPUS-GROUP.array_record`, and `manifest.json`: the fingerprint of all that determines the rows; the options;
the tokenizer's hash, special ids and training; per corpus what was read, kept, dropped and why, and per split rows,
segments, tokens (CLS and SEP included), unknown tokens and the hash of each shard's rows; `unigrams`, how often each id
stands in the training rows (CLS, SEP and padding are not counted); `flags`, how many tokens of the training rows begin
a word, a sentence, a paragraph, and how many words continue a phrase; `collocations`, the list's hash, how much text
was counted for it, and what came of each length, or nothing; `notes` for the user. With `data.collocations` the list
lies there too, `collocations.tsv`.
"""

import dataclasses
import hashlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlm_jax.config import Config, ConfigError, DataConfig, check_writable, rows_folder
from mlm_jax.prepare import collocations, pydoc, sources
from mlm_jax.prepare.folder import SPLITS, alone, build_folder, check_replaceable, clean, finished, publish
from mlm_jax.prepare.phrases import write_phrases
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.sampling import sample_texts
from mlm_jax.prepare.tasks import EncodeTask, PackTask, Part, Settings, encode_unit, pack_group
from mlm_jax.prepare.training import peak_memory_bytes, train_tokenizer
from mlm_jax.prepare.workers import Workers
from mlm_jax.records import FLAGS, FORMAT, MANIFEST, Layout, read_manifest, write_json
from mlm_jax.tokenizer import Tokenizer

VERSION = 2  # of how rows are made: another one makes other rows of the same inputs
MOSTLY = 0.5  # share of ideographs from which a corpus counts as Chinese or Japanese
FEW = 0.05  # share of unknown tokens from which a tokenizer does not fit its corpus
UNKNOWN = "{:.0%} of the tokens are unknown: the tokenizer was made for other text"
UNSEGMENTED = (
    "{:.0%} of the tokens are CJK ideographs, each a word of its own: without word segmentation masking whole words "
    "is masking single characters; mask.unit=phrase with data.collocations masks what stands together"
)
COLLOCATIONS = "collocations.tsv"


@dataclasses.dataclass
class Corpus:
    """One source of the config, and what became of it."""

    number: int
    source: str
    files: list[sources.File]
    identity: dict[str, object]
    counts: dict[str, object] = dataclasses.field(default_factory=dict)  # of the manifest
    parts: dict[tuple[int, int], list[Part]] = dataclasses.field(default_factory=dict)  # by (split, group)


@dataclasses.dataclass
class Job:
    """What the stages of one call share."""

    config: Config
    corpora: list[Corpus]
    build: Path
    workers: Workers
    progress: bool

    @property
    def work(self) -> Path:
        """Folder of intermediate results."""
        return self.build / "work"

    @property
    def tokenizer(self) -> Path:
        return self.build / "tokenizer"

    def settings(self, corpus: Corpus) -> Settings:
        data = self.config.data
        embedded = corpus.source == pydoc.NAME
        return Settings(
            source=corpus.source,
            text_field="text" if embedded else data.text_field,
            id_field="id" if embedded else data.id_field,
            holdout=data.holdout,
            # a held-out group is about as large as one of the others
            groups=(data.pack_groups, max(1, math.ceil(data.pack_groups * data.holdout))),
            tokenizer=str(self.tokenizer),
        )

    def say(self, line: str) -> None:
        if self.progress:
            print(line, file=sys.stderr)


def prepare(config: Config, folder: str | Path, progress: bool = True) -> dict:
    """Rows of `config.data.sources` in `folder`; returns their manifest.

    Does nothing where the folder already holds the rows of these inputs and options, builds them anew where it holds
    others, and goes on where an earlier call was interrupted. Raises ConfigError for what the user can mend.
    """
    folder = Path(folder).expanduser().absolute()
    corpora = [_find(number, source) for number, source in enumerate(config.data.sources)]
    options = _options(config)
    fingerprint = _fingerprint(config, options, corpora)
    if manifest := finished(folder, fingerprint):
        return manifest
    check_replaceable(folder)
    build = build_folder(folder, fingerprint)
    with alone(build):
        if manifest := finished(folder, fingerprint):  # thanks to the process that was waited for
            return manifest
        clean(folder, build)
        if not finished(build, fingerprint):
            with Workers(config.data.workers) as workers:
                manifest = _build(Job(config, corpora, build, workers, progress))
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


def changes(config: Config, manifest: dict) -> list[str]:
    """What the config asks for that is not what rows were made of: options, and files by number and size.

    A quick look that never fails: contents are not read, and a source that is gone is a change like another.
    """
    asked, made = _options(config), manifest["options"]
    found = [f"{key} was {made.get(key)!r}, is {asked[key]!r}" for key in asked if asked[key] != made.get(key)]
    for corpus in manifest["corpora"]:
        source, inputs = corpus["source"], corpus["inputs"]
        if source == pydoc.NAME:
            continue
        try:
            sizes = [os.path.getsize(file.path) for file in sources.find_files(source)]
        except (ConfigError, OSError):
            found.append(f"{source} is gone")
            continue
        if (len(sizes), sum(sizes)) != (inputs["files"], inputs["bytes"]):
            before = f"{inputs['files']} files of {inputs['bytes']:,} bytes"
            found.append(f"{source} was {before}, is {len(sizes)} of {sum(sizes):,}")
    return found


def _find(number: int, source: str) -> Corpus:
    if not source.startswith("builtin:"):
        files = sources.find_files(source)
    elif source == pydoc.NAME:
        files = pydoc.module_files()
    else:
        raise ConfigError(sources.KEY, source, f"the only embedded source is {pydoc.NAME}")
    return Corpus(number, source, files, sources.identify(files))


def _options(config: Config) -> dict[str, object]:
    data = config.data
    return {
        "sources": list(data.sources),
        "text_field": data.text_field,
        "id_field": data.id_field,
        "holdout": data.holdout,
        "pack_groups": data.pack_groups,
        "max_segments": data.max_segments,
        "row_length": config.row_length,
        # how they are found matters where they are asked for
        "collocations": data.collocations
        and {
            "list": data.collocations,
            "longest": data.collocation_longest,
            "count": data.collocation_count,
            "tokens": data.collocation_tokens,
        },
        "tokenizer": dataclasses.asdict(config.tokenizer),
        "terms": _hash_of_terms(config.tokenizer.terms),
    }


def _hash_of_terms(path: str) -> str:
    """Of the words in the file; empty where there is none."""
    try:
        return hashlib.blake2b("\n".join(read_terms(path)).encode(), digest_size=16).hexdigest() if path else ""
    except ConfigError:  # a file that is gone is a change like another; `read_terms` says it where it matters
        return "gone"


def _fingerprint(config: Config, options: dict, corpora: list[Corpus]) -> str:
    """Hash of everything that determines the rows."""
    asked = config.tokenizer
    tokenizer: object = {key: value for key, value in options["tokenizer"].items() if key not in ("path", "terms")}
    if asked.path:
        tokenizer = Tokenizer.load(asked.path).hash
    everything = {
        "version": [FORMAT, VERSION],
        "options": {**options, "tokenizer": tokenizer},
        "inputs": [corpus.identity for corpus in corpora],
    }
    return hashlib.blake2b(json.dumps(everything, sort_keys=True).encode(), digest_size=16).hexdigest()


def _build(job: Job) -> dict[str, object]:
    """Writes tokenizer and shards; returns the manifest but for what was known before."""
    job.work.mkdir(exist_ok=True)
    for corpus in job.corpora:
        if corpus.source == pydoc.NAME:
            corpus.files = [_extract(job, corpus)]
    tokenizer, training = _tokenizer(job)
    notes = training.pop("messages", [])
    for corpus in job.corpora:
        _encode(job, corpus)
    found = _collocations(job, tokenizer)
    layout = Layout.for_vocabulary(job.config.row_length, job.config.data.max_segments, tokenizer.size)
    shards = _pack(job, layout)
    unigrams, flags = np.zeros(tokenizer.size, np.int64), Counter(dict.fromkeys(FLAGS, 0))
    for (_, split, _), info in shards.items():
        if SPLITS[split] == "train":
            unigrams += np.array(info["unigrams"])
            flags.update(info["flags"])
    ideographs = unigrams[tokenizer.ideographs].sum() / max(1, unigrams.sum())
    if ideographs > MOSTLY:
        notes.append(UNSEGMENTED.format(ideographs))
    if found and found["kept"] < job.config.data.collocations:
        notes.append(_few(job.config.data, found["kept"]))
    unknown = unigrams[tokenizer.unk] / max(1, unigrams.sum())
    if unknown > FEW:
        notes.append(UNKNOWN.format(unknown))
    return {
        "row_length": layout.row_length,
        "max_segments": layout.max_segments,
        "dtype": layout.dtype,
        "pack_groups": job.config.data.pack_groups,
        "notes": notes,
        "tokenizer": _describe(tokenizer) | {"training": training},
        "corpora": [_summary(corpus, shards) for corpus in job.corpora],
        "unigrams": unigrams.tolist(),
        "flags": dict(flags),
        "collocations": found,
    }


def _extract(job: Job, corpus: Corpus) -> sources.File:
    """The docstrings of `builtin:pydoc` as a file of JSON lines."""
    path = job.work / f"{corpus.number}.jsonl"
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


def read_terms(path: str) -> list[str]:
    """The words of a file, one a line, without empty lines and spaces around them. Raises ConfigError."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config.tokenizer.terms", path, f"cannot be read: {error}") from None
    terms = [line.strip() for line in lines if line.strip()]
    if not terms:
        raise ConfigError("config.tokenizer.terms", path, "holds no word; write one a line")
    return terms


def _tokenizer(job: Job) -> tuple[Tokenizer, dict]:
    """The tokenizer of the rows with its terms, saved beside them, and what its training said."""
    tokenizer, report = _tokenizer_without_terms(job)
    if terms := job.config.tokenizer.terms:
        size, asked = tokenizer.size, read_terms(terms)
        tokenizer = tokenizer.add_terms(asked)  # those that are pieces already, as after an interruption, stay so
        tokenizer.save(job.tokenizer)
        job.say(f"tokenizer: {tokenizer.size - size:,} new pieces for {len(asked):,} terms, {tokenizer.size:,} in all")
    return tokenizer, report


def _tokenizer_without_terms(job: Job) -> tuple[Tokenizer, dict]:
    """As it was trained, or given; then training says nothing."""
    asked, report_path = job.config.tokenizer, job.work / "training.json"
    if asked.path:
        tokenizer = Tokenizer.load(asked.path)
        tokenizer.save(job.tokenizer)
        return tokenizer, {}
    if not report_path.exists():
        with Stage("sample", job.progress) as stage:
            pairs = [(corpus.files, job.settings(corpus)) for corpus in job.corpora]
            texts = sample_texts(pairs, asked.sample_bytes, job.workers, stage)
        job.say(f"tokenizer: training {asked.vocab_size:,} pieces on {sum(map(len, texts)):,} characters")
        try:
            tokenizer, report = train_tokenizer(texts, asked.vocab_size)
        except ValueError:
            fix = "hold no word to train a tokenizer on"
            raise ConfigError(sources.KEY, job.config.data.sources, fix) from None
        tokenizer.save(job.tokenizer)
        values = dataclasses.asdict(report) | {"bytes_used": report.bytes_used, "messages": report.messages()}
        write_json(report_path, values)
    report = json.loads(report_path.read_text(encoding="utf-8"))
    job.say(
        f"tokenizer: {report['pieces']:,} of {report['asked']:,} pieces from {report['bytes_used']:,} bytes, "
        f"{report['bytes_skipped']:,} skipped; {report['alphabet']:,} of {report['characters']:,} characters; "
        f"peak memory {peak_memory_bytes() / 1e6:,.0f} MB"
    )
    return Tokenizer.load(job.tokenizer), report


def _encode(job: Job, corpus: Corpus) -> None:
    """Encodes what is not encoded yet; sets the corpus's counts and parts. Raises ConfigError where no text is."""
    folder, settings = job.work / f"units-{corpus.number}", job.settings(corpus)
    folder.mkdir(exist_ok=True)
    total = None if any(file.compressed for file in corpus.files) else sum(file.size for file in corpus.files)
    counts, dropped, first_problem = Counter(read=0, bytes=0, tokens=0), Counter(), None

    def tasks() -> Iterator[EncodeTask]:
        for unit in sources.units(corpus.files):
            yield EncodeTask(settings, unit, str(folder / f"{unit.number:06d}"))

    with Stage(f"encode {corpus.source}", job.progress, total) as stage:
        for number, info in enumerate(job.workers.map(_encode_once, tasks())):
            counts.update({key: info[key] for key in counts})
            dropped.update(info["dropped"])
            first_problem = first_problem or info["first_problem"]
            for split, group, *place in info["parts"]:
                corpus.parts.setdefault((split, group), []).append(Part(str(folder / f"{number:06d}.bin"), *place))
            stage.add(info["bytes"], info["read"])
    kept = counts["read"] - dropped.total()
    corpus.counts = {**counts, "kept": kept, "dropped": dict(sorted(dropped.items()))}
    if not kept and first_problem:
        place, problem = first_problem
        raise ConfigError(sources.KEY, place, f"{problem}; and so in all {counts['read']} records of {corpus.source}")
    if not kept:
        raise ConfigError(sources.KEY, corpus.source, f"holds no text ({counts['read']} documents, all empty)")


def _encode_once(task: EncodeTask) -> dict:
    done = Path(f"{task.path}.json")
    return json.loads(done.read_text(encoding="utf-8")) if done.exists() else encode_unit(task)


def _collocations(job: Job, tokenizer: Tokenizer) -> dict[str, object]:
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


def _few(data: DataConfig, found: int) -> str:
    return (
        f"only {found:,} of {data.collocations:,} collocations: no more n-grams occur {data.collocation_count} times "
        f"in {data.collocation_tokens:,} tokens, and more often than chance has it"
    )


def _pack(job: Job, layout: Layout) -> dict[tuple[int, int, int], dict]:
    """Packs what is not packed yet: (corpus, split, group) -> what its shard holds. Raises ConfigError."""
    keys = [(corpus.number, *key) for corpus in job.corpora for key in sorted(corpus.parts)]
    tasks = [
        PackTask(
            parts=tuple(job.corpora[number].parts[split, group]),
            shard=str(job.build / _shard_name(number, split, group)),
            info=str(job.work / f"shard-{number}-{split}-{group}.json"),
            layout=layout,
            tokenizer=str(job.tokenizer),
            phrases=str(job.build / COLLOCATIONS) if job.config.data.collocations else "",
        )
        for number, split, group in keys
    ]
    packed = {}
    with Stage("pack", job.progress, things="rows") as stage:
        for key, task, info in zip(keys, tasks, job.workers.map(_pack_once, tasks)):
            if "equal" in info:
                (id, first), (_, second) = info["equal"]
                fix = f"two documents are called {id!r}: {first} and {second}; ids must differ"
                fix += " (config.data.id_field='' names documents by file and line)"
                raise ConfigError(sources.KEY, job.corpora[key[0]].source, fix)
            packed[key] = info
            stage.add(Path(task.shard).stat().st_size, info["rows"])
    return packed


def _pack_once(task: PackTask) -> dict:
    done = Path(task.info)
    return json.loads(done.read_text(encoding="utf-8")) if done.exists() else pack_group(task)


def _shard_name(number: int, split: int, group: int) -> str:
    return f"{SPLITS[split]}/{number}-{group:04d}.array_record"


def _describe(tokenizer: Tokenizer) -> dict[str, object]:
    ids = {name: getattr(tokenizer, name) for name in ("pad", "unk", "cls", "sep", "mask")}
    return {
        "file": f"tokenizer/{tokenizer.kind}",
        "hash": tokenizer.hash,
        "vocab_size": tokenizer.size,
        **ids,
        "special": tokenizer.special.tolist(),
    }


def _summary(corpus: Corpus, shards: dict) -> dict[str, object]:
    """What the manifest says of one corpus."""
    splits = {}
    for split, name in enumerate(SPLITS):
        of_split = {key: info for key, info in shards.items() if key[:2] == (corpus.number, split)}
        sums = {key: sum(info[key] for info in of_split.values()) for key in ("rows", "segments", "tokens", "unknown")}
        files = [
            {"file": _shard_name(*key), "rows": info["rows"], "hash": info["hash"]} for key, info in of_split.items()
        ]
        splits[name] = {**sums, "shards": files}
    return {"source": corpus.source, "inputs": corpus.identity, "counts": corpus.counts, "splits": splits}
