"""The findings for the terminal, at most about 100 columns wide."""

from mlm_jax.metrics import short

BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 32  # of a small histogram
WIDE = 98
BETWEEN = "  "  # pieces: some of them are commas
# shown for the training split where they say anything
MEASURES = (
    "tokens a row",
    "segments a row",
    "tokens a segment",
    "tokens a word",
    "tokens a sentence",
    "words a sentence",
    "sentences a paragraph",
    "words a phrase",
)
LABELS = {  # of pairs, by what `pairs` of the manifest says
    "next": ("follows", "of another document"),
    "order": ("in order", "swapped"),  # they are swapped on the device: in the rows all are in order
}


def text(findings: dict) -> str:
    lines = [_headline(findings)]
    for corpus in findings["corpora"]:
        lines += ["", *corpus_lines(corpus, findings["row_length"], findings["pairs"])]
        lines += ["", *_measures(corpus["splits"]["train"]["distributions"])]
    lines += ["", *_vocabulary(findings["vocabulary"])]
    lines += ["", "texts (words in brackets)"]
    lines += [f"  {_cut(sample)}" for corpus in findings["corpora"] for sample in corpus["samples"]]
    lines += [f"note: {note}" for note in findings["notes"]]
    return "\n".join([*lines, "", *_checks(findings)])


def _headline(findings: dict) -> str:
    read = "all read" if findings["whole"] else f"{findings['rows_read']:,} of them read, evenly spread"
    return (
        f"rows in {findings['folder']}: {findings['rows']:,} of {findings['row_length']} tokens ({findings['dtype']}, "
        f"{findings['bytes'] / 1e6:,.1f} MB), {read}"
    )


def corpus_lines(corpus: dict, row_length: int, kind: str) -> list[str]:
    """Source, documents by what became of them, text, and each split, a line each."""
    counts = corpus["counts"]
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
    weight = f", drawn {corpus['weight']:.1%} of the time" if "weight" in corpus else ""
    lines = [
        corpus["source"],
        f"  documents  {counts['read']:,} read, {counts['kept']:,} kept; dropped: {dropped or 'none'}",
        f"  records    {counts['bytes'] / 1e6:,.1f} MB, {counts['tokens']:,} tokens",
        f"  share      {corpus['share_of_rows']:.1%} of all training rows{weight}",
    ]
    for name, split in corpus["splits"].items():
        if not split["rows"]:
            lines.append(f"  {name:9}  no rows")
            continue
        lines.append(
            f"  {name:9}  {split['rows']:,} rows of {row_length}, {short(split['tokens'])} tokens, {split['fill']:.1%} "
            f"full, {split['segments_per_row']:.2f} segments a row, {split['unknown_share']:.3%} unknown"
        )
        if shown := pairs_of(split, kind):
            lines.append(f"             {shown}")
    return lines


def shown_measures(distributions: dict) -> list[str]:
    """Those that say something: without phrases where no word continues one."""
    phrases = distributions.get("words a phrase", {}).get("largest", 0) > 1
    return [
        name for name in MEASURES if distributions.get(name, {}).get("count") and (phrases or name != "words a phrase")
    ]


def _measures(distributions: dict) -> list[str]:
    lines = [f"  {'training split':22}{'mean':>8}{'5%':>7}{'median':>8}{'95%':>7}{'most':>7}"]
    for name in shown_measures(distributions):
        one = distributions[name]
        numbers = f"{one['mean']:>8.2f}{one['p5']:>7,}{one['median']:>8,}{one['p95']:>7,}{one['largest']:>7,}"
        lines.append(f"  {name:22}{numbers}   {bars(one)}")
    return lines


def pairs_of(split: dict, kind: str) -> str:
    """How many segments are pairs, by label; empty where none are asked for. kind: `pairs` of the manifest."""
    if kind not in LABELS:
        return ""
    alone = split["segments"] - sum(split["labels"])
    named = [f"{name} {count:,}" for name, count in zip(LABELS[kind], split["labels"])]
    return f"pairs ({kind}): {', '.join(named)}; no pair {alone:,}"


def bars(one: dict) -> str:
    """A histogram from 0 to its 95th percentile and a fifth, in signs of eight heights."""
    last = min(one["largest"], max(one["p95"] * 6 // 5, 1))
    histogram = one["histogram"][: last + 1]
    width = -(-len(histogram) // COLUMNS)
    sums = [sum(histogram[start : start + width]) for start in range(0, len(histogram), width)]
    most = max(sums)
    return "".join(BARS[-(-8 * value // most)] for value in sums) if most else ""


def _vocabulary(found: dict) -> list[str]:
    special = BETWEEN.join(f"{i} {piece}" for i, piece, *_ in found["special"][:12])
    covering = ", ".join(f"{float(share):.0%} {count:,}" for share, count in found["covering"].items())
    never = found["ordinary"] - found["used"]
    return [
        f"vocabulary {found['vocab_size']:,} ids, {found['file']} ({found['hash']})",
        *_wrapped("  special    ", special),
        f"  used       {found['used']:,} of {found['ordinary']:,} ordinary ids in {short(found['tokens'])} training "
        f"tokens; {found['seldom']:,} fewer than 10 times",
        f"  never      {never:,} ({never / max(1, found['ordinary']):.1%})"
        + (f"; {found['holes']:,} ids without a token" if found["holes"] else ""),
        f"  ids that make up a share of the tokens: {covering}; entropy {found['entropy']:.3f} nats",
        *_wrapped("  frequent   ", _pieces(found["frequent"], found["tokens"])),
        *_wrapped("  rare       ", BETWEEN.join(f"{piece} {count:,}" for _, piece, count in found["rare"])),
        *_wrapped("  unused     ", BETWEEN.join(piece for _, piece, _ in found["never"]) or "none"),
    ]


def _pieces(pieces: list[list], total: int) -> str:
    return BETWEEN.join(f"{piece} {count / total:.1%}" for _, piece, count in pieces)


def _wrapped(name: str, words: str) -> list[str]:
    """As many lines as it takes, broken between the words."""
    lines = [""]
    for word in words.split(BETWEEN):
        if lines[-1] and len(name) + len(lines[-1]) + len(BETWEEN) + len(word) > WIDE:
            lines.append("")
        lines[-1] += BETWEEN * bool(lines[-1]) + word
    return [name + lines[0], *(" " * len(name) + line for line in lines[1:])]


def _cut(text: str) -> str:
    """What fits two lines."""
    return text if len(text) <= 2 * WIDE else text[: 2 * WIDE - 2] + " …"


def _checks(findings: dict) -> list[str]:
    lines = [f"checked {line}" for line in findings["checked"]]
    failures = findings["failures"]
    verdict = f"{len(failures)} failed" if failures else "all as it should be"
    return [*lines, verdict] + [failure_line(one) for one in failures]


def failure_line(one: dict) -> str:
    return f"failed: {one['file']}: {one['check']}: {one['problem']}"
