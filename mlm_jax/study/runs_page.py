"""The findings of a study of runs as a page: what was seen, curves with bands, dots with intervals, tables."""

from collections.abc import Mapping, Sequence

import numpy as np

import mlm_jax
from mlm_jax.report.draw import SETS, Line, Picture, figure
from mlm_jax.report.markup import Html, join, table, tag
from mlm_jax.report.page import HALF_SIZE, NARROW_SIZE, document
from mlm_jax.study import words
from mlm_jax.study.runs import SCRATCH
from mlm_jax.study.summary import NOISE, difference

STYLE = """
.dots{display:grid;grid-template-columns:auto minmax(90px,1fr) auto;gap:3px 12px;align-items:center;font-size:13px;
 margin:6px 4px}
.dots .track{position:relative;height:22px;border-bottom:1px solid var(--line)}
.dots .range{position:absolute;top:9px;height:4px;border-radius:2px;background:var(--c);opacity:.35}
.dots .seed{position:absolute;top:7px;width:1px;height:8px;background:var(--c)}
.dots .mean{position:absolute;top:6px;width:10px;height:10px;margin-left:-5px;border-radius:5px;background:var(--c)}
.dots .zero{position:absolute;top:0;bottom:-4px;width:0;border-left:1px dashed var(--ink)}
.dots .ends{display:flex;justify-content:space-between;color:var(--ink);font-size:12px}
.dots .value{color:var(--ink);text-align:right}
.seen li{margin:0 0 5px}
.seen code,.variants code{font-size:13px}
td.better{color:var(--good-text)}
.variants td,.variants th{white-space:normal}
"""
ROOM = 0.08  # of a row of dots on either side


def html(found: dict, facts: Sequence[Sequence[str]], command: str) -> str:
    """The page; it needs nothing else. facts: (name, value) of machine and text; command: what was run."""
    colors = {row["name"]: f"set-{number % SETS}" for number, row in enumerate(found["variants"])}
    colors[SCRATCH] = "train"
    body = [
        tag("h1", found["title"]),
        tag("p", found["question"]),
        tag("h2", "What was seen"),
        tag("ul", *(tag("li", _code(sentence)) for sentence in words.sentences(found)), class_="seen"),
        pictures(found, colors),
    ]
    for one in words.tables(found):
        body += [tag("h2", one.title), tag("p", _code(one.note), class_="note")]
        body.append(tag("div", table(one.head, [_marked(row) for row in one.rows]), class_="card"))
    body += [tag("h2", "Variants"), tag("div", _variants(found), class_="card")]
    rows = [[tag("th", name), value] for name, value in facts]
    body += [tag("h2", "Machine and text"), tag("div", table([], rows, "facts"), class_="card")]
    body += [tag("h2", "Command"), tag("pre", command, class_="command")]
    footer = tag("footer", f"Written by mlm_jax {mlm_jax.__version__}, from the files of the runs alone.")
    return document(f"{found['title']}: study", *body, footer, style=STYLE)


def _code(text: str) -> Html:
    """A text in which what stands between back quotes is code."""
    parts = text.split("`")
    return join(*(tag("code", part) if number % 2 else part for number, part in enumerate(parts)))


def _marked(row: list[str]) -> list[object]:
    """The first cell as a head, and a verdict that is none of noise in bold."""
    first, *others = row
    bold = [tag("td", tag("b", cell), class_=cell) if cell in ("better", "worse") else cell for cell in others]
    return [tag("th", first), *bold]


def _variants(found: dict) -> Html:
    rows = []
    for row in found["variants"]:
        changes = "\n".join(f"{key} = {value}" for key, value in row["overrides"].items())
        rows.append([tag("th", row["name"]), row["meaning"], tag("code", changes or NOTHING)])
    return table(["variant", "what it is", "what it changes"], rows, "variants")


NOTHING = "nothing"

# ---- pictures ----


def pictures(found: dict, colors: Mapping[str, str]) -> Html | None:
    drawn = [figure(curves(found, colors), HALF_SIZE, NARROW_SIZE), figure(gaps(found, colors), HALF_SIZE, NARROW_SIZE)]
    drawn += [dots(found["variants"], "loss", "Held-out loss", "{:.4f}", colors)]
    drawn += [differences(found["variants"], "loss", "Difference of the held-out loss", "{:+.4f}", colors)]
    if any(row["spread"].get("equal_time") for row in found["variants"]):
        drawn.append(differences(found["variants"], "equal_time", "Difference at equal time", "{:+.4f}", colors))
    for task in found["tasks"]:
        if task["metric"]:
            drawn.append(dots(task["variants"], task["metric"], f"{task['task']}: {task['metric']}", "{:.4f}", colors))
    drawn = [one for one in drawn if one]
    return tag("div", *drawn, class_="grid halves") if drawn else None


def curves(found: dict, colors: Mapping[str, str]) -> Picture:
    """The mean loss of each variant over the steps, with its deviation over the seeds."""
    lines = []
    for row in found["variants"]:
        x, y = _common(row["curves"])
        if len(x):
            mean, deviation = y.mean(0), y.std(0, ddof=1) if len(y) > 1 else 0 * x
            line = Line(x, mean, colors[row["name"]], row["name"], band=(mean - deviation, mean + deviation))
            lines.append(line)
    note = "Nats per masked token over the steps; mean over the seeds, shaded: ± their standard deviation."
    return Picture("Held-out loss over the steps", lines, note)


