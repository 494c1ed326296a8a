"""From text to packed rows on disk: `prepare(config, folder)`."""

from mlm_jax.prepare.pipeline import changes, prepare, prepare_or_keep, prepare_stream, with_encoded

__all__ = ["changes", "prepare", "prepare_or_keep", "prepare_stream", "with_encoded"]
