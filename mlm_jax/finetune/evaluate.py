"""What a fine-tuned model says of examples, and how good that is."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array

from mlm_jax.config import Task
from mlm_jax.finetune.encode import Piece
from mlm_jax.inference.rows import Item, Rows
from mlm_jax.inference.run import Program, at_places, in_pieces
from mlm_jax.models import Model


def outputs(model: Model, params: dict, pieces: Sequence[Piece], task: Task) -> list[np.ndarray]:
    """The head's numbers for each piece, f32[q,c]: at its places, or at all its tokens (questions)."""
    items = [_asked(piece, task) for piece in pieces]
    program = _program(model)
    return [answer["outputs"] for some in in_pieces(items) for answer in at_places(program, params, some)]


def _asked(piece: Piece, task: Task) -> Item:
    if task.kind != "questions":
        return piece.item
    return piece.item._replace(at=np.arange(len(piece.ids), dtype=np.int32))


@functools.lru_cache(maxsize=8)
def _program(model: Model) -> Program:
    @jax.jit
    def program(params: dict, rows: Rows) -> dict[str, Array]:
        return {"outputs": model.classify(params, model.apply(params, rows.batch, at=rows.at).hidden)}

    return program


def softmax(outputs: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis."""
    raised = np.exp(outputs - outputs.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)
