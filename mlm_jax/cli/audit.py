"""`python -m mlm_jax audit --config=FILE`: what the masks of a config really do, counted on its rows."""

import itertools
import json
import sys
from collections.abc import Iterator

import numpy as np
from absl import flags

from mlm_jax.cli.common import masks_at_start, open_rows, reader
from mlm_jax.flags import Arguments, command

USAGE = """usage: python -m mlm_jax audit --config=FILE [--config.KEY=VALUE ...] [--rows=N] [--visits=N] [--json]

Makes the masks that training will make and counts: realised rates, what stands at the selected places, how often
tokens are selected by position, length and frequency. Ends with 1 if a rule is broken. Example:

  python -m mlm_jax audit --config=configs/tiny.py --config.mask.rate=0.4 --visits=2
"""
BATCH_ROWS = 256


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("rows", 4096, "how many training rows to mask", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("visits", 1, "masks of each row, of its first visits", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("at_step", 1, "step whose rate is used, where it changes", lower_bound=1, flag_values=values)
    flags.DEFINE_bool("json", False, "the findings as one JSON object, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, define=define)


def run(arguments: Arguments) -> int:
    audit = audited(arguments)
    breaches, doubts = audit.breaches(), audit.doubts()
    if arguments.json:
        print(json.dumps({**audit.findings(), "breaches": breaches, "doubts": doubts}))
    else:
        print(show(audit.findings()))
    for line in [*breaches, *(f"warning: {doubt}" for doubt in doubts)]:
        print(f"mlm_jax: {line}", file=sys.stderr)
    return 1 if breaches else 0


def audited(arguments: Arguments):
    """An `audit.Audit` of the rows that were asked for. Raises ConfigError."""
    rows = open_rows(arguments.config, arguments.workdir)
    config = rows.config
    import jax

    from mlm_jax import data
    from mlm_jax.audit import asked

    step = min(arguments.at_step, config.steps) - 1
    make, fed = masks_at_start(config, rows)
    read = reader(config)
    shards = data.Shards(rows.folder, rows.manifest, "train")
    audit = asked(rows.vocabulary, config.mask, config.steps, step, fed.get("rate"))
    for numbers in blocks(min(arguments.rows, sum(shards.rows)), arguments.visits):
        batch = jax.device_get(read(shards.batch(numbers)))
        audit.add(batch, jax.device_get(make(step, batch)))
    return audit


def blocks(rows: int, visits: int) -> Iterator[np.ndarray]:
    """(row, visit) pairs in blocks of equal size; row -1 fills up the last one."""
    pairs = itertools.product(range(rows), range(visits))
    while block := list(itertools.islice(pairs, BATCH_ROWS)):
        yield np.array(block + [(-1, 0)] * (BATCH_ROWS - len(block)))


def show(findings: dict) -> str:
    """The findings as lines and small tables."""
    rate, broken, alike = findings["rate"], findings["broken"], findings["correlation of neighbouring rows"]
    shares = ", ".join(f"{name} {share:.2%}" for name, share in findings["corruption"].items())
    lines = [
        f"rows         {findings['rows']:,}, {findings['maskable']:,} tokens that may be masked",
        f"selected     {rate['realised']:.3%} of them, {rate['asked']:.3%} asked for: {shares}",
        f"dropped      {findings['dropped for want of slots']:,} tokens for want of slots",
        f"neighbours   masks of neighbouring rows are correlated by {alike:+.4f}",
        *(f"rule         {count:,} {rule}" for rule, count in broken.items()),
    ]
    if sum(findings["pairs"].values()):
        labels = ", ".join(f"{count:,} with label {label}" for label, count in findings["pairs"].items())
        lines.insert(1, f"pairs        {labels}")
    for name, rates in findings["rate by"].items():
        lines += ["", f"selected by {name}", "  " + "  ".join(f"{key}: {value:.1%}" for key, value in rates.items())]
    return "\n".join(lines)
