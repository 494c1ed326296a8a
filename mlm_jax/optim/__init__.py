"""From a gradient to an update: schedule, optimizer, layer-wise rates, decay and clipping, as optax transformations."""

import optax

from mlm_jax.config import OptimizerConfig
from mlm_jax.optim.apply import Applied, apply
from mlm_jax.optim.rates import decays, frozen, only_trained, rate_factor, scale_by_layer, table
from mlm_jax.optim.schedules import schedule
from mlm_jax.optim.updates import OPTIMIZERS

__all__ = ["Applied", "apply", "decays", "frozen", "only_trained", "optimizer", "rate_factor", "schedule", "table"]


def optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """One clip of the whole gradient, the optimizer with its decoupled decay, and each layer's rate.

    What is frozen has neither a gradient nor an update. (The places in this chain are those of saved states.)
    """
    return optax.chain(
        _clip(config),
        *OPTIMIZERS[config.name](config),
        scale_by_layer(config),
        optax.scale_by_learning_rate(schedule(config, steps)),
    )


def _clip(config: OptimizerConfig) -> optax.GradientTransformation:
    """The gradient of what is trained, clipped as a whole; like optax's it has no state."""
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()

    def update(updates, state, params=None):
        return clip.update(only_trained(updates, config), state, params)

    return optax.GradientTransformation(clip.init, update)
