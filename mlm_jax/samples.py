"""What the model guesses at the masked places of a few held-out texts: always the same, so that it is seen to learn."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from mlm_jax import data, sharding
from mlm_jax.batch import Batch, Masked
from mlm_jax.config import Config, filler, round_up
from mlm_jax.evaluate import make_mask, set_names
from mlm_jax.models import Model
from mlm_jax.tokenizer import Tokenizer, Vocabulary

TEXTS = 6
GUESSES = 5
SHORT, LONG = 10, 60  # tokens of a text that is read at a glance
LONGEST = 96  # a longer text is shown up to here
MOST_PLACES = 32  # of one text
FIRST_ROWS = 64  # of each set, among which the texts are looked for

Samples = list[dict]


class Text(NamedTuple):
    """One segment of a held-out row, in numpy; `row` holds all of that row as arrays [...] without b."""

    name: str  # of its held-out set
    row: Batch
    inputs: np.ndarray  # i32[t], the row with MASK at every selected place
    first: int  # where the shown tokens begin in the row
    tokens: np.ndarray  # i32[n], shown: without CLS before and SEP after
    places: np.ndarray  # i32[q], the selected places of the row that are shown


def make_samples(
    model: Model,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    config: Config,
    folder: Path,
    manifest: dict,
    mesh: Mesh,
) -> Callable[[dict], Samples]:
    """`samples(params)`: for each of up to 6 held-out texts what it hides and the 5 best guesses for each place.

    Each is {"set": name, "tokens": [piece, ...], "masked": [{"place": index into tokens, "target": piece,
    "guesses": [[piece, probability], ... best first]}]}. Texts and masks are those of evaluation: they depend on
    `config.evaluate.seed` and the rows alone. All processes get the same answer; call it on all of them, within
    `sharding.activate(mesh, config.mesh)`. Without held-out rows, or where nothing is masked, an empty list.
    """
    texts = choose(vocabulary, config, folder, manifest) if filler(config.objectives) else []
    if not texts:
        return lambda params: []
    # the rows are cut over the data and fsdp axes, so they fill them up
    batch, at = _gather(texts, round_up(len(texts), mesh.shape["data"] * mesh.shape["fsdp"]))
    placed = sharding.batch_sharding(mesh)
    batch, at = jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, placed, leaf.__getitem__), (batch, at)
    )
    guess = jax.jit(make_guess(model), out_shardings=NamedSharding(mesh, P()))

    def samples(params: dict) -> Samples:
        found = jax.device_get(guess(params, batch, at))
        return [_described(text, tokenizer.shown, *best) for text, *best in zip(texts, *found)]

    return samples


def make_guess(model: Model) -> Callable[[dict, Batch, Int[Array, "b q"]], tuple]:
    """`guess(params, batch [b,t], at) -> (ids i32[b,q,5], probabilities f32[b,q,5])`, best first."""

    def guess(params: dict, batch: Batch, at: Int[Array, "b q"]) -> tuple[Int[Array, "b q g"], Float[Array, "b q g"]]:
        hidden = model.filler.apply(params, batch, at=at).hidden
        logits = model.filler.logits(params, hidden)[..., : model.vocab_size]
        chances, ids = jax.lax.top_k(jax.nn.softmax(logits), min(GUESSES, model.vocab_size))
        return ids, chances

    return guess


def choose(vocabulary: Vocabulary, config: Config, folder: Path, manifest: dict) -> list[Text]:
    """The first texts of the held-out sets that have masked places, in turn from each set; short ones go first."""
    names = set_names([corpus["source"] for corpus in manifest["corpora"]])
    sets = [i for i, corpus in enumerate(manifest["corpora"]) if corpus["splits"]["eval"]["rows"]][:TEXTS]
    found = []
    for i in sets:
        batches = data.host_evaluation_batches(folder, manifest, config, i)
        rows = jax.tree.map(lambda leaf: leaf[:FIRST_ROWS], next(batches))
        batches.close()
        texts = _texts(names[i], rows, evaluation_mask(rows, vocabulary, config), vocabulary)
        # sorted keeps the order of the rows among those of a good length, and among the others
        found.append(sorted(texts, key=lambda text: not SHORT <= len(text.tokens) <= LONG)[:TEXTS])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*found))
    chosen = list(itertools.islice(filter(None, turns), TEXTS))
    return sorted(chosen, key=lambda text: names.index(text.name))


def evaluation_mask(rows: Batch, vocabulary: Vocabulary, config: Config) -> Masked:
    """The masks of `evaluate` for these rows [b,t], in numpy: MASK at every selected place."""
    return jax.tree.map(np.asarray, jax.device_get(jax.jit(make_mask(vocabulary, config))(rows)))


def _texts(name: str, rows: Batch, masked: Masked, vocabulary: Vocabulary) -> Iterator[Text]:
    """Every segment of the rows of which a masked place is shown."""
    for b, row in enumerate(np.asarray(rows.tokens)):
        segments = np.asarray(rows.segments[b])
        for segment in range(1, int(segments.max()) + 1):
            places = np.flatnonzero(segments == segment)
            first, after = int(places[0]), int(places[-1]) + 1
            first += int(row[first] == vocabulary.cls)
            after -= int(row[after - 1] == vocabulary.sep)
            after = min(after, first + LONGEST)
            hidden = first + np.flatnonzero(masked.selected[b, first:after])[:MOST_PLACES]
            if len(hidden):
                one = jax.tree.map(lambda leaf, b=b: np.asarray(leaf)[b], rows)
                yield Text(name, one, masked.inputs[b], first, row[first:after], hidden)


def _gather(texts: list[Text], size: int) -> tuple[Batch, np.ndarray]:
    """The masked rows of the texts as one batch [size,t], and their places i32[size,q]; the last text fills it up."""
    texts = texts + [texts[-1]] * (size - len(texts))
    batch = jax.tree.map(lambda *leaves: np.stack(leaves), *(text.row for text in texts))
    at = np.zeros((size, max(len(text.places) for text in texts)), np.int32)
    for places, text in zip(at, texts):
        places[: len(text.places)] = text.places
    return dataclasses.replace(batch, tokens=np.stack([text.inputs for text in texts])), at


def _described(text: Text, pieces: list[str], ids: np.ndarray, chances: np.ndarray) -> dict:
    pieces = dict(enumerate(pieces))  # an imported word table may have more rows than the tokenizer has pieces
    masked = []
    for place, best, probabilities in zip((text.places - text.first).tolist(), ids, chances):
        guesses = [
            [pieces.get(i, f"[{i}]"), round(float(chance), 4)] for i, chance in zip(best.tolist(), probabilities)
        ]
        masked.append({"place": place, "target": pieces[text.tokens[place]], "guesses": guesses})
    return {"set": text.name, "tokens": [pieces[i] for i in text.tokens.tolist()], "masked": masked}
