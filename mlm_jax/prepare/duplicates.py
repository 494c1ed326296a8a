"""Of documents with the same text one stays: over all sources, and both splits.

`exact`: the cleaned texts are equal. `near`: those that are left have, by the estimate of their signatures, shingles
with a Jaccard similarity of `data.duplicate_similarity` at least, or are linked by such pairs (`near`). What belongs
together is decided by texts alone, and of it the document with the smallest (number of the source, document hash)
stays, in whichever split that is. So no held-out document has a duplicate among the training documents, as far as
duplicates are found at all. A text without a letter or digit has exact duplicates only.

The tokenizer's sample is drawn before and knows nothing of this: duplicates weigh there as often as they stand.

Memory: about 50 bytes a document, and 60 with `near`; what else is needed lies on disk (see `near`).
"""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.prepare import near, sources
from mlm_jax.prepare.encoded import Part
from mlm_jax.prepare.job import Job
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.signatures import PLACES
from mlm_jax.records import write_json

REASONS = {1: "duplicate", 2: "near-duplicate"}
EXAMPLES = 5  # pairs of each kind that the manifest names

Place = tuple[int, tuple[int, int], Part]  # number of the corpus, (split, group), documents of one unit


@dataclasses.dataclass
class Documents:
    """All n documents, in the order of corpora, units and parts."""

    places: list[Place]
    firsts: np.ndarray  # i64[parts + 1], the first document of each part, and n
    order: np.ndarray  # i64[n], by (corpus, hash)
    reason: np.ndarray  # u8[n], why one is dropped, a key of REASONS; 0: it stays
    kept: np.ndarray  # i64[n], the document that stays for it

    def drop(self, numbers: np.ndarray, kept: np.ndarray, reason: int) -> None:
        self.reason[numbers] = reason
        self.kept[numbers] = kept


def drop_duplicates(job: Job) -> dict[str, object]:
    """Leaves duplicates out of the parts and counts of corpora; what the manifest says of them, nothing with `keep`.

    Raises ConfigError for a source of which nothing is left.
    """
    if job.config.data.duplicates == "keep":
        return {}
    info = job.work / "duplicates.json"
    if not info.exists():
        with Stage("duplicates", job.progress) as stage:
            documents = _read(job)
            _exact(documents)
            if job.config.data.duplicates == "near":
                _near(documents, job.config.data.duplicate_similarity, job.work)
            stage.add(0, len(documents.order))
            write_json(info, _describe(job, documents))
    about = json.loads(info.read_text(encoding="utf-8"))
    for corpus, dropped in zip(job.corpora, about.pop("corpora")):
        corpus.counts["dropped"] = dict(sorted({**corpus.counts["dropped"], **dropped["reasons"]}.items()))
        corpus.counts["kept"] -= sum(dropped["reasons"].values())
        corpus.counts["tokens"] -= dropped["tokens"]
        if not corpus.counts["kept"]:
            fix = "all its documents stand in other sources already (config.data.duplicates); leave it out"
            raise ConfigError(sources.KEY, corpus.source, fix)
        for split, group, left in dropped["groups"]:
            parts = corpus.parts.pop((split, group))
            if left:
                path = str(_list_of(job.work, corpus.number, split, group))
                corpus.parts[split, group] = [dataclasses.replace(part, dropped=path) for part in parts]
    return about


def _list_of(work: Path, number: int, split: int, group: int) -> Path:
    """Where the hashes of a group's dropped documents stand."""
    return work / f"dropped-{number}-{split}-{group}.npy"


def _prints(path: str) -> np.ndarray:
    """The signatures of a unit's documents, in the order of its parts, on disk."""
    return np.load(Path(path).with_suffix(".npy"), mmap_mode="r")


def _read(job: Job) -> Documents:
    places = [(c.number, key, part) for c in job.corpora for key, parts in c.parts.items() for part in parts]
    places.sort(key=lambda place: (place[0], place[2].path, place[2].offset))
    sizes = [part.documents for _, _, part in places]
    numbers = np.repeat(np.array([number for number, _, _ in places], np.int32), sizes)
    hashes = np.concatenate([part.index()[0] for _, _, part in places])
    n = len(hashes)
    order = np.lexsort((hashes, numbers))
    return Documents(places, np.cumsum([0, *sizes]), order, np.zeros(n, np.uint8), np.arange(n))


