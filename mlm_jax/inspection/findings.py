"""What is in a folder of rows, as one object of plain values: for the terminal, a page, or a program."""

import hashlib
import json
from pathlib import Path

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.inspection.counts import Counts, Ids, add
from mlm_jax.inspection.shards import Look, Task, look, open_shard
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.workers import Workers
from mlm_jax.records import FLAGS, SENTENCE_START, WORD_START, decode_rows, layout_of, read_manifest
from mlm_jax.tokenizer import Tokenizer

FEW_ROWS = 100_000  # up to which other processes are not worth their start
FREQUENT, RARE, NEVER = 20, 20, 20  # pieces that are shown
COVERED = (0.5, 0.9, 0.99)
SELDOM = 10  # an id that stands in the rows fewer times
TEXTS, LONGEST = 3, 48  # samples of each corpus, and their most tokens
PERCENTILES = {"p5": 0.05, "median": 0.5, "p95": 0.95}


def inspect(folder: Path, most_rows: int = 0, workers: int = 0, progress: bool = False) -> dict:
    """What a folder of rows holds, and what is wrong with it. Raises ConfigError where it holds no rows.

    most_rows: so many rows, evenly spread, are read in place of all (0); what needs all of them is then not checked.
    workers: processes that read; 0: one per core where there is much to read.
    """
    manifest = read_manifest(folder)
    try:
        tokenizer = Tokenizer.load(folder / "tokenizer")
        tasks = _tasks(folder, manifest, most_rows)
        whole = all(task.wanted is None for _, task in tasks)
        return _findings(folder, manifest, tokenizer, _looks(tasks, workers, progress), whole)
    except KeyError as error:
        raise ConfigError("config.data.rows", str(folder), f"has a manifest without {error}; prepare again") from None


Key = tuple[int, str]  # number of the corpus, split


def _shards(manifest: dict) -> list[tuple[Key, dict]]:
    corpora = enumerate(manifest["corpora"])
    splits = [((number, name), split) for number, corpus in corpora for name, split in corpus["splits"].items()]
    return [(key, shard) for key, split in splits for shard in split["shards"]]


