"""Texts of evaluations must not be learned: the n-grams of words that give a document away.

A document is contaminated where it shares an n-gram of `data.contamination_words` words with a text of the files in
`data.contamination` (13 as for GPT-3, Brown et al. 2020, appendix C; case and signs do not count there either). It is
dropped as a whole, from both splits. A text of fewer words gives nothing to look for, and is counted; so is a record
that cannot be read, with its reason. Where no white space stands between words, characters are words.
"""

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Iterator
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
    for name in names:
        if name.startswith("builtin:"):
            raise ConfigError(KEY, name, "holds no text of an evaluation; name a file, a folder or a pattern")
    with _of_contamination():
        return [file for name in names for file in sources.find_files(name)]


def identify(names: tuple[str, ...]) -> dict[str, object]:
    """What the files of all names hold. Raises ConfigError."""
    files = find_files(names)
    with _of_contamination():
        return sources.identify(files)


@contextlib.contextmanager
def _of_contamination() -> Iterator[None]:
    """A ConfigError of these files names the option that asks for them."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(KEY, error.value, error.fix) from None


def collect(data: DataConfig, path: Path, progress: bool) -> dict[str, object]:
    """Writes the hashes of the n-grams to look for, u64[k], sorted; what is said of them, nothing without files.

    texts: with words; short: those of fewer than n words; ngrams: different ones; dropped {reason: n}: records that
    cannot be read; first_problem: place and reason, or none. Raises ConfigError where no n-gram is.
    """
    if not data.contamination:
        return {}
    info, n, found = path.with_suffix(".json"), data.contamination_words, []
    if not _is_whole(path, info):
        texts, short, fields = 0, 0, sources.Fields(data.text_field)
        dropped, first_problem = Counter(), []
        with Stage("contamination", progress, things="texts") as stage, _of_contamination():
            for unit in sources.units(find_files(data.contamination), fields):
                readable = []
                for document in sources.documents(unit, fields):
                    if document.problem:
                        dropped[document.problem] += 1
                        first_problem = first_problem or [document.place, document.problem]
                    else:
                        readable.append("\n".join(paragraphs_of(document.text)))
                plain = Plain.of(readable)
                texts += int((plain.counts > 0).sum())
                short += int(((plain.counts > 0) & (plain.counts < n)).sum())
                found.append(np.unique(plain.ngrams(n, short=False)[0]))
                stage.add(len(unit.data), len(plain.counts))
        known = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))
        about = {"words": n, "action": data.contamination_action, "texts": texts, "short": short, "ngrams": len(known)}
        about |= {"dropped": dict(sorted(dropped.items())), "first_problem": first_problem}
        if not len(known):
            fix = f"none of its {texts} texts (in JSON lines the field {data.text_field!r}) has {n} words"
            if dropped:
                fix += f"; unreadable are {unreadable(about)}"
            raise ConfigError(KEY, data.contamination, fix)
        with open(partial := path.with_name(f"{path.name}.partial"), "wb") as handle:
            np.save(handle, known)
        partial.rename(path)
        write_json(info, about)
    return _read(info)


def _read(info: Path) -> dict[str, object]:
    return json.loads(info.read_text(encoding="utf-8"))


def unreadable(about: dict) -> str:
    """The records that `collect` could not read: how many by reason, and the first place."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in about["dropped"].items())
    return f"{sum(about['dropped'].values()):,} records ({reasons}; the first is {about['first_problem'][0]})"


def _is_whole(path: Path, info: Path) -> bool:
    """Whether both files that `collect` writes are there and undamaged; an earlier version counted nothing dropped."""
    try:
        about = _read(info)
        return "dropped" in about and len(np.load(path, "r")) == about["ngrams"]
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return False


@functools.cache
def _lookup(path: str) -> Lookup:
    return Lookup(np.load(path))


def first_matches(plain: Plain, path: str, n: int) -> dict[int, str]:
    """The texts that hold one of the n-grams, by number, and the first that each holds."""
    hashes, places = plain.ngrams(n, short=False)
    matches = places[_lookup(path)(hashes) >= 0]
    owners, firsts = np.unique(plain.owners(matches), return_index=True)
    return {int(owner): plain.show(int(matches[first]), n) for owner, first in zip(owners, firsts)}
