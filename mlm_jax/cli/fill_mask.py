"""`python -m mlm_jax fill-mask --workdir=DIR "text with a [MASK]"`."""

import json
from pathlib import Path

from absl import flags

from mlm_jax import runtime
from mlm_jax.cli import texts
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax fill-mask --workdir=DIR "text with a [MASK]" ["another text" ...]

Shows what a model puts in the place of each [MASK]. DIR: a run, one of its checkpoints (DIR/checkpoints/STEP), or a
folder of the hub format. Examples:

  python -m mlm_jax fill-mask --workdir=runs/tiny "Return a [MASK] of the arguments."
  python -m mlm_jax fill-mask --workdir=runs/tiny --joint --json --file=texts.txt
"""
MASK = "[MASK]"


def define(values: flags.FlagValues) -> None:
    texts.define(values)
    flags.DEFINE_integer("top_k", 5, "guesses to show for each [MASK]", lower_bound=1, flag_values=values)
    flags.DEFINE_list("targets", None, "words among which to choose, such as yes,no", flag_values=values)
    flags.DEFINE_bool(
        "joint", False, "fill the surest [MASK] of a text and ask again, until none is left", flag_values=values
    )
    flags.DEFINE_bool("json", False, "one JSON object a text, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    given = texts.read(arguments)
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    if arguments.targets is not None and not all(arguments.targets):
        raise Usage(f"--targets={','.join(arguments.targets)}: there is an empty word among them")
    runtime.start()
    from mlm_jax.inference import fill, load

    loaded = load(Path(arguments.workdir), arguments.step)
    for answer in fill.filled(loaded, given, arguments.top_k, arguments.targets, arguments.joint):
        print(json.dumps(answer, ensure_ascii=False) if arguments.json else show(answer), flush=True)
    return 0


def show(answer: dict) -> str:
    lines = [answer["text"]]
    for number, best in enumerate(answer["masks"], start=1):
        lines.append(f"  {MASK} {number}" if len(answer["masks"]) > 1 else f"  {MASK}")
        lines += [
            f"    {guess['probability']:6.1%}  {guess['token'].replace('▁', ' ').strip() or '␣'}" for guess in best
        ]
    if "filled" in answer:
        lines.append(f"  {answer['filled']}")
    return "\n".join(lines)
