"""`python -m mlm_jax fill-mask --workdir=DIR "text with a [MASK]"`."""

import json
import re

import numpy as np
from absl import flags

from mlm_jax import runtime
from mlm_jax.config import ConfigError, positions
from mlm_jax.flags import Arguments, Usage, command

USAGE = """usage: python -m mlm_jax fill-mask --workdir=DIR "text with a [MASK]" ["another text" ...]

Shows what the model of a run puts in the place of each [MASK]. Example:

  python -m mlm_jax fill-mask --workdir=runs/tiny "Return a [MASK] of the arguments."
"""
MASK = "[MASK]"


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("top_k", 5, "guesses to show for each [MASK]", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("step", None, "checkpoint to use; the newest by default", flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object a text, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, needs_config=False, define=define, words=True)


def run(arguments: Arguments) -> int:
    if not arguments.rest:
        raise Usage(f'give a text, such as "The {MASK} is empty."')
    if not arguments.given("workdir"):
        raise Usage("--workdir=DIR is missing")
    runtime.start()
    from mlm_jax.checkpoint import load_model

    model, params, tokenizer = load_model(arguments.workdir, arguments.step)
    if model.filler is model and "head" not in params:
        raise ConfigError("workdir", str(arguments.workdir), "holds a model without a head that fills masks")
    for text in arguments.rest:
        guesses = fill(model, params, tokenizer, text, arguments.top_k)
        found = {"text": text, "masks": guesses}
        print(json.dumps(found, ensure_ascii=False) if arguments.json else show(text, guesses))
    return 0


def fill(model, params: dict, tokenizer, text: str, top_k: int) -> list[list[dict]]:
    """For each MASK of a text, from left to right: the `top_k` best ids as {"token", "id", "probability"}.

    Raises ConfigError for a text without MASK, or too long for the model's positions.
    """
    import jax
    import jax.numpy as jnp

    from mlm_jax.batch import Batch

    # in the project's own spelling, or that of the tokenizer
    parts = re.split("|".join(map(re.escape, (MASK, tokenizer.pieces[tokenizer.mask]))), text)
    if len(parts) == 1:
        raise ConfigError("text", text, f"holds no {MASK}")
    ids = np.array([tokenizer.cls, *tokenizer.encode_around(parts), tokenizer.sep], np.int32)
    if len(ids) > positions(model.config):
        fix = f"is {len(ids)} tokens long, the model has positions for {positions(model.config)}"
        raise ConfigError("text", text, fix)
    t = len(ids)
    batch = Batch(
        tokens=jnp.asarray(ids[None]),
        segments=jnp.ones((1, t), jnp.int32),
        positions=jnp.arange(t, dtype=jnp.int32)[None],
        flags=jnp.zeros((1, t), jnp.uint8),
        firsts=jnp.zeros((1, 1), jnp.int32),
        pair_labels=jnp.full((1, 1), -1, jnp.int32),
        row=jnp.zeros(1, jnp.int32),
        visit=jnp.zeros(1, jnp.int32),
        weight=jnp.ones(1),
    )
    at = np.flatnonzero(ids == tokenizer.mask)

    @jax.jit
    def probabilities(params, batch, at):
        logits = model.filler.logits(params, model.filler.apply(params, batch, at=at).hidden)
        return jax.nn.softmax(logits[..., : tokenizer.size])  # the model may have spare rows, which are no token

    found = np.asarray(probabilities(params, batch, at[None]))[0]
    best = np.argsort(-found, axis=1, kind="stable")[:, :top_k]
    return [
        [{"token": tokenizer.shown[i], "id": int(i), "probability": float(row[i])} for i in ids]
        for row, ids in zip(found, best)
    ]


def show(text: str, guesses: list[list[dict]]) -> str:
    lines = [text]
    for number, best in enumerate(guesses, start=1):
        lines.append(f"  {MASK} {number}" if len(guesses) > 1 else f"  {MASK}")
        lines += [
            f"    {guess['probability']:6.1%}  {guess['token'].replace('▁', ' ').strip() or '␣'}" for guess in best
        ]
    return "\n".join(lines)
