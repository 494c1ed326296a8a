"""Text by a masked language model: what stands at many MASKs together."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from mlm_jax import keys
from mlm_jax.config import ConfigError
from mlm_jax.inference.fill import MASK, Template, template
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.logits import in_pieces_of
from mlm_jax.inference.rows import Item, Rows
from mlm_jax.inference.run import Answer, Program, at_places, in_pieces
from mlm_jax.models import Model

SPAN = re.compile(r"\[MASK:(\d+)\]")  # so many MASKs
MOST = 4096  # MASKs of a span
COLDEST, HOTTEST = 1e-6, 1e6  # beyond, a quotient of logits is no number of float32
ORDERS = 1_000_000  # added to the number of a sweep: what is drawn there orders its places


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0: always the likeliest. top_k: among so many, 0: among all."""

    temperature: float = 1.0
    top_k: int = 0


@dataclasses.dataclass
class Growing:
    """A text that is being generated."""

    number: int  # of the text in the call
    template: Template
    surest: np.ndarray  # f32[masks], the model's probability of what stands at each place


def generate(
    loaded: Loaded,
    texts: Iterable[str],
    method: str = "mask-predict",
    iterations: int | None = None,
    temperature: float | None = None,
    top_k: int = 0,
    seed: int = 0,
    new_tokens: int = 0,
) -> list[dict]:
    """Texts with all their MASKs filled: {"text", "generated", "tokens": [[piece, probability], ...]}.

    A text is a template, such as "The [MASK] is [MASK].", may hold a span, [MASK:5] for five tokens, and is a prompt
    with new_tokens, so many MASKs after it.

    method `mask-predict`: all at once, then `iterations` - 1 times (10 in all) those of which the model is least sure
    are masked and predicted again, linearly fewer each time: n - floor(n (1 - i / iterations)) of n stand in iteration
    i (Ghazvininejad et al. 2019, "Mask-Predict", section 3). temperature: 0.
    `gibbs`: in `iterations` sweeps (10) each place in turn, in a random order, is masked and drawn again given all
    others (Wang and Cho 2019, "BERT has a Mouth, and It Must Speak", section 3). temperature: 1.
    `left-to-right`: MASKs at the end of a text, one after another, by a model that was trained to predict next tokens
    too (objectives.causal). temperature: 1.

    A probability is the model's own, before temperature and top_k, when the token was last drawn. Special tokens are
    never generated. The i-th text of a call depends on seed, i and itself alone.

    Raises ConfigError for a text without MASK, or one too long for the model, and for options that do not fit.
    """
    return list(generated(loaded, texts, method, iterations, temperature, top_k, seed, new_tokens))


def generated(
    loaded: Loaded,
    texts: Iterable[str],
    method: str = "mask-predict",
    iterations: int | None = None,
    temperature: float | None = None,
    top_k: int = 0,
    seed: int = 0,
    new_tokens: int = 0,
) -> Iterator[dict]:
    """The answers of `generate` one after another; texts may be a stream."""
    _check(loaded, method, iterations, temperature, top_k, new_tokens)
    if temperature is None:
        temperature = 0.0 if method == "mask-predict" else 1.0
    sampling = Sampling(temperature, top_k)
    special = tuple(int(i) for i in loaded.tokenizer.special)
    causal = method == "left-to-right"
    program = _program(loaded.model, loaded.tokenizer.size, special, sampling, causal)
    number = 0
    for piece in in_pieces(texts):
        growing = []
        for text in piece:
            one = _template(loaded, text, new_tokens)
            growing.append(Growing(number, one, np.zeros(len(one.places), np.float32)))
            number += 1
        METHODS[method](loaded, program, keys.root(seed, keys.SAMPLE), growing, iterations or 10)
        for text, one in zip(piece, growing):
            pieces = [loaded.tokenizer.shown[i] for i in one.template.ids[one.template.places].tolist()]
            whole = one.template.written(dict(enumerate(pieces)))
            tokens = [list(pair) for pair in zip(pieces, map(float, one.surest))]
            yield {"text": text, "generated": whole, "tokens": tokens}


