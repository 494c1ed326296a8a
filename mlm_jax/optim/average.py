"""The exponential moving average of the parameters, which is evaluated and exported in their place.

After each update ema = d ema + (1 - d) params with d = min(`optimizer.ema`, (1 + n) / (10 + n)), n being the updates
averaged before: at first it follows closely. The formula is that of `num_updates` in TensorFlow's
ExponentialMovingAverage. It begins with the parameters, and an update that was left out is not counted.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from mlm_jax import tree
from mlm_jax.config import OptimizerConfig


def start(params: dict, config: OptimizerConfig) -> dict:
    """{"params": copies of the parameters, "updates": 0}; {} for a run without an average."""
    if not config.ema:
        return {}
    return {"params": jax.tree.map(jnp.copy, params), "updates": jnp.zeros((), jnp.int32)}


def after(ema: dict, params: dict, good: Bool[Array, ""] | bool, config: OptimizerConfig) -> dict:
    """The average after an update that led to `params`."""
    n = ema["updates"].astype(jnp.float32)
    decay = jnp.minimum(config.ema, (1 + n) / (10 + n))

    def averaged(old: tree.PyTree, new: tree.PyTree) -> tree.PyTree:
        return jnp.where(good, decay * old + (1 - decay) * new, old)

    return {"params": jax.tree.map(averaged, ema["params"], params), "updates": ema["updates"] + good}
