"""All methods for all gaps of a text, in numbers."""

import math

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.inference.explain.asking import Question, questions
from mlm_jax.inference.explain.attributions import (
    MOST_STEPS,
    SMALL_GAP,
    baseline,
    integrated_gradients,
    log_probabilities,
    without,
)
from mlm_jax.inference.explain.rollout import attention, rollout
from mlm_jax.inference.fill import target_id
from mlm_jax.inference.loading import Loaded


def explain(loaded: Loaded, text: str, target: str | None = None, top_k: int = 5, steps: int = 32) -> dict:
    """Why the model predicts its best word, or `target`, at each MASK of a text: what `json.dumps` takes.

    {"text", "masks": one for each MASK, in order, the others staying masked}, each of them

    predictions: the `top_k` best as {"token", "id", "probability"}; target: the word that is explained, likewise.
    whole: whether the model read all of the text, or a window around the gap that begins with its token `start`.
    words: {"text", "kind", "space", "first", "last"}, see `asking.Word`; tokens: as the tokenizer shows them.
    All that follows has an entry for each of the words, the sum over its tokens:
    leave_one_out: nats of log-probability that are lost where MASK stands for the word; None for what is no word of
    the text. left: the probability then.
    integrated_gradients: {"words", "by_token", "sum", "expected", "gap", "steps", "complete"}, see `attributions`.
    rollout, attention [layers][heads]: shares of what the gap reads; see `rollout`. rollout_by_token: the same.

    A target is one that `fill_mask` takes. Raises ConfigError for a text without MASK, a target that is no single
    piece, and a model without a head that fills masks.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise ConfigError("--steps", steps, f"must be from 1 to {MOST_STEPS}")
    if top_k < 1:
        raise ConfigError("--top_k", top_k, "must be at least 1")
    loaded.check_fills()
    asked = questions(loaded, text)
    wanted = None if target is None else target_id(loaded.tokenizer, target)
    return {"text": text, "masks": [_explained(loaded, question, wanted, top_k, steps) for question in asked]}


def _explained(loaded: Loaded, question: Question, target: int | None, top_k: int, steps: int) -> dict:
    ids, place, words = question.ids, question.place, question.words
    _, best, chances = log_probabilities(loaded, [ids], place, target or 0, top_k)
    target = int(best[0, 0]) if target is None else target
    context = [number for number, word in enumerate(words) if word.kind == "word"]
    spans = [(words[number].first, words[number].last) for number in context]
    segments = [ids, baseline(loaded, ids), *without(ids, loaded.tokenizer.mask, spans)]
    whole, nothing, *others = log_probabilities(loaded, segments, place, target)[0].tolist()
    left = dict(zip(context, others))
    gradients = integrated_gradients(loaded, ids, place, target, whole - nothing, steps)
    means, own = attention(loaded, ids, place)
    flow = rollout(means)[place]
    firsts = np.array([word.first for word in words])

    def by_word(scores: np.ndarray) -> list:
        return np.add.reduceat(scores, firsts, axis=-1).tolist()

    def guess(i: int, chance: float) -> dict:
        return {"token": loaded.tokenizer.shown[i], "id": i, "probability": math.exp(chance)}

    return {
        "predictions": [guess(i, chance) for i, chance in zip(best[0].tolist(), chances[0].tolist())],
        "target": guess(target, whole),
        "log_probability": whole,
        "start": question.start,
        "whole": question.whole,
        "words": [word._asdict() for word in words],
        "tokens": [loaded.tokenizer.shown[i] for i in ids],
        "place": place,
        "leave_one_out": [whole - left[number] if number in left else None for number in range(len(words))],
        "left": [math.exp(left[number]) if number in left else None for number in range(len(words))],
        "integrated_gradients": {
            "words": by_word(gradients.scores),
            "by_token": gradients.scores.tolist(),
            "sum": float(gradients.scores.sum()),
            "expected": gradients.expected,
            "gap": float(gradients.gap),
            "steps": gradients.steps,
            "complete": bool(gradients.gap < SMALL_GAP),
        },
        "rollout": by_word(flow),
        "rollout_by_token": flow.tolist(),
        "attention": by_word(own),
    }
