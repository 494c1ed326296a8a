"""Pretraining: `python -m mlm_jax.train --config=FILE [--config.key=value ...] [--workdir=DIR]`.

Run the same command again to go on from the last checkpoint. What imports jax is imported within the functions: the
processes that prepare rows load this module too, and stay light.
"""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records, runtime
from mlm_jax.config import Config, ConfigError
from mlm_jax.flags import USER_ERROR, Arguments, Usage, parse

USAGE = """usage: python -m mlm_jax.train --config=FILE [--config.KEY=VALUE ...] [--workdir=DIR]

Prepares the rows if they are missing, pretrains, evaluates and saves. The same command again goes on from the last
checkpoint. Example:

  python -m mlm_jax.train --config=configs/tiny.py --config.data.sources=text/en.jsonl.gz --workdir=runs/en
"""


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("print_config", False, "show the config and all derived numbers, then stop", flag_values=values)
    flags.DEFINE_string("coordinator_address", None, "HOST:PORT of process 0 of several", flag_values=values)
    flags.DEFINE_integer("num_processes", None, "number of processes", flag_values=values)
    flags.DEFINE_integer("process_id", None, "number of this process, from 0", flag_values=values)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code. What the user can mend is one message and exit code 2."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv, USAGE, define=define)
        if arguments.rest:
            raise Usage(f"unexpected {arguments.rest[0]!r}; flags begin with --")
        return run(arguments)
    except (Usage, ConfigError) as error:
        print(f"mlm_jax: {error}", file=sys.stderr)
        return USER_ERROR


def run(arguments: Arguments) -> int:
    several = (arguments.coordinator_address, arguments.num_processes, arguments.process_id)
    if None in several and several != (None, None, None):
        raise Usage("--coordinator_address, --num_processes and --process_id go together")
    runtime.start(*several)
    import jax

    config, workdir = arguments.config, arguments.workdir
    derived = config_module.check(config, jax.device_count(), jax.process_count())
    from mlm_jax import console, optim
    from mlm_jax.models import build

    asked = config.model.vocab_size or config.tokenizer.vocab_size
    shapes = jax.eval_shape(build(config.model, asked).init, jax.random.key(0))
    rates = optim.table(shapes, config.optimizer)  # finds a parameter that no group names
    if arguments.print_config:
        folder = config_module.rows_folder(config, workdir)
        if (folder / records.MANIFEST).exists():
            manifest = records.read_manifest(folder)
            derived = config_module.check(config, jax.device_count(), jax.process_count(), manifest)
        print(console.print_config(config, derived, rates))
        return 0
    config_module.check_writable(workdir)
    return train(config, workdir)


def prepared_rows(config: Config, workdir: Path, has_checkpoint: bool, say: Callable) -> tuple[Path, dict]:
    """The folder of rows and its manifest; process 0 prepares them where that is due, the others wait.

    A run that has a checkpoint keeps the rows that it has seen, and a folder that the config names is taken as it is,
    whatever became of the sources; `say` warns where they changed.
    """
    import jax
    from jax.experimental import multihost_utils

    folder = config_module.rows_folder(config, workdir)
    if jax.process_index() == 0:
        from mlm_jax.prepare import changes, prepare

        given = config.data.rows and (folder / records.MANIFEST).exists()
        if not (has_checkpoint or given):
            prepare(config, folder)
        elif not given:
            for change in changes(config, records.read_manifest(folder)):
                say(f"warning: the rows stay as they are, made before this changed: {change}")
    multihost_utils.sync_global_devices("rows")
    return folder, records.read_manifest(folder)


