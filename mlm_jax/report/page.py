"""The page from top to bottom: headline, curves, samples, data, environment, starts, command, config."""

import datetime
import math
from collections.abc import Callable

import numpy as np

import mlm_jax
from mlm_jax.metrics import duration, short
from mlm_jax.report import facts, pictures
from mlm_jax.report.draw import DECILES, figure
from mlm_jax.report.guesses import samples
from mlm_jax.report.markup import Html, join, table, tag
from mlm_jax.report.read import Run, evenly, last, number
from mlm_jax.report.style import STYLE

SMALL_SIZE, HALF_SIZE, WIDE_SIZE, NARROW_SIZE = (360, 210), (520, 280), (1080, 340), (360, 260)
MOST_SETS = 6  # with pictures of their own by token frequency
MOST_ROWS = 40  # of the evaluations
# The page runs nothing and loads nothing, whatever a token or a file name looks like.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_of(run: Run) -> str:
    """The complete page. A part whose file cannot be understood is replaced by a sentence."""
    parts = [_part(title, make, run) for title, make in PARTS.items()]
    return document(f"{run.name}: training report", tag("h1", run.name), *parts, _footer())


def document(title: str, *body: Html | None, style: str = "") -> str:
    """A page with the style sheet, and rules of its own after it, which runs nothing and loads nothing."""
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", title),
        tag("style", Html(STYLE + style)),
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n{tag("body", *body)}</html>\n'


def _part(title: str, make: Callable[[Run], Html | None], run: Run) -> Html | None:
    try:
        content = make(run)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:  # files by other hands, or damaged
        content = tag("p", f"This part could not be read: {type(error).__name__}: {error}", class_="note")
    if not content:
        return None
    return tag("section", tag("h2", title) if title else None, content)


def _footer() -> Html:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return tag("footer", f"Written by mlm_jax {mlm_jax.__version__} on {now}, from the files of the run alone.")


# ---- headline ----


def headline(run: Run) -> Html:
    done, planned = steps_done(run), number(run.config.get("steps"))
    share = done / planned if planned > 0 else math.nan
    bar = tag("progress", value=f"{done:.0f}", max=f"{planned:.0f}") if math.isfinite(share) else None
    state = "finished" if share >= 1 else f"{share:.0%} of the planned steps" if math.isfinite(share) else ""
    tiles = [_steps_tile(run, done, planned), *_evaluation_tiles(run), *_speed_tiles(run)]
    shown = [_tile(*tile) for tile in tiles if tile]
    return join(tag("p", state, class_="note"), bar, tag("dl", *shown, class_="tiles"), _latest_evaluation(run))