def _units(documents: Documents) -> list[np.ndarray]:
    """The signatures of all units, which together are those of all documents."""
    return [_prints(path) for path in dict.fromkeys(part.path for _, _, part in documents.places)]


def _exact(documents: Documents) -> None:
    hashes = np.concatenate([unit["hash"] for unit in _units(documents)])[documents.order]
    by_hash = np.argsort(hashes, kind="stable")  # of equal ones the first in order stays in front
    hashes = hashes[by_hash]
    new = np.append(True, hashes[1:] != hashes[:-1])
    members = documents.order[by_hash]
    documents.drop(members[~new], members[new][np.cumsum(new) - 1][~new], 1)


def _near(documents: Documents, similarity: float, work: Path) -> None:
    units, path = _units(documents), work / "signatures.u32"
    shingles = np.concatenate([unit["shingles"] for unit in units])
    compared = (documents.reason == 0) & (shingles > 0)
    if not compared.any():
        return
    signatures = np.memmap(path, "<u4", "w+", shape=(int(compared.sum()), PLACES))
    first = done = 0
    for unit in units:
        chosen = unit["signature"][compared[first : first + len(unit)]]
        signatures[done : done + len(chosen)] = chosen
        first, done = first + len(unit), done + len(chosen)
    order = documents.order[compared[documents.order]]
    rows = np.cumsum(compared) - 1  # of each document, in `signatures`
    label = near.components(signatures, rows[order], similarity, work / "bands.u64")
    del signatures
    path.unlink()
    later = np.flatnonzero(label != np.arange(len(label)))
    documents.drop(order[later], order[label[later]], 2)


def _describe(job: Job, documents: Documents) -> dict[str, object]:
    """Writes the lists of dropped documents; what is said of them, and of each corpus."""
    corpora: list[dict] = [{"reasons": Counter(), "tokens": 0, "groups": []} for _ in job.corpora]
    lists: dict[tuple[int, int, int], list[np.ndarray]] = {}
    sizes: Counter = Counter()
    splits = np.zeros(len(documents.order), np.int8)
    for (number, (split, group), part), first in zip(documents.places, documents.firsts):
        span = slice(first, first + part.documents)
        reasons, (hashes, lengths) = documents.reason[span], part.index()
        splits[span] = split
        sizes[number, split, group] += part.documents
        for reason, name in REASONS.items():
            if count := int((reasons == reason).sum()):
                corpora[number]["reasons"][name] += count
        corpora[number]["tokens"] += int(lengths[reasons > 0].sum())
        lists.setdefault((number, split, group), []).append(hashes[reasons > 0])
    for (number, split, group), hashes in sorted(lists.items()):
        dropped = np.sort(np.concatenate(hashes))
        if len(dropped):
            np.save(_list_of(job.work, number, split, group), dropped)
            left = sizes[number, split, group] - len(dropped)
            corpora[number]["groups"].append([split, group, left])
    data, dropped = job.config.data, np.flatnonzero(documents.reason)
    return {
        "found": data.duplicates,
        **({"similarity": data.duplicate_similarity} if data.duplicates == "near" else {}),
        "dropped": len(dropped),
        # duplicates that stood in the other split than the document that stays
        "across_splits": int((splits[dropped] != splits[documents.kept[dropped]]).sum()),
        "examples": _examples(documents, job),
        "corpora": corpora,
    }


def _examples(documents: Documents, job: Job) -> list[dict[str, object]]:
    """The first pairs of each kind, in order: who is dropped, and for whom."""
    found = []
    for reason, name in REASONS.items():
        of_reason = documents.order[documents.reason[documents.order] == reason][:EXAMPLES]
        for number in of_reason.tolist():
            dropped, kept = (_name(documents, job, i) for i in (number, int(documents.kept[number])))
            found.append({"reason": name, "dropped": dropped, "kept": kept})
    return found


def _name(documents: Documents, job: Job, number: int) -> dict[str, str]:
    """Source and id of a document."""
    at = int(np.searchsorted(documents.firsts, number, side="right")) - 1
    corpus, _, part = documents.places[at]
    return {"source": job.corpora[corpus].source, "document": part.names()[number - documents.firsts[at]][0]}
