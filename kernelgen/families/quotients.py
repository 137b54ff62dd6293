"""Which quotients have to be right to the last bit, and what is known of their divisors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelgen.families.values import Operand, Use, Value, constant_of
from kernelgen.frontend.graph import EXACT, Graph, Ref
from kernelgen.frontend.operations import OPERATIONS

_KEEPS = ("round", "minimum", "maximum", "float8_range")
"""Operations that hand on the last bit of their first operand."""

SMALL = 1e-30
"""The reciprocal of a divisor from here on is a float32, with room for what is multiplied by it."""


def exact_quotients(graph: Graph) -> frozenset[int]:
    """The divisions whose last bit decides: 6 / 3 must not be 1.9999999 where it is rounded down or compared."""
    found = {number for number, node in enumerate(graph.nodes) if node.op == "div" and EXACT in node.attrs}
    for node in graph.nodes:
        narrow = node.op == "round" and "float8" in str(node.attrs[0])
        if OPERATIONS[node.op].is_stepped or narrow or (node.op == "convert" and node.dtype != "float"):
            for arg in node.args:
                number = arg.node if isinstance(arg, Ref) else None
                while number is not None and (graph.is_view(graph.nodes[number]) or graph.nodes[number].op in _KEEPS):
                    source = graph.nodes[number].args[0]
                    number = source.node if isinstance(source, Ref) else None
                if number is not None and graph.nodes[number].op == "div":
                    found.add(number)
    return frozenset(found)


def divides_row(values: Sequence[Value], inner: Sequence[int], args: Sequence[Operand]) -> bool:
    """Whether every element of a row is divided by the same number, which a reduction of the row gave."""
    if not inner or not all(isinstance(a, Use) for a in args):
        return False
    above, below = (values[a.value].axes for a in args if isinstance(a, Use))
    return not above.isdisjoint(inner) and below.isdisjoint(inner)


def inverse(values: Sequence[Value], divisor: Operand, statement: int | None) -> Value:
    """The reciprocal of a row's number: one division a row instead of one an element."""
    assert isinstance(divisor, Use)
    row = values[divisor.value]
    name = f"inverse_{row.name}" if row.name else "inverse"
    return Value("div", (1.0, divisor), "float", row.axes, name, statement)


def at_least(values: Sequence[Value], operand: Operand) -> float:
    """A number that a value is never below, as far as clamps from below and constant factors tell; NaN apart."""
    value = values[operand.value] if isinstance(operand, Use) else None
    if value is None or value.op == "const":
        constant = constant_of(values, operand)
        return -math.inf if constant is None else float(constant)
    if value.op in ("maximum", "clamp"):
        bounds = [at_least(values, bound) for bound in value.args]
        return min([max(bounds[:2]), *bounds[2:]])
    constant = constant_of(values, value.args[-1]) if value.op in ("mul", "div", "div_rn") else None
    factor = 0.0 if constant is None else constant if value.op == "mul" else 1 / constant if constant else 0.0
    least = at_least(values, value.args[0]) if factor > 0 else -math.inf
    return least * factor if least > 0 else -math.inf
