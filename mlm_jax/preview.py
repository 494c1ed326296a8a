"""What the model will see: rows as text, with segments, words, and what the mask does to each token."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import SupportsInt

import jax
import jax.numpy as jnp
import numpy as np

import mlm_jax
from mlm_jax import data, masking
from mlm_jax.batch import Batch, Masked
from mlm_jax.report.markup import Html, join, tag
from mlm_jax.report.style import STYLE
from mlm_jax.tokenizer import Tokenizer, Vocabulary

SPACE = "\u2581"  # how SentencePiece writes white space
PLAIN, MASKED, RANDOM, KEPT, SPECIAL = "plain", "masked", "random", "kept", "special"
MEANINGS = {MASKED: "[MASK] stands there", RANDOM: "another token stands there", KEPT: "left as it is, but predicted"}
# without colour: what stands around a token that is predicted; brackets that hardly any text has
BRACKETS = {MASKED: ("⟦", "⟧"), RANDOM: ("⟪", "⟫"), KEPT: ("⟨", "⟩")}
COLORS = {MASKED: "\x1b[30;44m", RANDOM: "\x1b[30;43m", KEPT: "\x1b[30;42m", SPECIAL: "\x1b[2m"}
LABELS = {  # what `pairs` of the manifest says -> label -> what it means
    "none": {-1: ""},
    "next": {-1: "", 0: "label 0, follows", 1: "label 1, random"},
    "order": {-1: "", 0: "label 0, in order", 1: "label 1, swapped"},
}
TIE = "‿"  # between the words of a phrase
END = "\x1b[0m"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A token as it is shown: what happens to it, its text, and the text that stands there instead, if it is random."""

    kind: str
    text: str
    instead: str = ""


@dataclasses.dataclass(frozen=True)
class Word:
    """A word's pieces, whether it continues the phrase of the word before, and whether a pair's second text has it."""

    pieces: list[Piece]
    joins: bool = False
    second: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """A row under one mask. segments: the words of each; labels: of each that is a pair, in words, else empty.

    padding: places without a token.
    """

    row: int
    visit: int
    maskable: int
    segments: list[list[Word]]
    labels: list[str]
    padding: int

    def count(self, kind: str) -> int:
        return sum(piece.kind == kind for segment in self.segments for word in segment for piece in word.pieces)


def rows(
    folder: Path,
    manifest: dict,
    mask: Callable[[Batch], Masked],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    asked: Sequence,
    read: Callable[[Batch], Batch] = lambda batch: batch,
) -> list[Row]:
    """The training rows `asked` for, (row, visit) pairs, under the masks that training gives them there.

    A row under a mask is a function of the seed, the row, the visit and the rate, so this is what the run sees.
    read: what training sees of a batch [b,t]; mask: what it makes of that.
    """
    batch = jax.tree.map(jnp.asarray, data.Shards(folder, manifest, "train").batch(np.array(asked, np.int64)))
    batch = read(batch)
    masked = mask(batch)
    inputs, selected = np.asarray(masked.inputs), np.asarray(masked.selected)
    maskable = np.asarray(masking.maskable(batch.tokens, batch.segments, vocabulary))
    batch = jax.device_get(batch)
    found = []
    for i, (row, visit) in enumerate(asked):
        kinds = _kinds(batch.tokens[i], inputs[i], selected[i], maskable[i], vocabulary.mask)
        pieces = [_piece(tokenizer.shown, *place) for place in zip(kinds, batch.tokens[i], inputs[i])]
        marks = (np.asarray(marks[i]) for marks in (batch.word_starts, batch.phrase_joins, batch.types))
        segments = _segments(pieces, batch.segments[i], *marks)
        labels = [LABELS[manifest["pairs"]][int(label)] for label in batch.pair_labels[i, : len(segments)]]
        padding = int((batch.segments[i] == 0).sum())
        found.append(Row(int(row), int(visit), int(maskable[i].sum()), segments, labels, padding))
    return found


def _kinds(tokens: np.ndarray, inputs: np.ndarray, selected: np.ndarray, maskable: np.ndarray, mask: int) -> list[str]:
    kinds = np.where(maskable, PLAIN, SPECIAL)
    kinds = np.where(selected, np.where(inputs == mask, MASKED, np.where(inputs == tokens, KEPT, RANDOM)), kinds)
    return kinds.tolist()


def _piece(pieces: Sequence[str], kind: str, token: SupportsInt, stands: SupportsInt) -> Piece:
    return Piece(kind, pieces[int(token)], pieces[int(stands)] if kind == RANDOM else "")


def _segments(
    pieces: list[Piece], segments: np.ndarray, word_starts: np.ndarray, phrase_joins: np.ndarray, types: np.ndarray
) -> list[list[Word]]:
    """Words by segment; a special token is a word of its own, and none continues a phrase across it."""
    found: list[list[Word]] = [[] for _ in range(int(segments.max(initial=0)))]
    for piece, segment, starts, joins, second in zip(pieces, segments, word_starts, phrase_joins, types):
        if not segment:
            continue
        words = found[segment - 1]
        alone = not words or SPECIAL in (piece.kind, words[-1].pieces[-1].kind)
        if starts or alone:
            words.append(Word([], bool(starts and joins and not alone), bool(second)))
        words[-1].pieces.append(piece)
    return found


