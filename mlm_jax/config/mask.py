"""What follows from the choices of masking, and which of them contradict one another."""

import itertools
import math

from mlm_jax.config.schema import ConfigError, MaskConfig

ADAPTIVE_RANGE = (0.1, 0.3)  # rates that schedule=adaptive gives
LEVELS = ("token", "word", "span", "ngram", "phrase", "sentence")  # ways to cut a sentence


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def largest_rate(mask: MaskConfig) -> float:
    """The largest rate that the schedule asks for."""
    if mask.schedule == "parts":
        return mask.rate * max((multiple for _, multiple in mask.parts), default=1.0)
    return ADAPTIVE_RANGE[1] if mask.schedule == "adaptive" else max(mask.rate, mask.end_rate or 0.0)


def capacity(mask: MaskConfig, row_length: int, max_segments: int) -> int:
    """Slots m for selected tokens of a row: for the largest rate, a margin, and the least of each segment."""
    rate = largest_rate(mask) if mask.max_rate is None else mask.max_rate
    # 1e-9: 0.15 * 20 is 3.0000000000000004 in floating point, and its ceiling must be 3
    wanted = math.ceil(rate * row_length - 1e-9) + math.ceil(row_length / 32) + mask.min_per_segment * max_segments
    return min(row_length, round_up(wanted, 8))


def check_mask(mask: MaskConfig, layers: int) -> None:
    """Raises ConfigError at the first contradiction. layers: of the model, which importance may be read from."""
    _check_schedule(mask)
    needed = largest_rate(mask)
    if mask.max_rate is not None and mask.max_rate < needed - 1e-6:
        what = f"config.mask.rate = {mask.rate}" if needed == mask.rate else f"the schedule's largest rate, {needed}"
        raise ConfigError("config.mask.max_rate", mask.max_rate, f"must be at least {what}")
    if abs(sum(mask.corruption) - 1) > 1e-6 or min(mask.corruption) < 0:
        raise ConfigError("config.mask.corruption", mask.corruption, "must be three shares that sum to 1")
    changing = mask.corruption[0] + mask.corruption[1]
    if mask.random_end is not None and mask.random_end > changing + 1e-6:
        fix = f"must be at most {changing:g}, what MASK and random tokens have in config.mask.corruption"
        raise ConfigError("config.mask.random_end", mask.random_end, fix)
    if mask.importance_layer != -1 and not 1 <= mask.importance_layer <= layers:
        fix = f"config.model.layers = {layers}: must be 1 to {layers}, or -1 for the last"
        raise ConfigError("config.mask.importance_layer", mask.importance_layer, fix)
    if mask.priority == "uniform" and mask.temperature != 1:
        fix = "config.mask.priority = 'uniform' has no weights that it could change; leave it out"
        raise ConfigError("config.mask.temperature", mask.temperature, fix)
    if mask.priority == "importance" and mask.regime != "dynamic":
        fix = "importance changes with the model, so no mask comes again; use 'dynamic'"
        raise ConfigError("config.mask.regime", mask.regime, fix)
    weights = [weight for _, weight in mask.levels]
    for name, _ in mask.levels:
        if name not in LEVELS:
            raise ConfigError("config.mask.levels", name, f"a level is one of {', '.join(LEVELS)}")
    if not all(0 <= weight < math.inf for weight in weights) or not sum(weights) > 0:
        raise ConfigError("config.mask.levels", mask.levels, "weights must be at least 0, and one greater than 0")


def _check_schedule(mask: MaskConfig) -> None:
    if mask.schedule != "constant" and not mask.rate:
        fix = "must be greater than 0 with a schedule: it is also the rate of evaluation"
        raise ConfigError("config.mask.rate", mask.rate, fix)
    ends = mask.schedule in ("linear", "cosine", "step", "loss")
    if ends != (mask.end_rate is not None):
        fix = "name the rate at the end" if ends else "has no place in it; leave it out"
        raise ConfigError("config.mask.end_rate", mask.end_rate, f"config.mask.schedule = {mask.schedule!r}: {fix}")
    if (mask.schedule == "parts") != bool(mask.parts):
        fix = "needs parts such as ((0.0, 0.7), (0.2, 1.0), (0.8, 0.9))" if not mask.parts else "takes no parts"
        raise ConfigError("config.mask.parts", mask.parts, f"config.mask.schedule = {mask.schedule!r} {fix}")
    begins = [begin for begin, _ in mask.parts]
    if begins and (begins[0] != 0 or begins[-1] >= 1 or any(b <= a for a, b in itertools.pairwise(begins))):
        raise ConfigError("config.mask.parts", mask.parts, "the parts must begin at 0 and rise, all less than 1")
    if any(not 0 <= mask.rate * multiple <= 1 + 1e-6 for _, multiple in mask.parts):
        fix = f"multiples of config.mask.rate = {mask.rate} must give rates in [0, 1]"
        raise ConfigError("config.mask.parts", mask.parts, fix)
