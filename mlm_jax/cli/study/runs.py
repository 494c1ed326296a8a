"""`python -m mlm_jax study STUDY --config=FILE --workdir=DIR`: trains the runs of a study, then says what they show."""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records
from mlm_jax.cli.common import devices_asked
from mlm_jax.cli.study.programs import Failed, Programs, Stopped, locked
from mlm_jax.config import Config, ConfigError
from mlm_jax.flags import PREEMPTED, Arguments, Usage, command, parse
from mlm_jax.study import runs
from mlm_jax.study.runs import Run, Study

USAGE = """usage: python -m mlm_jax study {name} --config=FILE [--config.KEY=VALUE ...] --workdir=DIR [--seeds=N,...]
           [--runs=VARIANT,...] [--dry] [--report_only]

{question} Trains these variants of a config, each with every seed, one after
the other, to DIR/runs/VARIANT/seed-N; the same command again goes on where it was stopped. Then writes DIR/{name}:

{variants}

Example:

  python -m mlm_jax study {name} --config=configs/study/small.py --workdir=studies/small --seeds=0,1,2
"""
LOG = "log.txt"
# What may differ between a run and what the command asks for: it changes nothing of what the run has learned.
FREE = ("data.rows", "data.encoded", "data.workers", "checkpoint", "audit", "watch", "mesh")
OF_LENGTHS = ("steps", "length", "optimizer.warmup", "optimizer.cooldown")  # come to steps with the rows


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds of each variant", flag_values=values)
    flags.DEFINE_list("runs", [], "variants to train and compare; by default all", flag_values=values)
    flags.DEFINE_string("init_from", "", "model that continued variants begin with", flag_values=values)
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
    if arguments.dry:
        for one in planned:
            print(shlex.join(["python", *words(one, user)]))
        return 0
    config_module.check_writable(folder)
    with locked(folder) as lock, contextlib.closing(Programs(lock)) as programs:
        try:
            train(planned, configs, user, programs)
        except Stopped:
            say("stopped; the same command goes on from there")
            return PREEMPTED
        except Failed as error:
            say(f"mlm_jax: {error}")
            return error.code
    return 0


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


def train(planned: Sequence[Run], configs: Sequence[Config], user: Sequence[str], programs: Programs) -> None:
    """Trains what is not finished. Raises Stopped and Failed."""
    for number, one in enumerate(planned, start=1):
        if finished(one.folder):
            continue
        log = one.folder / LOG
        say(f"{number} of {len(planned)}  {one.name}  {log}")
        programs.run(one.name, words(one, user), log)


def finished(folder: Path) -> bool:
    """Whether a run has done all its steps, and its last checkpoint is there."""
    from mlm_jax.study.outcome import read_run

    found = read_run(folder)
    return bool(found and found["finished"] and (folder / "checkpoints" / str(found["steps"])).is_dir())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
