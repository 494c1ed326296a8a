"""What it costs to look at documents before they are encoded, beside encoding; how good the near-duplicates are.

  python benchmarks/screening.py PATH/en.jsonl.gz --tokenizer=RUN/rows/tokenizer

One process. Times are of its processor. For quality, copies of documents with a share of their words replaced are
added, and what is found is compared with the Jaccard similarity of the sets of shingles, of all pairs.
"""

import argparse
import itertools
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from mlm_jax.config import FilterConfig
from mlm_jax.prepare import near, quality, signatures, sources
from mlm_jax.prepare.contamination import first_matches
from mlm_jax.prepare.documents import encode_documents, paragraphs_of
from mlm_jax.prepare.plain import Plain
from mlm_jax.tokenizer import Tokenizer

RULES = {
    "min_characters": 1,
    "min_words": 50,
    "max_word_characters": 1000,
    "min_letters": 0.6,
    "max_symbols": 0.1,
    "max_repeated_lines": 0.3,
    "max_repeated_text": 0.2,
    "max_repeated_ngrams": 0.15,
}


def units_of(path: str) -> list[list[str]]:
    fields = sources.Fields()
    units = sources.units(sources.find_files(path), fields)
    return [[document.text for document in sources.documents(unit, fields)] for unit in units]


def cleaned(texts: list[str]) -> list[str]:
    return ["\n".join(paragraphs_of(text)) for text in texts]


def costs(units: list[list[str]], tokenizer: Tokenizer, work: Path) -> dict[str, float]:
    """Seconds of each part."""
    seconds: dict[str, float] = {}

    def timed(name, function, *args):
        begun = time.process_time()
        result = function(*args)
        seconds[name] = seconds.get(name, 0.0) + time.process_time() - begun
        return result

    known = np.unique(Plain.of(units[0][:100]).ngrams(13, short=False)[0])
    np.save(work / "known.npy", known)
    signatures.minhash()
    first_matches(Plain.of(["x"]), str(work / "known.npy"), 13)
    encode_documents(units[0][:10], tokenizer)
    for unit in units:
        timed("encode", encode_documents, unit, tokenizer)
        texts = timed("clean", cleaned, unit)
        plain = timed("words", Plain.of, texts)
        timed("hashes of words", getattr, plain, "hashes")
        for rule, limit in RULES.items():
            timed(f"  {rule}", quality.verdicts, texts, plain, FilterConfig(**{rule: limit}))
        timed("contamination", first_matches, plain, str(work / "known.npy"), 13)
        timed("exact: hashes", signatures.signatures, texts, plain, False)
        timed("near: signatures and hashes", signatures.signatures, texts, plain, True)
    return seconds


def shingles_of(text: str) -> set[tuple[str, ...]]:
    plain = Plain.of([text])
    words = [plain.show(place, 1) for place in range(len(plain.starts))]
    return {tuple(words[i : i + signatures.SHINGLE]) for i in range(max(1, len(words) - signatures.SHINGLE + 1))}


def worse(text: str, share: float, draw: random.Random) -> str:
    words = text.split(" ")
    for place in draw.sample(range(len(words)), round(share * len(words))):
        words[place] = f"w{draw.getrandbits(40)}"
    return " ".join(words)


def quality_of_pairs(texts: list[str], similarity: float, work: Path) -> None:
    """Prints how many pairs at or above the similarity belong together, and how many that do are below."""
    draw = random.Random(0)
    texts = draw.sample([text for text in texts if 300 < len(text) < 6000], 1000)
    texts += [worse(text, draw.uniform(0, 0.08), draw) for text in texts[:500]]
    prints = signatures.signatures(texts, Plain.of(texts), near=True)
    label = near.components(prints["signature"], np.arange(len(texts)), similarity, work / "bands")
    sets = [shingles_of(text) for text in texts]
    exact: dict[float, list[bool]] = {}
    together = below = 0
    for i, j in itertools.combinations(range(len(texts)), 2):
        shared = len(sets[i] & sets[j])
        value = shared / (len(sets[i]) + len(sets[j]) - shared)
        if value >= 0.3:
            exact.setdefault(min(int(value * 20) / 20, 0.95), []).append(bool(label[i] == label[j]))
        together += label[i] == label[j]
        below += label[i] == label[j] and value < similarity
    for low, found in sorted(exact.items()):
        print(f"  Jaccard {low:.2f} to {low + 0.05:.2f}: {np.mean(found):6.1%} of {len(found)} pairs are found")
    above = [hit for low, hits in exact.items() for hit in hits if low >= similarity - 1e-9]
    print(f"  recall {np.mean(above):.3f} of {len(above)}, precision {1 - below / max(1, together):.3f} of {together}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--similarity", type=float, default=0.8)
    arguments = parser.parse_args()
    units = units_of(arguments.source)
    size = sum(len(text.encode()) for unit in units for text in unit) / 1e6
    print(f"{size:.1f} MB in {sum(map(len, units)):,} documents")
    with tempfile.TemporaryDirectory() as work:
        for name, seconds in costs(units, Tokenizer.load(arguments.tokenizer), Path(work)).items():
            print(f"{name:28} {seconds:6.2f} s {size / max(seconds, 1e-9):8.1f} MB/s")
        quality_of_pairs([text for unit in units for text in unit], arguments.similarity, Path(work))


if __name__ == "__main__":
    main()
