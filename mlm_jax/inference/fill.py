"""What stands at the MASKs of texts."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mlm_jax.config import ConfigError
from mlm_jax.inference.loading import Loaded
from mlm_jax.inference.logits import in_pieces_of
from mlm_jax.inference.rows import Item, Rows
from mlm_jax.inference.run import Answer, Program, at_places, in_pieces
from mlm_jax.inference.windows import around
from mlm_jax.models import Model
from mlm_jax.tokenizer import Tokenizer

MASK = "[MASK]"  # in a text, whatever the tokenizer's own is called, which counts as well


@dataclasses.dataclass
class Template:
    """A text that was cut at its MASKs, and its ids, which change as they are filled."""

    text: str
    parts: list[str]  # what stands around them
    signs: list[str]  # the MASKs as they were written
    ids: np.ndarray  # i32[n], without CLS and SEP
    places: np.ndarray  # of its MASKs in `ids`
    left: list[int]  # the MASKs, by number, that are not filled

    def continues(self, mask: int) -> bool:
        """Whether no white space stands before a MASK, and it is not the first of the text."""
        before = self.parts[mask]
        return not before[-1].isspace() if before else mask > 0

    def written(self, fillings: dict[int, str]) -> str:
        """The text with some of its MASKs, by number, filled with what `Tokenizer.shown` has.

        What begins a word has white space before it, what continues one has none.
        """
        text = self.parts[0]
        for number, (sign, part) in enumerate(zip(self.signs, self.parts[1:])):
            if number not in fillings:
                text += sign + part
                continue
            filling = fillings[number].replace("▁", " ")
            if not filling.startswith(" "):
                text = text.rstrip()
            elif not text.strip() or text[-1].isspace():
                filling = filling.lstrip()
            text += filling + part
        return text


def fill_mask(
    loaded: Loaded, texts: Iterable[str], top_k: int = 5, targets: Sequence[str] | None = None, joint: bool = False
) -> list[dict]:
    """For each text {"text", "masks"}: of each MASK, from left to right, the `top_k` best guesses, best first.

    A guess is {"token", "id", "probability", "sequence"}: the piece as `Tokenizer.shown` has it, and the text with this
    MASK filled. Probabilities are those of the model over all its tokens, each MASK for itself, the others unfilled.

    joint: in order of confidence instead: the surest guess of a text is filled in and the others are asked again, until
    none is left (the easy-first order of Ghazvininejad et al. 2019, "Mask-Predict", one at a time). A MASK's guesses
    are those at its turn; there is "filled", the whole text, and "order", the numbers of the MASKs from 0 as they were
    filled, instead of "sequence".

    targets: words among which guesses are chosen, each of which must be one piece, after white space or, at a MASK that
    has none before it, as it continues a word; or be spelled as the tokenizer's file has a piece, such as `##ing`. In a
    text longer than the model reads each MASK is seen with as
    much text on either side as there is room for.

    Raises ConfigError for a text without MASK, a target that is no single piece, and a model that fills no masks.
    """
    return list(filled(loaded, texts, top_k, targets, joint))


def filled(
    loaded: Loaded, texts: Iterable[str], top_k: int = 5, targets: Sequence[str] | None = None, joint: bool = False
) -> Iterator[dict]:
    """The answers of `fill_mask` one after another; texts may be a stream."""
    loaded.check_fills()
    tokenizer, wanted = loaded.tokenizer, None
    if targets is not None:
        places = ([target_id(tokenizer, word, continues) for word in targets] for continues in (False, True))
        wanted = Targets(*(tuple(dict.fromkeys(ids)) for ids in places))
    program = _program(loaded.model, tokenizer.size, top_k, wanted and wanted.all)
    answer, number = _jointly if joint else _each, 0
    for piece in in_pieces(texts):
        templates, problem = [], None
        for text in piece:
            number += 1
            try:
                templates.append(template(tokenizer, text))
            except ConfigError as error:  # those before it are answered
                problem = ConfigError(error.key, error.value, f"{error.fix} (text {number:,})")
                break
        yield from answer(loaded, program, templates, Choice(wanted, top_k))
        if problem:
            raise problem


class Targets(NamedTuple):
    """Ids among which guesses are chosen."""

    after_space: tuple[int, ...]
    continuing: tuple[int, ...]  # at a MASK without white space before it

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.after_space, *self.continuing)))


class Choice(NamedTuple):
    """What of a program's answer is wanted."""

    targets: Targets | None
    top_k: int

    def of(self, one: Template, mask: int, answer: Answer) -> Answer:
        """`ids` and `probabilities` [k] at a MASK, best first."""
        if self.targets is None:
            return answer
        wanted = self.targets.continuing if one.continues(mask) else self.targets.after_space
        own = np.flatnonzero(np.isin(answer["ids"], wanted))
        best = own[np.argsort(-answer["probabilities"][own], kind="stable")][: self.top_k]
        return {name: value[best] for name, value in answer.items()}


def template(tokenizer: Tokenizer, text: str) -> Template:
    """Raises ConfigError for a text without MASK."""
    signs = "|".join(map(re.escape, (MASK, tokenizer.pieces[tokenizer.mask])))
    parts = re.split(signs, text)
    if len(parts) == 1:
        raise ConfigError("text", text, f"holds no {MASK}")
    ids = np.array(tokenizer.encode_around(parts), np.int32)
    places = np.flatnonzero(ids == tokenizer.mask)
    return Template(text, parts, re.findall(signs, text), ids, places, list(range(len(places))))


