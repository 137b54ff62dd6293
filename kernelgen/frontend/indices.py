"""Index expressions: where an operation reads its operand, in terms of the indices of its result.

In the graph an `axis` is a dimension of the result, counted from the end (-1 is the last), and a `value` the position
of an operand; lowering replaces both by axes of the iteration space and values of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from kernelgen.frontend.graph import Atom, Dim


@dataclass(frozen=True)
class Expr:
    """A whole number for every element: `axis`, `value`, `number`, `size`, or `+ - * // %` of two expressions."""

    op: str
    args: tuple[Expr, ...] = ()
    number: int = 0
    """The axis, the value or the number."""
    size: Dim = ()


@dataclass(frozen=True)
class Condition:
    """`left op right` with op `<` or `>=`: where an access is inside, or an operand is the one that counts."""

    left: Expr
    op: str
    right: Expr


@dataclass(frozen=True)
class Indexing:
    """How an `index` node reads its first operand, or what an `place` node counts (its only place)."""

    places: tuple[Expr, ...]
    """One for every dimension of the operand."""
    conditions: tuple[Condition, ...] = ()
    """Where the operand is read at all."""
    fill: float | int | bool | None = None
    """The result elsewhere; None: nobody looks at it there."""


def axis(number: int) -> Expr:
    return Expr("axis", number=number)


def value(number: int) -> Expr:
    return Expr("value", number=number)


def number(n: int) -> Expr:
    return Expr("number", number=n)


def size(dim: Dim) -> Expr:
    """A size, as a number where it is one."""
    return Expr("size", size=dim) if any(isinstance(a, str) for a in dim) else number(_product(dim))


def plus(a: Expr, b: Expr) -> Expr:
    if a.op == b.op == "number":
        return number(a.number + b.number)
    if b == number(0):
        return a
    if a == number(0):
        return b
    if b.op == "number" and b.number < 0:
        return minus(a, number(-b.number))
    if a.op in "+-" and a.args[1].op == b.op == "number":
        first = a.args[1].number if a.op == "+" else -a.args[1].number
        return plus(a.args[0], number(first + b.number))
    return _of_one_size(a, b, 1) or Expr("+", (a, b))


def minus(a: Expr, b: Expr) -> Expr:
    if a.op == b.op == "number":
        return number(a.number - b.number)
    if b == number(0):
        return a
    if a.op == "+" and a.args[1] == b:
        return a.args[0]
    if a.op in "+-" and a.args[1].op == b.op == "number":
        first = a.args[1].number if a.op == "+" else -a.args[1].number
        return plus(a.args[0], number(first - b.number))
    return _of_one_size(a, b, -1) or Expr("-", (a, b))


def _of_one_size(a: Expr, b: Expr, sign: int) -> Expr | None:
    """a + sign * b where b and what a ends with are multiples of the same size, which are one then: i + 2 * D for
    i + D + D. None for others."""
    known, last = _multiple(b), _multiple(a.args[1]) if a.op in "+-" else _multiple(a)
    if known is None or last is None or known[1] != last[1]:
        return None
    before = a.args[0] if a.op in "+-" else number(0)
    count = (-last[0] if a.op == "-" else last[0]) + sign * known[0]
    join = plus if count >= 0 else minus
    return join(before, times(number(abs(count)), known[1]))


def _multiple(expr: Expr) -> tuple[int, Expr] | None:
    """How many times which size an expression is."""
    if expr.op == "size":
        return 1, expr
    if expr.op == "*" and {arg.op for arg in expr.args} == {"number", "size"}:
        count, of = sorted(expr.args, key=lambda arg: arg.op)
        return count.number, of
    return None


def times(a: Expr, b: Expr) -> Expr:
    if a.op == b.op == "number":
        return number(a.number * b.number)
    if number(0) in (a, b):
        return number(0)
    if b == number(1):
        return a
    return b if a == number(1) else Expr("*", (a, b))


def quotient(a: Expr, b: Expr) -> Expr:
    """Of numbers that are not negative."""
    if a.op == b.op == "number":
        return number(a.number // b.number)
    return a if b == number(1) else Expr("//", (a, b))


def remainder(a: Expr, b: Expr) -> Expr:
    """Of numbers that are not negative."""
    if a.op == b.op == "number":
        return number(a.number % b.number)
    return number(0) if b == number(1) else Expr("%", (a, b))


_MAKE = {"+": plus, "-": minus, "*": times, "//": quotient, "%": remainder}


def substitute(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """The expression with every axis and value replaced."""
    if expr.op in ("axis", "value"):
        return leaf(expr)
    if not expr.args:
        return expr
    return made(expr.op, *(substitute(a, leaf) for a in expr.args))


def made(op: str, left: Expr, right: Expr) -> Expr:
    """The expression of two others, worked out where these are numbers or one of them changes nothing."""
    return _MAKE[op](left, right)


def leaves(expr: Expr) -> Iterator[Expr]:
    """The axes, values, numbers and sizes of an expression."""
    if not expr.args:
        yield expr
    for arg in expr.args:
        yield from leaves(arg)


def linear(places: tuple[Expr, ...], shape: tuple[Dim, ...]) -> Expr:
    """The position in one run of elements of a place in a shape."""
    total = number(0)
    for place, dim in zip(places, shape, strict=True):
        total = plus(times(total, size(dim)), place)
    return total


def reshaped(source: tuple[Dim, ...], shape: tuple[Dim, ...], places: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Where a reshape to `shape`, read at `places`, reads its source.

    The shortest runs of dimensions that hold as many elements on both sides are taken together, so that only what
    the reshape really cuts or joins is taken apart.
    """
    found: list[Expr] = []
    i = j = 0
    while i < len(source) or j < len(shape):
        first_i, first_j = i, j
        left: Dim = ()
        right: Dim = ()
        if i < len(source) and j < len(shape):
            left, right, i, j = source[i], shape[j], i + 1, j + 1
        while not _same(left, right) or (i == first_i and j == first_j):
            if _same(left, right) or j == len(shape) or (i < len(source) and _shorter(left, right)):
                if i == len(source):
                    break
                left, i = (*left, *source[i]), i + 1
            else:
                right, j = (*right, *shape[j]), j + 1
        if i == len(source):
            j = len(shape)
        if j == len(shape):
            i = len(source)
        found += _cut(source[first_i:i], linear(places[first_j:j], shape[first_j:j]))
    return tuple(found)


def _cut(dims: tuple[Dim, ...], position: Expr) -> list[Expr]:
    """A position in a run of elements as a place in dimensions."""
    found: list[Expr] = []
    for k in range(len(dims)):
        rest = tuple(atom for dim in dims[k + 1 :] for atom in dim)
        part = quotient(position, size(rest))
        if dims[k] == ():
            part = number(0)
        elif any(d != () for d in dims[:k]):
            part = remainder(part, size(dims[k]))
        found.append(part)
    return found


def _product(dim: Dim) -> int:
    return prod(a for a in dim if isinstance(a, int))


def _names(dim: Dim) -> tuple[str, ...]:
    return tuple(sorted(a for a in dim if isinstance(a, str)))


def _same(a: Dim, b: Dim) -> bool:
    return _product(a) == _product(b) and _names(a) == _names(b)


def _shorter(a: Dim, b: Dim) -> bool:
    """Whether `a` lacks what `b` has."""
    missing = list(_names(b))
    for name in _names(a):
        if name in missing:
            missing.remove(name)
    return bool(missing) or (len(_names(a)) == len(_names(b)) and _product(a) < _product(b))


__all__ = ["Atom", "Condition", "Expr", "Indexing", "axis", "leaves", "linear", "number", "reshaped", "size"]
