"""Numbers that follow from sizes, such as `x.shape[-1] ** -0.5`: torch's symbolic expressions as nodes of the graph."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from kernelgen.frontend import indices as ix
from kernelgen.frontend.arithmetic import power
from kernelgen.frontend.build import Builder
from kernelgen.frontend.export import dim_of
from kernelgen.frontend.graph import Arg, Atom, Ref
from kernelgen.frontend.rule import Call, Refused

_QUOTIENTS = ("FloatTrueDiv", "IntTrueDiv")


def number_of(b: Builder, expression: Any, symbols: dict[Any, Atom]) -> Arg:
    """The node, of no dimensions, of a sympy expression in traced sizes. Raises Refused for what it cannot be."""
    if expression.is_number:
        return int(expression) if expression.is_integer else float(expression)
    kind = type(expression).__name__
    if kind in ("Symbol", "ToFloat"):
        if expression in b.numbers:
            return b.numbers[expression]
        return _size(b, expression if kind == "Symbol" else expression.args[0], symbols)
    if kind == "Add":
        return _sum(b, expression.args, symbols)
    if kind == "FloorDiv":
        return _size(b, expression, symbols)
    sides = [number_of(b, side, symbols) for side in expression.args]
    if kind == "Mul":
        first, *rest = sides
        for side in rest:
            first = b.map(kind.lower(), first, side)
        return first
    if kind in _QUOTIENTS:
        return b.map("div", *sides)
    if kind == "OpaqueUnaryFn_sqrt":
        return b.map("sqrt", *sides)
    if kind in ("FloatPow", "Pow"):
        base, exponent = sides
        if all(symbol in b.numbers for symbol in expression.free_symbols) or not _is_rounded(expression.args[0]):
            return power(b, Call((base, exponent), {}, (), "float", "float32"))
        if isinstance(base, float) and base > 0 and isinstance(exponent, Ref):
            return _power(b, base, exponent)
    raise Refused(f"the number {expression}")


_PARTS = 2.0**16
"""What has no finer parts than one in so many is exact in float32 below 2**8, where powers of two end."""


def _power(b: Builder, base: float, exponent: Ref) -> Ref:
    """A number to the power of a size, by its logarithm in two parts: the product with the coarse one is exact."""
    logarithm = math.log2(base)
    coarse = round(logarithm * _PARTS) / _PARTS
    large, small = b.map("mul", exponent, coarse), b.map("mul", exponent, logarithm - coarse)
    whole = b.map("rint", large)
    rest = b.map("add", b.map("sub", large, whole), small)
    return b.map("mul", b.map("exp2", whole), b.map("exp2", rest))


def _is_rounded(base: Any) -> bool:
    """Whether float32 rounds a number, which a power by a size makes as many times more of."""
    return bool(base.is_number) and ctypes.c_float(float(base)).value != float(base)


def _size(b: Builder, expression: Any, symbols: dict[Any, Atom]) -> Arg:
    """A whole number that follows from sizes, such as `(M - 1) // 2`, as a float."""
    return b.convert(b.place((), ix.size(dim_of(expression, symbols))), "float")


def _sum(b: Builder, terms: Sequence[Any], symbols: dict[Any, Atom]) -> Arg:
    """A sum as one writes it: what has a minus sign is subtracted."""
    signed = [(bool(term.could_extract_minus_sign()), term) for term in terms]
    (_, first), *rest = sorted(signed, key=lambda pair: pair[0])
    found = number_of(b, first, symbols)
    for negative, term in rest:
        found = b.map("sub" if negative else "add", found, number_of(b, -term if negative else term, symbols))
    return found
