"""`python -m mlm_jax evaluate --workdir=DIR`: losses of any checkpoint, on any rows, at several mask rates."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records, runtime
from mlm_jax.config import Config, ConfigError, MeshConfig
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax evaluate --workdir=DIR [--step=STEP,...|all] [--rows=DIR] [--rates=RATE,...]

Evaluates the checkpoints of a run on held-out rows: MASK at every selected place, always the same places. Example:

  python -m mlm_jax evaluate --workdir=runs/tiny --step=all --rates=0.15,0.3,0.5
"""
NEWEST, ALL = "newest", "all"
ROWS_A_DEVICE = 32  # at most, in a batch


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_list("step", [NEWEST], "checkpoints to evaluate: their steps, or all", flag_values=values)
    flags.DEFINE_string("rows", None, "folder of prepared rows, by default those of the run", flag_values=values)
    flags.DEFINE_enum("split", "eval", ["eval", "train"], "held-out rows, or training rows", flag_values=values)
    flags.DEFINE_list("rates", [], "shares of the tokens to mask, by default that of the run", flag_values=values)
    flags.DEFINE_integer("max_rows", 0, "most rows of each set; 0: all", lower_bound=0, flag_values=values)
    flags.DEFINE_bool("shuffled", False, "also the loss with the words around shuffled", flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object a result, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define)


def run(arguments: Arguments) -> int:
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    for result in results(arguments):
        print(json.dumps(result) if arguments.json else show(result), flush=True)
    return 0


def results(arguments: Arguments) -> Iterator[dict]:
    """{"step", "rate", "set", and the means of `evaluate.evaluate`} for each checkpoint, rate and set."""
    runtime.start()
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from mlm_jax import sharding
    from mlm_jax.checkpoint import load_config, load_model
    from mlm_jax.evaluate import make_evaluation

    workdir = arguments.workdir
    of_run = load_config(workdir)
    # the rows of the first phase, and the masks that all of them are evaluated by
    config = dataclasses.replace(config_module.phase_configs(of_run)[0], mask=of_run.mask)
    config = here(config, jax.device_count(), arguments.max_rows)
    folder = Path(arguments.rows).expanduser() if arguments.rows else config_module.rows_folder(config, workdir)
    manifest = records.read_manifest(folder)
    if not any(corpus["splits"][arguments.split]["rows"] for corpus in manifest["corpora"]):
        raise ConfigError("--rows", str(folder), f"has no rows of the split {arguments.split!r}")
    config = dataclasses.replace(config, row_length=manifest["row_length"])
    mesh = sharding.make_mesh(config_module.check(config, jax.device_count()).mesh)
    evaluations: dict[float, object] = {}
    for step in steps(arguments.step, workdir):
        model, params, tokenizer = load_model(workdir, step, NamedSharding(mesh, PartitionSpec()))
        if tokenizer.hash != manifest["tokenizer"]["hash"]:
            raise ConfigError("--rows", str(folder), f"were made with another tokenizer than that of {workdir}")
        vocabulary = tokenizer.vocabulary(np.array(manifest["unigrams"]))
        for rate in rates(arguments.rates, config):
            if rate not in evaluations:
                fixed = dataclasses.replace(config, evaluate=dataclasses.replace(config.evaluate, rate=rate))
                evaluations[rate] = make_evaluation(model, vocabulary, fixed, folder, manifest, mesh, arguments.split)
            with sharding.activate(mesh, config.mesh):
                found = evaluations[rate](params, shuffled=arguments.shuffled)
            for name, means in found.items():
                yield {"step": step, "rate": rate, "set": name, **means}


def here(config: Config, devices: int, max_rows: int) -> Config:
    """The config of a run for the devices of this machine; masks do not depend on the batch, so nothing changes."""
    rows = min(config.rows_per_device * devices or config.batch_size, config.batch_size // config.accumulation)
    size = config_module.round_up(min(rows, ROWS_A_DEVICE * devices), devices)
    batch = {"batch_size": size, "accumulation": 1, "rows_per_device": 0}
    limit = dataclasses.replace(config.evaluate, rows=max_rows)
    return dataclasses.replace(config, mesh=MeshConfig(), evaluate=limit, **batch)


def steps(asked: list[str], workdir: Path) -> list[int]:
    """The steps of the checkpoints that were asked for. Raises Usage, and ConfigError where there is none."""
    from mlm_jax.checkpoint import folder_of, newest, problem, steps_in

    if asked == [ALL]:
        found = [step for step in steps_in(workdir) if not problem(folder_of(workdir, step))]
    elif asked == [NEWEST]:
        found = [step for step in [newest(workdir)] if step is not None]
    else:
        try:
            return [int(step) for step in asked]
        except ValueError:
            raise Usage(f"--step={','.join(asked)}: numbers of steps, or {ALL}") from None
    if not found:
        raise ConfigError("workdir", str(workdir), "holds no whole checkpoint")
    return found


def rates(asked: list[str], config: Config) -> list[float]:
    from mlm_jax import masking

    try:
        found = [float(rate) for rate in asked] or [masking.fixed(config.mask, config.evaluate).rate]
    except ValueError:
        raise Usage(f"--rates={','.join(asked)}: numbers between 0 and 1") from None
    for rate in found:
        if not 0 < rate <= 1:
            raise ConfigError("--rates", rate, "must lie in (0, 1]")
    return found


def show(result: dict) -> str:
    from mlm_jax.console import evaluation_line

    deciles = [result[key] for key in sorted(result, key=len) if key.startswith("loss_decile_")]
    by_frequency = "  ".join(f"{loss:.2f}" for loss in deciles)
    return (
        f"step {result['step']:,}  mask {result['rate']:.0%}  {evaluation_line(result['set'], result)}\n"
        f"  loss by frequency of the target, from the most frequent tenth: {by_frequency}"
    )
