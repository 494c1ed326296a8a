"""The configuration of a run.

Config files return a `Config`; the command line overrides single fields (`--config.optimizer.learning_rate=3e-4`).
Nothing here imports jax, so that a mistake is reported before any device is touched.
"""

from mlm_jax.config.checks import Derived, check, get
from mlm_jax.config.families import PRESETS, is_local, positions, resolve
from mlm_jax.config.files import check_writable, from_json, load, rows_folder, to_json
from mlm_jax.config.mask import ADAPTIVE_RANGE, capacity, round_up
from mlm_jax.config.objectives import fills_masks, together
from mlm_jax.config.schema import (
    AuditConfig,
    CausalConfig,
    CheckpointConfig,
    Config,
    ConfigError,
    ContrastiveConfig,
    DataConfig,
    EvaluateConfig,
    FilterConfig,
    MaskConfig,
    MeshConfig,
    MlmConfig,
    ModelConfig,
    ObjectiveConfig,
    ObjectivesConfig,
    OptimizerConfig,
    RunError,
    SaveError,
    TokenizerConfig,
)
from mlm_jax.config.source import with_source

__all__ = [
    "ADAPTIVE_RANGE",
    "PRESETS",
    "AuditConfig",
    "CausalConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "ContrastiveConfig",
    "DataConfig",
    "Derived",
    "EvaluateConfig",
    "FilterConfig",
    "MaskConfig",
    "MeshConfig",
    "MlmConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "ObjectivesConfig",
    "OptimizerConfig",
    "RunError",
    "SaveError",
    "TokenizerConfig",
    "capacity",
    "check",
    "check_writable",
    "fills_masks",
    "from_json",
    "get",
    "is_local",
    "load",
    "positions",
    "resolve",
    "round_up",
    "rows_folder",
    "to_json",
    "together",
    "with_source",
]
