"""`python -m mlm_jax study coverage --config=FILE`: how often tokens are selected under each regime of masking."""

import dataclasses
import functools
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from mlm_jax.cli.common import masks_at_start, open_rows
from mlm_jax.config import Config, ConfigError
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax study coverage --config=FILE [--config.KEY=VALUE ...] [--visits=N]
           [--versions=K,...] [--max_rows=N] [--out=DIR] [--json]

Makes the masks of training rows at their first visits, with the same masks at every visit (static), with a few in turn
(multi-version) and with new ones (dynamic), all else as the config has it. Shows the share of the tokens selected at
least once, the variance of how often, and the entropy, each beside its closed form for independent tokens. Example:

  python -m mlm_jax study coverage --config=configs/tiny.py --config.mask.rate=0.4 --versions=4,10 --out=coverage
"""
MOST_VISITS = 1000  # for which `study.coverage` has the closed forms
BATCH_ROWS = 256
FEW = 0.5  # share of the training rows below which a warning says that not all are counted


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("visits", 40, "visits of each row", 1, MOST_VISITS, flag_values=values)
    flags.DEFINE_list("versions", [], "numbers of masks that take turns; by default of the config", flag_values=values)
    flags.DEFINE_integer("max_rows", 4096, "most training rows; 0: all", lower_bound=0, flag_values=values)
    flags.DEFINE_integer("at_step", 1, "step whose rate is used, where it changes", lower_bound=1, flag_values=values)
    flags.DEFINE_string("out", None, "folder for report.html and coverage.json", flag_values=values)
    flags.DEFINE_bool("json", False, "the findings as one JSON object, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(lambda arguments: run(arguments, argv), argv, USAGE, define=define)


def run(arguments: Arguments, argv: list[str]) -> int:
    versions = numbers_of_masks(arguments.versions, arguments.config)
    out = Path(arguments.out).expanduser() if arguments.out else None
    if out:
        make_folder(out)
    found = findings(arguments, versions)
    from mlm_jax.study import coverage_page

    if out:
        text = shlex.join(["python", "-m", "mlm_jax", "study", "coverage", *argv])
        write(out / "report.html", coverage_page.html(found, about(found), text))
        write(out / "coverage.json", json.dumps(found) + "\n")
    print(json.dumps(found) if arguments.json else f"{about(found)}\n\n{coverage_page.terminal(found)}")
    return 0


def numbers_of_masks(asked: list[str], config: Config) -> list[int]:
    """What --versions says, or the config. Raises Usage."""
    try:
        found = [int(number) for number in asked] or [config.mask.versions]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise Usage(f"--versions={','.join(asked)}: numbers of masks of a row, each at least 1, such as 4,10")
    return list(dict.fromkeys(found))


def findings(arguments: Arguments, versions: list[int]) -> dict:
    """What `study.coverage.findings` gives, and of what. Raises ConfigError."""
    rows = open_rows(arguments.config, arguments.workdir)
    config = rows.config
    from mlm_jax import data, masking
    from mlm_jax.study import coverage

    shards = data.Shards(rows.folder, rows.manifest, "train")
    total = sum(shards.rows)
    numbers = spread(total, arguments.max_rows or total)
    if len(numbers) < FEW * total:
        text = f"{len(numbers):,} of {total:,} training rows are counted, evenly spread; --max_rows=0 counts all"
        print(f"mlm_jax: warning: {text}", file=sys.stderr)
    step = min(arguments.at_step, config.steps) - 1
    masks = []
    for mask_config in coverage.regimes(config.mask, versions):
        mask, fed = masks_at_start(dataclasses.replace(config, mask=mask_config), rows)
        masks.append((mask_config, functools.partial(mask, step)))
    batches = (shards.batch(block) for block in blocks(numbers))
    counts = coverage.count(batches, masks, rows.vocabulary, arguments.visits)
    asked = float(masking.rate_at(config.mask, config.steps, fed.get("rate"))(step))
    about = {"unit": config.mask.unit, "priority": config.mask.priority, "rate asked for": asked}
    return {**about, "folder": str(rows.folder), "training rows": total, **coverage.findings(counts)}


def spread(total: int, most: int) -> np.ndarray:
    """At most `most` of `total` row numbers, evenly spread, so that every corpus has its share."""
    return np.arange(min(total, most)) * total // min(total, most)


def blocks(numbers: np.ndarray) -> Iterator[np.ndarray]:
    """(row, visit 0) pairs in blocks of equal size, with a bar on a terminal; row -1 fills up the last one."""
    from tqdm import tqdm

    for start in tqdm(range(0, len(numbers), BATCH_ROWS), desc="rows", unit_scale=BATCH_ROWS, disable=None):
        block = numbers[start : start + BATCH_ROWS]
        rows = np.concatenate([block, np.full(BATCH_ROWS - len(block), -1)])
        yield np.stack([rows, np.zeros_like(rows)], axis=1)


def about(found: dict) -> str:
    dynamic = found["regimes"][-1]
    counted = f"{found['rows']:,} of {found['training rows']:,} training rows of {found['folder']}"
    rate = f"rate {found['rate asked for']:.2%} asked for, {dynamic['rate']:.2%} realised"
    lost = dynamic["dropped for want of slots"]
    slots = f" {lost:,} selections found no slot." if lost else ""
    masks = f"Unit {found['unit']}, priority {found['priority']}, {rate}."
    return f"{masks} {found['tokens']:,} tokens that may be masked, in {counted}.{slots}"


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--out", str(folder), f"cannot be made: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--out", str(path), f"cannot be written: {error.strerror}") from None
    print(path, file=sys.stderr)
