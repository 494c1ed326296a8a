"""The randomness of a run: a few roots by its seed, and from them a key for each row, wherever in a batch it stands."""

import jax
from jaxtyping import Array, Key

from mlm_jax.batch import Batch, by_row

# Roots: of masks, dropout, evaluation, the first parameters, the order of pairs, the masks of the other view, the kind
# of a step, and the generator's samples.
MASK, DROPOUT, EVALUATION, INIT, ORDER, VIEW, KIND, SAMPLE = range(8)
OF_STEP = {"mask": MASK, "dropout": DROPOUT, "order": ORDER, "view": VIEW, "sample": SAMPLE}
IN_EVALUATION = 100  # added to the number of a root that evaluation has of its own

# Passes of a row through the model within a step, as the keys of dropout count them.
FIRST_PASS, OTHER_VIEW, GENERATOR, DISCRIMINATOR = range(4)

Roots = dict[str, Key[Array, ""]]


def root(seed: int, which: int) -> Key[Array, ""]:
    """One of the roots of randomness of a run; they are never mixed. The generator is named, so no flag changes it."""
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), which)


def roots(seed: int) -> Roots:
    """The roots that a training step takes."""
    return {name: root(seed, which) for name, which in OF_STEP.items()}


def evaluation_roots(seed: int) -> Roots:
    """The same for evaluation, where a row has one visit."""
    return {name: root(seed, IN_EVALUATION + which) for name, which in OF_STEP.items()} | {
        "mask": root(seed, EVALUATION)
    }


def of_rows(key: Key[Array, ""], batch: Batch) -> Key[Array, "*b"]:
    """A key for each row of a batch: a function of row and visit, never of the place in the batch."""

    def of_row(row, visit):
        return jax.random.fold_in(jax.random.fold_in(key, row), visit)

    return by_row(of_row, batch)(batch.row, batch.visit)


def of_dropout(key: Key[Array, ""], batch: Batch, number: int = FIRST_PASS) -> Key[Array, "*b"]:
    """The dropout keys of the rows of a batch in one of the passes."""
    return by_row(lambda own: jax.random.fold_in(own, number), batch)(of_rows(key, batch))
