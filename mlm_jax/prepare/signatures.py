"""What a text is recognised by: a hash of the whole, and a MinHash signature of its shingles (Broder 1997).

Shingles are the 5-grams of its words (as in Lee et al. 2022), in the sense of `plain`, so that case, signs and line
breaks do not count; a text of fewer words is one shingle. The signature comes from the library rensa (R-MinHash, 32
bits a place): it takes hashes in one array for all texts and needs 2 ms for a megabyte of text.
"""

import hashlib

import numpy as np

from mlm_jax.config import ConfigError
from mlm_jax.prepare.plain import Plain

SHINGLE = 5  # words
PLACES = 128  # of a signature: the estimate of a similarity s has a standard deviation of sqrt(s (1 - s) / 128)
SEED = 1
HASH = [("hash", "<u8")]
NEAR = [*HASH, ("shingles", "<i4"), ("signature", "<u4", (PLACES,))]
MISSING = "needs the library rensa: pip install 'mlm-jax[prepare]'"


def signatures(texts: list[str], plain: Plain, near: bool) -> np.ndarray:
    """One record for each cleaned text: `hash`, and with `near` the number of `shingles` and their `signature`.

    hash: BLAKE2b-64; that two of n different texts share one has a chance of n^2 / 2^65, 3e-4 for 100 million.
    """
    found = np.zeros(len(texts), NEAR if near else HASH)
    for number, text in enumerate(texts):
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        found["hash"][number] = int.from_bytes(digest, "big")
    if near and texts:
        hashes, places = plain.ngrams(SHINGLE, short=True)
        borders = np.searchsorted(places, np.append(0, np.cumsum(plain.counts))).astype(np.uint64)
        matrix = minhash().digest_matrix_from_flat_token_hashes(hashes, borders, PLACES, SEED)
        found["shingles"], found["signature"] = np.diff(borders.astype(np.int64)), matrix.to_rows()
    return found


def minhash() -> type:
    """The library's class. Raises ConfigError where it is not installed."""
    try:
        from rensa import RMinHash
    except ImportError:
        raise ConfigError("config.data.duplicates", "near", MISSING) from None
    return RMinHash
