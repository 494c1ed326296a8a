"""Matrix products of a traced function: their operations as the program has them, recomputation included."""

import math
from collections.abc import Iterator
from fractions import Fraction

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from mlm_jax.step import KIND_OF_STEP


def flops(jaxpr: ClosedJaxpr | Jaxpr, causal_ratio: int | float | Fraction = 0) -> int | Fraction:
    """Operations of all matrix products in a jaxpr, over all devices; the body of a scan counts as often as it runs.

    A product over c pairs for each of n results is 2 c n operations. What no result depends on is left out, as
    compilers do. The body of a `while` counts once, of the branches of a `cond` the largest; but both of the one that
    chooses the kind of a step, by the share of the steps that are causal.
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    total, live = 0, {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not live.isdisjoint(equation.outvars):
            total += _of(equation, Fraction(causal_ratio))
            live.update(var for var in equation.invars if not isinstance(var, Literal))
    return total


def _of(equation: JaxprEqn, causal_ratio: Fraction) -> int | Fraction:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(left[axis] for axis in contracted) * math.prod(equation.outvars[0].aval.shape)
    inner = [flops(jaxpr, causal_ratio) for jaxpr in _inside(equation.params)]
    if equation.primitive.name == "cond":
        if KIND_OF_STEP not in str(equation.source_info.name_stack):
            return max(inner)
        ordinary, causal = inner  # as false and true stand in it
        return (1 - causal_ratio) * ordinary + causal_ratio * causal
    return sum(inner) * _times(equation)


def _times(equation: JaxprEqn) -> int:
    """How often what is inside runs, over all devices."""
    if equation.primitive.name == "scan":
        return equation.params["length"]
    if equation.primitive.name == "shard_map":  # shapes inside are those of a device's part
        return math.prod(equation.params["mesh"].shape[axis] for axis in equation.params["newly_manual_axes"])
    return 1


def _inside(params: dict) -> Iterator[ClosedJaxpr | Jaxpr]:
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, (ClosedJaxpr, Jaxpr)))
    return (leaf for leaf in leaves if isinstance(leaf, (ClosedJaxpr, Jaxpr)))
