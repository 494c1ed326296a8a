"""Packages that only some sources need."""

import importlib
import types

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources.parts import KEY

EXTRA = "pip install 'mlm-jax[prepare]'"


def needed(module: str, path: str, key: str = KEY) -> types.ModuleType:
    """Imports what the file `path`, which `key` names, takes. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(key, path, f"needs the package {module.partition('.')[0]}: {EXTRA}") from None