def _phrases(words: list[Word]) -> list[list[Word]]:
    """The words in groups that belong together."""
    groups: list[list[Word]] = []
    for word in words:
        if not word.joins:
            groups.append([])
        groups[-1].append(word)
    return groups


def _readable(text: str) -> str:
    return text.removeprefix(SPACE).replace(SPACE, " ") or "␣"


def summary(row: Row) -> str:
    """Counts of one row."""
    counts = {kind: row.count(kind) for kind in (MASKED, RANDOM, KEPT)}
    selected = sum(counts.values())
    share = selected / row.maskable if row.maskable else 0.0
    parts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return (
        f"row {row.row:,}, visit {row.visit}: {len(row.segments)} segments, {row.padding} places empty;"
        f" {selected} of {row.maskable} tokens predicted ({share:.1%}): {parts}"
    )


# ---- terminal ----


def terminal(found: list[Row], color: bool) -> str:
    """The rows as text; a word's pieces are joined by a dot, a phrase's words by a tie. color: else by brackets."""
    legend = ", ".join(f"{_mark(Piece(kind, kind), color)} {meaning}" for kind, meaning in MEANINGS.items())
    lines = [legend]
    for row in found:
        lines += ["", summary(row)]
        for number, segment in enumerate(row.segments, start=1):
            first, second = _texts(segment)
            lines.append(f"  {number}  {_line(first, color)}")
            if second:
                lines.append(f"  {' ' * len(str(number))}  {row.labels[number - 1]}: {_line(second, color)}")
    return "\n".join(lines)


def _texts(segment: list[Word]) -> tuple[list[Word], list[Word]]:
    """The words of the first text of a pair, or of all there is, and those of the second."""
    return [word for word in segment if not word.second], [word for word in segment if word.second]


def _line(words: list[Word], color: bool) -> str:
    return " ".join(TIE.join(_shown(word, color) for word in phrase) for phrase in _phrases(words))


def _shown(word: Word, color: bool) -> str:
    return "·".join(_mark(piece, color) for piece in word.pieces)


def _mark(piece: Piece, color: bool) -> str:
    text = _readable(piece.text) + (f"→{_readable(piece.instead)}" if piece.instead else "")
    if color:
        return f"{COLORS[piece.kind]}{text}{END}" if piece.kind in COLORS else text
    before, after = BRACKETS.get(piece.kind, ("", ""))
    return f"{before}{text}{after}"


# ---- page ----

RULES = """
.row{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;margin:0 0 14px}
.row h2{font-size:14px;font-weight:500;margin:0 0 8px;color:var(--ink)}
.segment{font-size:16px;line-height:2;margin:0;padding:6px 0;border-top:1px solid var(--line);overflow-wrap:anywhere}
.word{display:inline-block;margin:0 3px;border-bottom:1px solid var(--line)}
.word bdi+bdi{border-left:1px dotted var(--ink);margin-left:1px;padding-left:1px}
.phrase{border:1px solid var(--line);border-radius:4px;padding:2px 0}
.special{color:var(--ink);font-size:12px}
.label{color:var(--ink);font-size:12px;border:1px solid var(--line);border-radius:4px;padding:1px 5px}
.masked{background:#cfe0f5;color:#0b2c52;text-decoration:line-through}
.random{background:#fbe3b4;color:#5a3d00}
.kept{background:#d5ecd9;color:#0f4520;text-decoration:underline}
.masked,.random,.kept{border-radius:3px;padding:1px 3px}
s{opacity:.65}
"""


def html(found: list[Row], title: str, about: str) -> str:
    """The rows as a page that needs nothing else. about: a sentence on the choices made."""
    legend = join(
        *(tag("span", tag("bdi", kind, class_=kind), f" {MEANINGS[kind]}") for kind in MEANINGS), between=" · "
    )
    note = f"Words are underlined, pieces within a word divided by dots. Phrases have a frame. {about}"
    body = tag("body", tag("h1", title), tag("p", legend), tag("p", note, class_="note"), *map(_article, found))
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"mlm_jax {mlm_jax.__version__}"),
        tag("title", title),
        tag("style", Html(STYLE + RULES)),
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n{body}</html>\n'


def _article(row: Row) -> Html:
    segments = (_segment(*_texts(segment), label) for segment, label in zip(row.segments, row.labels))
    return tag("section", tag("h2", summary(row)), *segments, class_="row")


def _segment(first: list[Word], second: list[Word], label: str) -> Html:
    texts = [join(*map(_phrase, _phrases(words)), between=" ") for words in (first, second) if words]
    between = Html(f" {tag('span', label, class_='label')} ")
    return tag("p", join(*texts, between=between), class_="segment", dir="auto")


def _phrase(words: list[Word]) -> Html:
    shown = join(*map(_word, words), between=" ")
    return tag("span", shown, class_="phrase") if len(words) > 1 else shown


def _word(word: Word) -> Html:
    return tag("span", *map(_token, word.pieces), class_="word")


def _token(piece: Piece) -> Html:
    text = _readable(piece.text)
    shown = join(tag("s", text), " ", _readable(piece.instead)) if piece.instead else text
    return tag("bdi", shown, class_=None if piece.kind == PLAIN else piece.kind, title=MEANINGS.get(piece.kind))
