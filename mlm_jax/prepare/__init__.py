"""From text to packed rows on disk: `prepare(config, folder)`."""

from mlm_jax.prepare.pipeline import changes, prepare

__all__ = ["changes", "prepare"]
