"""Matrix products of a traced function: their operations as the program has them, recomputation included."""

import math
from collections.abc import Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


def flops(jaxpr: ClosedJaxpr | Jaxpr) -> int:
    """Operations of all matrix products in a jaxpr, over all devices; the body of a scan counts as often as it runs.

    A product over c pairs for each of n results is 2 c n operations. What no result depends on is left out, as
    compilers do. The body of a `while` counts once, of the branches of a `cond` the largest.
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    total, live = 0, {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not live.isdisjoint(equation.outvars):
            total += _of(equation)
            live.update(var for var in equation.invars if not isinstance(var, Literal))
    return total


def _of(equation: JaxprEqn) -> int:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(left[axis] for axis in contracted) * math.prod(equation.outvars[0].aval.shape)
    inner = [flops(jaxpr) for jaxpr in _inside(equation.params)]
    if equation.primitive.name == "cond":
        return max(inner)
    return sum(inner) * (equation.params["length"] if equation.primitive.name == "scan" else 1)


def _inside(params: dict) -> Iterator[ClosedJaxpr | Jaxpr]:
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, (ClosedJaxpr, Jaxpr)))
    return (leaf for leaf in leaves if isinstance(leaf, (ClosedJaxpr, Jaxpr)))
