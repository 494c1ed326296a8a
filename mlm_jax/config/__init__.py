"""The configuration of a run.

Config files return a `Config`; the command line overrides single fields (`--config.optimizer.learning_rate=3e-4`).
Nothing here imports jax, so that a mistake is reported before any device is touched.
"""

from mlm_jax.config.accumulation import with_accumulation
from mlm_jax.config.checks import Derived, check, check_each, get
from mlm_jax.config.families import PRESETS, is_local, positions, resolve
from mlm_jax.config.files import check_writable, from_json, load, to_json
from mlm_jax.config.finetune import FinetuneConfig, TaskConfig, as_run, check_finetune
from mlm_jax.config.generator import generator_of
from mlm_jax.config.heads import Task, read_task, task_values
from mlm_jax.config.lengths import begins, in_steps, open_lengths
from mlm_jax.config.mask import ADAPTIVE_RANGE, capacity, round_up
from mlm_jax.config.objectives import filler, fills_masks, together
from mlm_jax.config.phases import (
    changes,
    first_phase,
    naming,
    phase_at,
    phase_configs,
    readings,
    rows_folder,
    rows_folders,
    stream_configs,
    streams,
    without_rows,
)
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
    PhaseConfig,
    ReplacedConfig,
    RunError,
    SaveError,
    TokenizerConfig,
    WatchConfig,
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
    "FinetuneConfig",
    "MaskConfig",
    "MeshConfig",
    "MlmConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "ObjectivesConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "ReplacedConfig",
    "RunError",
    "SaveError",
    "Task",
    "TaskConfig",
    "TokenizerConfig",
    "WatchConfig",
    "as_run",
    "begins",
    "capacity",
    "changes",
    "check",
    "check_each",
    "check_finetune",
    "check_writable",
    "filler",
    "fills_masks",
    "first_phase",
    "from_json",
    "generator_of",
    "get",
    "in_steps",
    "is_local",
    "load",
    "naming",
    "open_lengths",
    "phase_at",
    "phase_configs",
    "positions",
    "read_task",
    "readings",
    "resolve",
    "round_up",
    "rows_folder",
    "rows_folders",
    "stream_configs",
    "streams",
    "task_values",
    "to_json",
    "together",
    "with_accumulation",
    "with_source",
    "without_rows",
]
