"""From a gradient to an update: schedule, optimizer, layer-wise rates, decay and clipping, as optax transformations."""

import optax

from mlm_jax.config import OptimizerConfig
from mlm_jax.optim.rates import decays, rate_factor, scale_by_layer, table
from mlm_jax.optim.schedules import schedule
from mlm_jax.optim.updates import OPTIMIZERS

__all__ = ["decays", "optimizer", "rate_factor", "schedule", "table"]


def optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """One clip of the whole gradient, the optimizer with its decoupled decay, and each layer's rate."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        *OPTIMIZERS[config.name](config),
        scale_by_layer(config),
        optax.scale_by_learning_rate(schedule(config, steps)),
    )