def target_id(tokenizer: Tokenizer, word: str, continues: bool = False) -> int:
    """The one id of a word after white space, or of a piece by its own name. Raises ConfigError for any other.

    continues: rather that of what continues a word, where there is one.
    """
    if continues and word in tokenizer.shown and (found := tokenizer.shown.index(word)) not in tokenizer.special:
        return found
    ids = tokenizer.encode_around(["", f" {word}"])[1:]
    if len(ids) == 1 and ids[0] not in tokenizer.special:
        return int(ids[0])
    if word in tokenizer.pieces and (found := tokenizer.pieces.index(word)) not in tokenizer.special:
        return found
    pieces = " ".join(tokenizer.shown[i] for i in ids)
    fix = "is not in the vocabulary" if tokenizer.unk in ids or not ids else f"is {len(ids)} pieces, {pieces}"
    raise ConfigError("targets", word, f"{fix}; a target must be one piece")


def asked(loaded: Loaded, templates: Sequence[Template]) -> tuple[list[Item], list[tuple[int, list[int]]]]:
    """What to read for all MASKs that are left: items, and the number of each one's text and of the MASKs it asks for.

    MASKs that are seen in the same window share an item.
    """
    items, owners = [], []
    for number, one in enumerate(templates):
        windows: dict[tuple[int, int], list[int]] = {}
        for mask in one.left:
            window = around(int(one.places[mask]), len(one.ids), loaded.limit - 2)
            windows.setdefault((window.start, window.stop), []).append(mask)
        for (start, stop), masks in windows.items():
            at = one.places[masks] - start + 1  # after CLS
            items.append(Item(loaded.surrounded(one.ids[start:stop]), at.astype(np.int32)))
            owners.append((number, masks))
    return items, owners


def guessed(loaded: Loaded, program: Program, templates: Sequence[Template]) -> list[dict[int, Answer]]:
    """For each text, by number of its unfilled MASKs, what a program over places says of them."""
    items, owners = asked(loaded, templates)
    found: list[dict[int, Answer]] = [{} for _ in templates]
    for (number, masks), answer in zip(owners, at_places(program, loaded.params, items)):
        for slot, mask in enumerate(masks):
            found[number][mask] = {name: value[slot] for name, value in answer.items()}
    return found


def _each(loaded: Loaded, program: Program, templates: list[Template], choice: Choice) -> Iterator[dict]:
    for one, answers in zip(templates, guessed(loaded, program, templates)):
        masks = [_guesses(loaded.tokenizer, choice.of(one, mask, answers[mask])) for mask in range(len(one.places))]
        for mask, guesses in enumerate(masks):
            for guess in guesses:
                guess["sequence"] = one.written({mask: guess["token"]})
        yield {"text": one.text, "masks": masks}


def _jointly(loaded: Loaded, program: Program, templates: list[Template], choice: Choice) -> Iterator[dict]:
    turns: list[dict[int, list[dict]]] = [{} for _ in templates]  # by MASK in order of filling: its guesses
    while unfinished := [i for i, one in enumerate(templates) if one.left]:
        for i, answers in zip(unfinished, guessed(loaded, program, [templates[i] for i in unfinished])):
            one = templates[i]
            chosen = {mask: choice.of(one, mask, answer) for mask, answer in answers.items()}
            best = max(chosen, key=lambda mask: float(chosen[mask]["probabilities"][0]))
            one.ids[one.places[best]] = chosen[best]["ids"][0]
            one.left.remove(best)
            turns[i][best] = _guesses(loaded.tokenizer, chosen[best])
    for one, turn in zip(templates, turns):
        masks = [turn[mask] for mask in range(len(one.places))]
        whole = one.written({mask: guesses[0]["token"] for mask, guesses in turn.items()})
        yield {"text": one.text, "masks": masks, "order": list(turn), "filled": whole}


def _guesses(tokenizer: Tokenizer, answer: Answer) -> list[dict]:
    return [
        {"token": tokenizer.shown[i], "id": int(i), "probability": float(probability)}
        for i, probability in zip(answer["ids"], answer["probabilities"])
    ]


@functools.lru_cache(maxsize=8)
def _program(model: Model, size: int, top_k: int, targets: tuple[int, ...] | None) -> Program:
    """`ids` i32[b,q,k] and `probabilities` f32[b,q,k]: the best, best first, or those of all targets.

    size: ids of the tokenizer; further rows of the word table are no token.
    """

    @jax.jit
    def program(params: dict, rows: Rows) -> dict[str, Array]:
        def best(hidden: Float[Array, "n d"]) -> dict[str, Array]:
            probabilities = jax.nn.softmax(model.filler.logits(params, hidden)[..., :size])
            if targets is None:
                probabilities, ids = jax.lax.top_k(probabilities, min(top_k, size))
            else:
                ids = jnp.broadcast_to(jnp.asarray(targets, jnp.int32), (hidden.shape[0], len(targets)))
                probabilities = jnp.take_along_axis(probabilities, ids, axis=-1)
            return {"ids": ids, "probabilities": probabilities}

        return in_pieces_of(best, size, model.filler.apply(params, rows.batch, at=rows.at).hidden)

    return program
