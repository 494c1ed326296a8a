"""A bounded sample of the training documents, spread over all corpora by hash: the same whoever reads what first."""

import heapq
from collections.abc import Iterable, Iterator

from mlm_jax.config import ConfigError
from mlm_jax.prepare.progress import Stage
from mlm_jax.prepare.sources import KEY, File, units
from mlm_jax.prepare.tasks import SampleTask, Settings, sample_unit
from mlm_jax.prepare.workers import Workers

HELD_OUT_BYTES = 1_000_000


class Reservoir:
    """Keeps the texts with the smallest hashes, as many as fit into `room` bytes; at least one."""

    def __init__(self, room: int):
        self.room = room
        self.below = 1 << 64  # hashes from here on are out
        self._kept: list[tuple[int, int, str]] = []  # a heap by falling hash

    def add(self, hash: int, size: int, text: str) -> None:
        """size: bytes of the text."""
        if hash >= self.below:
            return
        heapq.heappush(self._kept, (-hash, size, text))
        self.room -= size
        while self.room < 0 and len(self._kept) > 1:
            # from the first text that does not fit on nothing is kept, or the order of the texts would matter
            negative, freed, _ = heapq.heappop(self._kept)
            self.below = -negative
            self.room += freed

    def leave_out(self, below: int) -> None:
        """Hashes from `below` on are out, as another reservoir of the same room left them out."""
        self.below = min(self.below, below)
        for negative, size, _ in self._kept:
            self.room += size * (-negative >= self.below)
        self._kept = [kept for kept in self._kept if -kept[0] < self.below]
        heapq.heapify(self._kept)

    def chunks(self) -> list[tuple[int, int, str]]:
        """(hash, bytes, text) of each, in order of their hashes."""
        return [(-negative, size, text) for negative, size, text in sorted(self._kept, reverse=True)]

    def texts(self) -> list[str]:
        """In order of their hashes."""
        return [text for _, _, text in self.chunks()]


def chunk_of(most_bytes: int) -> int:
    """Characters of a document that are drawn together, for a sample of so many bytes."""
    return max(1000, min(1 << 16, most_bytes // 100))


def rooms_of(most_bytes: int) -> tuple[int, int]:
    """Bytes of the samples of training and of held-out text."""
    return most_bytes, min(most_bytes, HELD_OUT_BYTES)


def sample_texts(
    corpora: Iterable[tuple[list[File], Settings]], most_bytes: int, workers: Workers, stage: Stage
) -> tuple[list[str], list[str]]:
    """Training text of at most `most_bytes`, in parts of documents, from all over the corpora; and of held-out ones.

    Raises ConfigError where there is neither, since the records are no documents.
    """
    reservoirs, first_problem = [Reservoir(room) for room in rooms_of(most_bytes)], None
    chunk = chunk_of(most_bytes)

    def tasks() -> Iterator[SampleTask]:
        for files, settings in corpora:
            for unit in units(files, settings.fields):
                yield SampleTask(settings, unit, chunk, tuple(each.below for each in reservoirs))

    for sample in workers.map(sample_unit, tasks()):
        for reservoir, chunks in zip(reservoirs, sample.chunks):
            for hash, size, text in chunks:
                reservoir.add(hash, size, text)
        first_problem = first_problem or sample.first_problem
        stage.add(sample.size, sample.documents, sample.stored)
    texts, held_out = (reservoir.texts() for reservoir in reservoirs)
    if not texts and not held_out and first_problem:
        place, problem = first_problem
        raise ConfigError(KEY, place, f"{problem}; and no other record holds text to train a tokenizer on")
    return texts, held_out
