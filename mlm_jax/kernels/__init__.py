"""Computations that may have a faster form on some device, each with a reference in plain jax.numpy."""
