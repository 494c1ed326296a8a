"""Text to ids and back, for tokenizers of every family, and what the rest of the project knows about ids.

`Tokenizer` is the one interface. What it opens is told by the files that it is given (`tokenizer.KINDS`): a
SentencePiece model, a WordPiece `vocab.txt`, or a `tokenizer.json` of the `tokenizers` library.
"""

from mlm_jax.tokenizer.spm import GRID, MODEL, NAMES, SPACE
from mlm_jax.tokenizer.tokenizer import Tokenizer
from mlm_jax.tokenizer.vocabulary import DECILES, Vocabulary, frequency_deciles, unigram_losses
from mlm_jax.tokenizer.words import Encoding

__all__ = [
    "DECILES",
    "GRID",
    "MODEL",
    "NAMES",
    "SPACE",
    "Encoding",
    "Tokenizer",
    "Vocabulary",
    "frequency_deciles",
    "unigram_losses",
]
