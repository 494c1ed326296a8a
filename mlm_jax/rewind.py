"""Going back at a spike of the loss: from a checkpoint before it, without the rows around it.

PaLM (Chowdhery et al., 2022, section 5.1) went on from a checkpoint about 100 steps before a spike and left out the 200
to 500 batches around it, after which it did not come again. Here a line of `skipped.jsonl` says which rows are left
out; once it is on the disk the run has gone back, and whoever starts it anew goes on from there: checkpoints that know
of fewer lines, and are of later steps than a line goes back to, count no more.
"""

import datetime
from collections.abc import Callable
from pathlib import Path

from mlm_jax import config as config_module
from mlm_jax import runtime, spikes
from mlm_jax.checkpoint import folder_of, problem, read_meta, steps_in
from mlm_jax.config import Config, ConfigError, RunError
from mlm_jax.records import read_manifest
from mlm_jax.spikes import Spike

KNOWN = "skipped"  # what a checkpoint knows of the record


def doubt(workdir: Path) -> Callable[[int], str | None]:
    """`doubt(step)`: why a whole checkpoint counts no more, None where it does. Of the record as it is now."""
    record = spikes.read_record(workdir)
    return lambda step: spikes.left_behind(record, step, read_meta(workdir, step).get(KNOWN, [])) if record else None


def record_of(workdir: Path, saved: dict) -> list[dict]:
    """`spikes.agreed` of process 0, in all processes. saved: of the checkpoint that the run goes on from."""
    return runtime.by_first(lambda: spikes.agreed(workdir, saved.get(KNOWN, [])))


def check_record(record: list[dict], config: Config, workdir: Path, manifest: dict) -> None:
    """Raises ConfigError where the record is of other rows, or of another order. manifest: of the first rows."""
    here = order_facts(config, manifest)
    for line in record:
        if line["of"] != here:
            fix = f"tells of rows in another order ({line['of']}, here {here}); remove it, or name another folder"
            raise ConfigError("workdir", str(workdir / spikes.FILE), fix)


def order_facts(config: Config, manifest: dict) -> dict:
    """What a place means something by."""
    return {"seed": config.seed, "data": manifest["fingerprint"]}


def go_back(config: Config, workdir: Path, spike: Spike) -> dict:
    """Records that the run goes back from a spike, and to where; returns the line. All processes call it together.

    Raises RunError where it went back too often, or there is nothing to go back to.
    """
    return runtime.by_first(lambda: _recorded(config, workdir, spike))


def _recorded(config: Config, workdir: Path, spike: Spike) -> dict:
    record, watch = spikes.read_record(workdir), config.watch
    if len(record) >= watch.most_rewinds:
        fix = f"the run went back {len(record)} times, as often as config.watch.most_rewinds allows"
        raise RunError(f"step {spike.step}: {spike}; {fix}")
    to = _step_before(config, workdir, spike)
    streams = 1 + max(config_module.streams(config))
    saved = read_meta(workdir, to) if to else {"position": []}
    read = saved.get("position", [saved.get("rows_read", 0)])  # of one stream, as an older version saves it
    lines = spikes.steps_in(workdir / "metrics.jsonl", to, spike.step)
    since = max(to, spike.step - watch.skip_steps)
    line = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **spike._asdict(),
        "to": to,
        "rows": spikes.new_holes(lines, read + [0] * (streams - len(read)), since),
        "of": order_facts(config, read_manifest(config_module.rows_folder(config, workdir))),
    }
    spikes.write_record(workdir, [*record, line])
    return line


def _step_before(config: Config, workdir: Path, spike: Spike) -> int:
    """The checkpoint to go back to: the newest whole one that has read nothing of what will be left out.

    Where there is none, the newest from before the spike; 0, the beginning, where that is no farther back than the
    oldest checkpoint might be. Raises RunError where nothing is left.
    """
    before = [step for step in reversed(steps_in(workdir)) if step < spike.first]
    whole = [step for step in before if not problem(folder_of(workdir, step))]
    unread = [step for step in whole if step <= spike.step - config.watch.skip_steps]
    for step in (*unread, *whole):
        return step
    if not config.branch_from and spike.step <= config.checkpoint.keep * config.checkpoint.every_steps:
        return 0
    raise RunError(f"step {spike.step}: {spike}; there is no checkpoint of this run from before it to go back to")


def describe(line: dict) -> str:
    """For the terminal: why the run goes back just now, to where, and without what."""
    spike = Spike(*(line[name] for name in Spike._fields))
    rows = [
        f"{end - first:,} rows, places {first:,} to {end - 1:,} of {f'stream {stream}' if stream else 'the order'}"
        for stream, first, end in line["rows"]
    ]
    return (
        f"rewind      step {spike.step:,}: {spike}\n"
        f"            back to step {line['to']:,}, from now on without {'; '.join(rows)}"
    )


def summary(record: list[dict]) -> list[str]:
    """A line for the terminal, if there is anything that the run leaves out."""
    if not record:
        return []
    streams = 1 + max(hole[0] for line in record for hole in line["rows"])
    rows = sum(end - first for holes in spikes.holes_of(record, streams) for first, end in holes)
    return [f"left out    {rows:,} rows around {len(record)} spike(s) of the loss, see {spikes.FILE}"]
