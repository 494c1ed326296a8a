"""Pretraining: `python -m mlm_jax.train --config=FILE [--config.key=value ...] [--workdir=DIR]`.

Run the same command again to go on from the last checkpoint. What imports jax is imported within the functions: the
processes that prepare rows load this module too, and stay light.
"""

import contextlib
import dataclasses
import errno
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags

from mlm_jax import cluster, records, runtime, spikes, stuck
from mlm_jax import config as config_module
from mlm_jax.config import Config, ConfigError, RunError
from mlm_jax.flags import PREEMPTED, USER_ERROR, Arguments, Usage, parse
from mlm_jax.position import after, phase_facts, position, stream_facts, streams_read

USAGE = """usage: python -m mlm_jax.train --config=FILE [--config.KEY=VALUE ...] [--workdir=DIR]

Prepares the rows if they are missing, pretrains, evaluates and saves. The same command again goes on from the last
checkpoint. Example:

  python -m mlm_jax.train --config=configs/tiny.py --config.data.sources=text/en.jsonl.gz --workdir=runs/en
"""
FAILURE = 1  # exit code of what is neither the user's to mend nor a preemption
LAST_SECONDS = 2.0  # that process 0 leaves the others, before it ends for what went wrong
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("print_config", False, "show the config and all derived numbers, then stop", flag_values=values)
    flags.DEFINE_integer("profile", 0, "trace so many steps, to WORKDIR/profile", lower_bound=0, flag_values=values)
    text = f"what started this process as one of several: {', '.join(cluster.CHOICES)}"
    flags.DEFINE_string("distributed", "auto", text, flag_values=values)
    text = "seconds that the processes wait for one another at the start"
    flags.DEFINE_float("wait_seconds", runtime.START_SECONDS, text, lower_bound=1.0, flag_values=values)
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
    """Says what went wrong; returns the exit code, and leaves where the others would wait for this process.

    They are aborted when process 0 has left, so it leaves last: they may be about to end for the same reason.
    """
    print(f"mlm_jax: {message}", file=sys.stderr, flush=True)
    if runtime.processes > 1:
        time.sleep(0 if runtime.index else LAST_SECONDS)
        os._exit(code)
    return code


def newest_checkpoint(workdir: Path) -> str:
    from mlm_jax.checkpoint import newest

    found = newest(workdir)
    return f"; the newest whole checkpoint is of step {found:,}" if found else "; there is no checkpoint yet"


def run(arguments: Arguments, command: str, began: float) -> int:
    several = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    runtime.start(cluster.find(arguments.distributed, several, os.environ), arguments.wait_seconds)
    import jax

    config, workdir = arguments.config, arguments.workdir
    devices, processes = jax.device_count(), jax.process_count()
    derived = config_module.check_each(config, devices, processes, platform=jax.default_backend())
    from mlm_jax import console, optim
    from mlm_jax.models import build

    if arguments.print_config:
        folders = config_module.rows_folders(config, workdir)
        if all((folder / records.MANIFEST).exists() for folder in folders):
            manifests = list(map(records.read_manifest, folders))
            derived = config_module.check_each(config, devices, processes, manifests)
            config = config_module.in_steps(config, config_module.readings(config, manifests))
    asked = derived[0].vocab_size or config.model.vocab_size or config.tokenizer.vocab_size
    shapes = jax.eval_shape(build(config.model, asked, config.objectives).init, jax.random.key(0))
    rates = optim.table(shapes, config_module.phase_configs(config)[0].optimizer)  # a parameter that no group names
    if arguments.print_config:
        if jax.process_index() == 0:
            print(console.print_config(config, derived, rates))
        for key, text in config_module.open_lengths(config).items():
            print(f"mlm_jax: {key} = {text!r} comes to steps when there are rows (prepare makes them)", file=sys.stderr)
        return 0
    try:
        config_module.check_writable(workdir)
    except ConfigError as error:
        raise ConfigError(error.key, error.value, error.fix + newest_checkpoint(workdir)) from None
    from mlm_jax import rewind

    again = None
    with contextlib.closing(stuck.Watch(workdir, jax.process_index(), config.watch.stuck_seconds)) as watch:
        while True:
            try:
                return train(config, workdir, command, began, arguments.profile, watch, again)
            except spikes.Rewind as found:
                watch.mark("going back from a spike")
                again = rewind.go_back(config, workdir, found.spike)
            began = time.time()


