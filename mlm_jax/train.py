"""Pretraining: `python -m mlm_jax.train --config=FILE [--config.key=value ...] [--workdir=DIR]`.

Run the same command again to go on from the last checkpoint. What imports jax is imported within the functions: the
processes that prepare rows load this module too, and stay light.
"""

import contextlib
import dataclasses
import errno
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records, runtime
from mlm_jax.config import Config, ConfigError, RunError
from mlm_jax.flags import PREEMPTED, USER_ERROR, Arguments, Usage, parse

USAGE = """usage: python -m mlm_jax.train --config=FILE [--config.KEY=VALUE ...] [--workdir=DIR]

Prepares the rows if they are missing, pretrains, evaluates and saves. The same command again goes on from the last
checkpoint. Example:

  python -m mlm_jax.train --config=configs/tiny.py --config.data.sources=text/en.jsonl.gz --workdir=runs/en
"""
FAILURE = 1  # exit code of what is neither the user's to mend nor a preemption
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("print_config", False, "show the config and all derived numbers, then stop", flag_values=values)
    flags.DEFINE_integer("profile", 0, "trace so many steps, to WORKDIR/profile", lower_bound=0, flag_values=values)
    flags.DEFINE_string("coordinator_address", None, "HOST:PORT of process 0 of several", flag_values=values)
    flags.DEFINE_integer("num_processes", None, "number of processes", flag_values=values)
    flags.DEFINE_integer("process_id", None, "number of this process, from 0", flag_values=values)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code. What went wrong is one message where it is known."""
    began, argv = time.time(), sys.argv[1:] if argv is None else argv
    try:
        arguments = parse(argv, USAGE, define=define)
        return run(arguments, shlex.join(["python", "-m", "mlm_jax.train", *argv]), began)
    except (Usage, ConfigError) as error:
        return failed(str(error), USER_ERROR)
    except Exception as error:
        known = isinstance(error, (RunError, FloatingPointError))
        if known or (isinstance(error, OSError) and error.errno in DISK_ERRORS):
            return failed(f"{error}{newest_checkpoint(arguments.workdir)}", FAILURE)
        if runtime.processes == 1:
            raise
        return failed(traceback.format_exc(), FAILURE)


def failed(message: str, code: int) -> int:
    """Says what went wrong; returns the exit code, and leaves at once where the others would wait for this process."""
    print(f"mlm_jax: {message}", file=sys.stderr, flush=True)
    if runtime.processes > 1:
        os._exit(code)
    return code


def newest_checkpoint(workdir: Path) -> str:
    from mlm_jax.checkpoint import newest

    found = newest(workdir)
    return f"; the newest whole checkpoint is of step {found:,}" if found else "; there is no checkpoint yet"


def run(arguments: Arguments, command: str, began: float) -> int:
    several = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    if None in several and several != (None, None, None):
        raise Usage("--coordinator_address, --num_processes and --process_id go together")
    runtime.start(*several)
    import jax

    config, workdir = arguments.config, arguments.workdir
    derived = config_module.check(config, jax.device_count(), jax.process_count(), platform=jax.default_backend())
    from mlm_jax import console, optim
    from mlm_jax.models import build

    folder = config_module.rows_folder(config, workdir)
    if arguments.print_config and (folder / records.MANIFEST).exists():
        manifest = records.read_manifest(folder)
        derived = config_module.check(config, jax.device_count(), jax.process_count(), manifest)
    asked = derived.vocab_size or config.model.vocab_size or config.tokenizer.vocab_size
    shapes = jax.eval_shape(build(config.model, asked, config.objectives).init, jax.random.key(0))
    rates = optim.table(shapes, config.optimizer)  # finds a parameter that no group names
    if arguments.print_config:
        print(console.print_config(config, derived, rates))
        return 0
    try:
        config_module.check_writable(workdir)
    except ConfigError as error:
        raise ConfigError(error.key, error.value, error.fix + newest_checkpoint(workdir)) from None
    return train(config, workdir, command, began, arguments.profile)


def prepared_rows(config: Config, workdir: Path, has_checkpoint: bool, say: Callable) -> tuple[Path, dict]:
    """The folder of rows and its manifest; process 0 prepares them where that is due, the others wait.

    `say` warns of what changed since rows were made that stay as they are.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.process_index() == 0:
        from mlm_jax.prepare import prepare_or_keep

        for change in prepare_or_keep(config, workdir, has_checkpoint):
            say(f"warning: the rows stay as they are, made before this changed: {change}")
    multihost_utils.sync_global_devices("rows")
    folder = config_module.rows_folder(config, workdir)
    return folder, records.read_manifest(folder)