def _check(
    loaded: Loaded, method: str, iterations: int | None, temperature: float | None, top_k: int, new_tokens: int
) -> None:
    if method not in METHODS:
        raise ConfigError("method", method, f"there is {', '.join(METHODS)}")
    if iterations is not None and (method == "left-to-right" or iterations < 1):
        raise ConfigError("iterations", iterations, "must be at least 1; left-to-right has none")
    if temperature and not COLDEST <= temperature <= HOTTEST:  # NaN is neither
        raise ConfigError("temperature", temperature, f"must be 0, or {COLDEST:g} to {HOTTEST:g}")
    if top_k < 0:
        raise ConfigError("top_k", top_k, "must be 0 or more")
    if not 0 <= new_tokens <= MOST:
        raise ConfigError("new_tokens", new_tokens, f"must be 0 to {MOST}")
    loaded.check_fills()
    if method == "left-to-right" and not loaded.causal:
        fix = f"{loaded.path} was not trained to predict next tokens (config.objectives.causal.ratio)"
        raise ConfigError("method", method, f"{fix}; there is mask-predict, gibbs")


def _template(loaded: Loaded, text: str, new_tokens: int) -> Template:
    """Raises ConfigError."""
    for span in SPAN.findall(text):
        if not 1 <= int(span) <= MOST:
            raise ConfigError("text", text, f"[MASK:{span}] must be 1 to {MOST} tokens")
    whole = SPAN.sub(lambda found: MASK * int(found[1]), text)
    one = template(loaded.tokenizer, whole + MASK * new_tokens)
    if len(one.ids) + 2 > loaded.limit:
        raise ConfigError("text", text, f"is {len(one.ids) + 2} tokens long, the model reads {loaded.limit}")
    return one


def draws(
    key: Key[Array, ""], numbers: Int[np.ndarray, "n"], iteration: int, count: int
) -> Float[np.ndarray, "n count"]:
    """In [0, 1), for each text and each of its first MASKs: whatever the number of texts, and of MASKs."""
    width = 1 << (max(count, 1) - 1).bit_length()
    return np.asarray(_draws(key, jnp.asarray(numbers), jnp.int32(iteration), width))[:, :count]


@functools.partial(jax.jit, static_argnames="width")
def _draws(key: Key[Array, ""], numbers: Int[Array, "n"], iteration: Int[Array, ""], width: int) -> Float[Array, "n w"]:
    def of(number: Array, mask: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, number), iteration), mask)
        return jax.random.uniform(own)

    return jax.vmap(lambda number: jax.vmap(lambda mask: of(number, mask))(jnp.arange(width)))(numbers)


def _drawn(
    loaded: Loaded,
    program: Program,
    key: Key[Array, ""],
    growing: list[Growing],
    iteration: int,
    asked: list[list[int]],
) -> list[Answer]:
    """What a program draws at the MASKs asked for of each text: `ids`, `probabilities` [masks asked for]."""
    numbers = np.array([one.number for one in growing], np.int32)
    uniforms = draws(key, numbers, iteration, max(len(one.template.places) for one in growing))
    items = []
    for one, masks, own in zip(growing, asked, uniforms):
        at = (one.template.places[masks] + 1).astype(np.int32)
        items.append(Item(loaded.surrounded(one.template.ids), at, uniforms=own[masks]))
    return at_places(program, loaded.params, items)


def _take(one: Growing, masks: list[int], answer: Answer) -> None:
    one.template.ids[one.template.places[masks]] = answer["ids"]
    one.surest[masks] = answer["probabilities"]


def _mask_predict(
    loaded: Loaded, program: Program, key: Key[Array, ""], growing: list[Growing], iterations: int
) -> None:
    for iteration in range(iterations):
        again = [one for one in growing if _number_again(one, iteration, iterations)]
        asked = []
        for one in again:
            count = _number_again(one, iteration, iterations)
            masks = sorted(np.argsort(one.surest, kind="stable")[:count].tolist())
            one.template.ids[one.template.places[masks]] = loaded.tokenizer.mask
            asked.append(masks)
        if not again:
            return
        for one, masks, answer in zip(again, asked, _drawn(loaded, program, key, again, iteration, asked)):
            _take(one, masks, answer)


