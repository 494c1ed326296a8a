"""`python -m mlm_jax preview --config=FILE`: what the model will see, before any training."""

import functools
import os
import sys
from pathlib import Path

from absl import flags

from mlm_jax.cli.common import masks_at_start, open_rows, reader
from mlm_jax.config import Config, ConfigError
from mlm_jax.flags import Arguments, command

USAGE = """usage: python -m mlm_jax preview --config=FILE [--config.KEY=VALUE ...] [--rows=N] [--visits=N] [--html=FILE]

Shows training rows with their segments and words, and which tokens are masked, replaced or kept. Prepares the rows if
they are missing. Example:

  python -m mlm_jax preview --config=configs/tiny.py --config.mask.rate=0.3 --visits=2 --html=preview.html
"""


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("rows", 3, "how many rows to show", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("first_row", 0, "number of the first one", lower_bound=0, flag_values=values)
    about = "in place of first_row, in the order in which training reads them, each at its visit; as a warning names it"
    flags.DEFINE_integer("first_place", None, about, lower_bound=0, flag_values=values)
    flags.DEFINE_integer("visits", 1, "masks of each row, of its first visits", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("at_step", 1, "step whose rate is used, where it changes", lower_bound=1, flag_values=values)
    flags.DEFINE_string("html", None, "file to write the same to as a page", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, define=define)


def run(arguments: Arguments) -> int:
    rows = open_rows(arguments.config, arguments.workdir)
    config = rows.config
    from mlm_jax import data, masking, preview

    total = sum(corpus["splits"]["train"]["rows"] for corpus in rows.manifest["corpora"])
    if arguments.first_row >= total:
        raise ConfigError("--first_row", arguments.first_row, f"there are {total:,} training rows")
    if arguments.first_place is None:
        numbers = range(arguments.first_row, min(arguments.first_row + arguments.rows, total))
        asked = [(row, visit) for row in numbers for visit in range(arguments.visits)]
    else:
        places = range(arguments.first_place, arguments.first_place + arguments.rows)
        asked = data.rows_at(rows.manifest, config, data.FIRST, places)
    step = min(arguments.at_step, config.steps) - 1
    make, fed = masks_at_start(config, rows)
    mask, read = functools.partial(make, step), reader(config)
    found = preview.rows(rows.folder, rows.manifest, mask, rows.tokenizer, rows.vocabulary, asked, read)
    rate = float(masking.rate_at(config.mask, config.steps, fed.get("rate"))(step))
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(preview.terminal(found, color))
    if arguments.html:
        _write(Path(arguments.html), preview.html(found, f"Masks of {rows.folder}", about(config, rate)))
    return 0


def about(config: Config, rate: float) -> str:
    mask = config.mask
    shares = " / ".join(f"{share:.0%}" for share in mask.corruption)
    corruption = f"MASK / random / kept {shares} per {mask.corruption_per}"
    return f"Unit {mask.unit}, rate {rate:.0%}, {mask.regime}; {corruption}."


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError("--html", str(path), f"cannot be written: {error.strerror}") from None
    print(f"\n{path}", file=sys.stderr)