def train(config: Config, workdir: Path, command: str, began: float, profile_steps: int) -> int:
    """Trains to `config.steps`, from the newest checkpoint if there is one; returns the exit code.

    command: noted in `starts.jsonl`; began: when the program did, in seconds since 1970; profile_steps: how many steps
    to trace.
    """
    import jax

    from mlm_jax import console, data, feedback, keys, logbook, metrics, optim, sharding, state, step, timing
    from mlm_jax.audit import auditor, check_rows
    from mlm_jax.checkpoint import Checkpoints, folder_of, read_meta
    from mlm_jax.compilation import Watched
    from mlm_jax.evaluate import make_evaluation
    from mlm_jax.initial import check_source, params_from
    from mlm_jax.models import build
    from mlm_jax.samples import make_samples
    from mlm_jax.tokenizer import Tokenizer

    first = jax.process_index() == 0
    progress = metrics.Progress(config.steps, active=first)
    checkpoints = Checkpoints(workdir, config.checkpoint.keep, progress.message)
    saved = {} if checkpoints.latest is None else read_meta(workdir, checkpoints.latest)
    if checkpoints.latest is not None and "rows_read" not in saved:
        fix = "holds an imported model; begin a run in another folder, with --config.init_from of this one"
        raise ConfigError("workdir", str(workdir), fix)
    if config.init_from and checkpoints.latest is None:
        check_source(config.init_from)
    folder, manifest = prepared_rows(config, workdir, checkpoints.latest is not None, progress.message)
    derived = config_module.check(config, jax.device_count(), jax.process_count(), manifest)
    check_rows(manifest, config.mask)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    vocabulary = tokenizer.vocabulary(np.array(manifest["unigrams"]))
    asked, made = config.tokenizer, manifest["options"]["tokenizer"]
    if (asked.path or asked.terms) and (asked.path, asked.terms) != (made["path"], made.get("terms", "")):
        # of rows that were given, or are those of a run that has begun
        progress.message(f"the tokenizer is that of the rows, {folder / 'tokenizer'}, not config.tokenizer")

    mesh = sharding.make_mesh(derived.mesh)
    model = build(config.model, derived.vocab_size, config.objectives)
    optimizer = optim.optimizer(config.optimizer, config.steps)
    fed = feedback.start(model, vocabulary, config.mask)
    target = state.abstract(model, optimizer, mesh, config.mesh, fed)
    rates = optim.table(target.params, config.optimizer)
    kind = jax.devices()[0].device_kind
    progress.message(console.startup(config, derived, kind, rates, manifest, fed))

    facts = {"tokenizer": tokenizer.hash, "data": manifest["fingerprint"], "config": dataclasses.asdict(config)}
    done, rows_read, spent = 0, 0, {}
    if checkpoints.latest is None:
        with sharding.activate(mesh, config.mesh):
            if config.init_from:
                params = params_from(config, model, tokenizer, progress.message)
                now = state.begin(params, optimizer, target, fed)
            else:
                now = state.create(model, optimizer, mesh, config.mesh, keys.root(config.seed, keys.INIT), fed)
    else:
        done = checkpoints.latest
        if done > config.steps:
            raise ConfigError("config.steps", config.steps, f"the checkpoint in {workdir} has done {done} already")
        rows_read, spent = position(saved, facts, workdir), saved.get("spent", {})
        now = checkpoints.restore(done, target)
        if config.mask.schedule == "adaptive":  # a function of config and rows, which may have changed
            now = dataclasses.replace(now, feedback=feedback.with_rate(now.feedback, fed["rate"]))
        progress.message(f"checkpoint  {folder_of(workdir, done)}: goes on after step {done:,}")
        for change in console.changes(saved["config"], json.loads(config_module.to_json(config))):
            progress.message(f"  since the checkpoint: {change}")
    if done >= config.steps:
        return finish(checkpoints, done, config, workdir, progress)
    done_before = done
    started_at = logbook.record_start(workdir, began, done, command, derived, kind, first)
    if first:
        for name in (logbook.STEPS, logbook.SAMPLES):
            metrics.truncate(workdir / name, done)
        (workdir / "config.json").write_text(config_module.to_json(config) + "\n", encoding="utf-8")
        tokenizer.save(workdir / "tokenizer")

    placed = sharding.batch_sharding(mesh, leading=1)
    progress.message(console.first_rows_line(data.first_rows(manifest, config, rows_read, placed)))
    batches = data.train_batches(folder, manifest, config, rows_read, placed)
    train_step = Watched(
        step.make_train_step(model, optimizer, vocabulary, config, mesh), "train_step", progress.message
    )
    evaluation = make_evaluation(model, vocabulary, config, folder, manifest, mesh)
    samples = make_samples(model, tokenizer, vocabulary, config, folder, manifest, mesh)
    roots = keys.roots(config.seed)
    make_mask = feedback.make_mask(model, vocabulary, config)
    masks = auditor(make_mask, vocabulary, config, roots, placed)
    clock = timing.Clock(started_at, spent, began)
    rows_before = rows_read - done * config.batch_size
    log = logbook.Logbook(workdir, config, derived, kind, progress, clock, rows_before, done)
    stop = runtime.Stop()
    profile = runtime.Profile(workdir / "profile", profile_steps if first else 0, progress.message)
    with (
        sharding.activate(mesh, config.mesh),
        contextlib.closing(batches),
        contextlib.closing(train_step),
        contextlib.closing(log),
        contextlib.closing(stop),
        contextlib.closing(profile),
        contextlib.closing(checkpoints),
    ):
        for number in range(done + 1, config.steps + 1):
            batch = log.next_batch(batches)
            now, values = train_step(now, batch, roots)
            log.step(number, values)  # reads those of the step before, while this one runs
            profile.step(values)
            if number == done_before + 1:
                log.flush()
                progress.message(console.first_step_line(time.time() - began, train_step.seconds, train_step.hits))
            if number == done_before + 1 or number % config.audit.every_steps == 0:
                with log.pause("starting" if number == done_before + 1 else "evaluation"):
                    audit_masks(masks, batch, number, now, progress)
            # counted from this start: jax's service takes a step that all have yet to reach, and begins at 0
            last, stopping = number == config.steps, stop.at(number - done_before)
            if last or number % config.evaluate.every_steps == 0:
                with log.pause("evaluation"):
                    results = evaluation(now.params, shuffled=last)
                    log.evaluation(number, results, samples(now.params))
                    fed = feedback.after_evaluation(now.feedback, results, config.mask)
                    now = dataclasses.replace(now, feedback=fed)
                    if not last:  # the end of the run writes it
                        write_report(workdir, progress)
            if last or stopping or number % config.checkpoint.every_steps == 0:
                # the lines of a saved step are on the disk before it is, and its loss is finite
                with log.pause("saving"):
                    rows_read += (number - done) * config.batch_size
                    done = number
                    checkpoints.save(number, now, {**facts, "rows_read": rows_read, "spent": clock.totals()})
            if stopping:
                break
        progress.message(console.time_line(clock.elapsed, clock.shares()))
    return finish(checkpoints, done, config, workdir, progress)


