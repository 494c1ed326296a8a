"""What determines the rows: sources, options, their fingerprint, and how they differ from those of rows on disk."""

import dataclasses
import hashlib
import json
from pathlib import Path

from mlm_jax.config import Config, ConfigError
from mlm_jax.prepare import contamination, pydoc, sources
from mlm_jax.prepare.job import Corpus
from mlm_jax.records import FORMAT
from mlm_jax.tokenizer import Tokenizer

VERSION = 3  # of how rows are made: another one makes other rows of the same inputs


def find_corpus(number: int, source: str) -> Corpus:
    if not source.startswith("builtin:"):
        files = sources.find_files(source)
    elif source == pydoc.NAME:
        files = pydoc.module_files()
    else:
        raise ConfigError(sources.KEY, source, f"the only embedded source is {pydoc.NAME}")
    return Corpus(number, source, files, sources.identify(files))


# options that say how encoded documents become rows: with other ones, the same documents are packed again
PACKING = ("row_length", "max_segments", "pairs", "collocations", "duplicate_similarity")


def options_of(config: Config) -> dict[str, object]:
    data = config.data
    return {
        "sources": list(data.sources),
        "text_field": data.text_field,
        "id_field": data.id_field,
        "holdout": data.holdout,
        "pack_groups": data.pack_groups,
        "max_segments": data.max_segments,
        "pairs": data.pairs,
        "row_length": config.row_length,
        "segmenter": data.segmenter,
        # how they are found matters where they are asked for
        "collocations": data.collocations
        and {
            "list": data.collocations,
            "longest": data.collocation_longest,
            "count": data.collocation_count,
            "tokens": data.collocation_tokens,
        },
        "filter": dataclasses.asdict(data.filter),
        "duplicates": data.duplicates,
        **({"duplicate_similarity": data.duplicate_similarity} if data.duplicates == "near" else {}),
        "contamination": list(data.contamination)
        and {
            "files": list(data.contamination),
            "words": data.contamination_words,
            "action": data.contamination_action,
        },
        "tokenizer": dataclasses.asdict(config.tokenizer),
        "terms": _hash_of_terms(config.tokenizer.terms),
    }


def contents_of(config: Config, corpora: list[Corpus], segmenter: dict | None = None) -> dict[str, object]:
    """What stands behind the options: the contents of all files that they name, and versions.

    segmenter: its name and version, which are no option: a run that has a checkpoint does not ask for them.
    """
    asked = dataclasses.asdict(config.tokenizer)
    trained = {key: value for key, value in asked.items() if key not in ("path", "terms")}
    return {
        "version": [FORMAT, VERSION],
        "tokenizer": Tokenizer.load(asked["path"]).hash if asked["path"] else trained,
        "inputs": [corpus.identity for corpus in corpora],
        "contamination": contamination.identify(config.data.contamination),
        **({"segmenter": segmenter} if segmenter else {}),
    }


def fingerprint_of(options: dict, contents: dict) -> str:
    """Hash of everything that determines the rows; of encoded documents, where the options are those of encoding."""
    others = {key: value for key, value in contents.items() if key != "tokenizer"}
    everything = {"options": {**options, "tokenizer": contents["tokenizer"]}, **others}
    return hashlib.blake2b(json.dumps(everything, sort_keys=True).encode(), digest_size=16).hexdigest()


def encoding_options(options: dict) -> dict[str, object]:
    """Those of `options_of` on which encoded documents may depend: all that are not known to come later."""
    return {key: value for key, value in options.items() if key not in PACKING}


def changes(config: Config, manifest: dict) -> list[str]:
    """What the config asks for that is not what rows were made of: options, and files by number and size.

    A quick look that never fails: contents are not read, and a source that is gone is a change like another.
    """
    asked, made = options_of(config), manifest["options"]
    found = [f"{key} was {made.get(key)!r}, is {asked[key]!r}" for key in asked if asked[key] != made.get(key)]
    for corpus in manifest["corpora"]:
        source, inputs = corpus["source"], corpus["inputs"]
        if source == pydoc.NAME:
            continue
        try:
            sizes = [file.size for file in sources.find_files(source)]
        except (ConfigError, OSError):
            found.append(f"{source} is gone")
            continue
        if (len(sizes), sum(sizes)) != (inputs["files"], inputs["bytes"]):
            before = f"{inputs['files']} files of {inputs['bytes']:,} bytes"
            found.append(f"{source} was {before}, is {len(sizes)} of {sum(sizes):,}")
    return found


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


def _hash_of_terms(path: str) -> str:
    """Of the words in the file; empty where there is none."""
    try:
        return hashlib.blake2b("\n".join(read_terms(path)).encode(), digest_size=16).hexdigest() if path else ""
    except ConfigError:  # a file that is gone is a change like another; `read_terms` says it where it matters
        return "gone"
