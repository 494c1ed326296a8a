"""The files of a run as arrays and small lists: streamed, and forgiving of what is missing, torn or unknown."""

import array
import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mlm_jax.jsonl import objects, whole

# What the page shows of a step. The longest runs have half a million of them, so they are kept as one array.
PARTS = ("embeddings", "layers", "norm", "head", "pair", "contrast", "generator", "discriminator", "task")  # of a model
KEYS = (
    "step",
    "epoch",
    "train/loss",
    "train/grad_norm",
    "learning_rate",
    "mask/rate",
    "throughput/tokens_per_second",
    "throughput/mfu",
    "train/mlm/accuracy",
    "time/step",
    "time/input_wait",
    "time/goodput",
    "goodput",
    "memory/peak_bytes",
    "memory/limit_bytes",
    "memory/host_bytes",
    *(f"update/{part}" for part in PARTS),
)
LARGEST = 128_000_000  # bytes of metrics.jsonl (a quarter of a million steps) above which not every step is read
KEPT_SAMPLES = 64  # evaluations of which the samples are kept, spread over the run

Columns = dict[str, np.ndarray]  # f64[n], NaN where a line has no such number
Curve = tuple[np.ndarray, np.ndarray]  # steps f64[n] and values f64[n], increasing steps


@dataclasses.dataclass(frozen=True)
class Run:
    """All that the page shows; whatever the folder does not have is empty."""

    name: str
    steps: Columns
    every: int  # each so-manieth step is in `steps`
    evaluations: dict[str, dict[str, Curve]]  # set -> metric -> curve
    samples: list[dict]
    starts: list[dict]
    rewinds: list[dict]  # lines of skipped.jsonl
    config: dict
    manifest: dict


def read(workdir: Path) -> Run:
    metrics = workdir / "metrics.jsonl"
    every = max(1, math.ceil(metrics.stat().st_size / LARGEST)) if metrics.is_file() else 1
    steps, evaluations = read_metrics(metrics, every)
    return Run(
        name=workdir.resolve().name,
        steps=steps,
        every=every,
        evaluations=evaluations,
        samples=spread(objects(workdir / "samples.jsonl"), KEPT_SAMPLES),
        starts=list(objects(workdir / "starts.jsonl")),
        rewinds=list(objects(workdir / "skipped.jsonl")),
        config=read_object(workdir / "config.json"),
        manifest=read_object(workdir / "rows" / "manifest.json"),
    )


def read_object(path: Path) -> dict:
    """The object that a file holds; an empty one where it is missing or torn."""
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    return next(whole(text), {})


def spread(items: Iterable[dict], most: int) -> list[dict]:
    """At most `most` + 1 of the items, evenly spread, with the first and the last; never more are in memory."""
    kept: list[dict] = []
    stride, last = 1, None
    for i, item in enumerate(items):
        last = item
        if i % stride == 0:
            kept.append(item)
        if len(kept) > most:
            kept, stride = kept[::2], 2 * stride
    return kept if not kept or kept[-1] is last else [*kept, last]


def number(value: object) -> float:
    """A JSON value as a finite number, else NaN."""
    try:
        value = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def read_metrics(path: Path, every: int = 1) -> tuple[Columns, dict[str, dict[str, Curve]]]:
    """Columns of the steps, and curves of the evaluations; of a step that stands twice the later line counts."""
    flat, found = array.array("d"), {}
    for record in objects(path, every):
        if "train/loss" in record:
            flat += _row(record)
        elif math.isfinite(step := number(record.get("step"))):
            _add_evaluation(found, step, record)
    table = np.frombuffer(flat, np.float64).reshape(-1, len(KEYS)) if flat else np.zeros((0, len(KEYS)))
    evaluations = {
        name: {metric: _curve(points) for metric, points in metrics.items()} for name, metrics in found.items()
    }
    return _columns(table), evaluations


def _row(record: dict) -> array.array:
    values = [math.nan if value is None else value for value in map(record.get, KEYS)]
    try:
        return array.array("d", values)  # nearly always, and much faster than one by one
    except (TypeError, OverflowError):
        return array.array("d", map(number, values))


def _columns(table: Float[np.ndarray, "n k"]) -> Columns:
    table = np.where(np.isfinite(table), table, np.nan)
    table = table[np.isfinite(table[:, 0])]
    _, place = np.unique(table[::-1, 0], return_index=True)  # the first from behind is the latest
    table = table[::-1][place]
    return {key: np.ascontiguousarray(table[:, i]) for i, key in enumerate(KEYS)}


def _add_evaluation(found: dict[str, dict[str, dict[float, float]]], step: float, record: dict) -> None:
    for key, value in record.items():
        name, _, metric = key.removeprefix("eval/").rpartition("/")
        if key.startswith("eval/") and name and math.isfinite(value := number(value)):
            found.setdefault(name, {}).setdefault(metric, {})[step] = value


def _curve(points: dict[float, float]) -> Curve:
    ordered = sorted(points.items())
    return np.array([step for step, _ in ordered]), np.array([value for _, value in ordered])


def last(curve: Curve | None) -> float:
    """The latest value, NaN without one."""
    return float(curve[1][-1]) if curve and len(curve[1]) else math.nan


def evenly(items: list, most: int) -> list:
    """At most `most` of the items, evenly spread, with the first and the last."""
    places = np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)) if items else []
    return [items[i] for i in places]
