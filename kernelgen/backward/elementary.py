"""The derivatives of elementary functions of one and two operands.

Formulas and what happens at kinks as in PyTorch's derivatives.yaml and FunctionsManual.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernelgen.backward.tape import Tape
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Arg, Node, Ref

Parts = tuple[Ref | None, ...]
Rule = Callable[[Tape, Node, Ref, Ref], Parts]
"""The tape, the node, its value and the value's gradient; an entry for every operand, None where nothing flows."""
Whole = Callable[[Tape, Sequence[Ref], Ref, Ref], Parts]
"""The tape, a composite's operands, its value and the value's gradient."""


def ref(arg: Arg) -> Ref:
    assert isinstance(arg, Ref)
    return arg


def _square(t: Tape, x: Arg) -> Ref:
    return t.times(x, x)


def of_operand(factor: Callable[[Tape, Ref], Arg]) -> Rule:
    """The gradient times a function of the operand."""
    return lambda t, node, y, g: (t.times(g, factor(t, ref(node.args[0]))),)


def _over(divisor: Callable[[Tape, Arg], Ref]) -> Rule:
    """The gradient divided by a function of the operand."""
    return lambda t, node, y, g: (t.over(g, divisor(t, node.args[0])),)


def _under_circle(t: Tape, x: Arg) -> Ref:
    return t.map("rsqrt", t.map("sub", 1.0, _square(t, x)))


def _erfc(t: Tape, x: Arg) -> Ref:
    return t.times(-2 / math.sqrt(math.pi), t.map("exp", t.minus(_square(t, x))))


def _pow(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    """Nothing flows to what has the power 0, nor to the exponent of 0 where that is 0 or more."""
    x, exponent = node.args
    if not isinstance(x, Ref):
        assert isinstance(x, int | float)
        if x < 0:
            raise Refused(f"the gradient of a power whose exponent {x} is not a number")
        flowing = t.times(g, t.times(y, math.log(x))) if x else t.times(g, t.times(y, -math.inf))
        return None, flowing if x else t.map("where", t.map("ge", exponent, 0.0), 0.0, flowing)
    if not isinstance(exponent, Ref):
        assert isinstance(exponent, int | float)
        return t.times(g, t.times(exponent, t.map("pow", x, exponent - 1))), None
    slope = t.times(exponent, t.map("pow", x, t.map("sub", exponent, 1.0)))
    of_base = t.map("where", t.map("eq", exponent, 0.0), 0.0, t.times(g, slope))
    vanishes = t.map("and", t.map("eq", x, 0.0), t.map("ge", exponent, 0.0))
    return of_base, t.map("where", vanishes, 0.0, t.times(g, t.times(y, t.map("log", x))))


def _fmod(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    x, divisor = node.args
    if not isinstance(divisor, Ref):
        return g, None
    return g, t.minus(t.times(g, t.map("trunc", t.map("div", x, divisor))))


def _log_add_exp(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    one, other = node.args
    return tuple(t.times(g, t.map("sigmoid", t.map("sub", a, b))) for a, b in ((one, other), (other, one)))


def _atan2(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    """Nothing where both are 0."""
    above, beside = node.args
    square = t.map("add", _square(t, above), _square(t, beside))
    ratio = t.map("where", t.map("eq", square, 0.0), 0.0, t.over(g, square))
    return t.times(ratio, beside), t.minus(t.times(ratio, above))


def _taken(other: str) -> Rule:
    """fmax and fmin: all of it to the first of equals, and to what is a number beside a NaN."""

    def rule(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
        first = t.map("or", t.map(other, *node.args), t.map("isnan", node.args[1]))
        return t.map("where", first, g, 0.0), t.map("where", first, 0.0, g)

    return rule


RULES: dict[str, Rule] = {
    "asin": of_operand(_under_circle),
    "acos": of_operand(lambda t, x: t.minus(_under_circle(t, x))),
    "atan": _over(lambda t, x: t.map("add", _square(t, x), 1.0)),
    "sinh": of_operand(lambda t, x: t.map("cosh", x)),
    "cosh": of_operand(lambda t, x: t.map("sinh", x)),
    "asinh": of_operand(lambda t, x: t.map("rsqrt", t.map("add", _square(t, x), 1.0))),
    "acosh": of_operand(lambda t, x: t.map("rsqrt", t.map("sub", _square(t, x), 1.0))),
    "atanh": _over(lambda t, x: t.map("sub", 1.0, _square(t, x))),
    "erfc": of_operand(_erfc),
    "pow": _pow,
    "fmod": _fmod,
    "log_add_exp": _log_add_exp,
    "atan2": _atan2,
    "fmax": _taken("ge"),
    "fmin": _taken("le"),
}
"""By the name of the operation."""


def _copysign(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """Nothing at 0."""
    (x,) = operands
    return (t.times(g, t.map("where", t.map("eq", x, 0.0), 0.0, t.over(y, x))),)


def _lerp(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    start, end, weight = operands
    return t.times(g, t.map("sub", 1.0, weight)), t.times(g, weight), t.times(g, t.map("sub", end, start))


def _logaddexp2(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    apart = t.times(math.log(2), t.map("sub", *operands))
    return t.times(g, t.map("sigmoid", apart)), t.times(g, t.map("sigmoid", t.minus(apart)))


def _hypot(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    return tuple(t.times(g, t.over(x, y)) for x in operands)


def _xlogy(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    x, other = operands
    vanishes = t.map("and", t.map("eq", x, 0.0), t.map("le", other, 0.0))
    return t.map("where", vanishes, 0.0, t.times(g, t.map("log", other))), t.over(t.times(g, x), other)


def _sinc(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """Of sin(u) / u, u = pi * x: (cos(u) * u - sin(u)) / (u * x), and 0 where the square of u vanishes."""
    (x,) = operands
    angle = t.times(math.pi, x)
    difference = t.map("sub", t.times(t.map("cos", angle), angle), t.map("sin", angle))
    slope = t.over(difference, t.times(angle, x))
    return (t.times(g, t.map("where", t.map("eq", _square(t, angle), 0.0), 0.0, slope)),)


def _logit(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """NaN beyond 0 and 1, where these do not bound the operand."""
    (x,) = operands
    inside = t.map("and", t.map("ge", x, 0.0), t.map("le", x, 1.0))
    return (t.map("where", inside, t.over(g, t.times(x, t.map("sub", 1.0, x))), math.nan),)


def _tan(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    return (t.times(g, t.map("add", 1.0, _square(t, y))),)


SHORTCUTS: dict[str, Whole] = {
    "copysign": _copysign,
    "lerp": _lerp,
    "logaddexp2": _logaddexp2,
    "hypot": _hypot,
    "xlogy": _xlogy,
    "sinc": _sinc,
    "logit": _logit,
    "tan": _tan,
    "frac": lambda t, operands, y, g: (g,),
}
"""By the name of a composite."""
