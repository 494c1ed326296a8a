"""What the optimizer's keys must not contradict."""

import re

from mlm_jax.config.lengths import of_share
from mlm_jax.config.schema import Config, ConfigError, OptimizerConfig


def check_optimizer(config: Config) -> None:
    """Raises ConfigError for keys of `optimizer` that contradict each other, or the number of steps."""
    optimizer = config.optimizer
    if of_share(optimizer.warmup, config.steps) >= config.steps:
        fix = f"leaves none of config.steps = {config.steps} after it"
        raise ConfigError("config.optimizer.warmup", optimizer.warmup, fix)
    _check_schedule(optimizer, config.steps)
    for pattern, rate in optimizer.groups:
        if rate < 0:
            raise ConfigError("config.optimizer.groups", (pattern, rate), "a learning rate cannot be negative")
        _check_pattern("config.optimizer.groups", pattern)
    if 0 < optimizer.exploding <= 1:
        fix = "must be greater than 1, a multiple of the usual norm such as 10, or 0 for none"
        raise ConfigError("config.optimizer.exploding", optimizer.exploding, fix)
    for pattern in optimizer.freeze:
        _check_pattern("config.optimizer.freeze", pattern)
    if optimizer.groups and not optimizer.learning_rate:
        raise ConfigError("config.optimizer.learning_rate", 0.0, "must be greater than 0 where optimizer.groups is set")
    if optimizer.groups and optimizer.layer_decay != 1:
        raise ConfigError(
            "config.optimizer.layer_decay", optimizer.layer_decay, "must be 1 where optimizer.groups is set"
        )


def _check_pattern(key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(key, pattern, f"is no regular expression: {error}") from None


def _check_schedule(optimizer: OptimizerConfig, steps: int) -> None:
    warmup_steps, name = of_share(optimizer.warmup, steps), optimizer.schedule
    if name == "inverse_sqrt" and not warmup_steps:
        fix = "gives no step of warm-up, from whose end the rate falls with config.optimizer.schedule = 'inverse_sqrt'"
        raise ConfigError("config.optimizer.warmup", optimizer.warmup, fix)
    if name == "wsd" and not 1 <= of_share(optimizer.cooldown, steps) <= steps - warmup_steps:
        fix = f"must be at least one of config.steps = {steps} and leave the {warmup_steps} of the warm-up"
        raise ConfigError("config.optimizer.cooldown", optimizer.cooldown, fix)
    parts = optimizer.parts
    if (name == "parts") != bool(parts):
        fix = "takes no parts" if parts else "needs parts such as ((0.0, 1.0), (0.5, 0.1))"
        raise ConfigError("config.optimizer.parts", parts, f"config.optimizer.schedule = {name!r} {fix}")
    begins = [begin for begin, _ in parts]
    if parts and (begins[0] != 0 or begins != sorted(set(begins)) or begins[-1] >= 1):
        raise ConfigError("config.optimizer.parts", parts, "the parts must begin at 0 and rise, all less than 1")
    if any(not 0 <= multiple < float("inf") for _, multiple in parts):
        raise ConfigError("config.optimizer.parts", parts, "multiples of the rate cannot be negative")
