"""What the stages of one preparation share."""

import dataclasses
import math
import sys
from pathlib import Path

from mlm_jax.config import Config
from mlm_jax.prepare import pydoc, sources
from mlm_jax.prepare.folder import work_folder
from mlm_jax.prepare.screening import Screening
from mlm_jax.prepare.tasks import Part, Settings
from mlm_jax.prepare.workers import Workers


@dataclasses.dataclass
class Corpus:
    """One source of the config, and what became of it."""

    number: int
    source: str
    files: list[sources.File]
    identity: dict[str, object]
    counts: dict[str, object] = dataclasses.field(default_factory=dict)  # of the manifest
    contaminated: dict[str, object] = dataclasses.field(default_factory=dict)  # how many, and the first ones
    parts: dict[tuple[int, int], list[Part]] = dataclasses.field(default_factory=dict)  # by (split, group)


@dataclasses.dataclass
class Job:
    """What the stages of one call share."""

    config: Config
    corpora: list[Corpus]
    build: Path
    encoded: Path  # folder of encoded documents and their tokenizer: `work`, or one that is kept
    workers: Workers
    progress: bool

    @property
    def work(self) -> Path:
        """Folder of intermediate results."""
        return work_folder(self.build)

    @property
    def tokenizer(self) -> Path:
        return self.encoded / "tokenizer"

    @property
    def contamination(self) -> Path:
        """The n-grams of evaluations."""
        return self.encoded / "contamination.npy"

    def settings(self, corpus: Corpus) -> Settings:
        data = self.config.data
        embedded = corpus.source == pydoc.NAME
        return Settings(
            source=corpus.source,
            fields=sources.Fields("text", "id") if embedded else sources.Fields(data.text_field, data.id_field),
            holdout=data.holdout,
            # a held-out group is about as large as one of the others
            groups=(data.pack_groups, max(1, math.ceil(data.pack_groups * data.holdout))),
            tokenizer=str(self.tokenizer),
            screening=Screening.of(data, str(self.contamination) if data.contamination else ""),
            segmenter=data.segmenter,
        )

    def say(self, line: str) -> None:
        if self.progress:
            print(line, file=sys.stderr)
