"""The same rows by Apache Beam: on Dataflow, Flink, Spark, or in this process.

Workers run the functions of the local pipeline (`encode_unit`, `pack_group`) in folders of their own and pass the bytes
on: files -> units of text -> encoded documents of each (corpus, split, group) -> grouped -> packed -> a shard. The
groups decide what is packed together, so the shards are those of a local run, byte for byte. Between the stages lie
elements of about UNIT_BYTES / groups, so nothing but the rows needs a shared file system; a group must fit a worker's
memory, as in a local run. What is written goes through Beam's file systems: a local folder, or one such as gs://...

The launcher hashes the sources (local files; an object store is asked for what it knows of its own), trains the
tokenizer on the sample that the workers have drawn, and writes the manifest, last. An interrupted preparation begins
anew.
"""

import dataclasses
import functools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mlm_jax.config import Config, ConfigError, DataConfig, RunError
from mlm_jax.prepare import pydoc, sources, store
from mlm_jax.prepare.encoded import Part
from mlm_jax.prepare.encoding import set_counts
from mlm_jax.prepare.folder import WORK, alone, build_folder, check_replaceable, clean, finished, publish, work_folder
from mlm_jax.prepare.holdout import check_training
from mlm_jax.prepare.identity import contents_of, find_corpus, fingerprint_of, options_of
from mlm_jax.prepare.job import Corpus, Job
from mlm_jax.prepare.manifest import describe
from mlm_jax.prepare.sampling import Reservoir, chunk_of, rooms_of
from mlm_jax.prepare.shards import check_names, pack_task, shard_name
from mlm_jax.prepare.tasks import EncodeTask, SampleTask, Settings, encode_unit, pack_group, sample_unit
from mlm_jax.prepare.vocabulary import Texts, make_tokenizer
from mlm_jax.prepare.workers import Workers
from mlm_jax.records import FORMAT, MANIFEST, Layout
from mlm_jax.tokenizer import Tokenizer

# Fields of `config.data` that are served here; any other must be as by default.
SERVED = frozenset(
    "sources weights exponent text_field id_field rows holdout pack_groups max_segments pairs filter workers".split()  # noqa: SIM905
)
IN_PROCESS = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"  # DirectRunner would fetch a program first
EVERY_HASH = 1 << 64

Group = tuple[int, int, int]  # number of the corpus, split, group
# JSON, since hashes do not fit the integers of Beam; for training and for held-out text: from which hash on all are
# out; hash, bytes and text of what is in
Drawn = bytes


@dataclasses.dataclass(frozen=True)
class Shared:
    """What every worker knows; it travels with the pipeline."""

    root: str  # where tokenizer and rows lie, a place that all workers see
    settings: tuple[Settings, ...]  # of each corpus
    data: DataConfig
    tokenizer: str = ""  # hash; empty before there is one
    layout: Layout | None = None


def prepare(config: Config, folder: str, runner: str, options: list[str], progress: bool = True) -> dict:
    """As `pipeline.prepare`, by a Beam runner; options: the runner's own, such as --project=NAME.

    folder: a local path, or one of Beam's file systems such as gs://bucket/rows, where the rows appear with their
    manifest, the last file that is written. Raises ConfigError, as where Beam is missing, and RunError.
    """
    _check(config)
    # SentencePiece's description of its own files was made by a newer protobuf than Beam admits; it reads them alike
    os.environ.setdefault("TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK", "true")
    corpora = [find_corpus(number, source) for number, source in enumerate(config.data.sources)]
    asked = options_of(config)
    known = {"format": FORMAT, "fingerprint": fingerprint_of(asked, contents_of(config, corpora)), "options": asked}
    run = functools.partial(_run, runner=runner, options=options)
    if "://" in folder:
        return _prepare_remote(config, corpora, folder.rstrip("/"), known, run, progress)
    path, fingerprint = Path(folder).expanduser().absolute(), known["fingerprint"]
    if manifest := finished(path, fingerprint):
        return manifest
    check_replaceable(path)
    build = build_folder(path, fingerprint)
    with alone(build):
        if manifest := finished(path, fingerprint):
            return manifest
        clean(path, build)
        if not finished(build, fingerprint):
            _build(config, corpora, str(build), known, run, progress)
        return publish(build, path)


def _prepare_remote(
    config: Config, corpora: list[Corpus], folder: str, known: dict, run: Callable, progress: bool
) -> dict:
    """Rows in a folder that has no way to be moved as a whole: the manifest, written last, makes them rows."""
    if store.exists(f"{folder}/{MANIFEST}"):
        manifest = json.loads(store.read(f"{folder}/{MANIFEST}"))
        if manifest.get("fingerprint") == known["fingerprint"]:
            return manifest
        raise ConfigError("config.data.rows", folder, "holds other rows; name a new folder")
    manifest = _build(config, corpora, folder, known, run, progress)
    for path in store.match(f"{folder}/{WORK}/*"):
        store.filesystems().delete([path])
    return manifest


