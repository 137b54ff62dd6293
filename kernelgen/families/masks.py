"""Which keys a mask leaves to a row: the walk over keys begins and ends where it does.

A condition on places, such as `col <= row`, `row - col < 256`, `col < lengths[b]` or `col < ends[row]`, bounds the keys
of a row from above or below by the row's number, or nothing, plus what does not change from key to key. Any other
condition hides elements and leaves no block out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb
from operator import add, floordiv, mod, mul, sub

from kernelgen.families.values import Space, Use, Value
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Dim
from kernelgen.frontend.indices import Expr

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True)
class Condition:
    """Where something counts: where a value is true, or where it is not."""

    value: int
    holds: bool
    statement: int | None


@dataclass(frozen=True)
class Term:
    """What does not change from key to key, times a sign: a value, or an expression of sizes and axes."""

    sign: int
    of: int | Expr
    of_row: bool = False
    """Whether it changes from row to row."""


@dataclass(frozen=True)
class Affine:
    """`n * key + m * row + terms + number`."""

    n: int = 0
    m: int = 0
    terms: tuple[Term, ...] = ()
    number: int = 0

    def __neg__(self) -> Affine:
        terms = tuple(replace(t, sign=-t.sign) for t in self.terms)
        return Affine(-self.n, -self.m, terms, -self.number)

    def __add__(self, other: Affine) -> Affine:
        terms = [t for t in self.terms if replace(t, sign=-t.sign) not in other.terms]
        terms += [t for t in other.terms if replace(t, sign=-t.sign) not in self.terms]
        return Affine(self.n + other.n, self.m + other.m, tuple(terms), self.number + other.number)

    def __sub__(self, other: Affine) -> Affine:
        return self + -other

    def at(self, size: Callable[[Dim], int]) -> int | None:
        """What it is but for the key and the row, in terms of sizes; None where it is more than these."""
        found = self.number
        for term in self.terms:
            value = None if isinstance(term.of, int) else _of_sizes(term.of, size)
            if value is None:
                return None
            found += term.sign * value
        return found


def _of_sizes(expr: Expr, size: Callable[[Dim], int]) -> int | None:
    """The value of an expression of sizes and numbers; None where it has anything else."""
    match expr.op:
        case "number":
            return expr.number
        case "size":
            return size(expr.size)
        case "axis" | "value":
            return None
    left, right = (_of_sizes(e, size) for e in expr.args)
    return None if left is None or right is None else _ARITHMETIC[expr.op](left, right)


_ARITHMETIC = {"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod}


@dataclass(frozen=True)
class Bound:
    """The keys of a row lie below `limit`, or from it on; `limit` has no key in it."""

    is_upper: bool
    limit: Affine


@dataclass(frozen=True)
class Mask:
    """What conditions come to."""

    bounds: tuple[Bound, ...]
    opaque: tuple[Condition, ...]
    """The conditions that bound nothing."""

    def hides_more(self, size: Callable[[Dim], int]) -> bool:
        """Whether something else than rows and sizes moves a bound too: values, such as lengths of sequences, or places
        that change from batch to batch."""
        return any(b.limit.at(size) is None for b in self.bounds)

    def lines(self, size: Callable[[Dim], int]) -> tuple[Line, ...]:
        """The bounds that rows and sizes move alone; others are taken for none. `size`: what a size is."""
        found = ((b.is_upper, b.limit.m, b.limit.at(size)) for b in self.bounds)
        return tuple((is_upper, slope, number) for is_upper, slope, number in found if number is not None)

    def upper(self) -> tuple[Affine, ...]:
        return tuple(b.limit for b in self.bounds if b.is_upper)

    def lower(self) -> tuple[Affine, ...]:
        return tuple(b.limit for b in self.bounds if not b.is_upper)


Line = tuple[bool, int, int]
"""A bound on the keys of a row: whether it is an upper one, how it moves from row to row, and where row 0 has it."""


def seen(lines: Sequence[Line], row: int, keys: int) -> int:
    """How many of so many keys a row sees."""
    end = min((slope * row + number for is_upper, slope, number in lines if is_upper), default=keys)
    start = max((slope * row + number for is_upper, slope, number in lines if not is_upper), default=0)
    return max(min(end, keys) - max(start, 0), 0)


def seeing(lines: Sequence[Line], key: int, rows: int) -> int:
    """How many of so many rows see a key."""
    first, last = 0, rows - 1
    for is_upper, slope, number in lines:
        apart = key - number  # seen: key < slope * row + number, or key >= that
        if not slope:
            first = first if (apart < 0) is is_upper else rows
        elif is_upper is (slope > 0):
            first = max(first, apart * slope + is_upper)
        else:
            last = min(last, apart * slope - is_upper)
    return max(last - first + 1, 0)


def total(
    function: Callable[[int], int], count: int, lines: Sequence[Line], levels: Sequence[int], *, across: bool = False
) -> int:
    """The sum of a function of 0 to `count` that is a polynomial of at most the second degree between the places where
    lines cross one another or a level. `across`: it is a function of the lines' values, not of rows."""
    if across:  # a line as a function of the other number: that of the row at a key
        lines = [(is_upper, slope, -slope * number) for is_upper, slope, number in lines if slope] + [
            (is_upper, 0, number) for is_upper, slope, number in lines if not slope
        ]
    found = [*((slope, number) for _, slope, number in lines), *((0, level) for level in levels)]
    places = [-number // slope for slope, number in found if slope]
    places += [(d - b) // (a - c) for a, b in found for c, d in found if a != c]
    places += [number for slope, number in found if not slope] if across else []
    cuts = sorted({0, count, *(p + near for p in places for near in (-2, -1, 0, 1, 2, 3) if 0 < p + near < count)})
    found_sum = 0
    for first, end in pairwise(cuts):
        if end - first < 4:
            found_sum += sum(map(function, range(first, end)))
            continue
        n, (zero, one, two) = end - first, (function(first + i) for i in range(3))
        found_sum += n * zero + comb(n, 2) * (one - zero) + comb(n, 3) * (two - 2 * one + zero)
    return found_sum


def mask_of(
    values: Sequence[Value],
    conditions: Sequence[Condition],
    space: Space,
    rows: tuple[int, ...],
    keys: tuple[int, ...],
    *,
    by_row: bool = False,
) -> Mask:
    """`rows`, `keys`: the axes along which a tile of scores moves. `by_row`: bounds may have any term that does not
    change from key to key, such as `ends[row]`."""
    reader = _Reader(values, space, rows, keys, by_row=by_row)
    bounds: list[Bound] = []
    opaque = []
    for condition in (part for c in conditions for part in reader.parts(c)):
        found = reader.bounds(condition.value, condition.holds)
        bounds += found or ()
        opaque += [condition] if found is None else []
    return Mask(tuple(dict.fromkeys(bounds)), tuple(opaque))


def counted(space: Space, axes: tuple[int, ...]) -> Expr:
    """The number of an element along some axes together, as an expression of these."""
    return ix.linear(tuple(ix.axis(a) for a in axes), tuple((space.axes[a],) for a in axes))


class _Reader:
    def __init__(
        self, values: Sequence[Value], space: Space, rows: tuple[int, ...], keys: tuple[int, ...], *, by_row: bool
    ) -> None:
        self.values = values
        self.row, self.key = (counted(space, axes) if axes else None for axes in (rows, keys))
        self.rows, self.moving = frozenset(rows), frozenset(keys if by_row else (*rows, *keys))

    def parts(self, condition: Condition) -> Iterator[Condition]:
        """The conditions that one comes to that holds where several do: some may be bounds where others are not."""
        value = self.values[condition.value]
        if value.op not in ("and", "or") or (value.op == "and") is not condition.holds:
            yield condition
            return
        for arg in value.args:
            if isinstance(arg, Use):
                yield from self.parts(replace(condition, value=arg.value))

    def bounds(self, i: int, holds: bool) -> tuple[Bound, ...] | None:
        """The bounds that a value is true under, all together; None where it says something else."""
        value = self.values[i]
        uses = [a.value for a in value.args if isinstance(a, Use)]
        match value.op:
            case "logical_not" | "invert":
                return self.bounds(uses[0], not holds)
            case "convert" if value.dtype == "bool" and self.values[uses[0]].dtype == "bool":
                return self.bounds(uses[0], holds)
            case "and" | "or" if (value.op == "and") is holds and len(uses) == 2:
                parts = [self.bounds(j, holds) for j in uses]
                return None if None in parts else tuple(b for part in parts for b in part or ())
            case "where":
                return self._of_where(i, holds)
            case "eq" | "ne":
                return self._of_numbers(i, holds)
            case "lt" | "le" | "gt" | "ge":
                return self._compared(value, value.op if holds else _OPPOSITE[value.op])
        return None

    def _of_where(self, i: int, holds: bool) -> tuple[Bound, ...] | None:
        """`where(test, True, False)`, as torch.tril writes it of ones."""
        test, one, other = self.values[i].args
        truths = [self._number(a) for a in (one, other)]
        if not isinstance(test, Use) or None in truths or bool(truths[0]) == bool(truths[1]):
            return None
        return self.bounds(test.value, holds == bool(truths[0]))

    def _of_numbers(self, i: int, holds: bool) -> tuple[Bound, ...] | None:
        """`where(test, 1.0, 0.0) == 0`."""
        value = self.values[i]
        chosen, number = value.args
        wanted = self._number(number)
        if not isinstance(chosen, Use) or wanted is None or self.values[chosen.value].op != "where":
            return None
        test, one, other = self.values[chosen.value].args
        sides = [self._number(a) for a in (one, other)]
        if not isinstance(test, Use) or None in sides:
            return None
        first, second = ((side == wanted) is (value.op == "eq") for side in sides)
        return None if first == second else self.bounds(test.value, holds == first)

    def _number(self, operand: object) -> float | None:
        if isinstance(operand, Use):
            value = self.values[operand.value]
            return self._number(value.args[0]) if value.op == "const" else None
        return float(operand) if isinstance(operand, int | float) else None

    def _compared(self, value: Value, op: str) -> tuple[Bound, ...] | None:
        left, right = (self._affine(a) for a in value.args)
        if left is None or right is None:
            return None
        # key on the left alone: key op rest
        whole = right - left
        if whole.n == 1:
            whole, op = -whole, _MIRRORED[op]
        if whole.n != -1 or abs(whole.m) > 1:
            return None
        limit = replace(whole, n=0)
        if op in ("le", "gt"):
            limit = limit + Affine(number=1)
        return (Bound(op in ("lt", "le"), limit),)

    def _affine(self, operand: object) -> Affine | None:
        if isinstance(operand, int | float):
            return Affine(number=int(operand)) if math.isfinite(operand) and operand == int(operand) else None
        if not isinstance(operand, Use):
            return None
        value = self.values[operand.value]
        if value.op == "const":
            return self._affine(value.args[0])
        if value.op == "place" and isinstance(value.index[0], Expr):
            return self._of_place(value.index[0])
        if value.op in ("add", "sub") and value.dtype != "float":
            left, right = (self._affine(a) for a in value.args)
            if left is None or right is None:
                return None
            return left + right if value.op == "add" else left - right
        if value.op == "neg" and value.dtype != "float":
            inner = self._affine(value.args[0])
            return None if inner is None else -inner
        if value.op == "convert" and "int" in value.dtype:
            return self._affine(value.args[0])
        if value.dtype == "float" or value.dtype == "bool" or value.axes & self.moving:
            return None
        return Affine(terms=(Term(1, operand.value, bool(value.axes & self.rows)),))

    def _of_place(self, expr: Expr) -> Affine | None:
        if expr in (self.key, self.row):
            return Affine(n=1) if expr == self.key else Affine(m=1)
        if expr.op == "number":
            return Affine(number=expr.number)
        if expr.op == "value":
            return self._affine(Use(expr.number))
        if expr.op in ("+", "-"):
            left, right = (self._of_place(e) for e in expr.args)
            if left is None or right is None:
                return None
            return left + right if expr.op == "+" else left - right
        axes = {leaf.number for leaf in ix.leaves(expr) if leaf.op == "axis"}
        if axes & self.moving or any(leaf.op == "value" for leaf in ix.leaves(expr)):
            return None
        return Affine(terms=(Term(1, expr, bool(axes & self.rows)),))
