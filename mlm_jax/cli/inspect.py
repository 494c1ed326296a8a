"""`python -m mlm_jax inspect DIR`: what is in a folder of rows, and whether it is whole."""

import json
import sys
from pathlib import Path

from absl import flags

from mlm_jax import config as config_module
from mlm_jax import inspection
from mlm_jax.config import ConfigError
from mlm_jax.flags import USER_ERROR, Arguments, Usage, command
from mlm_jax.records import MANIFEST

USAGE = """usage: python -m mlm_jax inspect DIR [--quick] [--json] [--html=FILE]
       python -m mlm_jax inspect --config=FILE [--config.KEY=VALUE ...] [--workdir=DIR]

Counts what a folder of prepared rows (or that of a run) holds, and checks it: every shard's hash against the manifest,
numbers of rows, special tokens in place, ids in range, counts of ids. A check that fails is named with its file, and
the exit code is 2. Nothing is prepared or changed. Example:

  python -m mlm_jax inspect runs/tiny --html=rows.html
"""
QUICK_ROWS = 20_000


def define(values: flags.FlagValues) -> None:
    about = f"reads {QUICK_ROWS:,} rows, evenly spread, in place of all; hashes and totals are not checked then"
    flags.DEFINE_bool("quick", False, about, flag_values=values)
    about = "as --quick, with so many rows"
    flags.DEFINE_integer("max_rows", None, about, lower_bound=1, flag_values=values)
    about = "processes that read; 0: one per core where there is much to read"
    flags.DEFINE_integer("workers", 0, about, lower_bound=0, flag_values=values)
    flags.DEFINE_bool("json", False, "the findings as one JSON object, for programs", flag_values=values)
    flags.DEFINE_string("html", None, "file to write a page with plots to", flag_values=values)


def main(argv: list[str]) -> int:
    needs_config = any(word.partition("=")[0] == "--config" for word in argv)
    return command(run, argv, USAGE, needs_config=needs_config, define=define, words=True)


def run(arguments: Arguments) -> int:
    """Prints what the folder holds. Raises ConfigError where it holds no rows."""
    folder, data = _asked(arguments)
    most_rows = arguments.max_rows or (QUICK_ROWS if arguments.quick else 0)
    findings = inspection.inspect(folder, most_rows, arguments.workers, progress=sys.stderr.isatty())
    inspection.weights(findings, data)
    if arguments.json:
        print(json.dumps(findings, ensure_ascii=False))
    else:
        from mlm_jax.inspection import terminal

        print(terminal.text(findings))
    if arguments.html:
        _write(Path(arguments.html), findings)
    for failure in findings["failures"]:
        print(f"mlm_jax: {failure['file']}: {failure['check']}: {failure['problem']}", file=sys.stderr)
    return USER_ERROR if findings["failures"] else 0


def _asked(arguments: Arguments) -> tuple[Path, dict]:
    """The folder of rows that is meant, and `data` of the config that goes with it, as far as there is one."""
    config, words = arguments.config, arguments.rest
    if len(words) > 1 or (words and (config or arguments.given("workdir"))):
        raise Usage(f"unexpected {words[-1]!r}; name one folder, or --config, or --workdir")
    if config:
        return config_module.rows_folder(config, arguments.workdir), {"weights": list(config.data.weights)}
    if not words and not arguments.given("workdir"):
        raise Usage("name a folder of rows or of a run, such as runs/tiny, or --config=FILE")
    folder = Path(words[0]).expanduser() if words else arguments.workdir
    if (folder / MANIFEST).exists():
        return folder, inspection.run_config(folder.parent)
    data = inspection.run_config(folder)
    return Path(data.get("rows") or folder / "rows").expanduser(), data


def _write(path: Path, findings: dict) -> None:
    from mlm_jax.inspection import page

    try:
        path.write_text(page.html(findings), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError("--html", str(path), f"cannot be written: {error.strerror}") from None
    print(f"\n{path}", file=sys.stderr)