def _check(config: Config) -> None:
    """Raises ConfigError for what is not served here."""
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise ConfigError("--beam", True, f"needs pip install 'mlm-jax[beam]' ({error})") from None
    default = DataConfig()
    for field in dataclasses.fields(DataConfig):
        value = getattr(config.data, field.name)
        if field.name not in SERVED and value != getattr(default, field.name):
            raise ConfigError(f"config.data.{field.name}", value, "is not served with --beam; prepare without it")
    if pydoc.NAME in config.data.sources:
        raise ConfigError(sources.KEY, pydoc.NAME, "is not served with --beam: it lies on this machine only")


def _build(config: Config, corpora: list[Corpus], root: str, known: dict, run: Callable, progress: bool) -> dict:
    """Tokenizer, rows and manifest in `root`; returns the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        job = Job(config, corpora, here, work_folder(here), Workers(1), progress)
        job.work.mkdir()
        shared = Shared(root, tuple(map(job.settings, corpora)), config.data)
        sample = None if config.tokenizer.path else _sample(job, shared, run)
        tokenizer, training = make_tokenizer(job, sample)
        for file in sorted(job.tokenizer.iterdir()):
            store.upload(file, f"{root}/tokenizer/{file.name}")
        layout = Layout.for_vocabulary(config.row_length, config.data.max_segments, tokenizer.size)
        shared = dataclasses.replace(shared, tokenizer=tokenizer.hash, layout=layout)
        shards = _rows(job, shared, run)
        manifest = known | describe(job, layout, tokenizer, training, {}, {}, {}, shards)
    store.write(f"{root}/{MANIFEST}", json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n")
    return manifest


def _run(build: Callable, runner: str, options: list[str]) -> None:
    """Runs the pipeline that build(pipeline) makes, to its end.

    Raises ConfigError where the runner cannot be used, or a worker met a mistake of the user; RunError where the
    pipeline fails for another reason.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineState

    chosen = IN_PROCESS if runner == "DirectRunner" else runner
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={chosen}", *options]))
    except (ValueError, ImportError) as error:
        raise ConfigError("--runner", runner, f"cannot be used: {str(error).strip()}") from None
    build(pipeline)
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # Beam turns whatever a worker raises into one text
        if ours := re.search(r"ConfigError: (.+?)(?: \[while running|$)", str(error), re.MULTILINE):
            raise ConfigError("--runner", runner, f"a worker says: {ours[1]}") from None
        raise RunError(f"the pipeline failed: {error}") from error
    if state not in (PipelineState.DONE, None):
        raise RunError(f"the pipeline ended as {state}; see what {runner} says of it")


# ---- what the launcher asks for ----


def _files(job: Job) -> list[tuple[int, int, sources.File]]:
    """(number of the corpus, number of the file, file)."""
    return [(corpus.number, place, file) for corpus in job.corpora for place, file in enumerate(corpus.files)]


def _sample(job: Job, shared: Shared, run: Callable) -> Texts:
    """The texts that the tokenizer is trained and tried on: those of `sampling.sample_texts`."""
    import apache_beam as beam

    room = job.config.tokenizer.sample_bytes

    def build(pipeline: beam.Pipeline) -> None:
        (
            _units(pipeline, job, shared)
            | "draw" >> beam.Map(draw, shared, room)
            | "sample" >> beam.CombineGlobally(functools.partial(merge_drawn, room=room))
            | "write sample" >> beam.Map(_write_to, f"{shared.root}/{WORK}/sample.json")
        )

    job.say("beam: sample")
    run(build)
    training, held_out = json.loads(store.read(f"{shared.root}/{WORK}/sample.json"))
    return [text for _, _, text in training[1]], [text for _, _, text in held_out[1]]


def _rows(job: Job, shared: Shared, run: Callable) -> dict[Group, dict]:
    """Encodes and packs; sets the counts of the corpora. (corpus, split, group) -> what its shard holds."""
    import apache_beam as beam

    def build(pipeline: beam.Pipeline) -> None:
        encoded = _units(pipeline, job, shared) | "encode" >> beam.FlatMap(encode, shared).with_outputs(
            "counts", main="parts"
        )
        (
            encoded.counts
            | "count" >> beam.CombinePerKey(merge_counts)
            | "write counts" >> beam.Map(_write_named, shared.root, "counts")
        )
        (
            encoded.parts
            | "group" >> beam.GroupByKey()
            | "pack" >> beam.Map(pack, shared)
            | "write infos" >> beam.Map(_write_named, shared.root, "shard")
        )

    for path in store.match(f"{shared.root}/{WORK}/*.json"):  # of a call that was interrupted
        store.filesystems().delete([path])
    job.say("beam: encode and pack")
    run(build)
    for corpus in job.corpora:
        path = f"{shared.root}/{WORK}/counts-{corpus.number}.json"
        info = json.loads(store.read(path)) if store.exists(path) else merge_counts([])
        dropped, problem = info.pop("dropped"), info.pop("first_problem")
        set_counts(corpus, info, dropped, problem[-2:])
    found = {}
    for path in store.match(f"{shared.root}/{WORK}/shard-*.json"):
        key = tuple(map(int, re.findall(r"\d+", path.rpartition("/")[2])))
        found[key] = json.loads(store.read(path))
    check_training(job, found)
    for (number, *_), info in sorted(found.items()):
        check_names(job.corpora[number].source, info)
    return dict(sorted(found.items()))


