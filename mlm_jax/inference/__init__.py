"""What a trained encoder is used for; two lines from a folder to answers.

from mlm_jax.inference import embed, load
vectors = embed(load("runs/tiny"), ["one text", "another"])
"""

from mlm_jax.inference.embed import embed, embeddings
from mlm_jax.inference.explain import explain
from mlm_jax.inference.fill import fill_mask
from mlm_jax.inference.generate import generate
from mlm_jax.inference.loading import Loaded, load
from mlm_jax.inference.score import score

__all__ = ["Loaded", "embed", "embeddings", "explain", "fill_mask", "generate", "load", "score"]
