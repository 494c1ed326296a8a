"""`python -m mlm_jax study STUDY --config=FILE --workdir=DIR`: trains the runs of a study, then says what they show."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records
from mlm_jax.cli.common import devices_asked
from mlm_jax.cli.study.programs import Failed, Programs, Stopped, locked
from mlm_jax.config import Config, ConfigError
from mlm_jax.flags import PREEMPTED, Arguments, Usage, command, parse
from mlm_jax.report.read import read_object
from mlm_jax.study import runs
from mlm_jax.study.runs import SCRATCH, Run, Study, Variant, task_folder

USAGE = """usage: python -m mlm_jax study {name} --config=FILE [--config.KEY=VALUE ...] --workdir=DIR [--seeds=N,...]
           [--runs=VARIANT,...] [--tasks=FILE,...] [--notimes] [--dry] [--report_only] [--json]

{question}

Trains variants of a config, each with every seed, one after the other, to DIR/runs/VARIANT/seed-N; the same command
again goes on where it was stopped. Fine-tunes the models on the tasks that are named, measures the steps of all
variants in turn, and writes what the runs show to DIR/{name}: report.html, report.md, results.json. The variants:

{variants}

Example:

  python -m mlm_jax study {name} --config=configs/study/small.py --workdir=studies/small --seeds=0,1,2
"""
LOG, TIMES = "log.txt", "times.json"
# What may differ between a run and what the command asks for: it changes nothing of what the run has learned.
FREE = ("data.rows", "data.encoded", "data.workers", "checkpoint", "audit", "watch", "mesh")
OF_LENGTHS = ("steps", "length", "optimizer.warmup", "optimizer.cooldown")  # come to steps with the rows


class Job(NamedTuple):
    """A program to run: its name, the words of its command line, its folder, and what tells whether it is done."""

    name: str
    words: list[str]
    folder: Path
    finished: Callable[[Path], bool]


class Asked(NamedTuple):
    """What a command line asks for."""

    name: str  # of the study
    arguments: Arguments
    planned: list[Run]
    command: str

    @property
    def folder(self) -> Path:
        """Where the findings go: several studies may share runs, and so a folder."""
        return self.arguments.workdir / self.name

    @property
    def variants(self) -> list[Variant]:
        return list({run.variant.name: run.variant for run in self.planned}.values())

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(run.seed for run in self.planned))


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds of each variant", flag_values=values)
    flags.DEFINE_list("runs", [], "variants to train and compare; by default all", flag_values=values)
    flags.DEFINE_string("init_from", "", "model that continued variants begin with", flag_values=values)
    flags.DEFINE_list("tasks", [], "config files of fine-tuning, for each of which all models are", flag_values=values)
    flags.DEFINE_bool("times", True, "measure the steps of all variants, when the runs are done", flag_values=values)
    flags.DEFINE_bool("report_only", False, "write the report from what there is, train nothing", flag_values=values)
    flags.DEFINE_bool("json", False, "the findings as one JSON object, for programs", flag_values=values)
    flags.DEFINE_bool("dry", False, "show the commands, then stop", flag_values=values)


def main(name: str, argv: list[str]) -> int:
    study = runs.STUDIES[name]
    width = max(len(variant.name) for variant in study.variants)
    variants = "\n".join(f"  {variant.name:{width}}  {variant.meaning}" for variant in study.variants)
    usage = USAGE.format(name=name, question=study.question, variants=variants)
    return command(lambda arguments: run(name, arguments, argv), argv, usage, define=define)


def run(name: str, arguments: Arguments, argv: list[str]) -> int:
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing: the folder of the study")
    study, folder, user = runs.STUDIES[name], arguments.workdir, config_words(argv)
    planned = plan(study, arguments)
    configs = [check_run(one, user, planned) for one in planned]
    todo = [Job(one.name, words(one, user), one.folder, finished) for one in planned]
    todo += [job for task in checked_tasks(arguments.tasks) for job in task_jobs(task, study, planned, folder)]
    if arguments.dry:
        print("\n".join(shlex.join(["python", *job.words]) for job in todo))
        return 0
    asked = Asked(name, arguments, planned, shlex.join(["python", "-m", "mlm_jax", "study", name, *argv]))
    if arguments.report_only:
        return report(asked)
    config_module.check_writable(folder)
    with locked(folder) as lock, contextlib.closing(Programs(lock)) as programs:
        try:
            carry_out(todo, programs)
            if arguments.times:
                measure_times(asked, configs)
            return report(asked)
        except Stopped:
            say("stopped; the same command goes on from there, --report_only shows what there is")
            return PREEMPTED
        except Failed as error:
            say(f"mlm_jax: {error}")
            return error.code


def plan(study: Study, arguments: Arguments) -> list[Run]:
    """The runs that the command line asks for. Raises ConfigError and Usage."""
    runs.check_base(study, arguments.config)
    variants = runs.chosen(study, arguments.runs)
    init_from = str(Path(arguments.init_from).expanduser()) if arguments.init_from else ""
    if init_from and not any(variant.continued for variant in study.variants):
        raise Usage("--init_from: no variant of this study is a continued one")
    return runs.plan(study, arguments.config, arguments.workdir, variants, seeds_of(arguments.seeds), init_from)


def seeds_of(asked: Sequence[str]) -> list[int]:
    """What --seeds says. Raises Usage."""
    try:
        found = [int(seed) for seed in asked]
    except ValueError:
        found = []
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise Usage(f"--seeds={','.join(asked)}: different numbers, each at least 0, such as 0,1,2")
    return found


def config_words(argv: Sequence[str]) -> list[str]:
    """The words of a command line that are of the config: they go to all programs as they are."""
    found: list[str] = []
    takes = False
    for word in argv:
        if takes and not word.startswith("-"):
            found.append(word)
            takes = False
            continue
        is_config = word.lstrip("-").startswith(("config=", "config.", "noconfig.")) or word.lstrip("-") == "config"
        takes = is_config and word.startswith("-") and "=" not in word
        if is_config and word.startswith("-"):
            found.append(word)
    return found


def words(one: Run, user: Sequence[str]) -> list[str]:
    """The command line of a run, without the name of Python."""
    return ["-m", "mlm_jax.train", *user, *one.words]


# ---- before anything runs ----


def check_run(one: Run, user: Sequence[str], planned: Sequence[Run]) -> Config:
    """The config of a run, which agrees with itself, its rows, and what the run's folder holds. Raises ConfigError."""
    config = config_of(one, user, planned)
    config_module.check(config, devices=devices_asked(config))
    check_begun(one, config)
    check_rows(one, config)
    return config


