"""What a run was made of: data, environment, starts, command and config, as HTML."""

import json
import math

from mlm_jax.metrics import short
from mlm_jax.report.guesses import short_step
from mlm_jax.report.markup import Html, join, table, tag
from mlm_jax.report.read import Run, number

MOST_STARTS = 40  # the latest that are shown


def data(run: Run) -> Html | None:
    rows = []
    for corpus in run.manifest.get("corpora", []):
        counts, train, held = corpus.get("counts", {}), *(corpus["splits"][split] for split in ("train", "eval"))
        documents = [_count(counts.get("kept")), _count(counts.get("bytes"))]
        splits = [_count(part.get(key)) for part in (train, held) for key in ("rows", "tokens")]
        rows.append([tag("th", corpus["source"]), *documents, *splits])
    if not rows:
        return None
    head = ["source", "documents", "bytes", "training rows", "tokens", "held-out rows", "tokens"]
    tokenizer, length = run.manifest.get("tokenizer", {}), run.manifest.get("row_length")
    note = f"Rows of {length} tokens; tokenizer of {_count(tokenizer.get('vocab_size'))} pieces."
    return tag("div", table(head, rows, "numbers"), tag("p", note, class_="note"), class_="card")


def phases_of(run: Run) -> list[tuple[int, dict]]:
    """(steps done before it, what it sets) of each phase; empty for a run without."""
    steps, phases = number(run.config.get("steps")), run.config.get("phases") or []
    return [(round(number(phase["begin"]) * steps), phase) for phase in phases]


def phases(run: Run) -> Html | None:
    """Where each phase begins, and what is different in it."""
    found = phases_of(run)
    if not found:
        return None
    rows = []
    for place, (begin, phase) in enumerate(found):
        end = found[place + 1][0] if place + 1 < len(found) else round(number(run.config.get("steps")))
        changed = [f"{key} {value}" for key, value in phase.items() if key != "begin" and value is not None]
        rows.append([tag("th", str(place)), f"{begin + 1:,} to {end:,}", ", ".join(changed) or "as in the config"])
    return tag("div", table(["phase", "steps", "what is different"], rows, "starts"), class_="card")


def _count(value: object) -> str:
    value = number(value)
    return short(value) if math.isfinite(value) and value >= 1e5 else f"{value:,.0f}" if math.isfinite(value) else "–"


def environment(run: Run) -> Html | None:
    if not run.starts:
        return None
    latest = run.starts[-1]
    rows = [[tag("th", "devices"), _devices(latest)], [tag("th", "mesh"), _mesh(latest)]]
    rows += [[tag("th", name), version] for name, version in latest.get("versions", {}).items()]
    return tag("div", table([], rows, "facts"), class_="card")


def _devices(start: dict) -> str:
    processes = start.get("processes", 1)
    platform, kind = start.get("platform", "?"), start.get("device_kind", "?")
    named = kind if kind == platform else f"{kind} ({platform})"
    return f"{start.get('devices', '?')} × {named}, {processes} process{'' if processes == 1 else 'es'}"


def _mesh(start: dict) -> str:
    return " × ".join(f"{axis} {size}" for axis, size in start.get("mesh", {}).items())


def starts(run: Run) -> Html | None:
    """Every time that the command was given: when, from which step, on what."""
    if not run.starts:
        return None
    rows, before = [], {}
    for i, start in enumerate(run.starts, start=1):
        changed = [f"{k} {v}" for k, v in start.get("versions", {}).items() if before.get("versions", {}).get(k) != v]
        news = ", ".join(changed) if before else ""
        if "rewound_from" in start:
            news = f"went back from step {_count(start['rewound_from'])}"
        if before and start.get("command") != before.get("command"):
            news = join(news or None, " " if news else None, tag("code", start.get("command", "")))
        step = short_step(number(start.get("step")))
        time = str(start.get("time", "–")).replace("T", " ").replace("+00:00", " UTC")
        rows.append([str(i), time, step, _devices(start), _mesh(start), news])
        before = start
    hidden = len(rows) - MOST_STARTS
    note = tag("p", f"The first {hidden} starts are not shown.", class_="note") if hidden > 0 else None
    head = ["start", "time", "from step", "devices", "mesh", "changed"]
    return tag("div", note, table(head, rows[-MOST_STARTS:], "starts"), class_="card")


def rewinds(run: Run) -> Html | None:
    """Every spike of the loss from which the run went back: its loss, the steps that were lost, the rows left out."""
    if not run.rewinds:
        return None
    rows = []
    for line in run.rewinds:
        spike, to = (_count(line.get(key)) for key in ("step", "to"))
        left_out = sum(number(end) - number(first) for _, first, end in line.get("rows", []))
        losses = [f"{number(line.get(key)):.4g}" for key in ("loss", "usual")]
        rows.append(
            [
                str(line.get("time", "–")).replace("T", " ").replace("+00:00", " UTC"),
                spike,
                to,
                *losses,
                _count(left_out),
            ]
        )
    head = ["time", "spike found at step", "back to step", "its loss", "usual loss", "rows left out"]
    return tag("div", table(head, rows, "starts"), class_="card")


def command(run: Run) -> Html | None:
    """The latest command; one click selects it whole."""
    if not run.starts or not run.starts[-1].get("command"):
        return None
    note = "A click selects all of it. The same sources give the same rows in the same order, with the same masks."
    return join(tag("pre", run.starts[-1]["command"], class_="command"), tag("p", note, class_="note"))


def config(run: Run) -> Html | None:
    if not run.config:
        return None
    shown = tag("pre", json.dumps(run.config, indent=2, ensure_ascii=False))
    return tag("details", tag("summary", "The complete config"), shown)
