"""`python -m mlm_jax score --workdir=DIR "a text"`."""

import json
import sys

from absl import flags

from mlm_jax import runtime
from mlm_jax.cli import texts
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax score --workdir=DIR "a text" ["another text" ...]

How likely texts are to a model: for each its pseudo-log-likelihood in nats (every token masked in turn, the logarithms
of the probabilities of the true ones added), its tokens and its pseudo-perplexity; at the end, to standard error, that
of all together. DIR: a run, one of its checkpoints (DIR/checkpoints/STEP), or a folder of the hub format. Examples:

  python -m mlm_jax score --workdir=runs/tiny "Return a list of names." "List a names return of."
  python -m mlm_jax score --workdir=runs/tiny --variant=within-word --json --file=texts.txt
"""


def define(values: flags.FlagValues) -> None:
    texts.define(values)
    variant = "original: one token masked; within-word: the later ones of its word too"
    flags.DEFINE_string("variant", "original", variant, flag_values=values)
    flags.DEFINE_bool("each", False, "also the logarithm of every token's probability", flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object a text, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    given = texts.read(arguments)
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    runtime.start()
    from mlm_jax.inference import load
    from mlm_jax.inference.score import perplexity, scores

    loaded = load(arguments.workdir, arguments.step)
    number, total, tokens = 0, 0.0, 0
    for answer in scores(loaded, given, arguments.variant):
        if not number and not arguments.json:
            print(f"{'score':>10} {'tokens':>7} {'perplexity':>11}  text")
        number, total, tokens = number + 1, total + answer["score"], tokens + answer["tokens"]
        if arguments.json:
            left_out = () if arguments.each else ("each",)
            kept = {name: value for name, value in answer.items() if name not in left_out}
            print(json.dumps(kept, ensure_ascii=False), flush=True)
        else:
            print(show(answer, arguments.each), flush=True)
    whole = perplexity(total, tokens)
    shown = "none" if whole is None else f"{whole:,.2f}"
    print(f"{number:,} texts, {tokens:,} tokens: score {total:,.2f}, pseudo-perplexity {shown}", file=sys.stderr)
    return 0


def show(answer: dict, each: bool) -> str:
    shown = "-" if answer["perplexity"] is None else f"{answer['perplexity']:,.2f}"
    lines = [f"{answer['score']:10.2f} {answer['tokens']:7,} {shown:>11}  {answer['text']}"]
    if each:
        lines += [f"{value:10.2f} {piece.replace('▁', ' ').strip() or '␣'}" for piece, value in answer["each"]]
    return "\n".join(lines)
