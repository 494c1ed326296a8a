"""Collocations: n-grams whose words stand together far more often than chance has it (PMI-Masking, Levine et al. 2021).

The score of an n-gram is its pointwise mutual information (the paper's equation 3): the least, over all ways to cut it
into two or more parts, of log(p(n-gram) / product of p(part)), where p is an n-gram's share of all those of its
length. A frequent continuation of a frequent phrase is thereby no collocation: one way to cut explains it.

Counted are the training documents with the smallest hashes, as many as fit into a number of tokens. Memory is about 50
bytes a token counted, and 16 a document.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from mlm_jax.prepare.hashing import Lookup, extend
from mlm_jax.prepare.phrases import BLOCK, Phrase, Traits, Words, pieces, without_space, words_of
from mlm_jax.prepare.tasks import Part
from mlm_jax.records import WORD_START
from mlm_jax.tokenizer import Tokenizer

DECIMALS = 4  # of scores: what is closer than that is ordered by the n-gram itself


def sample(parts: list[Part], most_tokens: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The documents with the smallest hashes, from one part after another: their number, ids i32[n] and flags u8[n].

    Of the first document that does not fit, the words at its beginning that do are taken.
    """
    indices = [part.index() for part in parts]
    hashes = np.concatenate([hashes for hashes, _ in indices])
    lengths = np.concatenate([lengths for _, lengths in indices]).astype(np.int64)
    order = np.argsort(hashes, kind="stable")
    wanted = lengths * np.concatenate([part.stays() for part in parts])
    before = np.cumsum(wanted[order]) - wanted[order]
    taken = np.zeros(len(order), np.int64)  # tokens of each document
    taken[order] = np.clip(most_tokens - before, 0, wanted[order])
    firsts = np.cumsum([0, *(len(of_part) for _, of_part in indices)])
    for part, first in zip(parts, firsts):
        of_part, in_part = taken[first : first + part.documents], lengths[first : first + part.documents]
        starts, spans = np.cumsum(in_part) - in_part, []
        if not of_part.any():
            continue
        ids, flags = part.texts()
        for number in np.flatnonzero(of_part):
            start, kept = starts[number], of_part[number]
            if kept < in_part[number]:  # up to a word's end
                kept = np.flatnonzero(flags[start : start + kept + 1] & WORD_START)[-1]
            spans.append(slice(start, start + kept))
        ids, flags = (np.concatenate([values[span] for span in spans]) for values in (ids, flags))
        yield int(np.count_nonzero(of_part)), ids, flags


@dataclasses.dataclass
class Grams:
    """The n-grams of one length that occur often enough: k of them."""

    total: int  # n-grams of that length in the text, all occurrences of all
    counts: np.ndarray  # i64[k]
    places: np.ndarray  # i64[k], a word where each begins
    numbers: np.ndarray  # i32[w], which one begins at each word; -1: none of them

    @property
    def logs(self) -> np.ndarray:
        """log p of each, f64[k]."""
        return np.log(self.counts) - np.log(max(self.total, 1))


def count(words: Words, longest: int, least: int) -> list[Grams]:
    """The n-grams of 1, 2, ... `longest` words that occur at least `least` times; words only where a longer one does.

    The parts of an n-gram occur as often as itself at least, so from trigrams on each length is looked for where both
    n-grams one shorter were found.
    """
    found, hashes = [], words.hashes
    live = words.left >= 2  # where an n-gram may begin
    for n in range(2, longest + 1):
        hashes = extend(hashes, words.hashes, n)
        live = live[: len(hashes)]
        found.append(_grams(words, n, live, hashes, _frequent(hashes[live], least)))
        live = found[-1].numbers >= 0
        live = live[:-1] & live[1:] & (words.left[:-1] > n)
    in_pairs = np.concatenate([words.hashes[found[0].places], words.hashes[found[0].places + 1]])
    return [_grams(words, 1, words.left > 0, words.hashes, np.unique(in_pairs)), *found]


def _frequent(values: np.ndarray, least: int) -> np.ndarray:
    """The values that occur at least so often, sorted, each once; the argument is sorted as well."""
    values.sort()
    if len(values) < least:
        return values[:0]
    # equal to the value `least` - 1 places behind, and the first of its kind
    often = values[: len(values) - least + 1] == values[least - 1 :]
    often[1:] &= values[1 : len(often)] != values[: len(often) - 1]
    return values[: len(often)][often]


def _grams(words: Words, n: int, live: np.ndarray, hashes: np.ndarray, known: np.ndarray) -> Grams:
    """Those that are `known` of the n-grams with these `hashes` that begin where it is `live`."""
    lookup, numbers = Lookup(known), np.full(len(words.starts), -1, np.int32)
    counts, somewhere = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
    for start in range(0, len(hashes), BLOCK):  # what a block needs stays in the processor's cache
        places = start + np.flatnonzero(live[start : start + BLOCK])
        at = lookup(hashes[places])
        numbers[places] = at
        places, at = places[at >= 0], at[at >= 0]
        np.add.at(counts, at, 1)
        somewhere[at] = places
    return Grams(int((words.left >= n).sum()), counts, somewhere, numbers)


