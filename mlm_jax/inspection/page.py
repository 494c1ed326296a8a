"""The findings as a page that needs nothing else: tables, histograms, and how often ids occur by rank."""

import itertools
from collections.abc import Iterable

import numpy as np

import mlm_jax
from mlm_jax.inspection.terminal import failure_line, pairs_of, shown_measures
from mlm_jax.metrics import short
from mlm_jax.report.draw import SETS, Line, Picture, figure
from mlm_jax.report.markup import Html, join, table, tag
from mlm_jax.report.page import HALF_SIZE, NARROW_SIZE, SMALL_SIZE, WIDE_SIZE, document
from mlm_jax.report.thin import POINTS

BINS = 48  # of a histogram
APART = "margin-top:14px"
HISTOGRAMS = ("tokens a row", "tokens a segment", "tokens a word", "words a sentence")
TITLES = {
    "tokens a row": ("Fill of the rows", "Share of the rows by the part of their places that hold a token."),
    "tokens a segment": ("Length of the segments", "Share of the segments by tokens, CLS and SEP included."),
    "tokens a word": ("Tokens of a word", "Share of the words."),
    "words a sentence": ("Words of a sentence", "Share of the sentences, or what a segment holds of them."),
}


def html(findings: dict) -> str:
    """The complete page."""
    return document(
        "Prepared rows",
        tag("h1", "Prepared rows"),
        tag("p", findings["folder"], class_="note"),
        _tiles(findings),
        tag("h2", "Checks"),
        _checks(findings),
        tag("h2", "Corpora"),
        *(_corpus(corpus, findings["pairs"]) for corpus in findings["corpora"]),
        tag("h2", "Lengths"),
        _histograms(findings),
        tag("div", *(_measures(corpus) for corpus in findings["corpora"]), class_="grid halves"),
        tag("h2", "Vocabulary"),
        _vocabulary(findings["vocabulary"]),
        tag("h2", "Texts"),
        *map(_texts, findings["corpora"]),
        *(tag("p", f"Note: {note}", class_="note") for note in findings["notes"]),
        tag("footer", f"Written by mlm_jax {mlm_jax.__version__}, from the folder of the rows alone."),
    )


def _tiles(findings: dict) -> Html:
    train = [corpus["splits"]["train"] for corpus in findings["corpora"]]
    rows, tokens = sum(split["rows"] for split in train), sum(split["tokens"] for split in train)
    fill = tokens / max(1, rows * findings["row_length"])
    held = sum(corpus["splits"]["eval"]["rows"] for corpus in findings["corpora"])
    vocabulary, segments = findings["vocabulary"], sum(split["segments"] for split in train)
    tiles = [
        ("training rows", short(rows), f"of {findings['row_length']} tokens, {findings['dtype']}"),
        ("training tokens", short(tokens), "CLS and SEP included"),
        ("fill", f"{fill:.1%}", f"{segments / max(1, rows):.2f} segments a row"),
        ("held-out rows", short(held), f"{len(findings['corpora'])} corpora"),
        ("ids in use", f"{vocabulary['used']:,}", f"of {vocabulary['ordinary']:,} ordinary ones"),
        ("on disk", f"{findings['bytes'] / 1e6:,.1f} MB", f"{findings['pack_groups']} pack groups"),
    ]
    shown = (
        tag("div", tag("dt", name), tag("dd", value, class_="big"), tag("dd", more, class_="small"), class_="tile")
        for name, value, more in tiles
    )
    return tag("dl", *shown, class_="tiles")


def _checks(findings: dict) -> Html:
    failures = findings["failures"]
    verdict = f"{len(failures)} failed" if failures else "All as it should be"
    bad = [tag("p", tag("mark", "failed"), failure_line(one).removeprefix("failed:")) for one in failures]
    lines = [tag("p", line, class_="note") for line in findings["checked"]]
    return tag("div", tag("h3", verdict), *bad, *lines, class_="card")


def _corpus(corpus: dict, kind: str) -> Html:
    counts = corpus["counts"]
    head = ["split", "rows", "tokens", "fill", "segments", "segments a row", "unknown", "shards"]
    rows = [
        [
            tag("th", name),
            f"{split['rows']:,}",
            f"{split['tokens']:,}",
            f"{split['fill']:.1%}",
            f"{split['segments']:,}",
            f"{split['segments_per_row']:.2f}",
            f"{split['unknown_share']:.3%}",
            f"{split['shards']:,}",
        ]
        for name, split in corpus["splits"].items()
    ]
    weight = f", drawn {corpus['weight']:.1%} of the time" if "weight" in corpus else ""
    about = (
        f"{counts['read']:,} documents read, {counts['kept']:,} kept; {counts['bytes'] / 1e6:,.1f} MB of records, "
        f"{counts['tokens']:,} tokens; "
        f"{corpus['share_of_rows']:.1%} of all training rows{weight}."
    )
    pairs = pairs_of(corpus["splits"]["train"], kind)
    caption = tag("figcaption", corpus["source"], tag("p", about), tag("p", f"Training {pairs}.") if pairs else None)
    return tag("figure", caption, table(head, rows, "numbers"), _dropped(counts), style=APART)


def _dropped(counts: dict) -> Html | None:
    """Bars of the reasons for which documents were left out."""
    reasons = sorted(counts["dropped"].items(), key=lambda item: -item[1])
    if not reasons:
        return None
    cells = []
    for reason, count in reasons:
        width = f"--c:var(--other);width:{100 * count / reasons[0][1]:.1f}%"
        number = f"{count:,} ({count / max(1, counts['read']):.2%})"
        cells += [tag("span", reason), tag("div", tag("div", class_="bar", style=width)), tag("span", number)]
    return join(tag("p", "Documents that were dropped", class_="note"), tag("div", *cells, class_="bars"))