def gaps(found: dict, colors: Mapping[str, str]) -> Picture:
    """The mean difference of each variant to its reference over the steps, with its interval."""
    rows, lines = {row["name"]: row for row in found["variants"]}, []
    for row in found["variants"]:
        reference = rows.get(row["reference"], {"curves": {}})
        steps, means, lows, highs = [], [], [], []
        for step in _common(row["curves"])[0]:
            ours, theirs = _at(row["curves"], step), _at(reference["curves"], step)
            if gap := difference(ours, theirs, larger_is_better=False):
                steps.append(step)
                means.append(gap["mean"])
                lows.append(gap["mean"] if gap["low"] is None else gap["low"])
                highs.append(gap["mean"] if gap["high"] is None else gap["high"])
        if steps:
            band = (np.array(lows), np.array(highs))
            lines.append(Line(np.array(steps), np.array(means), colors[row["name"]], row["name"], band=band))
    note = "Seed by seed, below 0: lower than the reference. Shaded: 95 % interval, cut off at the frame."
    ends = [value for line in lines for value in line.y]
    room = 0.35 * (max(ends, default=0) - min(ends, default=0))
    low, high = (min(0, *ends) - room, max(0, *ends) + room) if room else (None, None)
    return Picture("Difference to the reference over the steps", lines, note, low=low, high=high)


def _common(curves: Mapping[int, list]) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which all seeds were evaluated, and their losses [seeds, steps]."""
    each = [{step: loss for step, loss, _ in curve} for curve in curves.values()]
    steps = sorted(set.intersection(*(set(curve) for curve in each))) if each else []
    return np.array(steps, np.float64), np.array([[curve[step] for step in steps] for curve in each])


def _at(curves: Mapping[int, list], step: float) -> dict[int, float]:
    return {seed: loss for seed, curve in curves.items() for at, loss, _ in curve if at == step}


def dots(rows: list[dict], measure: str, title: str, form: str, colors: Mapping[str, str]) -> Html | None:
    """The mean of a measure for each variant, its interval, and the seeds."""
    shown = []
    for row in rows:
        if found := row["spread"].get(measure):
            values = list(row["values"][measure].values())
            interval = (found["low"], found["high"]) if found["n"] > 1 else None
            shown.append((row["name"], found["mean"], interval, values, words.spread_cell(row, measure, form)))
    note = "Dot: mean; bar: 95 % interval of the mean, cut off at the ends; lines: the seeds."
    return _dots(title, note, shown, colors, form.replace("+", "")) if len(shown) > 1 else None


def differences(rows: list[dict], measure: str, title: str, form: str, colors: Mapping[str, str]) -> Html | None:
    """The mean difference of each variant to its reference, and its interval."""
    by_name, shown = {row["name"]: row for row in rows}, []
    for row in rows:
        if found := row["compared"].get(measure):
            others = by_name[row["reference"]]["values"][measure]
            values = [value - others[seed] for seed, value in row["values"][measure].items() if seed in others]
            interval = None if found["low"] is None else (found["low"], found["high"])
            verdict = "below noise" if found["verdict"] == NOISE else found["verdict"].partition(":")[0]
            shown.append((row["name"], found["mean"], interval, values, f"{form.format(found['mean'])} {verdict}"))
    note = "To the reference, seed by seed. Dot: mean; bar: 95 % interval, cut off at the ends; dashed: no difference."
    return _dots(title, note, shown, colors, form, zero=True) if shown else None


def _dots(title: str, note: str, shown: list[tuple], colors: Mapping[str, str], form: str, zero: bool = False) -> Html:
    """shown: (name, mean, interval or None, values of the seeds, text) of each row."""
    values = [value for _, mean, _, seeds, _ in shown for value in (mean, *seeds)] + [0.0] * zero
    # intervals of few seeds may be many times as wide as what they are about
    low, high = min(values), max(values)
    size = max(high - low, 1e-9)
    bounds = [bound for _, _, interval, _, _ in shown if interval for bound in interval]
    low = max(min([low, *bounds]), low - size) - ROOM * size
    high = min(max([high, *bounds]), high + size) + ROOM * size

    def at(value: float) -> str:
        return f"{100 * min(max((value - low) / (high - low), 0.0), 1.0):.2f}%"

    cells = []
    for name, mean, interval, seeds, text in shown:
        marks = [tag("div", class_="zero", style=f"left:{at(0.0)}")] if zero else []
        if interval:
            ends = [float(at(value)[:-1]) for value in interval]
            marks.append(tag("div", class_="range", style=f"left:{ends[0]:.2f}%;width:{ends[1] - ends[0]:.2f}%"))
        marks += [tag("div", class_="seed", style=f"left:{at(value)}") for value in seeds]
        marks.append(tag("div", class_="mean", style=f"left:{at(mean)}"))
        track = tag("div", *marks, class_="track", style=f"--c:var(--{colors[name]})")
        cells += [tag("span", name), track, tag("span", text, class_="value")]
    ends = tag("div", tag("span", form.format(low)), tag("span", form.format(high)), class_="ends")
    cells += [tag("span"), ends, tag("span")]
    return tag("figure", tag("figcaption", title, tag("p", note)), tag("div", *cells, class_="dots"))
