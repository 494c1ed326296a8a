"""Which curves the page shows: from the columns of a run to pictures. Without its numbers a picture is left out."""

import numpy as np

from mlm_jax.report.draw import DECILES, SETS, Line, Picture
from mlm_jax.report.read import PARTS, Curve, Run
from mlm_jax.report.thin import POINTS, envelope, finite, pick, runs, smooth


def color_of(run: Run, name: str) -> str:
    return f"set-{list(run.evaluations).index(name) % SETS}"


def _column(run: Run, key: str) -> Curve:
    return finite(run.steps["step"], run.steps[key])


def _raw_and_smoothed(curve: Curve, label: str, log: bool = False) -> list[Line]:
    """log: means of logarithms, so that on a logarithmic axis a spike does not lift all around it."""
    x, y = curve
    if len(x) < 20:
        return [Line(x, y, label=label.removesuffix(", smoothed"))] if len(x) else []
    places = pick(len(x))
    smoothed = np.exp(smooth(np.log(y))) if log else smooth(y)
    return [Line(*envelope(x, y), faint=True), Line(x[places], smoothed[places], label=label)]


def _of_sets(run: Run, metric: str, label: str = "", dashed: bool = False) -> list[Line]:
    """One line for each held-out set that has the metric."""
    lines = []
    for name, metrics in run.evaluations.items():
        if metric in metrics:
            x, y = metrics[metric]
            places = pick(len(x))
            shown = {"dashed": dashed, "marks": not dashed and len(x) <= 60}
            lines.append(Line(x[places], y[places], color_of(run, name), f"{name}{label}", **shown))
    return lines


def loss(run: Run) -> Picture:
    return Picture(
        "Loss",
        [
            *_raw_and_smoothed(_column(run, "train/loss"), "training, smoothed"),
            *_of_sets(run, "loss"),
            *_of_sets(run, "unigram_loss", ", unigram", dashed=True),
        ],
        "Nats per hidden token. Dashed: the loss of guessing by token frequency, which a model that reads the context"
        " must beat. In held-out texts MASK stands at every hidden place, in training at most of them.",
    )


def accuracy(run: Run) -> Picture:
    training = _raw_and_smoothed(_column(run, "train/mlm/accuracy"), "training, smoothed")
    note = "Share of first guesses that are right."
    # of training only the smoothed line: the raw one would hide the others
    return Picture("Accuracy", [*training[-1:], *_of_sets(run, "accuracy")], note, percent=True, low=0.0)


def learning_rate(run: Run) -> Picture:
    note = "Of the schedule, before factors by layer."
    return Picture("Learning rate", _thinned(_column(run, "learning_rate")), note, low=0.0)


def mask_rate(run: Run) -> Picture:
    lines = _raw_and_smoothed(_column(run, "mask/rate"), "smoothed")
    return Picture("Mask rate", lines, "Share of the maskable tokens that was hidden.", percent=True)


def gradient_norm(run: Run) -> Picture:
    x, y = _column(run, "train/grad_norm")
    lines = _raw_and_smoothed((x[y > 0], y[y > 0]), "smoothed", log=True)
    return Picture("Gradient norm", lines, "Before clipping, on a logarithmic axis.", log=True)


def updates(run: Run) -> Picture:
    lines = []
    for i, part in enumerate(PARTS):
        x, y = _column(run, f"update/{part}")
        x, y = x[y > 0], y[y > 0]  # left out, or frozen
        if len(x):
            places = pick(len(x))
            lines.append(Line(x[places], np.exp(smooth(np.log(y)))[places], f"set-{i % SETS}", part))
    note = "Length of a step's update by that of the parameters, on a logarithmic axis; smoothed."
    return Picture("Update sizes", lines, note, log=True)


def throughput(run: Run) -> Picture:
    lines = _thinned(_column(run, "throughput/tokens_per_second"))
    return Picture("Tokens per second", lines, "Real tokens, padding not counted.", low=0.0)


def mfu(run: Run) -> Picture:
    note = "Share of the chips' peak FLOPs that went into real tokens."
    return Picture("Model FLOP utilisation", _thinned(_column(run, "throughput/mfu")), note, percent=True, low=0.0)


def _thinned(curve: Curve) -> list[Line]:
    return [Line(*envelope(*curve))] if len(curve[0]) else []


def step_time(run: Run) -> Picture:
    x, y = _column(run, "time/step")
    lines, note = [], ""
    if len(x):
        p50, p90, p99 = np.percentile(y, (50, 90, 99))
        note = f"Seconds: p50 {p50:.3g}, p90 {p90:.3g}, p99 {p99:.3g}, most {y.max():.3g}."
        parts = runs(len(x))
        ends = np.array([x[part[-1]] for part in parts])
        for percent, color in ((50, "train"), (90, "other")):
            values = np.array([np.percentile(y[part], percent) for part in parts])
            lines.append(Line(ends, values, color, f"p{percent}"))
    return Picture("Step time", lines, note, low=0.0)


def time_shares(run: Run) -> Picture:
    seconds, waits = run.steps["time/step"], run.steps["time/input_wait"]
    known = np.isfinite(seconds) & np.isfinite(waits)
    x, seconds, waits = run.steps["step"][known], seconds[known], waits[known]
    lines, note = [], ""
    if seconds.sum() > 0:
        parts = [part for part in runs(len(x)) if seconds[part].sum() > 0]
        values = np.array([min(1.0, waits[part].sum() / seconds[part].sum()) for part in parts])
        lines.append(Line(np.array([x[part[-1]] for part in parts]), values, "other", "waiting for input"))
        note = f"Waiting for input: {min(1.0, waits.sum() / seconds.sum()):.2%} of the steps' time. "
    good = finite(run.steps["step"], goodput(run))
    if len(good[0]):
        places = pick(len(good[0]), POINTS)
        lines.insert(0, Line(good[0][places], good[1][places], "train", "goodput"))
        note += "Goodput: useful share of all time since the start."
    return Picture("Where the time goes", lines, note, percent=True, low=0.0, high=1.02)


def memory(run: Run) -> Picture:
    lines, note = [], ""
    for key, color, label in (
        ("memory/peak_bytes", "train", "most on a device"),
        ("memory/host_bytes", "other", "host"),
    ):
        x, y = _column(run, key)
        if len(x):
            places = pick(len(x))
            lines.append(Line(x[places], y[places] / 1e9, color, label))
    limits = _column(run, "memory/limit_bytes")[1]
    if len(limits):
        note = f" A device has {limits[-1] / 1e9:.1f} GB."
    return Picture("Memory", lines, f"GB, of the first process. On the host it should not grow.{note}", low=0.0)


def goodput(run: Run) -> np.ndarray:
    """Share of useful training, f64[n]; older runs call it by another name."""
    return np.where(np.isfinite(run.steps["time/goodput"]), run.steps["time/goodput"], run.steps["goodput"])


def deciles(run: Run, name: str) -> Picture:
    lines = []
    for decile in range(1, DECILES + 1):
        if f"loss_decile_{decile}" in run.evaluations[name]:
            x, y = run.evaluations[name][f"loss_decile_{decile}"]
            places = pick(len(x))
            lines.append(Line(x[places], y[places], f"decile-{decile}", str(decile)))
    note = "Nats. Tenths of the training tokens by frequency of the hidden one: 1 most frequent, 10 rarest."
    return Picture(f"{name}, over the steps", lines, note)


WIDE = (loss,)
SMALL = (accuracy, learning_rate, mask_rate, gradient_norm, updates, throughput, mfu, step_time, time_shares, memory)
