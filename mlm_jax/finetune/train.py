"""One seed of fine-tuning: trains, is scored after each epoch, keeps the best one as a folder of the hub format."""

import contextlib
import dataclasses
import functools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from mlm_jax import keys, optim, runtime, sharding, state
from mlm_jax.checkpoint import Checkpoints, folder_of, read_meta
from mlm_jax.config import Config
from mlm_jax.finetune.batches import Batches
from mlm_jax.finetune.step import make_train_step
from mlm_jax.logbook import STEPS, bad_gradient
from mlm_jax.metrics import JsonLines, Progress, truncate
from mlm_jax.models import Model

RESULT, PREDICTIONS, MODEL = "result.json", "predictions", "model"


class Stopped(Exception):
    """The run was asked to stop, and has saved."""


class Evaluated(NamedTuple):
    """What a model says of a split, and how good that is."""

    scores: dict[str, float]
    write: Callable[[Path], None]  # its predictions, to a folder


class Seed(NamedTuple):
    """All that one seed is trained with and measured by."""

    seed: int
    workdir: Path
    run: Config  # as step, state and optimizer know it
    model: Model
    kind: str
    batches: Batches
    epochs: int
    metric: str  # that chooses the epoch
    larger_is_better: bool
    start: Callable[[], dict]  # the parameters to begin with, on the host
    evaluate: Callable[[dict], Evaluated]  # of the dev examples
    # export(parameters, folder, epoch, its scores): to a folder of the hub format
    export: Callable[[dict, Path, int, dict[str, float]], None]


def train(task: Seed, mesh: Mesh, say: Callable[[str], None]) -> dict:
    """Trains to the last epoch, from the newest checkpoint if there is one.

    Returns {"seed", "epoch": the best one, from 1, "dev": its scores, "epochs": the scores of each}. Raises Stopped
    after a save on demand.
    """
    workdir, run, batches, model = task.workdir, task.run, task.batches, task.model
    optimizer = optim.optimizer(run.optimizer, run.steps)
    target = state.abstract(model, optimizer, mesh, run.mesh, settings=run.optimizer)
    checkpoints = Checkpoints(workdir, 1, say)
    done, history = 0, []
    with sharding.activate(mesh, run.mesh):
        if checkpoints.latest is None:
            now = state.begin(task.start(), optimizer, target, settings=run.optimizer)
        else:
            done = checkpoints.latest
            history = read_meta(workdir, done)["history"]
            now, _ = state.completed(checkpoints.restore(done, target, state.LATER), run.optimizer)
            say(f"checkpoint  {folder_of(workdir, done)}: goes on after step {done:,}")
        truncate(workdir / STEPS, done)
        train_step = _train_step(model, dataclasses.replace(run, seed=0), mesh, task.kind)
        placed, roots = sharding.batch_sharding(mesh, leading=1), keys.roots(run.seed)
        progress, file = Progress(run.steps), JsonLines(workdir / STEPS)
        began, stop = time.monotonic(), runtime.Stop()
        with contextlib.closing(file), contextlib.closing(stop), contextlib.closing(checkpoints):
            pending = None
            for number in range(done + 1, run.steps + 1):
                examples = jax.device_put(batches[number - 1], placed)
                now, values = train_step(now, examples, roots)
                if pending:
                    _write(*pending, batches, run, file, progress, began, done)
                pending = number, values
                ends, stopping = number % batches.steps_per_epoch == 0, stop.now()
                if not (ends or stopping or number % run.checkpoint.every_steps == 0):
                    continue
                _write(*pending, batches, run, file, progress, began, done)
                pending = None
                if ends:
                    history.append(_after_epoch(task, now.averaged, history, number, file, progress))
                file.sync()
                checkpoints.save(number, now, {"history": history})
                if stopping and number < run.steps:
                    raise Stopped(f"{number:,} of {run.steps:,} steps of seed {task.seed}")
            checkpoints.wait()
        progress.close()
    best = best_epoch(history, task.metric, task.larger_is_better)
    return {"seed": task.seed, "epoch": best + 1, "dev": history[best], "epochs": history}


@functools.lru_cache(maxsize=2)
def _train_step(model: Model, run: Config, mesh: Mesh, kind: str) -> Callable:
    """One program for all seeds, of which it knows nothing."""
    return make_train_step(model, optim.optimizer(run.optimizer, run.steps), run, mesh, kind)


def best_epoch(history: list[dict], metric: str, larger_is_better: bool) -> int:
    """The first of the epochs, from 0, that none is better than."""
    sign = 1 if larger_is_better else -1
    return max(range(len(history)), key=lambda i: (sign * history[i][metric], -i))


def _after_epoch(task: Seed, params: dict, history: list[dict], number: int, file: JsonLines, progress) -> dict:
    """Scores of the epoch that ends; where it is the best so far, its model and predictions are written."""
    evaluated = task.evaluate(params)
    scores, epoch = evaluated.scores, len(history) + 1
    file.write({"step": number, "epoch": epoch, **{f"dev/{name}": value for name, value in scores.items()}})
    file.sync()
    is_best = best_epoch([*history, scores], task.metric, task.larger_is_better) == epoch - 1
    shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    progress.message(
        f"seed {task.seed}  epoch {epoch}/{task.epochs}  dev: {shown}{'  (best so far)' if is_best else ''}"
    )
    if is_best:
        replace_folder(task.workdir / MODEL, lambda folder: task.export(params, folder, epoch, scores))
        replace_folder(task.workdir / PREDICTIONS, evaluated.write)
    return scores


def replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """`write(folder)` into a new folder, which then takes the place of the old one."""
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(partial)
        partial.chmod(0o755)  # the library makes it readable by its owner alone
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(number: int, values: dict, batches, run, file, progress, began: float, done: int) -> None:
    """The metrics of a step to the file and to the line of progress; FloatingPointError where they are not finite."""
    values = {name: value.item() for name, value in jax.device_get(values).items()}
    line = {
        "step": number,
        "epoch": number / batches.steps_per_epoch,
        "train/loss": values["loss"],
        "train/targets": values["targets"],
        "train/grad_norm": values["grad_norm"],
        "learning_rate": values["learning_rate"],
        **{name: value for name, value in values.items() if name.startswith("update/")},
    }
    file.write(line)
    if found := bad_gradient(values, run.optimizer):
        if run.optimizer.bad_gradients == "stop":
            raise FloatingPointError(f"step {number}: {found}")
        progress.message(f"warning: step {number:,} is left out: {found}")
    left = (time.monotonic() - began) / (number - done) * (run.steps - number)
    progress.update(number, values["loss"], values["learning_rate"], seconds_left=left)
