"""From encoded documents to shards of rows, one for each corpus, split and pack group."""

import json
from collections.abc import Iterable
from pathlib import Path

from mlm_jax.config import ConfigError, DataConfig
from mlm_jax.prepare import sources
from mlm_jax.prepare.encoded import Part
from mlm_jax.prepare.folder import SPLITS
from mlm_jax.prepare.job import Job
from mlm_jax.prepare.phrase_list import COLLOCATIONS
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.tasks import PackTask, pack_group
from mlm_jax.records import Layout


def pack(job: Job, layout: Layout) -> dict[tuple[int, int, int], dict]:
    """Packs what is not packed yet: (corpus, split, group) -> what its shard holds. Raises ConfigError."""
    keys = [(corpus.number, *key) for corpus in job.corpora for key in sorted(corpus.parts)]
    tasks = [
        pack_task(
            job.config.data,
            job.corpora[number].parts[split, group],
            shard=str(job.build / shard_name(number, split, group)),
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
            check_names(job.corpora[key[0]].source, info)
            packed[key] = info
            stage.add(Path(task.shard).stat().st_size, info["rows"])
    return packed


def pack_task(data: DataConfig, parts: Iterable[Part], **places: object) -> PackTask:
    """The task of a group; places: of its results, layout, tokenizer and list of phrases, as in `PackTask`."""
    return PackTask(parts=tuple(parts), pairs=data.pairs, **places)


def check_names(source: str, info: dict) -> None:
    """Raises ConfigError where `pack_group` found two documents of one name."""
    if "equal" in info:
        (id, first), (_, second) = info["equal"]
        fix = f"two documents are called {id!r}: {first} and {second}; ids must differ"
        fix += " (config.data.id_field='' names documents by file and line)"
        raise ConfigError(sources.KEY, source, fix)


def _pack_once(task: PackTask) -> dict:
    done = Path(task.info)
    return json.loads(done.read_text(encoding="utf-8")) if done.exists() else pack_group(task)


def shard_name(number: int, split: int, group: int) -> str:
    return f"{SPLITS[split]}/{number}-{group:04d}.array_record"
