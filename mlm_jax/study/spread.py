"""How far values of a few seeds spread: means with intervals of Student's t, and paired differences."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Mean, standard deviation (of n - 1), and the ends of an interval of the mean. NaN, but for the mean, of one."""

    mean: float
    deviation: float
    low: float
    high: float


def spread(values: Sequence[float], level: float = 0.95) -> Spread:
    """Of one value or more: mean ± t deviation / sqrt(n), t of n - 1 degrees of freedom (Student, 1908).

    The interval holds where the values are independent and normal, which nobody can tell of three of them.
    """
    each = np.array(values, np.float64)
    mean, n = float(each.mean()), len(each)
    if n < 2:
        return Spread(mean, math.nan, math.nan, math.nan)
    from scipy.special import stdtrit

    deviation = float(each.std(ddof=1))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * deviation / math.sqrt(n)
    return Spread(mean, deviation, mean - half, mean + half)


def paired_difference(values: Sequence[float], others: Sequence[float], level: float = 0.95) -> Spread:
    """Of values - others, of which those at one place belong together, such as two runs with one seed."""
    return spread([value - other for value, other in zip(values, others, strict=True)], level)