def prepared_rows(config: Config, workdir: Path, kept: int, say: Callable) -> list[tuple[Path, dict]]:
    """The folder of each stream's rows and its manifest; process 0 prepares them where that is due, the others wait.

    kept: how many streams a checkpoint has read. `say` warns of what changed since rows were made that stay as they
    are. Raises ConfigError in all processes, where the rows cannot be made, or those that a phase names have another
    tokenizer than the first.
    """

    def prepare() -> None:
        from mlm_jax.prepare import prepare_or_keep

        for change in prepare_or_keep(config, workdir, kept):
            say(f"warning: the rows stay as they are, made before this changed: {change}")

    runtime.by_first(prepare)
    found = [(folder, records.read_manifest(folder)) for folder in config_module.rows_folders(config, workdir)]
    hashes = [manifest["tokenizer"]["hash"] for _, manifest in found]
    for stream, (folder, _) in enumerate(found):
        if hashes[stream] != hashes[0]:
            with config_module.naming(config, config_module.streams(config).index(stream)):
                fix = f"has the tokenizer {hashes[stream]}, the rows of the first phase have {hashes[0]}"
                raise ConfigError("config.data.rows", str(folder), fix)
    return found


def train(
    config: Config,
    workdir: Path,
    command: str,
    began: float,
    profile_steps: int,
    watch: stuck.Watch,
    again: dict | None = None,
) -> int:
    """Trains to `config.steps`, from the newest checkpoint if there is one; returns the exit code.

    command: noted in `starts.jsonl`; began: when the program did, in seconds since 1970; profile_steps: how many steps
    to trace; watch: hears what begins; again: what `rewind.go_back` says, where the run goes on by itself. Raises
    spikes.Rewind where it is to.
    """
    import jax

    from mlm_jax import (
        branch,
        console,
        data,
        feedback,
        keys,
        logbook,
        metrics,
        optim,
        phases,
        rewind,
        sharding,
        state,
        timing,
    )
    from mlm_jax.audit import check_rows
    from mlm_jax.checkpoint import Checkpoints, folder_of, read_meta, restored
    from mlm_jax.initial import check_source, params_from
    from mlm_jax.tokenizer import Tokenizer

    first = jax.process_index() == 0
    progress = metrics.Progress(config.steps, active=first)
    if again:
        progress.message(rewind.describe(again))
    checkpoints = Checkpoints(workdir, config.checkpoint.keep, progress.message, rewind.doubt(workdir))
    saved = {} if checkpoints.latest is None else read_meta(workdir, checkpoints.latest)
    if checkpoints.latest is not None and "rows_read" not in saved:
        fix = "holds an imported model; begin a run in another folder, with --config.init_from of this one"
        raise ConfigError("workdir", str(workdir), fix)
    if config.init_from and checkpoints.latest is None:
        check_source(config.init_from)
    source = branch.find(config, workdir, begun=checkpoints.latest is not None)
    prepared = prepared_rows(config, workdir, len(streams_read(saved)), progress.message)
    manifests = [manifest for _, manifest in prepared]
    derived = config_module.check_each(config, jax.device_count(), jax.process_count(), manifests)
    config = config_module.in_steps(config, config_module.readings(config, manifests))
    progress.steps = config.steps
    for manifest in manifests:
        check_rows(manifest, config.mask)
    (folder, manifest), *_ = prepared
    record = rewind.record_of(workdir, source.saved if source else saved)
    rewind.check_record(record, config, workdir, manifest)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    asked, made = config.tokenizer, manifest["options"]["tokenizer"]
    if (asked.path or asked.terms) and (asked.path, asked.terms) != (made["path"], made.get("terms", "")):
        # of rows that were given, or are those of a run that has begun
        progress.message(f"the tokenizer is that of the rows, {folder / 'tokenizer'}, not config.tokenizer")

    rows = [
        phases.Rows(stream, folder, manifest, tokenizer.vocabulary(np.array(manifest["unigrams"])))
        for stream, (folder, manifest) in zip(
            data.number_streams(manifests, spikes.holes_of(record, len(prepared))), prepared
        )
    ]
    planned = phases.of_run(config, derived, rows)
    mesh = sharding.make_mesh(derived[0].mesh)
    # the state is the same in all phases
    model = phases.model_of(planned[0])
    optimizer = optim.optimizer(config.optimizer, config.steps)
    fed = feedback.start(model, rows[0].vocabulary, config.mask)
    target = state.abstract(model, optimizer, mesh, config.mesh, fed, config.optimizer)
    kind = jax.devices()[0].device_kind

    facts = {
        "tokenizer": tokenizer.hash,
        "data": manifest["fingerprint"],
        "streams": [stream_facts(*both) for both in zip(config_module.stream_configs(config), manifests)],
        "config": dataclasses.asdict(config),
        rewind.KNOWN: record,
    }
    done, read, spent = 0, [0] * len(rows), {}  # rows of each stream
    at = source.folder if source else None  # the checkpoint that it goes on from
    if source:
        branch.check_schedules(config, source)
        done, saved = source.step, source.saved
        read = position(saved, facts, at, branch.KEY)
    elif checkpoints.latest is not None:
        done, at = checkpoints.latest, folder_of(workdir, checkpoints.latest)
        if done > config.steps:
            raise ConfigError("config.steps", config.steps, f"the checkpoint in {workdir} has done {done} already")
        read, spent = position(saved, facts, workdir), saved.get("spent", {})
    here = planned[config_module.phase_at(config, min(done + 1, config.steps))]
    rates = optim.table(target.params, here.config.optimizer)
    about = [console.startup(here, kind, rates, fed), *console.phase_lines(planned), *rewind.summary(record)]
    for line in about if not again else ():
        progress.message(line)
    watch.mark(f"restoring {at}" if at else "making the state")
    if at is None:
        with sharding.activate(mesh, config.mesh):
            if config.init_from:
                params = params_from(config, model, tokenizer, progress.message)
                now = state.begin(params, optimizer, target, fed, config.optimizer)
            else:
                key = keys.root(config.seed, keys.INIT)
                now = state.create(model, optimizer, mesh, config.mesh, key, fed, config.optimizer)
    else:
        if source:
            now = restored(at, target, state.LATER, branch.KEY)
        else:
            now = checkpoints.restore(done, target, state.LATER)
        now, begun = state.completed(now, config.optimizer)
        if config.mask.schedule == "adaptive":  # a function of config and rows, which may have changed
            now = dataclasses.replace(now, feedback=feedback.with_rate(now.feedback, fed["rate"]))
        progress.message(f"{'branch    ' if source else 'checkpoint'}  {at}: goes on after step {done:,}")
        for change in console.since(saved, config, planned[config_module.phase_at(config, done)].derived):
            progress.message(f"  since the checkpoint: {change}")
        for line in begun:
            progress.message(f"  {line}")
    if done >= config.steps:
        return finish(checkpoints, done, config, workdir, progress)
    done_before = done
    origin = source and source.folder
    went_back = again and again["step"]
    started_at = logbook.record_start(workdir, began, done, command, here.derived, kind, first, origin, went_back)
    if first:
        for name in (logbook.STEPS, logbook.SAMPLES):
            metrics.truncate(workdir / name, done)
        (workdir / "config.json").write_text(config_module.to_json(config) + "\n", encoding="utf-8")
        tokenizer.save(workdir / "tokenizer")

    placed = sharding.batch_sharding(mesh, leading=1)
    ahead = data.first_rows(here.rows.manifest, here.config, read[here.rows.stream.number], placed, here.rows.stream)
    progress.message(console.first_rows_line(ahead))
    roots = keys.roots(config.seed)
    clock = timing.Clock(started_at, spent, began)
    log = logbook.Logbook(workdir, config.steps, kind, progress, clock, done, watch)
    stop, stopping = runtime.Stop(), False
    profile = runtime.Profile(workdir / "profile", profile_steps if first and not again else 0, progress.message)
    with (
        sharding.activate(mesh, config.mesh),
        contextlib.closing(log),
        contextlib.closing(stop),
        contextlib.closing(profile),
        contextlib.closing(checkpoints),
    ):
        for phase in planned[here.number :]:
            stream, begin = phase.rows.stream.number, max(done_before, phase.begin)
            log.begin(phase, begin, len(planned) > 1)
            if begin > done_before:
                progress.message(console.phase_line(phase, planned[phase.number - 1], read[stream]))
            say, beat = progress.message, watch.beat
            programs = phases.make_programs(phase, config.mask, tokenizer, mesh, read[stream], say, beat)
            with contextlib.closing(programs.batches), contextlib.closing(programs.train_step):
                for number in range(begin + 1, phase.end + 1):
                    batch = log.next_batch(programs.batches)
                    now, values = programs.train_step(now, batch, roots)
                    read[stream] = after(read[stream], phase.config.batch_size, phase.rows.stream.holes)
                    log.step(number, values, read[stream])  # reads those of the step before, while this one runs
                    profile.step(values)
                    compiled = number == begin + 1
                    if compiled:
                        log.flush()
                        seconds = time.time() - began if number == done_before + 1 else None
                        progress.message(console.compiled_line(phase.number, programs.train_step, seconds))
                    if compiled or number % config.audit.every_steps == 0:
                        with log.pause("starting" if compiled else "evaluation"):
                            audit_masks(programs.masks, batch, number, now, progress)
                    last, stopping = number == config.steps, stop.now()
                    if last or number % config.evaluate.every_steps == 0:
                        with log.pause("evaluation"):
                            results = programs.evaluation(now.averaged, shuffled=last)
                            log.evaluation(number, results, programs.samples(now.averaged))
                            fed = feedback.after_evaluation(now.feedback, results, config.mask)
                            now = dataclasses.replace(now, feedback=fed)
                            if not last:  # the end of the run writes it
                                write_report(workdir, progress)
                    if last or stopping or number % config.checkpoint.every_steps == 0:
                        # the lines of a saved step are on the disk before it is, and its loss is finite
                        with log.pause("saving"):
                            done = number
                            where = {"position": list(read), "rows_read": sum(read), **phase_facts(phase, config)}
                            where["placement"] = console.placement(phase.derived)
                            checkpoints.save(number, now, {**facts, **where, "spent": clock.totals()})
                    if stopping:
                        break
            if stopping:
                break
        progress.message(console.time_line(clock.elapsed, clock.shares()))
        watch.mark("the end of the run, which verifies a checkpoint and writes the report,")
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
