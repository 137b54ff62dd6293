"""What is known of index expressions from the sizes of the axes that they count: signs, quotients and remainders.

A sum of products of axes and sizes is a polynomial. An axis runs from 0 to its size less one, and a size is at least
one where a kernel runs at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from math import prod

from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Atom
from kernelgen.frontend.indices import Condition, Expr

Factor = int | str
"""The number of an axis, or the name of a size."""
Polynomial = dict[tuple[Factor, ...], int]
"""Products of factors, in one order, and how often each is counted."""
_STEPS = re.compile(
    r"\(?(?P<of>[A-Za-z_]\w*)(?: (?P<sign>[+-]) (?P<short>\d+)\))? // (?P<by>\d+)"
    r"(?: (?P<more_sign>[+-]) (?P<more>\d+))?"
)
"""A size such as `(H - 1) // 2 + 1`."""
_MOVED = re.compile(r"(?P<of>[A-Za-z_]\w*) (?P<sign>[+-]) (?P<by>\d+)")
"""A size such as `W + 1`."""


def polynomial(expr: Expr) -> Polynomial | None:
    """An expression as a polynomial; None where it divides or mentions a value."""
    match expr.op:
        case "number":
            return {(): expr.number} if expr.number else {}
        case "axis":
            return {(expr.number,): 1}
        case "size":
            return {
                _product(a for a in expr.size if isinstance(a, str)): prod(a for a in expr.size if isinstance(a, int))
            }
        case "+" | "-" | "*":
            left, right = (polynomial(arg) for arg in expr.args)
            if left is None or right is None:
                return None
            return _times(left, right) if expr.op == "*" else _sum(left, right, 1 if expr.op == "+" else -1)
    return None


def known(condition: Condition, axes: tuple[Atom, ...]) -> bool | None:
    """Whether a condition holds wherever it is looked at, or nowhere; None where that is not known."""
    difference = polynomial(ix.minus(condition.left, condition.right))
    if difference is None:
        return None
    if is_negative(difference, axes):
        return condition.op == "<"
    return condition.op == ">=" if _never_negative(difference) else None


def covers(atom: Atom, end: Expr) -> bool:
    """Whether an axis of a size is known to reach as far as an end."""
    found = polynomial(end)
    return found is not None and _never_negative(_sum(_size(atom), found, -1))


def simpler(expr: Expr, axes: tuple[Atom, ...]) -> Expr:
    """The expression with the quotients and remainders worked out that the sizes of the axes decide."""
    if not expr.args:
        return expr
    left, right = (simpler(arg, axes) for arg in expr.args)
    if expr.op in ("//", "%"):
        divided = _divided(left, right, axes)
        if divided is not None:
            return divided[expr.op == "%"]
    if (left, right) == expr.args:
        return expr
    if expr.op == right.op == "+" and right.args[1].op == "number":  # numbers last: what else is added has a name
        return ix.plus(ix.plus(left, right.args[0]), right.args[1])
    return ix.made(expr.op, left, right)


def _divided(left: Expr, right: Expr, axes: tuple[Atom, ...]) -> tuple[Expr, Expr] | None:
    """Quotient and remainder, where the products without the divisor add up to less than it."""
    above, below = polynomial(left), polynomial(right)
    if above is None or below is None or len(below) != 1:
        return None
    ((divisor, count),) = below.items()
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for product, number in above.items():
        if number % count or Counter(divisor) - Counter(product):
            rest[product] = number
        else:
            quotient[_product((Counter(product) - Counter(divisor)).elements())] = number // count
    if _never_negative(rest) and is_negative(_sum(rest, below, -1), axes):
        return _expression(quotient), _expression(rest)
    return None


def is_negative(p: Polynomial, axes: tuple[Atom, ...]) -> bool:
    """Whether it is below zero even where every axis is at its end."""
    highest: Polynomial = {}
    for product, number in p.items():
        walked = _at_end(axes[product[0]], number) if len(product) == 1 and isinstance(product[0], int) else None
        if walked is not None:
            highest = _sum(highest, walked, 1)
            continue
        at_end: Polynomial = {(): number}
        for factor in product:
            last: Polynomial = {(factor,): 1}
            if isinstance(factor, int) and number > 0:
                last = _sum(_size(axes[factor]), {(): 1}, -1)
            at_end = _times(at_end, last)
        highest = _sum(highest, at_end, 1)
    return all(number < 0 for number in highest.values()) and highest.get((), 0) < 0


def _at_end(atom: Atom, step: int) -> Polynomial | None:
    """The last place of an axis that goes by whole steps, where its size is how often these go into another one."""
    size = _STEPS.fullmatch(str(atom))
    if size is None or step < 1 or step % int(size["by"]):
        return None
    whole: Polynomial = {(size["of"],): 1, (): int(f"{size['sign'] or ''}{size['short'] or 0}")}
    beyond = int(f"{size['more_sign'] or ''}{size['more'] or 0}") - 1
    return _sum(_times({(): step // int(size["by"])}, whole), {(): step * beyond}, 1)


def _never_negative(p: Polynomial) -> bool:
    return all(number >= 0 for number in p.values())


def _size(atom: Atom) -> Polynomial:
    """The size of an axis, which may be a product, or a few more or fewer than a size with a name."""
    moved = _MOVED.fullmatch(str(atom))
    if moved is not None:
        return _sum({(moved["of"],): 1}, {(): int(moved["by"])}, 1 if moved["sign"] == "+" else -1)
    return polynomial(ix.size(tuple(int(f) if f.isdigit() else f for f in str(atom).split(" * ")))) or {}


def _product(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    return tuple(sorted(factors, key=str))


def _sum(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    total = {k: a.get(k, 0) + sign * b.get(k, 0) for k in {**a, **b}}
    return {k: n for k, n in total.items() if n}


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for k, m in a.items():
        for j, n in b.items():
            total = _sum(total, {_product((*k, *j)): m * n}, 1)
    return total


def _expression(p: Polynomial) -> Expr:
    total = ix.number(0)
    for product, count in p.items():
        term = ix.number(1)
        for axis in (f for f in product if isinstance(f, int)):
            term = ix.times(term, ix.axis(axis))
        names = tuple(f for f in product if isinstance(f, str))
        term = ix.times(term, ix.size((count, *names) if count != 1 else names))
        total = ix.plus(total, term)
    return total
