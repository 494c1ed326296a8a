"""Schedules: what share of the tokens is selected, and what share of those is random, at each step of a run."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mlm_jax.config import MaskConfig

Schedule = Callable[[Int[Array, ""] | int], Float[Array, ""]]
FED = ("loss", "adaptive")  # schedules whose rate is not a function of the step


def rate_at(config: MaskConfig, steps: int, fed: Float[Array, ""] | float | None = None) -> Schedule:
    """The mask rate of step n = 0, 1, ... of `steps`, a traced f32[], so that a new rate compiles nothing anew.

    fed: the rate itself, for the schedules of which it is no function of the step (`feedback.py` has their rules).
    Raises ValueError where it is needed and missing.

    With x = n / (steps - 1), from 0 at the first step to 1 at the last:
    constant: rate; linear: rate + (end_rate - rate) x; cosine: end_rate + (rate - end_rate) (1 + cos(pi x)) / 2
    (Yang et al. 2023, "Learning better masking for better language model pre-training", section 4.1, for both);
    step: `stairs` equal parts of the run, linear from part to part; parts: rate times the multiple of the part that
    step n lies in, each given as (share of the steps at which it begins, multiple).
    """
    if config.schedule in FED:
        if fed is None:
            raise ValueError(f"mask.schedule = {config.schedule!r} needs a rate from outside")
        return lambda step: jnp.asarray(fed, jnp.float32)
    return lambda step: jnp.asarray(SCHEDULES[config.schedule](config, steps, jnp.asarray(step)), jnp.float32)


def random_at(config: MaskConfig, steps: int) -> Schedule | None:
    """The share of random tokens at step n, linear from corruption[1] to `random_end`; None where it is constant."""
    if config.random_end is None:
        return None
    start = config.corruption[1]
    return lambda step: start + (config.random_end - start) * _progress(steps, jnp.asarray(step))


def _progress(steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    return jnp.clip(step.astype(jnp.float32) / max(steps - 1, 1), 0.0, 1.0)


def _between(config: MaskConfig, x: Float[Array, ""]) -> Float[Array, ""]:
    # both ends exact
    return config.rate * (1 - x) + config.end_rate * x


def _constant(config: MaskConfig, steps: int, step: Int[Array, ""]) -> float:
    return config.rate


def _linear(config: MaskConfig, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    return _between(config, _progress(steps, step))


def _cosine(config: MaskConfig, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    return _between(config, (1 - jnp.cos(jnp.pi * _progress(steps, step))) / 2)


def _step(config: MaskConfig, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    begins = np.array([-(-stair * steps // config.stairs) for stair in range(config.stairs)], np.int32)
    stair = (step >= jnp.asarray(begins)).sum() - 1
    return _between(config, stair.astype(jnp.float32) / max(config.stairs - 1, 1))


def _parts(config: MaskConfig, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    begins = np.array([np.ceil(begin * steps - 1e-9) for begin, _ in config.parts], np.int32)
    rates = np.array([config.rate * multiple for _, multiple in config.parts], np.float32)
    return jnp.asarray(rates)[(step >= jnp.asarray(begins)).sum() - 1]


SCHEDULES = {"constant": _constant, "linear": _linear, "cosine": _cosine, "step": _step, "parts": _parts}