def config_of(one: Run, user: Sequence[str], planned: Sequence[Run]) -> Config:
    """As `train` will read it. The model that it begins with may be one that is yet to be trained."""
    source = one.changes.get("init_from")
    is_there = not source or (Path(source) / "config.json").is_file()
    if not is_there and not any(str(other.folder) == source for other in planned):
        fix = f"--runs: {one.variant.name} begins with it, and it is not there; train it too, or name --init_from"
        raise ConfigError("config.init_from", source, fix)
    changes = one.changes if is_there else {key: value for key, value in one.changes.items() if key != "init_from"}
    return parse([*user, *one._replace(changes=changes).words], "").config


def check_begun(one: Run, config: Config) -> None:
    """Raises ConfigError where the folder holds a run of another config: it would be compared with what it is not."""
    path = one.folder / "config.json"
    if not path.is_file():
        return
    begun = config_module.load(path)
    left_out = FREE + (OF_LENGTHS if config_module.open_lengths(config) else ())
    if not config.init_from and begun.init_from:  # its source is yet to be trained anew
        return
    for key, asked, was in differences(dataclasses.asdict(config), dataclasses.asdict(begun)):
        if not any(key == name or key.startswith((f"{name}.", f"{name}_")) for name in left_out):
            fix = f"{one.folder} was begun with {was!r}; runs of one study agree in it: name another --workdir"
            raise ConfigError(f"config.{key}", asked, fix)


def differences(asked: dict, was: dict, prefix: str = "") -> list[tuple[str, object, object]]:
    """(key, value, value) of all leaves in which two configs differ."""
    found = []
    for name, value in asked.items():
        if isinstance(value, dict):
            found += differences(value, was[name], f"{prefix}{name}.")
        elif value != was[name]:
            found.append((prefix + name, value, was[name]))
    return found


