"""`python -m mlm_jax prepare`: text to rows, and a summary of what became of it."""

import itertools
from pathlib import Path

from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records
from mlm_jax.cli.common import devices_asked
from mlm_jax.config import ConfigError
from mlm_jax.flags import Arguments, Usage, command
from mlm_jax.prepare import prepare_or_keep, prepare_stream, with_encoded
from mlm_jax.prepare.phrases import read_phrases
from mlm_jax.tokenizer import Tokenizer

USAGE = """usage: python -m mlm_jax prepare --config=FILE [--config.KEY=VALUE ...] [--workdir=DIR]
       python -m mlm_jax prepare --config=FILE ... --beam [--runner=NAME] [-- OPTIONS OF THE RUNNER]

Trains a tokenizer if none is given, and packs the text of config.data.sources into rows: in config.data.rows, or
WORKDIR/rows. Does nothing where they are there already; goes on where it was interrupted. Example:

  python -m mlm_jax prepare --config=configs/tiny.py --config.data.sources=text/en.jsonl.gz --workdir=runs/en

With --beam the same rows are made by a runner of Apache Beam, such as DataflowRunner (see launch/dataflow.sh).
"""
SAMPLES = 3  # sentences that are shown
SEARCHED = 500  # rows that are searched for them
BEST = 6  # collocations of each length that are shown


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("beam", False, "prepare by Apache Beam: on a cluster, or in this process", flag_values=values)
    about = "of Beam: DirectRunner is this process; DataflowRunner, FlinkRunner, SparkRunner ..."
    flags.DEFINE_string("runner", "DirectRunner", about, flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, define=define, words=True)


def run(arguments: Arguments) -> int:
    """Prepares the rows of a config and prints the summary. Raises ConfigError."""
    config, workdir = arguments.config, arguments.workdir
    if not arguments.beam and (arguments.rest or arguments.given("runner")):
        what = repr(arguments.rest[0]) if arguments.rest else "--runner"
        raise Usage(f"unexpected {what}; options of a runner go with --beam, after --")
    config_module.check(config, devices=devices_asked(config))  # whatever machine will train
    if not arguments.beam and "://" in config.data.rows:
        raise ConfigError("config.data.rows", config.data.rows, "must be a local folder; only --beam writes elsewhere")
    if arguments.beam and "://" in config.data.rows:
        manifest = _by_beam(arguments, config.data.rows)
        print("\n".join([f"rows in {config.data.rows}", *_lines(manifest)]))
        return 0
    config_module.check_writable(workdir)
    folders = tuple(dict.fromkeys(config_module.rows_folders(config, workdir)))
    if arguments.beam:
        if len(folders) > 1:
            fix = f"reads {len(folders)} kinds of rows; make each by a config without phases, and name them as rows"
            raise ConfigError("config.phases", f"{len(config.phases)} phases", fix)
        _by_beam(arguments, str(folders[0]))
    elif not config.data.rows and any((workdir / "checkpoints").glob("*")):
        kept = sum((folder / records.MANIFEST).exists() for folder in config_module.rows_folders(config, workdir))
        if changed := prepare_or_keep(config, workdir, max(kept, 1)):
            fix = f"has checkpoints of these rows, which stay as they are; name another. Changed: {'; '.join(changed)}"
            raise ConfigError("workdir", str(workdir), fix)
    else:
        prepare_stream(with_encoded(config, workdir), folders, 0)  # whatever a folder that data.rows names holds
        prepare_or_keep(config, workdir, kept=0)
    for folder in folders:
        print(summary(records.read_manifest(folder), folder))
    return 0


def _by_beam(arguments: Arguments, folder: str) -> dict:
    from mlm_jax.prepare import beam

    return beam.prepare(arguments.config, folder, arguments.runner, arguments.rest)


def summary(manifest: dict, folder: Path) -> str:
    """What a person wants to know of prepared rows: counts, fill, and sentences with their words in brackets."""
    tokenizer = Tokenizer.load(folder / "tokenizer")
    lines = [f"rows in {folder}", f"vocabulary {tokenizer.size:,} ids ({tokenizer.hash})"]
    if "held_out" in manifest["tokenizer"]["training"]:
        lines += _training_lines(manifest["tokenizer"]["training"])
    lines += _lines(manifest)
    lines += _dropped_lines(manifest)
    if manifest["collocations"]:
        lines += _collocation_lines(manifest, folder)
    if words := sample_words(manifest, folder, tokenizer):
        lines += ["words (what is masked whole, in brackets):", *(f"  {line}" for line in words)]
    return "\n".join(lines + [f"note: {note}" for note in manifest["notes"]])