def _tasks(folder: Path, manifest: dict, most_rows: int) -> list[tuple[Key, Task]]:
    layout, ids = layout_of(manifest), Ids.of(manifest)
    shards = _shards(manifest)
    ends = np.cumsum([shard["rows"] for _, shard in shards], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    few = 0 < most_rows < total
    chosen = np.unique(np.linspace(0, total - 1, most_rows).round().astype(np.int64)) if few else None
    tasks = []
    for (key, shard), end in zip(shards, ends.tolist()):
        first, wanted = end - shard["rows"], None
        if chosen is not None:
            wanted = tuple((chosen[(chosen >= first) & (chosen < end)] - first).tolist())
        path = str(folder / shard["file"])
        tasks.append((key, Task(path, shard["file"], shard["rows"], shard["hash"], layout, ids, wanted)))
    return tasks


def _looks(tasks: list[tuple[Key, Task]], workers: int, progress: bool) -> list[tuple[Key, Task, Look]]:
    rows = sum(task.rows if task.wanted is None else len(task.wanted) for _, task in tasks)
    found = []
    with Workers(workers or (1 if rows < FEW_ROWS else 0)) as pool, Stage("inspect", progress, things="rows") as stage:
        for (key, task), one in zip(tasks, pool.map(look, [task for _, task in tasks])):
            found.append((key, task, one))
            stage.add(one.bytes, one.rows)
    return found


def _findings(
    folder: Path, manifest: dict, tokenizer: Tokenizer, looks: list[tuple[Key, Task, Look]], whole: bool
) -> dict:
    failures = [
        {"file": task.name, "check": check, "problem": problem}
        for _, task, one in looks
        for check, problem in one.problems
    ]
    # where a shard cannot be read the totals of the others say nothing
    whole_and_read = whole and all(one.rows == task.rows for _, task, one in looks)
    by_key: dict[Key, Counts] = {}
    distributions: dict[Key, Counts] = {}
    for key, _, one in looks:
        by_key[key] = add(by_key.get(key, {}), one.totals)
        distributions[key] = add(distributions.get(key, {}), one.distributions)
    if whole_and_read:
        failures += _differences(manifest, tokenizer, by_key)
    failures += _beside(folder, manifest, tokenizer)
    numbers = range(len(manifest["corpora"]))
    corpora = [_corpus(folder, manifest, number, tokenizer, distributions) for number in numbers]
    keys = (
        "fingerprint",
        "row_length",
        "max_segments",
        "pairs",
        "dtype",
        "pack_groups",
        "options",
        "notes",
        "collocations",
    )
    return {
        "folder": str(folder),
        **{key: manifest[key] for key in keys},
        "bytes": sum(one.bytes for *_, one in looks),
        "rows": sum(task.rows for _, task, _ in looks),
        "rows_read": sum(one.rows for *_, one in looks),
        "whole": whole,
        "corpora": corpora,
        "vocabulary": vocabulary(manifest, tokenizer),
        "checked": _checked(looks, whole_and_read),
        "failures": failures,
    }


def _checked(looks: list, whole: bool) -> list[str]:
    """What was looked at, in words."""
    read, files = sum(one.rows for *_, one in looks), len(looks)
    lines = [f"{files:,} shards: readable, and as many rows as the manifest says"]
    if whole:
        lines.append(f"{read:,} rows: hash of each shard; totals, counts of ids and of flags as the manifest has them")
    else:
        lines.append("hashes and totals: not checked, since not all rows were read")
    lines.append(f"{read:,} rows: specials in place, no PAD inside, ids in range, flags and pair labels that agree")
    return [*lines, "tokenizer and lists: hashes as the manifest has them"]


def _differences(manifest: dict, tokenizer: Tokenizer, by_key: dict[Key, Counts]) -> list[dict]:
    """Totals of the rows that are not those of the manifest."""
    found = []
    train: Counts = {}
    for number, corpus in enumerate(manifest["corpora"]):
        for name, split in corpus["splits"].items():
            counts = by_key.get((number, name), {})
            train = add(train, counts) if name == "train" else train
            rows = {key: int(counts[key][0]) if counts else 0 for key in ("rows", "tokens", "segments")}
            rows["pairs of label 0"], rows["pairs of label 1"] = counts["labels"].tolist() if counts else (0, 0)
            rows["unknown"] = int(counts["ids"][tokenizer.unk]) if counts else 0
            said = split | {f"pairs of label {label}": count for label, count in enumerate(split["labels"])}
            found += [
                f"{name} of {corpus['source']}: {key} {rows[key]:,}, the manifest says {said[key]:,}"
                for key in rows
                if rows[key] != said[key]
            ]
    ids, flags = (train["ids"], train["flags"]) if train else (np.zeros(tokenizer.size), np.zeros(len(FLAGS)))
    unigrams = np.array(manifest["unigrams"])
    if len(unigrams) != len(ids):
        found.append(f"unigrams has {len(unigrams):,} counts, the vocabulary {len(ids):,} ids")
    elif len(wrong := np.flatnonzero(unigrams != ids)):
        first = wrong[0]
        found.append(
            f"unigrams differ for {len(wrong):,} ids: {first} stands {ids[first]:,} times, "
            f"the manifest says {unigrams[first]:,}"
        )
    flags = dict(zip(FLAGS, flags.tolist()))
    found += [
        f"flags: {flags[name]:,} {name}, the manifest says {manifest['flags'][name]:,}"
        for name in FLAGS
        if flags[name] != manifest["flags"][name]
    ]
    return [{"file": "manifest.json", "check": "totals", "problem": problem} for problem in found]


def _beside(folder: Path, manifest: dict, tokenizer: Tokenizer) -> list[dict]:
    """What is wrong with the files beside the shards."""
    found, asked = [], manifest["tokenizer"]
    if tokenizer.hash != asked["hash"]:
        problem = f"is {tokenizer.hash}, the manifest says {asked['hash']}"
        found.append({"file": asked["file"], "check": "hash of the tokenizer", "problem": problem})
    if asked := manifest["collocations"]:
        try:
            hash = hashlib.blake2b((folder / asked["file"]).read_bytes(), digest_size=16).hexdigest()
            problem = f"is {hash}, the manifest says {asked['hash']}" if hash != asked["hash"] else ""
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        if problem:
            found.append({"file": asked["file"], "check": "hash of the list", "problem": problem})
    named = {shard["file"] for _, shard in _shards(manifest)}
    for path in sorted(folder.glob("*/*.array_record*")):
        name = path.relative_to(folder).as_posix()
        if name not in named:
            found.append({"file": name, "check": "files", "problem": "stands beside the shards of the manifest"})
    return found


# ---- corpora ----


def _corpus(
    folder: Path, manifest: dict, number: int, tokenizer: Tokenizer, distributions: dict[Key, Counts]
) -> dict[str, object]:
    corpus = manifest["corpora"][number]
    everywhere = sum(other["splits"]["train"]["rows"] for other in manifest["corpora"])
    splits = {}
    for name, split in corpus["splits"].items():
        places = split["rows"] * manifest["row_length"]
        splits[name] = {
            **{key: split[key] for key in ("rows", "segments", "labels", "tokens", "unknown")},
            "shards": len(split["shards"]),
            "fill": split["tokens"] / places if places else 0.0,
            "segments_per_row": split["segments"] / split["rows"] if split["rows"] else 0.0,
            "unknown_share": split["unknown"] / split["tokens"] if split["tokens"] else 0.0,
            "distributions": {key: summary(counts) for key, counts in distributions.get((number, name), {}).items()},
        }
    return {
        "source": corpus["source"],
        "inputs": corpus["inputs"],
        "counts": corpus["counts"],
        "share_of_rows": splits["train"]["rows"] / max(1, everywhere),
        "splits": splits,
        "samples": samples(folder, manifest, number, tokenizer),
    }


def summary(histogram: np.ndarray) -> dict[str, object]:
    """Mean, percentiles and the largest value of a histogram (entry n: how many have n), and itself."""
    total = int(histogram.sum())
    if not total:
        return {"count": 0, "histogram": []}
    upto, values = np.cumsum(histogram), np.arange(len(histogram))
    found = {name: int(np.searchsorted(upto, share * total)) for name, share in PERCENTILES.items()}
    largest = int(np.flatnonzero(histogram)[-1])
    mean = float((histogram * values).sum() / total)
    return {"count": total, "mean": mean, **found, "largest": largest, "histogram": histogram[: largest + 1].tolist()}


def samples(folder: Path, manifest: dict, number: int, tokenizer: Tokenizer) -> list[str]:
    """Text of rows from all over a corpus's training split, words in brackets; a shard that is damaged gives none."""
    shards = [shard for shard in manifest["corpora"][number]["splits"]["train"]["shards"] if shard["rows"]]
    found = []
    for at in np.unique(np.linspace(0, len(shards) - 1, min(TEXTS, len(shards))).round().astype(int)).tolist():
        of_shard = TEXTS // max(1, min(TEXTS, len(shards)))
        try:
            reader = open_shard(str(folder / shards[at]["file"]))
            places = np.linspace(0, shards[at]["rows"] - 1, of_shard + 2).round().astype(int)[1:-1].tolist()
            rows = decode_rows(layout_of(manifest), reader.read(places))
        except (OSError, RuntimeError, ValueError, IndexError):
            continue
        for tokens, flags, segments in zip(rows["tokens"], rows["flags"], rows["segments"]):
            found.append(_shown(tokenizer, tokens, flags, segments))
    return [text for text in found if text]


def _shown(tokenizer: Tokenizer, tokens: np.ndarray, flags: np.ndarray, segments: np.ndarray) -> str:
    """The longest segment of a row, from its first sentence start on where there is one."""
    longest = np.bincount(segments[segments > 0], minlength=2).argmax()
    places = np.flatnonzero(segments == longest)[1:-1]  # without CLS and SEP
    starts = [place for place in places if flags[place] & SENTENCE_START]
    places = places[places >= starts[0]][:LONGEST] if starts else places[:LONGEST]
    if tokens[places].max(initial=0) >= tokenizer.size:
        return ""
    return tokenizer.show_words(tokens[places], flags[places] & WORD_START != 0)


# ---- vocabulary ----


def vocabulary(manifest: dict, tokenizer: Tokenizer) -> dict[str, object]:
    """How the training rows use the ids: frequent and rare ones, those that never occur, special ones."""
    counts = np.array(manifest["unigrams"])[: tokenizer.size]
    counts = np.pad(counts, (0, tokenizer.size - len(counts)))
    total, ordinary = max(1, int(counts.sum())), tokenizer.ordinary
    order = ordinary[np.argsort(-counts[ordinary], kind="stable")]
    falling = counts[order]
    used = order[falling > 0]
    upto = np.cumsum(falling) / max(1, falling.sum())
    shares = falling[falling > 0] / max(1, falling.sum())
    roles = {getattr(tokenizer, name): name for name in ("pad", "unk", "cls", "sep", "mask")}

    def shown(ids: np.ndarray) -> list[list]:
        return [[int(i), tokenizer.shown[i], int(counts[i])] for i in ids]

    return {
        **{key: manifest["tokenizer"].get(key) for key in ("file", "hash", "vocab_size", "training")},
        "special": [[int(i), tokenizer.shown[i], roles.get(int(i), ""), int(counts[i])] for i in tokenizer.special],
        "ordinary": len(ordinary),
        "holes": tokenizer.size - len(np.union1d(ordinary, tokenizer.special)),
        "used": len(used),
        "seldom": int(np.count_nonzero((falling > 0) & (falling < SELDOM))),
        "tokens": total,
        "covering": {f"{share:g}": int(np.searchsorted(upto, share) + 1) if len(used) else 0 for share in COVERED},
        "entropy": float(-(shares * np.log(shares)).sum()),
        "counts": falling[falling > 0].tolist(),  # by rank
        "frequent": shown(order[:FREQUENT]),
        "rare": shown(used[::-1][:RARE]),
        "never": shown(order[len(used) :][:NEVER]),
    }


def weights(findings: dict, config: dict) -> None:
    """Adds to each corpus the share of rows that a run's config asks for. config: its `data`, as JSON has it."""
    asked = config.get("weights") or []
    for corpus, weight in zip(findings["corpora"], asked if len(asked) == len(findings["corpora"]) else []):
        corpus["weight"] = weight / sum(asked)


def run_config(workdir: Path) -> dict:
    """`data` of the config of a run; empty where there is none that can be read."""
    try:
        return json.loads((workdir / "config.json").read_text(encoding="utf-8"))["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
