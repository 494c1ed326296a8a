"""Why a model predicts a word: by three methods, as numbers and as a page."""

from mlm_jax.inference.explain.explaining import explain

__all__ = ["explain"]