def _number_again(one: Growing, iteration: int, iterations: int) -> int:
    """How many are predicted in an iteration: all in the first one."""
    return len(one.surest) * (iterations - iteration) // iterations


def _gibbs(loaded: Loaded, program: Program, key: Key[Array, ""], growing: list[Growing], sweeps: int) -> None:
    numbers = np.array([one.number for one in growing], np.int32)
    most = max(len(one.surest) for one in growing)
    for sweep in range(sweeps):
        order = [
            np.argsort(own[: len(one.surest)], kind="stable")
            for one, own in zip(growing, draws(key, numbers, ORDERS + sweep, most))
        ]
        for turn in range(most):
            now = [(one, [int(own[turn])]) for one, own in zip(growing, order) if turn < len(own)]
            for one, masks in now:
                one.template.ids[one.template.places[masks]] = loaded.tokenizer.mask
            texts, asked = [one for one, _ in now], [masks for _, masks in now]
            for (one, masks), answer in zip(now, _drawn(loaded, program, key, texts, sweep, asked)):
                _take(one, masks, answer)


def _left_to_right(loaded: Loaded, program: Program, key: Key[Array, ""], growing: list[Growing], _: int) -> None:
    """Each token is drawn by the state of the one before it."""
    for one in growing:
        places = one.template.places
        if places[0] + len(places) != len(one.template.ids):
            fix = "left-to-right generates at the end of a text alone"
            raise ConfigError("text", one.template.text, f"has text after a MASK: {fix}")
    for turn in range(max(len(one.surest) for one in growing)):
        now = [one for one in growing if turn < len(one.surest)]
        for one, answer in zip(now, _drawn(loaded, program, key, now, 0, [[turn]] * len(now))):
            _take(one, [turn], answer)


METHODS: dict[str, Callable[[Loaded, Program, Key[Array, ""], list[Growing], int], None]] = {
    "mask-predict": _mask_predict,
    "gibbs": _gibbs,
    "left-to-right": _left_to_right,
}


@functools.lru_cache(maxsize=8)
def _program(model: Model, size: int, special: tuple[int, ...], sampling: Sampling, causal: bool) -> Program:
    """`ids` i32[b,q] drawn by inverse CDF, and `probabilities` f32[b,q] of them. size: ids of the tokenizer."""
    ordinary = ~np.isin(np.arange(size), special)

    @jax.jit
    def program(params: dict, rows: Rows) -> dict[str, Array]:
        def draw(hidden: Float[Array, "n d"], uniforms: Float[Array, "n"]) -> dict[str, Array]:
            logits = jnp.where(ordinary[None], filler.logits(params, hidden)[..., :size], -jnp.inf)
            if sampling.temperature == 0:
                ids = logits.argmax(-1)
            else:
                ids = _sampled(logits / sampling.temperature, uniforms, sampling.top_k)
            chances = jax.nn.softmax(logits)
            return {"ids": ids, "probabilities": jnp.take_along_axis(chances, ids[:, None], axis=-1)[:, 0]}

        filler = model if causal else model.filler
        # a next token is told by the state of the one before it; slots that are no place stay at 0
        at = jnp.maximum(rows.at - 1, 0) if causal else rows.at
        hidden = filler.apply(params, rows.batch, at=at, causal=causal).hidden
        return in_pieces_of(draw, size, hidden, rows.uniforms)

    return program


def _sampled(logits: Float[Array, "n v"], uniforms: Float[Array, "n"], top_k: int) -> Int[Array, "n"]:
    """By the softmax of the logits, or of the top k; the last id that has a chance where rounding leaves a rest."""
    if top_k and top_k < logits.shape[-1]:
        best = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits >= best, logits, -jnp.inf)
    chances = jax.nn.softmax(logits)
    below = (jnp.cumsum(chances, axis=-1) <= uniforms[:, None]).sum(-1)
    last = logits.shape[-1] - 1 - jnp.argmax(chances[:, ::-1] > 0, axis=-1)
    return jnp.minimum(below, last)