def _training_lines(training: dict) -> list[str]:
    """What the tokenizer was trained on, and what it serves worst of held-out text."""
    lines = [
        f"  {training['kind']['name']}, trained on {training['bytes_read'] / 1e6:,.1f} MB, of which "
        f"{training['bytes_skipped'] / max(1, training['bytes_read']):.2%} were skipped"
    ]
    if not (held_out := training["held_out"]):
        return [*lines, "  no held-out text to try it on"]
    as_bytes = f", {held_out['as_bytes']:.2%} bytes" if training["kind"]["byte_fallback"] else ""
    unknown = f"{held_out['unknown']:.3%} unknown{as_bytes}"
    lines.append(f"  on held-out text {held_out['tokens_per_word']:.2f} tokens a word, {unknown}")
    scripts = [
        f"{name} {found['tokens_per_word']:.2f} ({found['words'] / held_out['words']:.1%} of the words, "
        f"{found['unknown']:.2%} unknown)"
        for name, found in held_out["scripts"].items()
    ]
    lines.append(f"  tokens a word by writing: {', '.join(scripts)}")
    if held_out["characters"]:
        lines.append(f"  characters it lacks, the most frequent first: {' '.join(held_out['characters'])}")
    return [*lines, f"  words of most pieces: {' '.join(held_out['words_of_most_pieces'])}"]


def _lines(manifest: dict) -> list[str]:
    """What became of each corpus."""
    corpora = manifest["corpora"]
    return [line for one in corpora for line in _corpus_lines(one, manifest["row_length"], manifest["pairs"])]


def _corpus_lines(corpus: dict, row_length: int, kind: str) -> list[str]:
    """kind: of pairs."""
    counts = corpus["counts"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
    lines = [
        corpus["source"],
        f"  documents {counts['read']:,} read, {counts['kept']:,} kept, dropped: {dropped or 'none'}",
        f"  text {counts['bytes'] / 1e6:,.1f} MB, {counts['tokens']:,} tokens",
    ]
    for name, split in corpus["splits"].items():
        if not split["rows"]:
            lines.append(f"  {name} no rows")
            continue
        fill = split["tokens"] / (split["rows"] * row_length)
        unknown = split["unknown"] / split["tokens"]
        lines.append(
            f"  {name} {split['rows']:,} rows of {row_length}, {split['tokens']:,} tokens, {fill:.1%} full, "
            f"{split['segments'] / split['rows']:.1f} segments a row, {unknown:.3%} unknown"
        )
        if kind != "none":
            pairs, (follow, random) = sum(split["labels"]), split["labels"]
            share = f"{pairs / split['segments']:.1%} of the segments"
            labels = "all in order" if kind == "order" else f"{follow:,} follow, {random:,} are random"
            lines.append(f"  {name} {pairs:,} pairs, {share}: {labels}")
    return lines


def _dropped_lines(manifest: dict) -> list[str]:
    """The first of those documents that stand twice, or hold text of evaluations."""
    lines = []
    if about := manifest["duplicates"]:
        lines.append(
            f"duplicates {about['dropped']:,} dropped, {about['across_splits']:,} of them from the other split"
        )
        for example in about["examples"]:
            lines.append(f"  {example['reason']} {_name(example['dropped'])}, of {_name(example['kept'])}")
    if about := manifest["contamination"]:
        action = {"drop": "dropped", "report": "kept"}[about["action"]]
        lines.append(
            f"contamination {about['documents']:,} documents with text of evaluations, {action}; {about['ngrams']:,} "
            f"n-grams of {about['words']} words from {about['texts']:,} texts, {about['short']:,} of them too short"
        )
        lines += [f"  {_name(example)}: {example['words']}" for example in about["examples"]]
    return lines


def _name(document: dict) -> str:
    return f"{document['source']} {document['document']}"


def _collocation_lines(manifest: dict, folder: Path) -> list[str]:
    """The best collocations of each length, and how many words the rows mark."""
    about, flags = manifest["collocations"], manifest["flags"]
    joined = flags["phrase_joins"] / max(1, flags["word_starts"])
    lines = [
        f"collocations in {folder / about['file']}: {about['kept']:,}, counted in {about['tokens']:,} tokens; "
        f"{joined:.1%} of the words continue one"
    ]
    phrases = read_phrases(folder / about["file"])
    for n, of_length in about["by_length"].items():
        best = itertools.islice((phrase.text for phrase in phrases if len(phrase.ids) == int(n)), BEST)
        lines.append(f"  {of_length['kept']:,} of {n} words: {', '.join(best) or 'none'}")
    return lines


def sample_words(manifest: dict, folder: Path, tokenizer: Tokenizer) -> list[str]:
    """Whole sentences of the first training rows, words in brackets; none that ends the first text of a pair."""
    from array_record.python.array_record_module import ArrayRecordReader

    shards = [shard for corpus in manifest["corpora"] for shard in corpus["splits"]["train"]["shards"]]
    if not shards:
        return []
    reader = ArrayRecordReader(str(folder / shards[0]["file"]))
    raw = reader.read(list(range(min(SEARCHED, shards[0]["rows"]))))
    reader.close()
    rows = records.decode_rows(records.layout_of(manifest), raw)
    found = []
    for tokens, marks, segments in zip(rows["tokens"], rows["flags"], rows["segments"]):
        starts = [i for i in range(len(tokens)) if marks[i] & records.SENTENCE_START]
        for first, after in itertools.pairwise(starts):
            one_text = segments[first] == segments[after] and not (marks[first] ^ marks[after]) & records.SECOND_OF_PAIR
            if one_text and 6 <= after - first <= 40:
                found.append(tokenizer.show_words(tokens[first:after], marks[first:after] & records.WORD_START != 0))
                break
        if len(found) == SAMPLES:
            break
    return found
