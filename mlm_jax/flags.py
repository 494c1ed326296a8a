"""Command lines: `--config=FILE` with overrides of single fields, `--workdir=DIR`, and flags of a verb's own."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from mlm_jax.config import Config, ConfigError, RunError, with_source

# exit codes; 0: all planned steps are done, 1: anything else
USER_ERROR = 2  # what the user can mend
PREEMPTED = 3  # stopped on demand, after a good save


class Usage(Exception):
    """A command line that cannot be read; its text is for the user."""


class Arguments:
    """What a command line says: `config`, `workdir`, the verb's own flags by name, and `rest`, the words after them."""

    def __init__(self, config: object, values: flags.FlagValues, rest: list[str], default_workdir: str):
        self.config = config
        self.rest = rest
        self._values = values
        self.workdir = Path(values["workdir"].value or default_workdir).expanduser()

    def given(self, name: str) -> bool:
        """Whether a flag of this name stands on the command line."""
        return bool(self._values[name].present)

    def __getattr__(self, name: str):
        return self._values[name].value


def choose(argv: list[str], program: str, what: str, table: dict[str, tuple[str, str]]) -> int:
    """Runs `main` of the module that the first word names, with the words after it; returns the exit code.

    table: name -> (module, what it does); what: what the names are, such as "verb".
    """
    lines = [f"usage: {program} {what.upper()} ...   ({what.upper()} --help shows its flags and an example)", ""]
    width = max(10, *map(len, table))
    usage = "\n".join(lines + [f"  {name:{width}} {text}" for name, (_, text) in table.items()])
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage)
        return 0 if argv else USER_ERROR
    name, *rest = argv
    if name not in table:
        print(f"mlm_jax: there is no {what} {name!r}\n\n{usage}", file=sys.stderr)
        return USER_ERROR
    return importlib.import_module(table[name][0]).main(rest)


Define = Callable[[flags.FlagValues], None]


def command(
    run: Callable[[Arguments], int],
    argv: list[str],
    usage: str,
    needs_config: bool = True,
    define: Define | None = None,
    words: bool = False,
) -> int:
    """Reads the command line of a verb and runs it; returns the exit code, which run(arguments) gives.

    What the user can mend, Usage and ConfigError, is one message and USER_ERROR; RunError is one, too, and 1. See
    `parse` for the rest.
    """
    try:
        return run(parse(argv, usage, needs_config, define, words))
    except (Usage, ConfigError) as error:
        print(f"mlm_jax: {error}", file=sys.stderr)
        return USER_ERROR
    except RunError as error:
        print(f"mlm_jax: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # who reads the output has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written at the end
        return 1


def parse(
    argv: list[str],
    usage: str,
    needs_config: bool = True,
    define: Define | None = None,
    words: bool = False,
    kind: type = Config,
) -> Arguments:
    """Reads a command line (without the program's name).

    usage: shown by --help. define(values): adds flags of a verb's own. words: whether words that are no flags may
    stand on it. kind: what the config file returns. Raises Usage for anything that is not right; ConfigError for a
    config file that is missing or returns something else.
    """
    values = flags.FlagValues()
    line = ["mlm_jax", *argv]
    config_flags.DEFINE_config_file("config", None, "file of the configuration", flag_values=values, sys_argv=line)
    flags.DEFINE_string("workdir", None, "folder of the run; by default runs/NAME of the config", flag_values=values)
    flags.DEFINE_bool("help", False, "show this", short_name="h", flag_values=values)
    if define:
        define(values)
    if any(word in ("--help", "-h", "--help=true") for word in argv):
        print(usage.rstrip() + "\n\nFlags:\n" + _flags_help(values))
        sys.exit(0)
    path = _config_path(argv)
    if needs_config:
        _check_config_file(path)
    try:
        rest = values(line)[1:]
        config = values["config"].value
        if needs_config:
            vars(config)  # an error in the config file shows when its result is looked at
    except flags.Error as error:
        raise Usage(_last_line(error).replace("flag --config.", "--config.")) from None
    except Exception as error:  # a field that does not exist, or whatever a config file does
        if isinstance(error, KeyError) and "not found on dataclass" in str(error):
            raise Usage(f"{_guilty_flag(argv, str(error))}: {error.args[0]}") from None
        raise Usage(f"--config={path}: {_last_line(error)}") from None
    if needs_config and not isinstance(config, kind):
        found = type(config).__name__
        raise ConfigError("--config", path, f"get_config() returned a {found}, not a {kind.__name__}")
    if rest and not words:
        raise Usage(f"unexpected {rest[0]!r}; flags begin with --")
    arguments = Arguments(config, values, rest, f"runs/{Path(path).stem}" if path else "")
    if needs_config and kind is Config:
        arguments.config = with_source(config, arguments.workdir)
    return arguments


def _flags_help(values: flags.FlagValues) -> str:
    lines = [f"  --{name}: {values[name].help}" for name in sorted(values) if name != "h"]
    lines.append("  --config.KEY=VALUE: overrides one field, such as --config.optimizer.learning_rate=3e-4")
    return "\n".join(lines)


def _config_path(argv: list[str]) -> str:
    for i, word in enumerate(argv):
        if word.startswith("--config="):
            return word.partition("=")[2]
        if word == "--config" and i + 1 < len(argv):
            return argv[i + 1]
    return ""


def _check_config_file(path: str) -> None:
    if not path:
        raise Usage("--config=FILE is missing, such as --config=configs/tiny.py")
    if not Path(path).is_file():
        raise ConfigError("--config", path, "there is no such file")


def _last_line(error: Exception) -> str:
    """What a message comes to; ml_collections puts a traceback before it."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _guilty_flag(argv: list[str], error: str) -> str:
    for word in argv:
        name = word.partition("=")[0]
        if name.startswith("--config.") and f"{name.rpartition('.')[2]} " in error:
            return name
    return "--config"