def _tile(name: str, value: str, more: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", value, class_="big"), tag("dd", more, class_="small"), class_="tile")


def steps_done(run: Run) -> float:
    ends = [run.steps["step"][-1:], *(curve[0][-1:] for sets in run.evaluations.values() for curve in sets.values())]
    return max((float(end[0]) for end in ends if len(end)), default=0.0)


def _finite(run: Run, key: str) -> np.ndarray:
    return run.steps[key][np.isfinite(run.steps[key])]


def _steps_tile(run: Run, done: float, planned: float) -> tuple:
    epochs = _finite(run, "epoch")
    of = f"of {planned:,.0f}" if math.isfinite(planned) else ""
    more = f"{epochs[-1]:.2f} epochs" if len(epochs) else ""
    return "steps", f"{done:,.0f}", " · ".join(filter(None, (of, more)))


def _evaluation_tiles(run: Run) -> list[tuple]:
    """Of the first held-out set; the others stand in the table below."""
    for name, curves in run.evaluations.items():
        loss, unigram = last(curves.get("loss")), last(curves.get("unigram_loss"))
        if not math.isfinite(loss):
            continue
        tiles = [(f"evaluation loss, {name}", f"{loss:.3f}", f"unigram {unigram:.3f}")]
        if not math.isfinite(unigram):
            tiles = [(f"evaluation loss, {name}", f"{loss:.3f}", "")]
        if math.isfinite(accuracy := last(curves.get("accuracy"))):
            tiles.append((f"accuracy, {name}", f"{accuracy:.1%}", f"perplexity {math.exp(min(loss, 700)):,.1f}"))
        return tiles
    losses = _finite(run, "train/loss")
    return [("training loss", f"{losses[-1]:.3f}", "no evaluation yet")] if len(losses) else []


def _speed_tiles(run: Run) -> list[tuple]:
    tiles = []
    speeds, mfus = _finite(run, "throughput/tokens_per_second"), _finite(run, "throughput/mfu")
    if len(speeds):
        more = f"median, {np.median(mfus):.1%} MFU" if len(mfus) else "median of the steps"
        tiles.append(("tokens a second", short(np.median(speeds)), more))
    goodputs = pictures.goodput(run)[np.isfinite(pictures.goodput(run))]
    if len(goodputs):
        tiles.append(("goodput", f"{goodputs[-1]:.1%}", "useful share of all time"))
    seconds = _finite(run, "time/step")
    if len(seconds):
        tiles.append(("time in steps", duration(run.every * seconds.sum()), f"{np.median(seconds):.3g} s a step"))
    return tiles


METRICS = {
    "loss": ("loss", "{:.3f}"),
    "unigram_loss": ("unigram", "{:.3f}"),
    "shuffled_loss": ("words shuffled", "{:.3f}"),
    "perplexity": ("perplexity", "{:,.2f}"),
    "accuracy": ("accuracy", "{:.1%}"),
    "targets": ("targets", "{:,.0f}"),
}


def _values(curves: dict, step: float | None = None) -> list[str]:
    """The metrics of a set at a step, or the latest; an en dash where there is none."""
    shown = []
    for metric, (_, form) in METRICS.items():
        x, y = curves.get(metric, (np.zeros(0), np.zeros(0)))
        at = len(x) - 1 if step is None else int(np.searchsorted(x, step))
        shown.append(form.format(y[at]) if 0 <= at < len(x) and step in (None, x[at]) else "–")
    return shown


def _latest_evaluation(run: Run) -> Html | None:
    if not run.evaluations:
        return None
    rows = [[tag("th", name), *_values(curves)] for name, curves in run.evaluations.items()]
    head = ["latest evaluation", *(title for title, _ in METRICS.values())]
    return tag("div", table(head, rows, "numbers"), class_="card")


# ---- curves ----


def curves(run: Run) -> Html | None:
    """All pictures over the steps, with a vertical line where the run was started again."""
    restarts = sorted({step for start in run.starts if (step := number(start.get("step"))) > 0})
    restarts = restarts if len(restarts) <= 20 else []
    switches = [begin for begin, _ in facts.phases_of(run)[1:] if begin < steps_done(run)]
    marks = [*restarts, *switches]
    wide = [figure(make(run), WIDE_SIZE, NARROW_SIZE, marks_at=marks) for make in pictures.WIDE]
    small = [figure(make(run), SMALL_SIZE, marks_at=marks) for make in pictures.SMALL]
    what = [*["the run was started again"] * bool(restarts), *["another phase began"] * bool(switches)]
    note = f"Over the steps. A dotted line: {', or '.join(what)}." if what else "Over the steps."
    if run.every > 1:
        note += f" The run is so long that only one step in {run.every} was read."
    shown = [one for one in wide + small if one]
    return (
        join(tag("p", note, class_="note"), *wide, tag("div", *small, class_="grid"), _all_evaluations(run))
        if shown
        else None
    )


def _all_evaluations(run: Run) -> Html | None:
    tables = []
    for name, sets in run.evaluations.items():
        steps = evenly(sorted({float(step) for curve in sets.values() for step in curve[0]}), MOST_ROWS)
        rows = [[f"{step:,.0f}", *_values(sets, step)] for step in steps]
        tables.append(tag("h3", name))
        tables.append(tag("div", table(["step", *(title for title, _ in METRICS.values())], rows, "numbers")))
    return tag("details", tag("summary", "Evaluations as numbers"), *tables) if tables else None


def by_frequency(run: Run) -> Html | None:
    """For each held-out set its loss by decile over the steps, and as bars at the latest evaluation."""
    figures = []
    for name in list(run.evaluations)[:MOST_SETS]:
        figures += [figure(pictures.deciles(run, name), HALF_SIZE, NARROW_SIZE), _bars(run, name)]
    figures = [one for one in figures if one]
    return tag("div", *figures, class_="grid halves") if figures else None


def _bars(run: Run, name: str) -> Html | None:
    losses = {i: last(run.evaluations[name].get(f"loss_decile_{i}")) for i in range(1, DECILES + 1)}
    losses = {i: loss for i, loss in losses.items() if math.isfinite(loss)}
    if not losses:
        return None
    most = max(max(losses.values()), 1e-9)
    cells = []
    for i, loss in losses.items():
        width = f"--c:var(--decile-{i});width:{100 * max(0.0, loss) / most:.1f}%"
        name_of = {1: "1, most frequent", DECILES: f"{DECILES}, rarest"}.get(i, i)
        cells += [tag("span", name_of), tag("div", tag("div", class_="bar", style=width)), tag("span", f"{loss:.2f}")]
    step = max(curve[0][-1] for key, curve in run.evaluations[name].items() if key.startswith("loss_decile_"))
    title = tag("figcaption", f"{name}, at step {step:,.0f}", tag("p", "Nats, the latest evaluation."))
    return tag("figure", title, tag("div", *cells, class_="bars"))


# ---- samples ----


def guesses(run: Run) -> Html | None:
    articles = samples(run.samples)
    if not articles:
        return None
    note = (
        "Held-out texts with the same places hidden at every evaluation. Each cell is the model's first guess and its"
        " probability: ✓ right, ✗ wrong. A hyphen marks a piece that continues a word."
    )
    return join(tag("p", note, class_="note"), *articles)


PARTS = {
    "": headline,
    "Curves": curves,
    "Loss by token frequency": by_frequency,
    "Guesses on held-out texts": guesses,
    "Data": facts.data,
    "Phases": facts.phases,
    "Environment": facts.environment,
    "Starts": facts.starts,
    "Rewinds": facts.rewinds,
    "Command": facts.command,
    "Config": facts.config,
}
