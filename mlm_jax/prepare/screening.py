"""What a worker asks of documents before they are encoded: whether they are good text, an evaluation's, known."""

import dataclasses
from collections import Counter

import numpy as np

from mlm_jax.config import DataConfig, FilterConfig
from mlm_jax.prepare.contamination import EXAMPLES, first_matches
from mlm_jax.prepare.documents import paragraphs_of
from mlm_jax.prepare.plain import Plain
from mlm_jax.prepare.quality import verdicts
from mlm_jax.prepare.signatures import signatures
from mlm_jax.prepare.sources import Document

CONTAMINATED = "contaminated"


@dataclasses.dataclass(frozen=True)
class Screening:
    """What all documents of one preparation are asked."""

    rules: FilterConfig = dataclasses.field(default_factory=FilterConfig)
    ngrams: str = ""  # path of the n-grams of evaluations; empty: none
    words: int = 0  # of each of them
    drop: bool = True  # what holds one; else it is counted alone
    duplicates: str = "keep"

    @classmethod
    def of(cls, data: DataConfig, ngrams: str) -> "Screening":
        screening = cls(data.filter, duplicates=data.duplicates)
        if not ngrams:
            return screening
        drop = data.contamination_action == "drop"
        return dataclasses.replace(screening, ngrams=ngrams, words=data.contamination_words, drop=drop)


@dataclasses.dataclass
class Screened:
    """The documents that stay, and what became of the others."""

    documents: list[Document]
    signatures: np.ndarray | None = None  # of each document that stays, if duplicates are looked for
    dropped: Counter = dataclasses.field(default_factory=Counter)
    contaminated: int = 0  # dropped or not
    examples: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (id, n-gram) of the first ones


def screen(documents: list[Document], screening: Screening) -> Screened:
    """Looks at the cleaned texts; those without a character are left to who counts them as empty."""
    if screening == Screening():
        return Screened(documents)
    texts = ["\n".join(paragraphs_of(document.text)) for document in documents]
    plain, found = Plain.of(texts), Screened([])
    reasons = verdicts(texts, plain, screening.rules)
    matches = first_matches(plain, screening.ngrams, screening.words) if screening.ngrams else {}
    stays = []
    for number, (document, text) in enumerate(zip(documents, texts)):
        reason = reasons[number] if text else ""
        if not reason and number in matches:
            found.contaminated += 1
            found.examples = [*found.examples, (document.id, matches[number])][:EXAMPLES]
            reason = CONTAMINATED if screening.drop else ""
        if reason:
            found.dropped[reason] += 1
        else:
            stays.append(number)
    found.documents = [documents[number] for number in stays]
    if screening.duplicates != "keep":
        found.signatures = signatures(texts, plain, screening.duplicates == "near")[stays]
    return found
