"""The learning rate over the steps of a run."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mlm_jax.config import OptimizerConfig
from mlm_jax.config.lengths import of_share

Factor = Callable[[jax.Array, int, int, OptimizerConfig], jax.Array]


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate of update n = 0, 1, ... of `steps`.

    With w warm-up steps the rate is learning_rate * min(1, (n + 1) / w) times the factor of `config.schedule`, below.
    """
    warmup_steps = of_share(config.warmup, steps)
    factor = SCHEDULES[config.schedule]

    def rate(count):
        n = jnp.asarray(count, jnp.float32)
        warm = jnp.minimum(1.0, (n + 1) / max(warmup_steps, 1))
        return config.learning_rate * warm * factor(n, warmup_steps, steps, config)

    return rate


def _falling(shape: Callable[[jax.Array, OptimizerConfig], jax.Array]) -> Factor:
    """From 1 at the end of the warm-up to `end` after the last step; shape: how much of the way is still to go."""

    def factor(n, warmup_steps, steps, config):
        done = jnp.clip((n - warmup_steps) / (steps - warmup_steps), 0.0, 1.0)
        return config.end + (1 - config.end) * shape(done, config)

    return factor


def _inverse_sqrt(n, warmup_steps, steps, config):
    """sqrt(w / (n + 1)) after w warm-up steps (Vaswani et al., 2017, equation 3)."""
    return jnp.sqrt(warmup_steps / jnp.maximum(n + 1, warmup_steps))


def _wsd(n, warmup_steps, steps, config):
    """1, and over the last c steps end + (1 - end) (1 - sqrt(part that is done)) (Hägele et al., 2024, equation 2)."""
    cooldown_steps = of_share(config.cooldown, steps)
    done = jnp.clip((n - (steps - cooldown_steps)) / max(cooldown_steps, 1), 0.0, 1.0)
    return config.end + (1 - config.end) * (1 - jnp.sqrt(done))


def _step(n, warmup_steps, steps, config):
    return config.step_factor ** jnp.floor(n / config.step_every)


def _parts(n, warmup_steps, steps, config):
    """The multiple of the last part that has begun; a part begins with the step at its share, rounded."""
    begins = np.array([of_share(share, steps) for share, _ in config.parts])
    multiples = jnp.array([multiple for _, multiple in config.parts], jnp.float32)
    return multiples[jnp.sum(n >= begins) - 1]


SCHEDULES: dict[str, Factor] = {
    "linear": _falling(lambda done, config: 1 - done),
    "cosine": _falling(lambda done, config: (1 + jnp.cos(jnp.pi * done)) / 2),
    "polynomial": _falling(lambda done, config: (1 - done) ** config.power),
    "inverse_sqrt": _inverse_sqrt,
    "wsd": _wsd,
    "step": _step,
    "parts": _parts,
    "constant": lambda n, warmup_steps, steps, config: jnp.ones(()),
}
