"""Whether sizes and places that are not numbers are equal, or a number apart."""

from __future__ import annotations

from math import prod

from kernelgen.frontend.graph import Atom, Dim
from kernelgen.frontend.indices import Expr
from kernelgen.spec.sizes import evaluate, names_in

_SAMPLES = (1_000_003, 2_750_161, 7_368_787)
"""What the first name of a spec is taken for, three times over; further names are far from it."""

Values = tuple[int, ...]
"""A whole number under every sample."""


def of_dim(dim: Dim) -> Values:
    """A size under every sample."""
    return tuple(prod(_atom(atom, sample) for atom in dim) for sample in _SAMPLES)


def of_place(expr: Expr) -> Values:
    """A place without axes under every sample."""
    if expr.op == "number":
        return (expr.number,) * len(_SAMPLES)
    if expr.op == "size":
        return of_dim(expr.size)
    left, right = (of_place(arg) for arg in expr.args)
    return tuple(_WORKED[expr.op](a, b) for a, b in zip(left, right, strict=True))


def added(*values: Values) -> Values:
    return tuple(map(sum, zip(*values, strict=True)))


def less(a: Values, b: Values) -> Values:
    """The difference."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def number(values: Values) -> int | None:
    """The number that it is whatever the sizes are; None where it follows them."""
    return values[0] if len(set(values)) == 1 else None


_WORKED = {
    "+": int.__add__, "-": int.__sub__, "*": int.__mul__, "//": int.__floordiv__, "%": int.__mod__,
}  # fmt: skip


def _atom(atom: Atom, sample: int) -> int:
    if isinstance(atom, int):
        return atom
    names = names_in(atom)
    if names == (atom,):
        return _named(atom, sample)
    return int(evaluate(atom, {name: _named(name, sample) for name in names}))


def _named(name: str, sample: int) -> int:
    """Two names are alike under no sample."""
    return sample + int.from_bytes(name.encode(), "big") % 999_983