def check_rows(one: Run, config: Config) -> None:
    """Raises ConfigError where the study's rows are there and were made of something else than the config says."""
    folder = Path(config.data.rows).expanduser()
    if one.variant.continued or not (folder / records.MANIFEST).exists():  # they have the tokenizer of the rows
        return
    from mlm_jax.prepare import changes

    if changed := changes(config, records.read_manifest(folder)):
        fix = f"was made before this changed: {'; '.join(changed)}; name another --workdir"
        raise ConfigError("config.data.rows", str(folder), fix)


# ---- what runs ----


def carry_out(jobs: Sequence[Job], programs: Programs) -> None:
    """Runs what is not finished. Raises Stopped and Failed."""
    for number, job in enumerate(jobs, start=1):
        if job.finished(job.folder):
            continue
        log = job.folder / LOG
        say(f"{number} of {len(jobs)}  {job.name}  {log}")
        programs.run(job.name, job.words, log)


def finished(folder: Path) -> bool:
    """Whether a run has done all its steps, and its last checkpoint is there."""
    from mlm_jax.study.outcome import read_run

    found = read_run(folder)
    return bool(found and found["finished"] and (folder / "checkpoints" / str(found["steps"])).is_dir())


def checked_tasks(paths: Sequence[str]) -> list[Path]:
    """Raises ConfigError for a file that is not there, and for two of one name."""
    found = {}
    for path in paths:
        if not Path(path).is_file():
            raise ConfigError("--tasks", path, "there is no such file")
        if (name := Path(path).stem) in found:
            raise ConfigError("--tasks", path, f"another one is called {name}, too, and both would share a folder")
        found[name] = Path(path)
    return list(found.values())


def task_jobs(path: Path, study: Study, planned: Sequence[Run], folder: Path) -> list[Job]:
    """The fine-tuning of each run on a task, with its seed, and of the baseline's architecture from random weights."""
    jobs = []
    for one in planned:
        names = [one.variant.name, *([SCRATCH] if one.variant.name == study.baseline else [])]
        for name in names:
            place = task_folder(folder, path.stem, name, one.seed)
            line = ["-m", "mlm_jax.finetune", f"--config={path}", f"--config.model={one.folder}"]
            line += [f"--config.seeds=({one.seed},)", *["--config.scratch=True"] * (name == SCRATCH)]
            job = Job(f"{path.stem}/{name}/seed-{one.seed}", [*line, f"--workdir={place}"], place, has_results)
            jobs.append(job)
    return jobs


def has_results(folder: Path) -> bool:
    return (folder / "results.json").is_file()


def measure_times(asked: Asked, configs: Sequence[Config]) -> None:
    """Steps of all variants in turn, to STUDY/times.json, unless they are known. A failure is a warning."""
    path = asked.folder / TIMES
    if {variant.name for variant in asked.variants} <= read_object(path).keys():
        return
    say(f"steps of {len(asked.variants)} variants are measured in turn; --notimes leaves it out")
    import jax

    from mlm_jax.cli.study import times

    each = {one.variant.name: config for one, config in reversed(list(zip(asked.planned, configs)))}
    try:
        found = times.measure({variant.name: each[variant.name] for variant in asked.variants})
    except jax.errors.JaxRuntimeError as error:  # such as for want of memory: all states are there at once
        say(f"warning: steps were not measured: {error}")
        return
    write(path, json.dumps(found, indent=1) + "\n")


def report(asked: Asked) -> int:
    """Writes the findings, and shows them."""
    from mlm_jax.study import facts, runs_page, summary, words

    study, folder = runs.STUDIES[asked.name], asked.arguments.workdir
    tasks = [path.stem for path in checked_tasks(asked.arguments.tasks)]
    times = read_object(asked.folder / TIMES)
    found = summary.summarise(study, asked.variants, asked.seeds, folder, times, tasks)
    about = facts.facts([run.folder for run in asked.planned], folder / "rows")
    config_module.check_writable(asked.folder)
    write(asked.folder / "results.json", json.dumps({**found, "command": asked.command, "facts": about}) + "\n")
    write(asked.folder / "report.md", words.markdown(found, about, asked.command))
    write(asked.folder / "report.html", runs_page.html(found, about, asked.command))
    print(json.dumps(found) if asked.arguments.json else words.terminal(found))
    say(f"look: {asked.folder / 'report.html'}")
    return 0


def write(path: Path, text: str) -> None:
    """Replaces a file when the new one is whole. Raises ConfigError where it cannot be written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError("workdir", str(path), f"cannot be written: {error.strerror}") from None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