def audit_masks(masks: Callable, batch: object, number: int, now, progress) -> None:
    """Raises RunError where the masks of a step break a rule; rates that are off are a warning.

    now: the state after the step. Masks that depend on the model are made with its parameters.
    """
    audit = masks(batch, number - 1, now.params, now.feedback)
    for doubt in audit.doubts():
        progress.message(f"warning: step {number:,}: {doubt}")
    if breaches := audit.breaches():
        raise RunError(f"step {number}: the masks are wrong: {'; '.join(breaches)}")


def write_report(workdir: Path, progress) -> None:
    """Brings `report.html` up to date. A report that fails is no reason to end a run."""
    from mlm_jax import report

    if progress.active:
        try:
            report.write(workdir)
        except Exception as error:
            progress.message(f"warning: {workdir / 'report.html'} was not written: {error!r}")


def position(saved: dict, facts: dict, workdir: Path) -> int:
    """Rows read by the saved step. Raises ConfigError where the run that goes on would not be the same run."""
    for name, what in (("tokenizer", "tokenizer"), ("data", "prepared rows")):
        if saved[name] != facts[name]:
            fix = f"its checkpoint was trained with another {what} ({saved[name]}); this one is {facts[name]}"
            raise ConfigError("workdir", str(workdir), fix)
    configs = [config_module.from_json(json.dumps(meta["config"])) for meta in (saved, facts)]
    for key in ("seed", "data.weights", "data.exponent", "mask.regime", "mask.versions", "optimizer.name"):
        then, now = (config_module.get(config, key) for config in configs)
        if now != then:
            raise ConfigError(f"config.{key}", now, f"the checkpoint in {workdir} was trained with {then!r}")
    return saved["rows_read"]


def finish(checkpoints, done: int, config: Config, workdir: Path, progress) -> int:
    """Verifies the last checkpoint (a `checkpoint.Checkpoints`), says where it is, and returns the exit code."""
    checkpoints.verify(done)
    write_report(workdir, progress)
    progress.close()
    where = f"{done:,} of {config.steps:,} steps, checkpoint {workdir / 'checkpoints' / str(done)}"
    if done < config.steps:
        progress.message(f"stopped: {where}\nthe same command goes on from there")
        return PREEMPTED
    progress.message(
        f"done: {where}\nlook: {workdir / 'report.html'}\n"
        f'try:  python -m mlm_jax fill-mask --workdir={workdir} "text with a [MASK]"'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
