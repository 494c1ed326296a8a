"""Examples as what a model reads, and its answers as what they say of the examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlm_jax.config import ConfigError, FinetuneConfig, Task
from mlm_jax.finetune.examples import NOT_FOUND, Example
from mlm_jax.inference.rows import Item
from mlm_jax.inference.windows import cut
from mlm_jax.text import clean, cleaned
from mlm_jax.tokenizer import Tokenizer


class Piece(NamedTuple):
    """One segment of an example, and the places in it that have labels.

    These are CLS (classification, regression), the first token of each of `words` (tagging), or where the answer begins
    and where it ends, which is CLS both times where there is none in it (questions).
    """

    example: int
    ids: np.ndarray  # i32[n], CLS and SEP among them
    second: int = 0  # place where the second part begins; 0: there is none
    at: np.ndarray = np.zeros(1, np.int32)  # i32[q]
    words: np.ndarray = np.zeros(0, np.int32)  # i32[q], numbers of the words, each looked at in one piece
    context: tuple[int, int] = (0, 0)  # kind=questions: places of the first token of the context, and after its last
    spans: np.ndarray = np.zeros((0, 2), np.int32)  # of each of these, where it begins and ends in the context's string

    @property
    def item(self) -> Item:
        """With the places that have labels."""
        return Item(self.ids, at=self.at, second=self.second)


MOST_QUESTION_TOKENS = 64  # of a longer question the end is cut off, and beyond half of what the model reads
MOST_ANSWER_TOKENS, BEST = 30, 20  # longest answer; how many of the best first and last tokens are paired


def encode(
    examples: Sequence[Example], kind: str, tokenizer: Tokenizer, config: FinetuneConfig
) -> tuple[list[Piece], list[str]]:
    """The pieces of all examples, in their order, and what there is to tell about those that do not fit.

    Raises ConfigError where windows could not cover a context.
    """
    limit = config.row_length
    if kind == "tagging":
        return of_words(examples, tokenizer, limit)
    if kind == "questions":
        return of_questions(examples, tokenizer, limit, config.window_overlap)
    pieces, cut = of_texts(examples, tokenizer, limit)
    return pieces, [f"{cut:,} cut to {limit} tokens"] if cut else []


# ---- texts ----


def of_texts(examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> tuple[list[Piece], int]:
    """Single texts and pairs as CLS text SEP and CLS text SEP second SEP; and how many were cut to `limit` tokens.

    Between the texts stand as many SEP as the tokenizer has there.

    A text is cut at its end, of a pair one token at a time of the one that is longer, the second one if both are equal.
    """
    firsts = _ids(tokenizer, [example.text for example in examples])
    seconds = _ids(tokenizer, [example.second or "" for example in examples])
    between = [tokenizer.sep] * tokenizer.separators
    pieces, cut = [], 0
    for number, (example, first, second) in enumerate(zip(examples, firsts, seconds)):
        pair = example.second is not None
        room = limit - 2 - len(between) * pair
        a, b = longest_first(len(first), len(second) if pair else 0, room)
        cut += a + b < len(first) + (len(second) if pair else 0)
        parts = [[tokenizer.cls], first[:a], *((between, second[:b]) if pair else ()), [tokenizer.sep]]
        pieces.append(Piece(number, np.concatenate(parts).astype(np.int32), a + 1 + len(between) if pair else 0))
    return pieces, cut


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens stay of two texts, where so many have room and the longer one gives way, the second of equals."""
    over = max(0, first + second - room)
    from_longer = min(over, abs(first - second))
    first, second = (first - from_longer, second) if first > second else (first, second - from_longer)
    over -= from_longer
    return first - over // 2, second - (over - over // 2)


def _ids(tokenizer: Tokenizer, texts: list[str]) -> list[np.ndarray]:
    """The ids of each text, i32[n]."""
    encoding, lengths = tokenizer.encode_batch(texts)
    return np.split(np.asarray(encoding.ids, np.int32), np.cumsum(lengths)[:-1]) if texts else []


# ---- words ----