def scores(grams: list[Grams]) -> list[np.ndarray]:
    """Pointwise mutual information of each n-gram, f64[k], for n = 2, 3, ...

    best[n]: the largest sum of log p over all ways to cut the n-gram, itself as one part included. A way to cut is a
    first part and a way to cut the rest.
    """
    logs = [of_length.logs for of_length in grams]
    best, found = [logs[0]], []
    for n in range(2, len(grams) + 1):
        places = grams[n - 1].places
        parted = np.full(len(places), -np.inf)
        for m in range(1, n):  # words of the first part
            first, rest = grams[m - 1].numbers[places], grams[n - m - 1].numbers[places + m]
            parted = np.maximum(parted, logs[m - 1][first] + best[n - m - 1][rest])
        found.append(logs[n - 1] - parted)
        best.append(np.maximum(logs[n - 1], parted))
    return found


def split(asked: int, candidates: list[int]) -> list[int]:
    """How many n-grams of 2, 3, ... words make a list of `asked`. candidates: how many there are.

    Scores of different lengths do not compare (a longer one has more ways to be explained away), so each length has a
    ranking of its own. As in the list that the paper's authors published, the half are bigrams, a quarter trigrams, and
    so on, the last two lengths equal. What a length lacks goes to the shorter ones, what bigrams lack to longer ones.
    """
    last = len(candidates) - 1
    wanted = [asked // 2 ** min(place + 1, last) for place in range(len(candidates))]
    wanted[0] = asked - sum(wanted[1:])
    chosen, left = [0] * len(candidates), 0
    for place in [*reversed(range(len(candidates))), *range(1, len(candidates))]:
        left += wanted[place]
        more = min(left, candidates[place] - chosen[place])
        chosen[place] += more
        left -= more
        wanted[place] = 0
    return chosen


def collocations(
    texts: Iterable[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer, asked: int, longest: int, least: int
) -> tuple[list[Phrase], dict[str, dict]]:
    """The best n-grams of texts, by length and falling score, and what to say of each length.

    texts: ids i32[n] and flags u8[n], whole documents. By length: candidates (n-grams that occur often enough and score
    above 0), kept, and the lowest score that was kept.
    """
    traits = Traits(tokenizer)
    ids, words = _read(texts, traits)
    grams = count(words, longest, least)
    values = [np.round(of_length, DECIMALS) for of_length in scores(grams)]
    for n, (of_length, score) in enumerate(zip(grams[1:], values), 2):
        whole = words.solid[of_length.places] & words.solid[of_length.places + n - 1]
        score[~whole] = 0
    candidates = [int((score > 0).sum()) for score in values]
    phrases, about = [], {}
    ends = np.append(words.starts[1:], len(ids))
    starts = without_space(ids, words.starts, traits)
    for n, share, score in zip(range(2, longest + 1), split(asked, candidates), values):
        numbers = _best(score, share)
        each = []
        for place in grams[n - 1].places[numbers].tolist():
            spans = zip(starts[place : place + n], ends[place : place + n])
            each.append(tuple(tuple(ids[start:end].tolist()) for start, end in spans))
        shown = tokenizer.decode_batch([list(itertools.chain.from_iterable(phrase)) for phrase in each])
        about_each = zip(grams[n - 1].counts[numbers].tolist(), score[numbers].tolist(), map(str.strip, shown), each)
        found = [Phrase(*what) for what in about_each]
        found = sorted(found, key=lambda phrase: (-phrase.score, phrase.text, phrase.ids))[:share]
        phrases += found
        lowest = found[-1].score if found else None
        about[str(n)] = {"candidates": candidates[n - 2], "kept": len(found), "lowest_score": lowest}
    return phrases, about


def _read(texts: Iterable[tuple[np.ndarray, np.ndarray]], traits: Traits) -> tuple[np.ndarray, Words]:
    """All ids, i32[n], and all words."""
    each, words, before = [np.zeros(0, np.int32)], [words_of(np.zeros(0, np.int32), np.zeros(0, np.uint8), traits)], 0
    for ids, flags in texts:
        for piece in pieces(flags):
            of_piece = words_of(ids[piece], flags[piece], traits)
            words.append(dataclasses.replace(of_piece, starts=of_piece.starts + np.int32(before + piece.start)))
        each.append(ids)
        before += len(ids)
    names = [field.name for field in dataclasses.fields(Words)]
    return np.concatenate(each), Words(*(np.concatenate([getattr(part, name) for part in words]) for name in names))


def _best(score: np.ndarray, wanted: int) -> np.ndarray:
    """The numbers of the `wanted` best, and of those that are tied with the last of them."""
    return np.flatnonzero(score >= np.partition(score, -wanted)[-wanted]) if wanted else np.zeros(0, np.int64)
