"""How likely texts are to a masked language model."""

import functools
import math
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mlm_jax.config import ConfigError
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.logits import in_pieces_of
from mlm_jax.inference.rows import Item, Rows
from mlm_jax.inference.run import Program, at_places, in_pieces
from mlm_jax.inference.windows import cut
from mlm_jax.models import Model
from mlm_jax.tokenizer import Encoding

VARIANTS = ("original", "within-word")


def score(loaded: Loaded, texts: Iterable[str], variant: str = "original") -> list[dict]:
    """The pseudo-log-likelihood of each text: {"text", "score", "tokens", "perplexity", "each"}.

    score: the sum over its tokens of log p(token | the others), each with that token alone masked, in nats (Salazar et
    al. 2020, "Masked Language Model Scoring", section 2). variant `within-word`: the later tokens of its word are
    masked as well, so that a long word's pieces do not give one another away (Kauf and Ivanova 2023, "A Better Way to
    Do Masked Language Model Scoring", PLL-word-l2r). perplexity: exp(-score / tokens), None for a text without tokens.
    each: [piece, log p] of every token.

    In a text longer than the model reads each token is seen in the one of its overlapping windows where it has the most
    around it. Raises ConfigError for an unknown variant, and a model that fills no masks.
    """
    return list(scores(loaded, texts, variant))


def scores(loaded: Loaded, texts: Iterable[str], variant: str = "original") -> Iterator[dict]:
    """The answers of `score` one after another; texts may be a stream."""
    if variant not in VARIANTS:
        raise ConfigError("variant", variant, f"there is {', '.join(VARIANTS)}")
    loaded.check_fills()
    program = _program(loaded.model, loaded.tokenizer.size)
    for piece in in_pieces(texts):
        encoded = [loaded.tokenizer.encode(text) for text in piece]
        logs = [np.zeros(len(encoding.ids)) for encoding in encoded]
        # a long text has as many copies as tokens: they are made as they are read
        for copies in in_pieces(_copies(loaded, encoded, variant)):
            answers = at_places(program, loaded.params, [item for *_, item in copies])
            for (number, place, _), answer in zip(copies, answers):
                logs[number][place] = answer["log_probability"][0]
        for text, encoding, found in zip(piece, encoded, logs):
            pieces = [loaded.tokenizer.shown[i] for i in encoding.ids.tolist()]
            total, count = float(found.sum()), len(found)
            yield {
                "text": text,
                "score": total,
                "tokens": count,
                "perplexity": perplexity(total, count),
                "each": [list(pair) for pair in zip(pieces, found.tolist())],
            }


def perplexity(score: float, tokens: int) -> float | None:
    """exp(-score / tokens), of a text or of the sums over a corpus; None without tokens."""
    return math.exp(min(-score / tokens, 700.0)) if tokens else None


def masked_with(word_starts: np.ndarray, place: int, stop: int, variant: str) -> range:
    """The places that are masked where the token at one is asked for: it alone, or with the rest of its word."""
    last = place + 1
    while variant == "within-word" and last < stop and not word_starts[last]:
        last += 1
    return range(place, last)


def _copies(loaded: Loaded, encoded: list[Encoding], variant: str) -> Iterator[tuple[int, int, Item]]:
    """For every token of every text: number of the text, place, and the segment in which it is masked."""
    for number, encoding in enumerate(encoded):
        for window in cut(len(encoding.ids), loaded.limit - 2):
            whole = loaded.surrounded(encoding.ids[window.start : window.stop])
            for place in range(window.first, window.last):
                masked = masked_with(encoding.word_starts, place, window.stop, variant)
                ids = whole.copy()
                ids[np.array(masked) - window.start + 1] = loaded.tokenizer.mask
                at = np.array([place - window.start + 1], np.int32)
                yield number, place, Item(ids, at, encoding.ids[[place]])


@functools.lru_cache(maxsize=8)
def _program(model: Model, size: int) -> Program:
    """`log_probability` f32[b,q] of the targets. size: ids of the tokenizer; further rows of the word table are no
    token."""

    @jax.jit
    def program(params: dict, rows: Rows) -> dict[str, Array]:
        def of_targets(hidden: Float[Array, "n d"], targets: Int[Array, "n"]) -> dict[str, Array]:
            found = jax.nn.log_softmax(model.filler.logits(params, hidden)[..., :size])
            return {"log_probability": jnp.take_along_axis(found, targets[:, None], axis=-1)[:, 0]}

        hidden = model.filler.apply(params, rows.batch, at=rows.at).hidden
        return in_pieces_of(of_targets, size, hidden, rows.targets)

    return program
