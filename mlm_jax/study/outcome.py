"""What came of the runs of a study: curves and figures of each, from the files in its folder."""

import math
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mlm_jax.jsonl import objects
from mlm_jax.report.read import number, read_object

Curve = list  # of (step, loss, accuracy), increasing steps


def read_run(folder: Path) -> dict | None:
    """The figures of a run; None where there is none yet.

    steps: that it is to do; finished: whether its last evaluation is of the last of them. curve: held-out loss and
    accuracy over all sets, each target counted once. rates: mean of the share of tokens that was really selected, by
    epoch of its rows; rate: over all steps. epochs: how often the rows were read. masks: how many different ones a row
    has in so many epochs (None: any number), and uniform: whether all its units are as likely. evaluation: rate and
    unit of its masks.
    """
    config = read_object(folder / "config.json")
    steps = int(number(config.get("steps"))) if config else 0
    if not steps:
        return None
    curve, rates, epochs = {}, {}, 0.0
    for record in objects(folder / "metrics.jsonl"):
        if "train/loss" in record:
            rate, epoch = number(record.get("mask/rate")), number(record.get("epoch"))
            if math.isfinite(rate) and math.isfinite(epoch):
                # a step that ends with an epoch is of it
                rates.setdefault(max(0, math.ceil(epoch) - 1), []).append(rate)
                epochs = epoch
        elif means := _means(record):
            curve[int(number(record["step"]))] = means
    points = [(step, *curve[step]) for step in sorted(curve)]
    return {
        "steps": steps,
        "finished": bool(points) and points[-1][0] == steps,
        "curve": points,
        "rate": float(np.mean([rate for each in rates.values() for rate in each])) if rates else None,
        "rates": [float(np.mean(rates[epoch])) for epoch in sorted(rates)],
        "epochs": epochs,
        **_masks(config.get("mask", {})),
        "evaluation": _evaluation(config),
    }


def _masks(mask: dict) -> dict:
    several = {"static": 1, "multi-version": mask.get("versions")}
    uniform = mask.get("priority") == "uniform" and not mask.get("stratify")
    return {"masks": several.get(mask.get("regime")), "uniform": uniform}


def _evaluation(config: dict) -> dict:
    """Rate and unit of the masks of evaluation."""
    own, evaluate = config.get("mask", {}), config.get("evaluate", {})
    return {key: own.get(key) if evaluate.get(key) is None else evaluate[key] for key in ("rate", "unit")}


def coverage(rates: list[float], epochs: float, masks: int | None = None) -> float:
    """Share of the tokens selected at least once, where each mask selects all tokens with the same chance, its rate.

    1 - (1 - r_1) (1 - r_2) .. over the different masks that a row has had, averaged over rows that were read
    floor(epochs) times and once more. rates: of each epoch; masks: the most different ones of a row; None: any number.
    """
    whole, more = divmod(epochs, 1)

    def after(visits: int) -> float:
        return 1 - float(np.prod(1 - np.array(rates[: min(visits, masks or visits)])))

    return (1 - more) * after(int(whole)) + more * after(int(whole) + 1)


def _means(record: dict) -> tuple[float, float] | None:
    """Loss and accuracy of an evaluation over all its sets; None where it has none."""
    sets = [key.removesuffix("/loss") for key in record if key.startswith("eval/") and key.endswith("/loss")]
    found = [[number(record.get(f"{name}/{key}")) for key in ("targets", "loss", "accuracy")] for name in sets]
    table = np.array(found, np.float64).reshape(-1, 3)
    table = table[np.isfinite(table).all(1) & (table[:, 0] > 0)] if len(table) else table
    if not len(table) or not math.isfinite(number(record.get("step"))):
        return None
    loss, accuracy = table[:, 0] @ table[:, 1:] / table[:, 0].sum()
    return float(loss), float(accuracy)


def loss_at(curve: Curve, step: int | float) -> float | None:
    """The loss after so many steps, on straight lines between evaluations; None before the first and after the last."""
    x, y = _columns(curve)
    return float(np.interp(step, x, y)) if len(x) and x[0] <= step <= x[-1] else None


def steps_to(curve: Curve, loss: float) -> float | None:
    """The first step at which the loss is so low, on straight lines between evaluations; None where it never is.

    Where the first evaluation is low enough, its step.
    """
    x, y = _columns(curve)
    low = np.flatnonzero(y <= loss)
    if not len(low):
        return None
    i = low[0]
    if i == 0:
        return float(x[0])
    return float(x[i - 1] + (x[i] - x[i - 1]) * (y[i - 1] - loss) / (y[i - 1] - y[i]))


def _columns(curve: Curve) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    table = np.array(curve, np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1]
