"""The order of the two texts of a pair, drawn on the device anew for each visit of a row."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from mlm_jax import keys
from mlm_jax.batch import Batch, by_row
from mlm_jax.config import Config
from mlm_jax.records import IN_ORDER, OUT_OF_ORDER, SECOND_OF_PAIR


def as_read(key: Key[Array, ""], batch: Batch, config: Config) -> Batch:
    """The rows as the objectives of a config read them: with swapped pairs where it asks for their order, else as is.

    key: the root of the order, see `keys.roots`.
    """
    return swapped(key, batch) if config.objectives.sop.weight else batch


def swapped(key: Key[Array, ""], batch: Batch) -> Batch:
    """A batch [*b,t] in which each pair with label IN_ORDER is CLS B SEP A SEP in place of CLS A SEP B SEP, or stays.

    Each with a chance of a half, by a draw that depends on the row, the visit and the segment; what is swapped has the
    label OUT_OF_ORDER. The flags go with their tokens, but for SECOND_OF_PAIR, which stands where the second text does.
    Segments and positions are as before. ALBERT (Lan et al., 2020), section 3.1.
    """

    def of_row(key, row: Batch) -> Batch:
        t, p = row.tokens.shape[0], row.firsts.shape[0]
        swap = jax.random.bernoulli(key, 0.5, (p,)) & (row.pair_labels == IN_ORDER)
        of_token = jnp.maximum(row.segments - 1, 0)
        second = row.types
        length = jnp.zeros(p, jnp.int32).at[of_token].add((row.segments > 0).astype(jnp.int32))
        length_b = jnp.zeros(p, jnp.int32).at[of_token].add(second)  # of B and the SEP behind it
        length_a = length - 1 - length_b  # of A and the SEP behind it, which CLS stands before
        start, place = row.firsts[of_token], row.positions
        from_b = place <= length_b[of_token]
        source = start + place + jnp.where(from_b, length_a[of_token], -length_b[of_token])
        moves = swap[of_token] & (row.segments > 0) & (place > 0)
        source = jnp.where(moves, source, jnp.arange(t))
        flags = row.flags[source]
        exchanged = jnp.where(from_b, flags & ~jnp.uint8(SECOND_OF_PAIR), flags | jnp.uint8(SECOND_OF_PAIR))
        return dataclasses.replace(
            row,
            tokens=row.tokens[source],
            flags=jnp.where(moves, exchanged, flags),
            pair_labels=jnp.where(swap, OUT_OF_ORDER, row.pair_labels),
        )

    return by_row(of_row, batch)(keys.of_rows(key, batch), batch)
