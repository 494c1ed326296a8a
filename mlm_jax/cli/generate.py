"""`python -m mlm_jax generate --workdir=DIR "text with [MASK]s"`."""

import json

from absl import flags

from mlm_jax import runtime
from mlm_jax.cli import texts
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax generate --workdir=DIR "text with [MASK]s, or [MASK:5]" ["another text" ...]

Fills all [MASK]s of a text together. [MASK:5] stands for five; --new_tokens=5 puts five after each text. DIR: a run,
one of its checkpoints (DIR/checkpoints/STEP), or a folder of the hub format. Examples:

  python -m mlm_jax generate --workdir=runs/tiny "Return a [MASK:3] of the arguments."
  python -m mlm_jax generate --workdir=runs/tiny --method=gibbs --temperature=0.7 --seed=1 --new_tokens=8 "Return"
"""


def define(values: flags.FlagValues) -> None:
    texts.define(values)
    method = "mask-predict: the least sure again and again; gibbs: one after another, drawn anew; left-to-right"
    flags.DEFINE_string("method", "mask-predict", method, flag_values=values)
    flags.DEFINE_integer("iterations", None, "of mask-predict, sweeps of gibbs; by default 10", flag_values=values)
    heat = "of the draws; 0: always the likeliest; by default 0 for mask-predict, else 1"
    flags.DEFINE_float("temperature", None, heat, flag_values=values)
    flags.DEFINE_integer("top_k", 0, "draw among so many; 0: among all", flag_values=values)
    flags.DEFINE_integer("seed", 0, "of the draws: the same seed, the same text", flag_values=values)
    flags.DEFINE_integer("new_tokens", 0, "[MASK]s after each text", flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object a text, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    given = texts.read(arguments)
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    runtime.start()
    from mlm_jax.inference import load
    from mlm_jax.inference.generate import generated

    loaded = load(arguments.workdir, arguments.step)
    names = ("method", "iterations", "temperature", "top_k", "seed", "new_tokens")
    options = {name: getattr(arguments, name) for name in names}
    for answer in generated(loaded, given, **options):
        print(json.dumps(answer, ensure_ascii=False) if arguments.json else answer["generated"], flush=True)
    return 0
