"""`python -m mlm_jax plan --config=FILE --topology=v5e:2x4`: what a run would need on devices that are not here."""

import json
import sys

import numpy as np
from absl import flags

from mlm_jax import config as config_module
from mlm_jax import runtime
from mlm_jax.cli.common import devices_asked, vocabulary_of
from mlm_jax.config import Config, ConfigError
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax plan --config=FILE --topology=NAME [--topology=NAME ...] [--config.KEY=VALUE ...]
                             [--nosearch] [--fill=SHARE] [--mfu=SHARE] [--phase=N] [--json]

Compiles the training step of a config for TPU slices (v5e:2x4) or NVIDIA GPUs (h100:8 is one host of eight, h100:4x8
four) that are not here: memory of a device against its limit, FLOPs, bytes moved, collectives, step time by a roofline,
days; then advice with numbers, among it the largest microbatch that fits (up to three more compilations, unless
--nosearch). Needs no rows and no accelerator, but libtpu (pip install -e '.[tpu]'), or the plugin for CUDA
(pip install -e '.[cuda]'). A compilation takes from half a minute to several. Of a GPU's memory jax takes 75 % unless
XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise, which is the limit here. A run with phases is planned as if all its steps
were of one of them, by default the first (config.phases[0]). Example:

  python -m mlm_jax plan --config=configs/base.py --topology=v5e:2x4 --topology=v6e:2x4
"""


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_multi_string("topology", [], "devices, such as v5e:2x4 or h100:8; once for each", flag_values=values)
    flags.DEFINE_bool("search", True, "look for the largest microbatch that fits", flag_values=values)
    flags.DEFINE_float(
        "fill", 0.98, "share of the places that hold a token", lower_bound=0.01, upper_bound=1.0, flag_values=values
    )
    flags.DEFINE_float(
        "mfu",
        0.4,
        "utilisation to reckon with beside the roofline",
        lower_bound=0.01,
        upper_bound=1.0,
        flag_values=values,
    )
    flags.DEFINE_integer("phase", 0, "of config.phases, which is planned", lower_bound=0, flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, define=define)


def run(arguments: Arguments) -> int:
    if not arguments.topology:
        raise Usage("--topology=NAME is missing, such as --topology=v5e:2x4")
    from mlm_jax import plan

    plan.set_environment()
    config = phase_asked(arguments.config, arguments.phase, arguments.fill)
    vocabulary = vocabulary_of(config)
    vocabulary.counts = np.arange(vocabulary.size, 0, -1)  # constants of the program, where masks go by frequency
    slices = [plan.topology(name) for name in arguments.topology]
    runtime.start()
    for on in slices:  # all before the first compilation
        plan.check(config, vocabulary, on)
    plans = [plan.plan(config, vocabulary, on, arguments.fill, arguments.mfu, arguments.search, say) for on in slices]
    advice = [plan.advise(one) for one in plans]
    if arguments.json:
        print(json.dumps({"plans": [plan.numbers(*both) for both in zip(plans, advice)]}))
    else:
        print(plan.show(plans, advice))
    return 0


def phase_asked(config: Config, number: int, fill: float) -> Config:
    """The config of the phase that is planned, its lengths in steps. fill: `--fill`. Raises ConfigError."""
    if config.phases:  # what else is wrong is said of a topology
        config_module.check(config, devices_asked(config))
    phases = config_module.phase_configs(config_module.without_rows(config, fill))
    if number >= len(phases):
        raise ConfigError("--phase", number, f"the config has {len(phases)}, numbered from 0")
    if len(phases) > 1:
        say(f"planned as if all steps were those of config.phases[{number}] of {len(phases)}; --phase=N takes another")
    return phases[number]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