def _units(pipeline, job: Job, shared: Shared):
    """(number of the corpus, number of the file, unit): spread over the workers wherever their file was read."""
    import apache_beam as beam

    return (
        pipeline
        | "files" >> beam.Create(_files(job))
        | "spread files" >> beam.Reshuffle()
        | "read" >> beam.FlatMap(units, shared)
        | "spread units" >> beam.Reshuffle()
    )


# ---- what workers do ----


def units(element: tuple[int, int, sources.File], shared: Shared) -> Iterator[tuple[int, int, sources.Unit]]:
    """The units of one file, with the numbers of its corpus and of the file."""
    number, place, file = element
    for unit in sources.units([file], shared.settings[number].fields):
        yield number, place, unit


def draw(element: tuple[int, int, sources.Unit], shared: Shared, room: int) -> Drawn:
    """What of a unit may belong to the sample."""
    number, _, unit = element
    sample = sample_unit(SampleTask(shared.settings[number], unit, chunk_of(room), (EVERY_HASH, EVERY_HASH)))
    return merge_drawn([json.dumps([[EVERY_HASH, chunks] for chunks in sample.chunks]).encode()], room)


def merge_drawn(drawn: Iterable[Drawn], room: int) -> Drawn:
    """What of several is left for a sample of so many bytes. What one of them has left out all leave out."""
    reservoirs = [Reservoir(each) for each in rooms_of(room)]
    for both in map(json.loads, drawn):
        for reservoir, (below, chunks) in zip(reservoirs, both):
            reservoir.leave_out(below)
            for chunk in chunks:
                reservoir.add(*chunk)
    return json.dumps([[reservoir.below, reservoir.chunks()] for reservoir in reservoirs]).encode()


def encode(element: tuple[int, int, sources.Unit], shared: Shared) -> Iterator:
    """The parts of a unit by group: ("corpus-split-group", (sizes, bytes)); and, tagged, its counts by corpus."""
    from apache_beam.pvalue import TaggedOutput

    number, place, unit = element
    settings = dataclasses.replace(shared.settings[number], tokenizer=_tokenizer_folder(shared).name)
    with tempfile.TemporaryDirectory() as folder:
        info = encode_unit(EncodeTask(settings, unit, f"{folder}/unit", shared.tokenizer))
        parts = info.pop("parts")
        if info["first_problem"]:
            info["first_problem"] = [place, unit.number, *info["first_problem"]]
        yield TaggedOutput("counts", (str(number), info))
        data = Path(folder, "unit.bin").read_bytes()
    ends = [offset for _, _, offset, *_ in parts[1:]] + [len(data)]
    for (split, group, offset, *sizes), end in zip(parts, ends):
        yield f"{number}-{split}-{group}", (tuple(sizes), data[offset:end])


def merge_counts(infos: Iterable[dict]) -> dict:
    """The sums of what `encode_unit` says of units; of the first problem: that of the first file, in its order."""
    sums, dropped, problems = Counter(read=0, bytes=0, tokens=0), Counter(), []
    for info in infos:
        sums.update({key: info[key] for key in sums})
        dropped.update(info["dropped"])
        problems += [info["first_problem"]] if info["first_problem"] else []
    return {**sums, "dropped": dict(sorted(dropped.items())), "first_problem": min(problems, default=[])}


def pack(element: tuple[str, Iterable], shared: Shared) -> tuple[str, dict]:
    """Packs a group and writes its shard; (its name, what it holds)."""
    name, parts = element
    number, split, group = map(int, name.split("-"))
    with tempfile.TemporaryDirectory() as folder:
        path, shard, found = f"{folder}/parts.bin", Path(folder, "shard"), []
        with open(path, "wb") as handle:
            for sizes, data in parts:
                found.append(Part(path, handle.tell(), *sizes))
                handle.write(data)
        tokenizer = _tokenizer_folder(shared).name
        places = {"shard": str(shard), "info": f"{folder}/info.json", "tokenizer": tokenizer, "phrases": ""}
        info = pack_group(pack_task(shared.data, found, layout=shared.layout, **places))
        if shard.exists():
            store.upload(shard, f"{shared.root}/{shard_name(number, split, group)}")
    return name, info


@functools.cache
def _tokenizer_folder(shared: Shared) -> tempfile.TemporaryDirectory:
    """This process's copy of the tokenizer; it vanishes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="mlm_jax-")
    for path in store.match(f"{shared.root}/tokenizer/*"):
        Path(folder.name, path.rpartition("/")[2]).write_bytes(store.read(path))
    found = Tokenizer.load(folder.name).hash
    if found != shared.tokenizer:
        raise ConfigError("--beam", shared.root, f"holds the tokenizer {found}, not {shared.tokenizer}")
    return folder


def _write_to(data: bytes, path: str) -> None:
    store.write(path, data)


def _write_named(element: tuple[str, dict], root: str, kind: str) -> None:
    name, info = element
    store.write(f"{root}/{WORK}/{kind}-{name}.json", json.dumps(info).encode())
