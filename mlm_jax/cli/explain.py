"""`python -m mlm_jax explain --workdir=DIR "text with a [MASK]"`."""

import json
import sys
from pathlib import Path

from absl import flags

from mlm_jax import runtime
from mlm_jax.config import ConfigError
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax explain --workdir=DIR [--target=WORD] [--html=FILE] [--json] "text with a [MASK]"

Shows which words of a text made the model of a run, or of a hub folder, predict a word at each [MASK]. Example:

  python -m mlm_jax explain --workdir=runs/tiny --html=why.html "Return a [MASK] of the arguments."
"""


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("target", None, "the word to explain; by default the best guess", flag_values=values)
    flags.DEFINE_integer("top_k", 5, "guesses to show for each [MASK]", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("steps", 32, "points of the integral, doubled where needed", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("step", None, "checkpoint to use; the newest by default", flag_values=values)
    flags.DEFINE_string("html", None, "file to write the same to as a page", flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    if len(arguments.rest) != 1:
        raise Usage('give one text, such as "The [MASK] is empty."')
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    runtime.start()
    from mlm_jax.inference import explain, load
    from mlm_jax.inference.explain.page import html
    from mlm_jax.inference.explain.terminal import terminal

    loaded = load(arguments.workdir, arguments.step)
    text = arguments.rest[0].encode("utf-8", "replace").decode()  # a command line may hold what is no text
    found = explain(loaded, text, arguments.target, arguments.top_k, arguments.steps)
    print(json.dumps(found, ensure_ascii=False) if arguments.json else terminal(found))
    if arguments.html:
        _write(Path(arguments.html), html(found, loaded.path))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError("--html", str(path), f"cannot be written: {error.strerror}") from None
    print(f"\n{path}", file=sys.stderr)
