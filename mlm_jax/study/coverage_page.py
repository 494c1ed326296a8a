"""The findings on coverage for a person: tables for the terminal, and a page with curves."""

import math

import numpy as np

import mlm_jax
from mlm_jax.report.draw import SETS, Line, Picture, figure
from mlm_jax.report.markup import Html, table, tag
from mlm_jax.report.page import NARROW_SIZE, SMALL_SIZE, WIDE_SIZE, document
from mlm_jax.study.coverage import EXPLAINED

SHOWN = (1, 2, 4, 10, 20, 40)  # visits that have a line in the tables, and the last
FORMATS = {"coverage": "{:.2%}", "variance": "{:.3f}", "entropy": "{:.4f}"}
FORMULA = (
    "The formula holds for masks that select every token of a row with the same probability p, each mask drawn for"
    " itself; p is the realised rate of the row. For E visits and k different masks (static 1, dynamic E) coverage is"
    " 1 - (1 - p)^min(E, k). What units and priority add is the difference."
)


def visits_shown(findings: dict) -> list[int]:
    return [visits for visits in SHOWN if visits < findings["visits"]] + [findings["visits"]]


def terminal(findings: dict) -> str:
    """A table for each measure: visits downwards, regimes across, each with the value counted and (the formula's)."""
    names = [regime["name"] for regime in findings["regimes"]]
    lines = []
    for measure, meaning in EXPLAINED.items():
        rows = [[str(visits), *_cells(findings, measure, visits)] for visits in visits_shown(findings)]
        lines += ["", f"{measure}: {meaning} (formula)", *_aligned([["visits", *names], *rows])]
    return "\n".join(lines[1:])


def _cells(findings: dict, measure: str, visits: int) -> list[str]:
    values = [[regime[measure][kind][visits - 1] for kind in ("measured", "formula")] for regime in findings["regimes"]]
    return ["{} ({})".format(*(_shown(measure, value) for value in pair)) for pair in values]


def _shown(measure: str, value: float | None) -> str:
    return "–" if value is None else FORMATS[measure].format(value)


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]


def html(findings: dict, about: str, command: str) -> str:
    """The findings as a page that needs nothing else.

    about: a sentence on the masks and rows; command: what was run.
    """
    body = [
        tag("h1", "Coverage of the tokens by masks"),
        tag("p", about),
        tag("p", FORMULA, class_="note"),
        figure(picture(findings, "coverage"), WIDE_SIZE, NARROW_SIZE),
        tag("div", *(figure(picture(findings, name), SMALL_SIZE) for name in ("variance", "entropy")), class_="grid"),
    ]
    for measure, meaning in EXPLAINED.items():
        note = tag("p", f"{meaning.capitalize()}. In brackets: the formula.", class_="note")
        body += [tag("h2", measure.capitalize()), note, _table(findings, measure)]
    footer = tag("footer", f"Written by mlm_jax {mlm_jax.__version__}.")
    body += [tag("h2", "Command"), tag("pre", command, class_="command"), footer]
    return document("Coverage of the tokens by masks", *body)


def picture(findings: dict, measure: str) -> Picture:
    """The measure over the visits: a curve for each regime, and below it its formula, dashed."""
    visits = np.arange(1, findings["visits"] + 1)
    measured, formula = [], []
    for number, regime in enumerate(findings["regimes"]):
        color = f"set-{number % SETS}"
        measured.append(_line(visits, regime[measure]["measured"], color, regime["name"]))
        formula.append(_line(visits, regime[measure]["formula"], color, None, dashed=True))
    share = measure == "coverage"
    return Picture(
        f"{measure.capitalize()} over the visits",
        formula + measured,
        f"{EXPLAINED[measure].capitalize()}. Dashed, where it can be told from the curve: the formula.",
        log=measure == "variance",
        percent=share,
        low=0.0 if share else None,
    )


def _line(visits: np.ndarray, values: list[float | None], color: str, label: str | None, dashed: bool = False) -> Line:
    y = np.array([math.nan if value is None else value for value in values])
    kept = np.isfinite(y)
    return Line(visits[kept], y[kept], color, label, dashed=dashed)


def _table(findings: dict, measure: str) -> Html:
    head = ["visits", *(regime["name"] for regime in findings["regimes"])]
    rows = [[f"{visits:,}", *_cells(findings, measure, visits)] for visits in visits_shown(findings)]
    return tag("div", table(head, rows, "numbers"), class_="card")
