"""`python -m mlm_jax.finetune --config=FILE`: a model is trained on a task, once for each seed, and scored."""

import dataclasses
import hashlib
import json
import shlex
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlm_jax import runtime
from mlm_jax.config import ConfigError, FinetuneConfig, RunError, Task, check_finetune, check_writable, hub, to_json
from mlm_jax.finetune import tasks
from mlm_jax.flags import PREEMPTED, USER_ERROR, Arguments, Usage, parse

USAGE = """usage: python -m mlm_jax.finetune --config=FILE --config.model=MODEL [--config.KEY=VALUE ...] [--workdir=DIR]

Trains a model on a task, once for each of config.seeds, scores it on the dev examples after each epoch, and keeps the
best epoch as a folder of the hub format with the names of the labels, with its predictions. The same command again goes
on from the last checkpoint. MODEL is the folder of a run or of a model of the hub format. Example:

  python -m mlm_jax.finetune --config=configs/finetune/classification.py --config.model=runs/tiny \\
    --config.task.train=PATH/train.tsv --workdir=runs/task
"""
KNOWN, RESULTS = "finetune.json", "results.json"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = parse(argv, USAGE, kind=FinetuneConfig)
        return run(arguments, shlex.join(["python", "-m", "mlm_jax.finetune", *argv]))
    except (Usage, ConfigError) as error:
        print(f"mlm_jax: {error}", file=sys.stderr)
        return USER_ERROR
    except (RunError, FloatingPointError) as error:
        print(f"mlm_jax: {error}", file=sys.stderr)
        return 1


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(arguments: Arguments, command: str) -> int:
    config, workdir = arguments.config, arguments.workdir
    if not config.model:
        raise ConfigError("config.model", "", "names no model to begin with: the folder of a run or of the hub format")
    config = dataclasses.replace(config, task=tasks.completed(config.task))
    runtime.start()
    import jax

    from mlm_jax import checkpoint, sharding
    from mlm_jax.finetune import seeds
    from mlm_jax.finetune.train import RESULT, Stopped, train
    from mlm_jax.inference import load

    path = Path(config.model).expanduser()
    loaded = load(path)
    workdir_of_model, _ = checkpoint.split_step(path)
    given = hub.read_config(path)[0] if hub.is_hub(path) else checkpoint.load_config(workdir_of_model).model
    mesh = sharding.make_mesh(check_finetune(config, given, jax.device_count(), jax.default_backend()))
    if config.row_length > loaded.limit:
        fix = f"{config.model} was trained with at most {loaded.limit} tokens; make the rows shorter"
        raise ConfigError("config.row_length", config.row_length, fix)
    splits = tasks.read_splits(config.task, say)
    task = tasks.task_of(config.task, splits)
    seeds.check_start(config, task, loaded)
    check_writable(workdir)
    check_known(config, task, splits, workdir)
    data = seeds.encoded(splits, task, loaded, config, say)
    batches, results = seeds.batches_of(config, task, data["train"], mesh), []
    for seed in config.seeds:
        folder = workdir / f"seed-{seed}"
        if (folder / RESULT).is_file():
            results.append(json.loads((folder / RESULT).read_text(encoding="utf-8")))
            say(f"seed {seed}  is done: {folder / RESULT}")
            continue
        folder.mkdir(exist_ok=True)
        try:
            result = train(seeds.prepared(config, seed, batches[seed], folder, task, data, loaded, say), mesh, say)
        except Stopped as stopped:
            say(f"stopped: {stopped}\nthe same command goes on from there")
            return PREEMPTED
        result["test"] = seeds.tested(folder, task, data, config) if "test" in data else None
        write_whole(folder / RESULT, result)
        shutil.rmtree(folder / checkpoint.FOLDER, ignore_errors=True)  # the best epoch is kept as a model
        results.append(result)
    summary = summarised(config, tasks.metrics_of(config.task), results)
    write_whole(workdir / RESULTS, {**summary, "command": command})
    print("\n".join(table(summary)))
    say(f"done: {workdir / RESULTS}\nmodels: {workdir}/seed-*/model")
    return 0


def write_whole(path: Path, value: dict) -> None:
    """A JSON file that is there as a whole, or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def check_known(config: FinetuneConfig, task: Task, splits: tasks.Splits, workdir: Path) -> None:
    """What defines the results must be as when the runs in the folder began; there may be other seeds.

    Raises ConfigError that names the first difference.
    """
    digest = hashlib.blake2b(repr((task, splits)).encode(), digest_size=8).hexdigest()
    facts = json.loads(to_json(dataclasses.replace(config, seeds=()))) | {"examples": digest}
    path = workdir / KNOWN
    if not path.is_file():
        write_whole(path, facts)
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    for key, was, now in differing(known, facts, "config"):
        fix = f"the runs in {workdir} began with {was!r}; begin others with another --workdir"
        raise ConfigError(key, now, fix)


def differing(before: dict, after: dict, prefix: str) -> Iterator[tuple[str, object, object]]:
    """(dotted key, value before, value after) of all that differs."""
    for key in [*after, *(key for key in before if key not in after)]:
        was, now = before.get(key), after.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from differing(was, now, f"{prefix}.{key}")
        elif was != now:
            yield f"{prefix}.{key}", was, now


def summarised(config: FinetuneConfig, metrics: Sequence[str], results: Sequence[dict]) -> dict:
    """All results, and the mean and the standard deviation over the seeds of each metric and split."""
    summary = {"task": config.task.name or Path(config.task.train).name.split(".")[0], "metric": metrics[0]}
    summary |= {"model": config.model, "scratch": config.scratch, "seeds": list(results), "mean": {}, "deviation": {}}
    for split in ("dev", "test"):
        found = [result[split] for result in results if result[split]]
        if not found:
            continue
        values = {name: [one[name] for one in found] for name in found[0]}
        summary["mean"][split] = {name: statistics.fmean(each) for name, each in values.items()}
        if len(found) > 1:
            summary["deviation"][split] = {name: statistics.stdev(each) for name, each in values.items()}
    return summary


def table(summary: dict) -> list[str]:
    """The results as lines for the terminal: a seed a line, then mean and standard deviation."""
    metrics = list(summary["mean"]["dev"])
    columns = [(split, name) for split in summary["mean"] for name in metrics if name in summary["mean"][split]]
    rows = [["seed", "epoch", *(f"{split} {name}" for split, name in columns)]]
    for result in summary["seeds"]:
        rows.append(
            [str(result["seed"]), str(result["epoch"]), *(f"{result[split][name]:.4f}" for split, name in columns)]
        )
    for kind in ("mean", "deviation"):
        if summary[kind]:
            rows.append([kind, "", *(f"{summary[kind][split][name]:.4f}" for split, name in columns)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
