"""Curves as inline SVG: matplotlib lays them out, the page's style sheet gives colours and type.

Words stand in the page, not in the picture, so that names in any script are set by the browser.
"""

import dataclasses
import io
import math
import re
from collections.abc import Sequence

import numpy as np

from mlm_jax.report.markup import Html, escape, tag

SETS = 8  # colours of the style sheet for held-out sets; more sets use them again
DECILES = 10

# Colours that nothing else has; in the finished SVG they become the style sheet's variables, which know dark mode.
NAMES = [
    "ink",
    "grid",
    "accent",
    "train",
    "other",
    *(f"set-{i}" for i in range(SETS)),
    *(f"decile-{i + 1}" for i in range(DECILES)),
]
COLORS = {name: f"#0a0b{i:02x}" for i, name in enumerate(NAMES)}


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve; `label` is its name in the legend, None for none. x, y: f64[n], finite.

    band: (lower, upper) ends of what is shaded around it, f64[n] each.
    """

    x: np.ndarray
    y: np.ndarray
    color: str = "train"
    label: str | None = None
    faint: bool = False
    dashed: bool = False
    marks: bool = False
    area: bool = False  # filled down to 0
    band: tuple[np.ndarray, np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture over the steps, or whatever x counts.

    percent, percent_x: values are shares; log, log_x: logarithmic axes; low, high: ends of the axis of the values, by
    the curves if None.
    """

    title: str
    lines: Sequence[Line]
    note: str = ""
    log: bool = False
    percent: bool = False
    low: float | None = None
    high: float | None = None
    log_x: bool = False
    percent_x: bool = False


def compact(value: float) -> str:
    """A number on an axis: 0.003, 1,500, 20k, 1.5M."""
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:,.4g}{unit}"
    return f"{value:,.4g}".replace("e-0", "e-")


def share(value: float) -> str:
    return f"{100 * value:.4g}%"


def figure(picture: Picture, *sizes: tuple[int, int], marks_at: Sequence[float] = ()) -> Html | None:
    """The picture with its title, note and legend; None without a curve.

    sizes: it is drawn for a wide page and for a narrow one, or once for both; marks_at: steps with a vertical line.
    """
    if not any(len(line.x) for line in picture.lines):
        return None
    keys = [
        tag("span", line.label, class_="key dashed" if line.dashed else "key", style=f"--c:var(--{line.color})")
        for line in picture.lines
        if line.label
    ]
    legend = tag("div", *keys, class_="keys") if len(keys) > 1 else None
    note = tag("p", picture.note) if picture.note else None
    drawn = [svg(picture, *size, marks_at) for size in sizes]
    if len(drawn) == 2:
        drawn = [tag("div", one, class_=kind) for one, kind in zip(drawn, ("wide", "narrow"))]
    return tag("figure", tag("figcaption", picture.title, note, legend), *drawn)


def svg(picture: Picture, width: int, height: int, marks_at: Sequence[float] = ()) -> Html:
    """The picture in so many CSS pixels; it scales with what holds it. marks_at: steps with a vertical line."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": f"{picture.title} {width}", "path.simplify": True, "font.size": 10}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width / 72, height / 72))  # the SVG counts in points, 72 an inch
        FigureCanvasSVG(figure)
        left, bottom, right, top = 44, 22, 12, 8
        box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
        axes = figure.add_axes(box)
        for line in picture.lines:
            _plot(axes, line)
        _frame(axes, picture, width, height, marks_at)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return _inline(out.getvalue(), picture.title)


def _plot(axes, line: Line) -> None:
    alone = len(line.x) == 1
    if line.area:
        axes.fill_between(line.x, line.y, color=COLORS[line.color], alpha=0.15, linewidth=0)
    if line.band:
        axes.fill_between(line.x, *line.band, color=COLORS[line.color], alpha=0.13, linewidth=0)
    axes.plot(
        line.x,
        line.y,
        color=COLORS[line.color],
        linewidth=0.8 if line.faint else 1.8,
        alpha=0.35 if line.faint else 1.0,
        linestyle=(0, (4, 3)) if line.dashed else "-",
        marker="o" if alone or line.marks else None,
        markersize=5 if alone else 3.5,
        markeredgewidth=0,
    )


def _frame(axes, picture: Picture, width: int, height: int, marks_at: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    for step in marks_at:
        axes.axvline(step, color=COLORS["ink"], linewidth=0.8, linestyle=(0, (1, 3)), alpha=0.7)
    first, last = axes.dataLim.x0, axes.dataLim.x1
    axes.set_xlim(*((first - 1, last + 1) if first == last else (min(first, 1 if first < last / 20 else first), last)))
    axes.margins(x=0)
    if picture.log:
        axes.set_yscale("log")
        decades = math.log10(axes.dataLim.y1 / axes.dataLim.y0) if axes.dataLim.y0 > 0 else 9
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(max(3, height // 45), steps=[1, 2, 2.5, 5, 10]))
        axes.set_ylim(picture.low, picture.high)
    if picture.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        whole = not picture.percent_x
        axes.xaxis.set_major_locator(MaxNLocator(max(3, width // 90), integer=whole, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: (share if picture.percent_x else compact)(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: (share if picture.percent else compact)(value)))
    axes.grid(color=COLORS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(left=False, bottom=False, labelcolor=COLORS["ink"], pad=5)
    axes.spines[:].set_visible(False)


def _inline(text: str, title: str) -> Html:
    """The SVG as an element of the page: without what belongs to a file, and with two decimals of a pixel."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.S)
    view = re.search(r'viewBox="[^"]*"', text).group()
    text = re.sub(r"<svg[^>]*>", f'<svg {view} role="img" aria-label="{escape(title)}">', text, count=1)
    text = re.sub(r'<g id="[^"]*"', "<g", text).replace("xlink:href", "href")
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path.group()).replace("\n", ""), text)
    for name, color in COLORS.items():
        text = text.replace(color, f"var(--{name})")
    return Html(re.sub(r"\n\s*", "\n", text))
