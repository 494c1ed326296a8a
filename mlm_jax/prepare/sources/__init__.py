"""Where text comes from: a source of the config becomes files, files become work units, units become documents."""

from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.files import find_files, identify
from mlm_jax.prepare.sources.formats import FORMATS, JSON, TEXT, Format, documents, units
from mlm_jax.prepare.sources.lines import lines_of
from mlm_jax.prepare.sources.parts import KEY, Document, Fields, File, Unit, document_hash

__all__ = [
    "FORMATS",
    "JSON",
    "KEY",
    "TEXT",
    "Document",
    "Fields",
    "File",
    "Format",
    "Unit",
    "document_hash",
    "documents",
    "find_files",
    "identify",
    "lines_of",
    "parts",
    "units",
]
