"""What the manifest of prepared rows says.

The folder holds `tokenizer/`, a shard per corpus and pack group, `train/CORPUS-GROUP.array_record` and
`eval/CORPUS-GROUP.array_record`, and `manifest.json`: the fingerprint of all that determines the rows; the options;
the tokenizer's hash, special ids and training; per corpus what was read, kept, dropped and why, and per split rows,
segments, pairs by their labels 0 and 1, tokens (CLS and SEP included), unknown tokens and the hash of each shard's
rows; `pairs`, what is paired (none, next, order: see there); `unigrams`, how often each id stands in the training rows
(CLS, SEP and padding are not counted); `flags`, how many tokens of the training rows begin a word, a sentence, a
paragraph, and how many words continue a phrase; `segmenter`, its name and version; `contamination`, what was looked
for, which records of it could not be read, how many documents held some of it, and the first ones; `duplicates`, how
many were dropped, how many of them stood in another split than the document that stays for them, and the first pairs;
`collocations`, the list's hash, how much text was counted for it, and what came of each length (nothing in one of these
four that was not asked for); `notes` for the user. With `data.collocations` the list lies there too,
`collocations.tsv`.
"""

from collections import Counter

import numpy as np

from mlm_jax.config import DataConfig
from mlm_jax.prepare import pairs, segmentation
from mlm_jax.prepare.contamination import unreadable
from mlm_jax.prepare.folder import SPLITS
from mlm_jax.prepare.job import Corpus, Job
from mlm_jax.prepare.shards import shard_name
from mlm_jax.records import FLAGS, Layout
from mlm_jax.tokenizer import Tokenizer

MOSTLY = 0.5  # share of ideographs from which a corpus counts as Chinese or Japanese
MANY = 0.4  # share of segments that should be pairs, where pairs are asked for
FEW = 0.05  # share of unknown tokens from which a tokenizer does not fit its corpus
UNKNOWN = "{}: {:.0%} of the tokens are unknown: the tokenizer was made for other text"
UNPAIRED = (
    "only {:.0%} of the training segments are pairs: a segment that holds less than two whole sentences is none{}"
)
ALONE = ", nor one for which no second text of the same length is found in another document"
SHORT = (
    "{short:,} of the {texts:,} texts in config.data.contamination have fewer than {words} words: nobody looks for "
    "them (config.data.contamination_words)"
)
UNREADABLE = "nobody looks for what cannot be read in config.data.contamination: {}"
UNSEGMENTED = (
    "{:.0%} of the tokens are CJK ideographs, each a word of its own: without word segmentation masking whole words "
    "is masking single characters; data.segmenter=icu finds words, mask.unit=phrase with data.collocations masks what "
    "stands together"
)


def describe(
    job: Job,
    layout: Layout,
    tokenizer: Tokenizer,
    training: dict,
    contamination: dict,
    duplicates: dict,
    collocations: dict,
    shards: dict,
) -> dict[str, object]:
    """The manifest but for fingerprint and options. training to collocations: what those stages said of themselves."""
    unigrams, flags = np.zeros(tokenizer.size, np.int64), Counter(dict.fromkeys(FLAGS, 0))
    for (_, split, _), info in shards.items():
        if SPLITS[split] == "train":
            unigrams += np.array(info["unigrams"])
            flags.update(info["flags"])
    corpora = [_summary(corpus, shards) for corpus in job.corpora]
    notes = training.pop("messages", []) + _notes(job.config.data, tokenizer, unigrams, collocations)
    if contamination and contamination["short"]:
        notes.append(SHORT.format(**contamination))
    if contamination and contamination["dropped"]:
        notes.append(UNREADABLE.format(unreadable(contamination)))
    notes += _unknown_notes(corpora)
    notes += _pair_notes(job.config.data.pairs, [corpus["splits"]["train"] for corpus in corpora])
    return {
        "row_length": layout.row_length,
        "max_segments": layout.max_segments,
        "pairs": job.config.data.pairs,
        "dtype": layout.dtype,
        "pack_groups": job.config.data.pack_groups,
        "segmenter": segmentation.describe(job.config.data.segmenter),
        "notes": notes,
        "tokenizer": _describe(tokenizer) | {"training": training},
        "corpora": corpora,
        "unigrams": unigrams.tolist(),
        "flags": dict(flags),
        "contamination": contamination and contamination | _contaminated(job.corpora),
        "duplicates": duplicates,
        "collocations": collocations,
    }


def _notes(data: DataConfig, tokenizer: Tokenizer, unigrams: np.ndarray, collocations: dict) -> list[str]:
    notes, total = [], max(1, unigrams.sum())
    ideographs = unigrams[tokenizer.ideographs].sum() / total
    if ideographs > MOSTLY and data.segmenter == "none":
        notes.append(UNSEGMENTED.format(ideographs))
    if collocations and collocations["kept"] < data.collocations:
        notes.append(_few(data, collocations["kept"]))
    return notes


def _unknown_notes(corpora: list[dict]) -> list[str]:
    """Which corpora the tokenizer was not made for."""
    notes = []
    for corpus in corpora:
        splits = corpus["splits"].values()
        unknown = sum(split["unknown"] for split in splits)
        text = sum(split["tokens"] - 2 * split["segments"] - sum(split["labels"]) for split in splits)
        if unknown > FEW * text:
            notes.append(UNKNOWN.format(corpus["source"], unknown / text))
    return notes


def _pair_notes(kind: str, splits: list[dict]) -> list[str]:
    share = sum(sum(split["labels"]) for split in splits) / max(1, sum(split["segments"] for split in splits))
    if kind == pairs.NONE:
        return []
    return [UNPAIRED.format(share, ALONE if kind == pairs.NEXT else "")] * (share < MANY)


def _contaminated(corpora: list[Corpus]) -> dict[str, object]:
    return {
        "documents": sum(corpus.contaminated["documents"] for corpus in corpora),
        "examples": [{"source": c.source, **example} for c in corpora for example in c.contaminated["examples"]],
    }


def _few(data: DataConfig, found: int) -> str:
    return (
        f"only {found:,} of {data.collocations:,} collocations: no more n-grams occur {data.collocation_count} times "
        f"in {data.collocation_tokens:,} tokens, and more often than chance has it"
    )


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
            {"file": shard_name(*key), "rows": info["rows"], "hash": info["hash"]} for key, info in of_split.items()
        ]
        labels = [sum(info["labels"][label] for info in of_split.values()) for label in (0, 1)]
        splits[name] = {**sums, "labels": labels, "shards": files}
    return {"source": corpus.source, "inputs": corpus.identity, "counts": corpus.counts, "splits": splits}
