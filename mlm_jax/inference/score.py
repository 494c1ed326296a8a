"""How likely texts are to a masked language model."""

import collections
import dataclasses
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


@dataclasses.dataclass
class Scoring:
    """A text of which not all tokens were asked for yet."""

    text: str
    encoding: Encoding
    logs: np.ndarray  # f64[tokens], log p of each
    left: int  # tokens to be asked for


def score(loaded: Loaded, texts: Iterable[str], variant: str = "original") -> list[dict]:
    """The pseudo-log-likelihood of each text: {"text", "score", "tokens", "perplexity", "each"}.

    score: the sum over its tokens of log p(token | the others), each with that token alone masked, in nats (Salazar et
    al. 2020, "Masked Language Model Scoring", section 2). variant `within-word`: the later tokens of its word are
    masked as well, so that a long word's pieces do not give one another away (Kauf and Ivanova 2023, "A Better Way to
    Do Masked Language Model Scoring", PLL-word-l2r). perplexity: exp(-score / tokens), None for a text without tokens.
    each: [piece, log p] of every token.

    In a text longer than the model reads each token is seen in the one of its overlapping windows where it has the most
    around it. A model that was trained with whole words masked seldom saw the other parts of a word beside a MASK:
    `within-word` is then nearer to its training, and may be the higher of the two.

    Raises ConfigError for an unknown variant, and a model that fills no masks.
    """
    return list(scores(loaded, texts, variant))


def scores(loaded: Loaded, texts: Iterable[str], variant: str = "original") -> Iterator[dict]:
    """The answers of `score` one after another; texts may be a stream."""
    if variant not in VARIANTS:
        raise ConfigError("variant", variant, f"there is {', '.join(VARIANTS)}")
    loaded.check_fills()
    program = _program(loaded.model, loaded.tokenizer.size)
    waiting: collections.deque[Scoring] = collections.deque()  # in the order of the texts

    def copies() -> Iterator[tuple[Scoring, int, Item]]:
        for text in texts:
            encoding = loaded.tokenizer.encode(text)
            count = len(encoding.ids)
            one = Scoring(text, encoding, np.zeros(count), count)
            waiting.append(one)
            for place, item in _copies(loaded, encoding, variant):
                yield one, place, item

    # as many copies as tokens: they are made as they are read, and a text is answered when its last one is
    for piece in in_pieces(copies()):
        answers = at_places(program, loaded.params, [item for *_, item in piece])
        for (one, place, _), answer in zip(piece, answers):
            one.logs[place] = answer["log_probability"][0]
            one.left -= 1
        while waiting and not waiting[0].left:
            yield _answer(loaded, waiting.popleft())
    for one in waiting:  # texts without tokens
        yield _answer(loaded, one)


def _answer(loaded: Loaded, one: Scoring) -> dict:
    pieces = [loaded.tokenizer.shown[i] for i in one.encoding.ids.tolist()]
    total, count = float(one.logs.sum()), len(one.logs)
    return {
        "text": one.text,
        "score": total,
        "tokens": count,
        "perplexity": perplexity(total, count),
        "each": [list(pair) for pair in zip(pieces, one.logs.tolist())],
    }


def perplexity(score: float, tokens: int) -> float | None:
    """exp(-score / tokens), at most exp(700), of a text or of the sums over a corpus; None without tokens."""
    return math.exp(min(-score / tokens, 700.0)) if tokens else None


def masked_with(word_starts: np.ndarray, place: int, stop: int, variant: str) -> range:
    """The places that are masked where the token at one is asked for: it alone, or with the rest of its word."""
    last = place + 1
    while variant == "within-word" and last < stop and not word_starts[last]:
        last += 1
    return range(place, last)


def _copies(loaded: Loaded, encoding: Encoding, variant: str) -> Iterator[tuple[int, Item]]:
    """For every token of a text: its place, and the segment in which it is masked."""
    for window in cut(len(encoding.ids), loaded.limit - 2):
        whole = loaded.surrounded(encoding.ids[window.start : window.stop])
        for place in range(window.first, window.last):
            masked = masked_with(encoding.word_starts, place, window.stop, variant)
            ids = whole.copy()
            ids[np.array(masked) - window.start + 1] = loaded.tokenizer.mask
            at = np.array([place - window.start + 1], np.int32)
            yield place, Item(ids, at, encoding.ids[[place]])


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
