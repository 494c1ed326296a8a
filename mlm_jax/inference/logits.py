"""Logits of many places, of which only so many are held at once."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

PIECE_BYTES = 64 * 2**20


def in_pieces_of(
    function: Callable[..., dict[str, Array]], size: int, hidden: Float[Array, "b q d"], *others: Array
) -> dict[str, Array]:
    """`function(hidden [n,d], *others [n]) -> {name: [n,...]}` over all places, as {name: [b,q,...]}.

    size: columns of the logits that it makes, in float32. others: arrays [b,q].
    """
    b, q, d = hidden.shape
    pieces = 1
    while b * q % (2 * pieces) == 0 and b * q // pieces * size * 4 > PIECE_BYTES:
        pieces *= 2
    cut = (hidden.reshape(pieces, -1, d), *(other.reshape(pieces, -1) for other in others))
    found = jax.lax.map(lambda arrays: function(*arrays), cut)
    return {name: value.reshape(b, q, *value.shape[2:]) for name, value in found.items()}