# ---- lengths ----


def _histograms(findings: dict) -> Html:
    figures = [
        figure(picture, HALF_SIZE if len(findings["corpora"]) > 1 else SMALL_SIZE, NARROW_SIZE)
        for name in HISTOGRAMS
        if (picture := _histogram(findings, name))
    ]
    return tag("div", *figures, class_="grid halves")


def _histogram(findings: dict, name: str) -> Picture | None:
    """A curve for each corpus, of its training split; in shares, so that corpora of any size can be compared."""
    trains = {corpus["source"]: corpus["splits"]["train"]["distributions"] for corpus in findings["corpora"]}
    found = {source: one[name] for source, one in trains.items() if one.get(name, {}).get("count")}
    if not found:
        return None
    of_rows = name == "tokens a row"
    last = findings["row_length"] if of_rows else max(min(one["largest"], 2 * one["p95"]) for one in found.values())
    first = min(_first(one) for one in found.values()) if of_rows else 0
    width = max(1, -(-(last + 1 - first) // BINS))
    lines = []
    for number, (source, one) in enumerate(found.items()):
        x, y = _steps(one, first, last, width)
        color = f"set-{number % SETS}"
        lines.append(Line(x / findings["row_length"] if of_rows else x, y, color, source, area=True))
    title, note = TITLES[name]
    return Picture(title, lines, note, percent=True, low=0.0, percent_x=of_rows)


def _first(one: dict) -> int:
    """From where on all but 1 of 1,000 lie."""
    upto = np.cumsum(one["histogram"])
    return int(np.searchsorted(upto, upto[-1] / 1000))


def _steps(one: dict, first: int, last: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The outline of a histogram's columns of `width` values each, as shares of all."""
    histogram = np.zeros(last + width + 1)
    upto = min(len(one["histogram"]), last + 1)
    histogram[:upto] = one["histogram"][:upto]
    edges = np.arange(first, last + 1, width)
    shares = np.add.reduceat(histogram, edges)[: len(edges)] / one["count"]
    ends = np.append(edges, edges[-1] + width) - 0.5
    return np.repeat(ends, 2)[1:-1], np.repeat(shares, 2)


def _measures(corpus: dict) -> Html | None:
    distributions = corpus["splits"]["train"]["distributions"]
    names = shown_measures(distributions)
    if not names:
        return None
    head = [corpus["source"], "how many", "mean", "5%", "median", "95%", "most"]
    rows = []
    for name in names:
        one = distributions[name]
        numbers = [f"{one[key]:,}" for key in ("p5", "median", "p95", "largest")]
        rows.append([tag("th", name), f"{one['count']:,}", f"{one['mean']:.2f}", *numbers])
    return tag("figure", table(head, rows, "numbers"))


# ---- vocabulary ----


def _vocabulary(found: dict) -> Html:
    never = found["ordinary"] - found["used"]
    frequent = (f"{piece} {count / found['tokens']:.2%}" for _, piece, count in found["frequent"])
    covering = ", ".join(f"{float(share):.0%} are {count:,} ids" for share, count in found["covering"].items())
    rows = [
        [tag("th", "tokenizer"), f"{found['file']}, {found['vocab_size']:,} ids ({found['hash']})"],
        [tag("th", "never used"), f"{never:,} of {found['ordinary']:,} ordinary ids"],
        [tag("th", "fewer than 10 times"), f"{found['seldom']:,}"],
        [tag("th", "of the tokens"), covering],
        [tag("th", "entropy"), f"{found['entropy']:.3f} nats a token"],
        [tag("th", "special ids"), _words(f"{i} {piece}" for i, piece, *_ in found["special"])],
        [tag("th", "frequent"), _words(frequent)],
        [tag("th", "rare"), _words(f"{piece} {count:,}" for _, piece, count in found["rare"])],
        [tag("th", "never"), _words(piece for _, piece, _ in found["never"])],
    ]
    return join(figure(_zipf(found), WIDE_SIZE, NARROW_SIZE), tag("figure", table([], rows, "facts"), style=APART))


def _words(words: Iterable[str]) -> Html:
    return join(*(tag("bdi", word) for word in itertools.islice(words, 40)), between=" · ") or Html("none")


def _zipf(found: dict) -> Picture:
    """How often the id of each rank stands in the training rows, both axes logarithmic."""
    counts = np.array(found["counts"], np.float64)
    if not len(counts):
        return Picture("Frequency by rank", [])
    places = np.unique(np.geomspace(1, len(counts), POINTS).round().astype(int))
    law = counts[0] / places
    lines = [
        Line(places[law >= 1], law[law >= 1], "train", "in proportion to 1 / rank (Zipf's law)", dashed=True),
        Line(places.astype(float), counts[places - 1], "accent", "training rows"),
    ]
    note = "How often the ids occur in the training rows, from the most frequent one on. Both axes are logarithmic."
    return Picture("Frequency by rank", lines, note, log=True, log_x=True)


def _texts(corpus: dict) -> Html:
    samples = (tag("p", tag("bdi", sample), class_="text", dir="auto") for sample in corpus["samples"])
    return tag("section", tag("h3", corpus["source"]), *samples, class_="sample")
