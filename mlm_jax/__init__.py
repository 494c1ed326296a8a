"""Pretraining of BERT-style encoders by masked language modelling, in JAX."""

__version__ = "0.1.0"