def of_words(examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> tuple[list[Piece], list[str]]:
    """Sentences as CLS words SEP, with the first token of each word; longer ones in overlapping windows.

    A word of which nothing is left by cleaning, or that shares its first token with the one before, has no place.
    """
    texts, begins = [], []
    for example in examples:
        words = ["".join(clean(word).split()) for word in example.words]
        lengths = np.array([len(word) + (word != "") for word in words], np.int64)  # with the space after it
        begins.append(np.cumsum(lengths) - lengths)
        texts.append(" ".join(word for word in words if word))
    encoding, lengths = tokenizer.encode_batch(texts, cleaned=True)
    places = tokenizer.places(texts, encoding, lengths)
    ends = np.cumsum(lengths)
    pieces, lost, windows = [], 0, 0
    for number, (example, starts, end, length) in enumerate(zip(examples, begins, ends, lengths)):
        ids, of_tokens = np.asarray(encoding.ids[end - length : end], np.int32), places[end - length : end]
        words, firsts = first_tokens(of_tokens, starts)
        lost += len(example.words) - len(words)
        for window in cut(len(ids), limit - 2):
            inside = (firsts >= window.first) & (firsts < window.last)
            whole = surrounded(ids[window.start : window.stop], tokenizer)
            at = (firsts[inside] - window.start + 1).astype(np.int32)
            pieces.append(Piece(number, whole, at=at, words=words[inside]))
            windows += 1
    told = [f"{lost:,} words have no token of their own: tagged O"] if lost else []
    return pieces, told + ([f"{windows:,} windows"] if windows > len(examples) else [])


def first_tokens(places: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the words that have a token of their own, and those tokens' numbers.

    places: of the first visible character of each token; starts: of each word in the same text, rising. Words of no
    characters start where the next one does, and have none.
    """
    inside = np.append(np.diff(starts), 1) > 0 if len(starts) else np.zeros(0, bool)
    present = np.flatnonzero(inside)
    owners = np.searchsorted(starts[present], places, side="right") - 1
    owners, firsts = np.unique(owners, return_index=True)
    kept = owners >= 0
    return present[owners[kept]].astype(np.int32), firsts[kept]


def surrounded(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """CLS ids SEP."""
    return np.concatenate([[tokenizer.cls], ids, [tokenizer.sep]]).astype(np.int32)


def tags_of(
    found: Sequence[np.ndarray], pieces: Sequence[Piece], examples: Sequence[Example], task: Task
) -> list[tuple[str, ...]]:
    """A tag for each word of each example. found: ids of tags at the places of each piece; words without one have O."""
    tags = [["O"] * len(example.words) for example in examples]
    for ids, piece in zip(found, pieces, strict=True):
        for i, word in zip(ids, piece.words):
            tags[piece.example][word] = task.labels[i]
    return [tuple(each) for each in tags]


# ---- questions ----


class Context(NamedTuple):
    """A context as its tokens, and where each begins and ends in the string that was given."""

    ids: np.ndarray  # i32[n]
    spans: np.ndarray  # i32[n,2]


def contexts_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[Context]:
    cleaned_texts, origins = zip(*map(cleaned_with_origins, texts)) if texts else ((), ())
    encoding, lengths = tokenizer.encode_batch(list(cleaned_texts), cleaned=True)
    places = tokenizer.places(list(cleaned_texts), encoding, lengths)
    ends, found = np.cumsum(lengths), []
    for text, origin, end, length in zip(cleaned_texts, origins, ends, lengths):
        own = places[end - length : end]
        found.append(Context(np.asarray(encoding.ids[end - length : end], np.int32), _spans(text, origin, own)))
    return found


def cleaned_with_origins(text: str) -> tuple[str, np.ndarray]:
    """The text as a tokenizer reads it, white space single and none at the ends, and where each character came from."""
    kept, origin = [], []
    for i, char in enumerate(text):
        new = cleaned(char)
        if new and not (new == " " and (not kept or kept[-1] == " ")):
            kept.append(new)
            origin.append(i)
    if kept and kept[-1] == " ":
        kept.pop()
        origin.pop()
    return "".join(kept), np.array(origin, np.int32)


def _spans(text: str, origin: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Of tokens that begin at these places: where each begins and ends in the original string.

    A token ends before the white space in front of the next one that begins elsewhere; those that share a place, such
    as the bytes of a character, share their end.
    """
    spans = np.zeros((len(places), 2), np.int32)
    last = len(text)
    for i in range(len(places) - 1, -1, -1):
        if i + 1 < len(places) and places[i + 1] > places[i]:
            last = int(places[i + 1])
        end = last
        while end > places[i] + 1 and text[end - 1] == " ":
            end -= 1
        spans[i] = origin[places[i]], origin[end - 1] + 1
    return spans


def of_questions(
    examples: Sequence[Example], tokenizer: Tokenizer, limit: int, overlap: int
) -> tuple[list[Piece], list[str]]:
    """CLS question SEP context SEP, the context in windows that have `overlap` tokens in common.

    Between both stand as many SEP as the tokenizer has between the texts of a pair.
    Raises ConfigError where that leaves no step between the windows.
    """
    texts = list(dict.fromkeys(example.second for example in examples))
    contexts = dict(zip(texts, contexts_of(texts, tokenizer)))
    between = [tokenizer.sep] * tokenizer.separators
    pieces, outside = [], 0
    for number, (example, question) in enumerate(zip(examples, _ids(tokenizer, [one.text for one in examples]))):
        question = question[: min(MOST_QUESTION_TOKENS, (limit - 3) // 2)]
        before = 1 + len(question) + len(between)
        context = contexts[example.second]
        answer = answer_tokens(context.spans, example)
        found = False
        for start, stop in windows_of(len(context.ids), limit - before - 1, overlap):
            shift = before - start  # from a token of the context to its place
            parts = [[tokenizer.cls], question, between, context.ids[start:stop], [tokenizer.sep]]
            at = np.zeros(2, np.int32)
            if answer and start <= answer[0] and answer[1] < stop:
                at, found = np.array(answer, np.int32) + shift, True
            ids = np.concatenate(parts).astype(np.int32)
            own = (start + shift, stop + shift)
            pieces.append(Piece(number, ids, before, at, context=own, spans=context.spans[start:stop]))
        outside += bool(example.answers) and not found
    told = [f"{len(pieces):,} windows"] + ([f"{outside:,} answers lie in no window"] if outside else [])
    return pieces, told


def windows_of(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """(first token, after the last) of windows over a context, of `room` tokens each, that share `overlap` of them.

    Raises ConfigError where they would not go on, or where there is no room.
    """
    if overlap >= room:
        fix = f"a question leaves room for {room} tokens of its context; make the overlap smaller, or the rows longer"
        raise ConfigError("config.window_overlap", overlap, fix)
    starts = [0]
    while starts[-1] + room < length:
        starts.append(starts[-1] + room - overlap)
    return [(start, min(start + room, length)) for start in starts]


def answer_tokens(spans: np.ndarray, example: Example) -> tuple[int, int] | None:
    """The first and the last token of the first answer that stands there; None where there is none."""
    placed = [answer for answer in example.answers if answer.start != NOT_FOUND]
    if not placed or not len(spans):
        return None
    text, start = placed[0]
    start, stop = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], stop, side="left")) - 1
    return (first, last) if first <= last else None


def answers_of(
    outputs: Sequence[np.ndarray], pieces: Sequence[Piece], examples: Sequence[Example], unanswerable: bool
) -> list[dict]:
    """The best answer to each question over all windows of its context.

    outputs: the numbers of first and last token, f32[n,2], at all tokens of each piece. An answer has the sum of those
    of its two ends; that there is none, the sum of CLS, the least over the windows (BERT, section 4.3). `null_odds`:
    how much more the latter is than the best answer; with `unanswerable` nothing is answered where it is above 0.
    """
    found = [{"prediction": "", "score": -np.inf, "null": np.inf} for _ in examples]
    for numbers, piece in zip(outputs, pieces, strict=True):
        best = found[piece.example]
        best["null"] = min(best["null"], float(numbers[0].sum()))
        first, stop = piece.context
        score, begin, end = best_span(numbers[first:stop, 0], numbers[first:stop, 1])
        if score > best["score"]:
            begin, end = int(piece.spans[begin, 0]), int(piece.spans[end, 1])
            best |= {"score": score, "prediction": examples[piece.example].second[begin:end]}
    answers = []
    for best in found:
        odds = best["null"] - max(best["score"], -1e9)  # without a token of a context nothing can be answered
        nothing = unanswerable and odds > 0
        answers.append({"prediction": "" if nothing else best["prediction"], "null_odds": round(odds, 6)})
        if nothing:
            answers[-1]["best_answer"] = best["prediction"]
    return answers


def best_span(starts: np.ndarray, ends: np.ndarray) -> tuple[float, int, int]:
    """The best sum of a first and a last token not before it, at most MOST_ANSWER_TOKENS long, and these two tokens.

    Of the BEST first and last ones; without any, minus infinity.
    """
    best = (-np.inf, 0, 0)
    for i in np.argsort(-starts, kind="stable")[:BEST]:
        for j in np.argsort(-ends, kind="stable")[:BEST]:
            if i <= j < i + MOST_ANSWER_TOKENS and starts[i] + ends[j] > best[0]:
                best = (float(starts[i] + ends[j]), int(i), int(j))
    return best


# ---- labels ----


def labels_of(pieces: Sequence[Piece], examples: Sequence[Example], task: Task) -> list[np.ndarray]:
    """The labels of each piece at its places; those of questions mean nothing."""
    if task.kind == "regression":
        return [np.array([examples[piece.example].label], np.float32) for piece in pieces]
    if task.kind == "questions":
        return [np.zeros(2, np.int32) for _ in pieces]
    ids = {name: i for i, name in enumerate(task.labels)}
    if task.kind == "classification":
        return [np.array([ids[examples[piece.example].label]], np.int32) for piece in pieces]
    return [np.array([ids[examples[piece.example].label[word]] for word in piece.words], np.int32) for piece in pieces]
