"""Texts of evaluations must not be learned: the n-grams of words that give a document away.

A document is contaminated where it shares an n-gram of `data.contamination_words` words with a text of the files in
`data.contamination` (13 as for GPT-3, Brown et al. 2020, appendix C; case and signs do not count there either). It is
dropped as a whole, from both splits. A text of fewer words gives nothing to look for, and is counted. Where no white
space stands between words, characters are words.
"""

import functools
import json
from pathlib import Path

import numpy as np

from mlm_jax.config import ConfigError, DataConfig
from mlm_jax.prepare import sources
from mlm_jax.prepare.documents import paragraphs_of
from mlm_jax.prepare.hashing import Lookup
from mlm_jax.prepare.plain import Plain
from mlm_jax.prepare.progress import Stage
from mlm_jax.records import write_json

KEY = "config.data.contamination"
EXAMPLES = 5  # contaminated documents that the manifest names, of each corpus


def find_files(names: tuple[str, ...]) -> list[sources.File]:
    """The files of all names, as those of sources. Raises ConfigError."""
    try:
        return [file for name in names for file in sources.find_files(name)]
    except ConfigError as error:
        raise ConfigError(KEY, error.value, error.fix) from None


def collect(data: DataConfig, path: Path, progress: bool) -> dict[str, object]:
    """Writes the hashes of the n-grams to look for, u64[k], sorted; what is said of them, nothing without files.

    texts: with words; short: those of fewer than n words; ngrams: different ones. Raises ConfigError where none is.
    """
    if not data.contamination:
        return {}
    info, n, found = path.with_suffix(".json"), data.contamination_words, []
    if not info.exists():
        texts, short, fields = 0, 0, sources.Fields(data.text_field)
        with Stage("contamination", progress, things="texts") as stage:
            for unit in sources.units(find_files(data.contamination), fields):
                documents = sources.documents(unit, fields)
                plain = Plain.of(["\n".join(paragraphs_of(document.text)) for document in documents])
                texts += int((plain.counts > 0).sum())
                short += int(((plain.counts > 0) & (plain.counts < n)).sum())
                found.append(np.unique(plain.ngrams(n, short=False)[0]))
                stage.add(len(unit.data), len(plain.counts))
        known = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))
        if not len(known):
            fix = f"none of its {texts} texts (in JSON lines the field {data.text_field!r}) has {n} words"
            raise ConfigError(KEY, data.contamination, fix)
        with open(partial := path.with_name(f"{path.name}.partial"), "wb") as handle:
            np.save(handle, known)
        partial.rename(path)
        write_json(
            info,
            {"words": n, "action": data.contamination_action, "texts": texts, "short": short, "ngrams": len(known)},
        )
    return json.loads(info.read_text(encoding="utf-8"))


@functools.cache
def _lookup(path: str) -> Lookup:
    return Lookup(np.load(path))


def first_matches(plain: Plain, path: str, n: int) -> dict[int, str]:
    """The texts that hold one of the n-grams, by number, and the first that each holds."""
    hashes, places = plain.ngrams(n, short=False)
    matches = places[_lookup(path)(hashes) >= 0]
    owners, firsts = np.unique(plain.owners(matches), return_index=True)
    return {int(owner): plain.show(int(matches[first]), n) for owner, first in zip(owners, firsts)}