def train(config: Config, workdir: Path) -> int:
    """Trains to `config.steps`, from the newest checkpoint if there is one."""
    import jax

    from mlm_jax import console, data, metrics, optim, sharding, state, step
    from mlm_jax.checkpoint import Checkpoints, folder_of, read_meta
    from mlm_jax.evaluate import make_evaluation
    from mlm_jax.logbook import Logbook
    from mlm_jax.models import build
    from mlm_jax.tokenizer import Tokenizer

    first = jax.process_index() == 0
    progress = metrics.Progress(config.steps, active=first)
    checkpoints = Checkpoints(workdir, config.checkpoint.keep, progress.message)
    folder, manifest = prepared_rows(config, workdir, checkpoints.latest is not None, progress.message)
    derived = config_module.check(config, jax.device_count(), jax.process_count(), manifest)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    vocabulary = tokenizer.vocabulary(np.array(manifest["unigrams"]))

    mesh = sharding.make_mesh(derived.mesh)
    model = build(config.model, derived.vocab_size)
    optimizer = optim.optimizer(config.optimizer, config.steps)
    target = state.abstract(model, optimizer, mesh, config.mesh)
    rates = optim.table(target.params, config.optimizer)
    kind = jax.devices()[0].device_kind
    progress.message(console.startup(config, derived, kind, rates, manifest))

    facts = {"tokenizer": tokenizer.hash, "data": manifest["fingerprint"], "config": dataclasses.asdict(config)}
    if checkpoints.latest is None:
        done, rows_read = 0, 0
        with sharding.activate(mesh, config.mesh):
            now = state.create(model, optimizer, mesh, config.mesh, step.root(config.seed, step.INIT_ROOT))
    else:
        done = checkpoints.latest
        if done > config.steps:
            raise ConfigError("config.steps", config.steps, f"the checkpoint in {workdir} has done {done} already")
        rows_read = position(read_meta(workdir, done), facts, workdir)
        now = checkpoints.restore(done, target)
        progress.message(f"checkpoint  {folder_of(workdir, done)}: goes on after step {done:,}")
    if done >= config.steps:
        return finish(checkpoints, done, config, workdir, progress)
    if first:
        metrics.truncate(workdir / "metrics.jsonl", done)
        (workdir / "config.json").write_text(config_module.to_json(config) + "\n", encoding="utf-8")
        tokenizer.save(workdir / "tokenizer")

    batches = data.train_batches(folder, manifest, config, rows_read, sharding.batch_sharding(mesh, leading=1))
    train_step = step.make_train_step(model, optimizer, vocabulary, config, mesh)
    evaluation = make_evaluation(model, vocabulary, config, folder, manifest, mesh)
    roots = step.roots(config.seed)
    logbook = Logbook(workdir, config, derived, kind, progress, rows_read - done * config.batch_size)
    with (
        sharding.activate(mesh, config.mesh),
        contextlib.closing(batches),
        contextlib.closing(logbook),
        contextlib.closing(checkpoints),
    ):
        for number in range(done + 1, config.steps + 1):
            now, values = train_step(now, next(batches), roots)
            logbook.step(number, values)  # reads those of the step before, while this one runs
            last = number == config.steps
            if last or number % config.evaluate.every_steps == 0:
                logbook.flush()
                logbook.evaluation(number, evaluation(now.params, shuffled=last))
            if last or number % config.checkpoint.every_steps == 0:
                logbook.flush()  # the lines of a saved step are on the disk before it is, and its loss is finite
                rows_read += (number - done) * config.batch_size
                done = number
                checkpoints.save(number, now, {**facts, "rows_read": rows_read})
    return finish(checkpoints, done, config, workdir, progress)


def position(saved: dict, facts: dict, workdir: Path) -> int:
    """Rows read by the saved step. Raises ConfigError where the run that goes on would not be the same run."""
    for name, what in (("tokenizer", "tokenizer"), ("data", "prepared rows")):
        if saved[name] != facts[name]:
            fix = f"its checkpoint was trained with another {what} ({saved[name]}); this one is {facts[name]}"
            raise ConfigError("workdir", str(workdir), fix)
    for key in ("seed", "data.weights", "mask.regime", "mask.versions"):
        then, now = (functools.reduce(dict.__getitem__, key.split("."), meta["config"]) for meta in (saved, facts))
        if now != (tuple(then) if isinstance(then, list) else then):
            raise ConfigError(f"config.{key}", now, f"the checkpoint in {workdir} was trained with {then!r}")
    return saved["rows_read"]


def finish(checkpoints, done: int, config: Config, workdir: Path, progress) -> int:
    """Verifies the last checkpoint (a `checkpoint.Checkpoints`), says where it is, and returns the exit code."""
    checkpoints.verify(done)
    progress.close()
    progress.message(
        f"done: {done:,} of {config.steps:,} steps, checkpoint {workdir / 'checkpoints' / str(done)}\n"
        f'try:  python -m mlm_jax fill-mask --workdir={workdir} "text with a [MASK]"'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
