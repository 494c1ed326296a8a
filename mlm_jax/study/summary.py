"""What the runs of a study show together: means and spreads over seeds, and paired differences, as one object."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mlm_jax.report.read import number, read_object
from mlm_jax.study.outcome import coverage, loss_at, read_run, steps_to
from mlm_jax.study.runs import SCRATCH, Study, Variant, run_folder, task_folder
from mlm_jax.study.spread import paired_difference, spread

BETTER, WORSE, NOISE, ONE_SEED = "better", "worse", "difference below noise", "one seed: noise is not known"
LOWER = ("mse", "mae", "loss")  # scores of tasks of which less is better
LEVEL = 0.95  # of the intervals

BySeed = dict[int, float]


def summarise(
    study: Study,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    folder: Path,
    seconds: Mapping[str, dict] | None = None,
    tasks: Sequence[str] = (),
) -> dict:
    """All findings, for programs. Only runs that are finished count; `unfinished` names the others.

    seconds: variant -> {"seconds", "low", "high", "relative"} of a step, as `cli/study/times.py` measures them.
    tasks: names of folders below FOLDER/tasks.
    """
    found = {one.name: {seed: read_run(run_folder(folder, one.name, seed)) for seed in seeds} for one in variants}
    done = {name: {seed: run for seed, run in runs.items() if run and run["finished"]} for name, runs in found.items()}
    times = {one.name: dict((seconds or {}).get(one.name, {})) for one in variants}
    compared = [one.name for one in variants if not one.own_loss and done[one.name]]
    target = highest({name: [run["curve"][-1][1] for run in done[name].values()] for name in compared})
    budget = shortest([times[name].get("relative") for name in compared])
    rows = {one.name: row_of(study, one, done[one.name], times[one.name], target, budget) for one in variants}
    for row in rows.values():
        compare(row, rows.get(row["reference"], {}))
    return {
        "title": study.title,
        "question": study.question,
        "baseline": study.baseline,
        "seeds": list(seeds),
        "level": LEVEL,
        "evaluation": next((run["evaluation"] for runs in done.values() for run in runs.values()), None),
        "unfinished": unfinished(found, done),
        "target": target,
        "budget": budget,
        "variants": list(rows.values()),
        "tasks": [task_of(study, variants, seeds, folder, task) for task in tasks],
    }


def unfinished(found: Mapping[str, dict], done: Mapping[str, dict]) -> list[str]:
    """What is not there, in words: each run that has begun, and the seeds of each variant that have not."""
    said = []
    for name, runs in found.items():
        missing = [seed for seed in runs if seed not in done[name]]
        said += [f"{name}/seed-{seed} ({progress(runs[seed])})" for seed in missing if runs[seed]]
        if seeds := [str(seed) for seed in missing if not runs[seed]]:
            said.append(f"{name} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: not begun)")
    return said


def progress(run: dict) -> str:
    return f"evaluated at {run['curve'][-1][0]:,} of {run['steps']:,} steps" if run["curve"] else "no evaluation yet"


def highest(losses: Mapping[str, Sequence[float]]) -> float | None:
    """The highest final loss of all runs, which so all of them reach. None for fewer than two variants."""
    return max(loss for each in losses.values() for loss in each) if len(losses) > 1 else None


def shortest(relative: Sequence[float | None]) -> float | None:
    """The shortest time of a step, in steps of the baseline; None where one is not known."""
    return min(relative) if relative and None not in relative else None


def row_of(
    study: Study,
    variant: Variant,
    runs: Mapping[int, dict],
    time: Mapping[str, float],
    target: float | None,
    budget: float | None,
) -> dict:
    """A variant: what it is, what its finished runs have in common, and measure -> seed -> value."""
    each = list(runs.values())
    covered = [coverage(run["rates"], run["epochs"], run["masks"]) for run in each if run["rates"] and run["uniform"]]
    values = {}
    if not variant.own_loss:
        values["loss"] = {seed: run["curve"][-1][1] for seed, run in runs.items()}
        values["accuracy"] = {seed: run["curve"][-1][2] for seed, run in runs.items()}
        if budget and time.get("relative"):
            share = budget / time["relative"]
            values["equal_time"] = {seed: loss_at(run["curve"], share * run["steps"]) for seed, run in runs.items()}
        if target is not None:
            values["steps_to_target"] = {seed: steps_to(run["curve"], target) for seed, run in runs.items()}
    return {
        "name": variant.name,
        "meaning": variant.meaning,
        "overrides": dict(variant.overrides),
        "reference": study.reference(variant.name),
        "own_loss": variant.own_loss,
        "seeds": sorted(runs),
        "steps": each[0]["steps"] if each else None,
        "rate": _mean([run["rate"] for run in each]),
        "epochs": _mean([run["epochs"] for run in each]),
        "coverage": _mean(covered) if len(covered) == len(each) else None,
        "time": dict(time),
        "values": {name: {k: v for k, v in each.items() if v is not None} for name, each in values.items()},
        "curves": {seed: run["curve"] for seed, run in runs.items() if not variant.own_loss},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    return float(np.mean(values)) if values and None not in values else None


def compare(row: dict, reference: Mapping, larger_is_better: Sequence[str] = ("accuracy",)) -> None:
    """Adds to a row the spread of each measure, and how it differs from that of the reference, seed by seed."""
    row["spread"], row["compared"] = {}, {}
    for name, values in row["values"].items():
        row["spread"][name] = spread_of(values)
        others = reference.get("values", {}).get(name, {})
        row["compared"][name] = difference(values, others, name in larger_is_better)


def spread_of(values: BySeed) -> dict | None:
    """Mean, deviation, and the interval of the mean, by `spread`; None without a value."""
    if not values:
        return None
    found = spread(list(values.values()))
    known = {key: value if math.isfinite(value) else None for key, value in found._asdict().items()}
    return {"n": len(values), **known}


def difference(values: BySeed, others: BySeed, larger_is_better: bool) -> dict | None:
    """The mean difference of seeds that both have, its interval, and a verdict; None without such a seed."""
    seeds = sorted(values.keys() & others.keys())
    if not seeds:
        return None
    found = paired_difference([values[seed] for seed in seeds], [others[seed] for seed in seeds])
    low, high = found.low, found.high
    verdict = NOISE
    if len(seeds) < 2:
        low, high, verdict = None, None, ONE_SEED
    elif low > 0 or high < 0:
        verdict = BETTER if (low > 0) == larger_is_better else WORSE
    return {"n": len(seeds), "mean": found.mean, "low": low, "high": high, "verdict": verdict}


# ---- what is learned from the models ----


def task_of(study: Study, variants: Sequence[Variant], seeds: Sequence[int], folder: Path, task: str) -> dict:
    """The scores on the dev examples of a task, for each variant and without pretraining, as `summarise` has them."""
    names = [*(one.name for one in variants), SCRATCH]
    results = {name: {seed: _result(task_folder(folder, task, name, seed)) for seed in seeds} for name in names}
    metrics = [result["metric"] for each in results.values() for result in each.values() if result]
    metric = metrics[0] if metrics else ""
    rows = {}
    for name in names:
        values = {seed: result["dev"][metric] for seed, result in results[name].items() if result}
        reference = study.baseline if name == SCRATCH else study.reference(name)
        rows[name] = {"name": name, "reference": reference, "seeds": sorted(values), "values": {metric: values}}
    for row in rows.values():
        compare(row, rows.get(row["reference"], {}), () if metric in LOWER else (metric,))
    unfinished = [f"{name}/seed-{seed}" for name in names for seed in seeds if not results[name][seed]]
    return {"task": task, "metric": metric, "unfinished": unfinished, "variants": list(rows.values())}


def _result(folder: Path) -> dict | None:
    """{"metric", "dev"} of a fine-tuning run, means over its own seeds; None where it has none."""
    found = read_object(folder / "results.json")
    metric, dev = found.get("metric"), (found.get("mean") or {}).get("dev") or {}
    return {"metric": metric, "dev": dev} if metric and number(dev.get(metric)) == number(dev.get(metric)) else None
