"""`torch.einsum` without a product of matrices: operands in another order, on a diagonal, multiplied or summed."""

from __future__ import annotations

from collections import Counter
from functools import reduce

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.rule import Call, Rule, StaysCall


def einsum(b: Builder, c: Call) -> Ref:
    equation = c.args[0].replace(" ", "")
    named, result = _letters(equation)
    counts = Counter("".join(map(_once, named)))
    contracted = "".join(letter for letter, count in counts.items() if count > 1 and letter not in result)
    of_rows = len({frozenset(letters) for letters in named}) == 1  # no size of the result is one operand's alone
    if (contracted and not of_rows) or "." in equation or len(named) != len(c.args[1]):
        raise StaysCall("a product of matrices")
    operands = [_placed(b, x, letters, result + contracted) for x, letters in zip(c.args[1], named, strict=True)]
    product = _summed(b, reduce(lambda one, other: b.map("mul", one, other), operands), len(contracted))
    return b.view("expand", product, c.shape)


def _letters(equation: str) -> tuple[list[str], str]:
    """Those of each operand, and of the result: where it is left out, what occurs once, in alphabetical order."""
    operands, arrow, result = equation.partition("->")
    counts = Counter(operands.replace(",", ""))
    return operands.split(","), result if arrow else "".join(sorted(x for x, count in counts.items() if count == 1))


def _once(letters: str) -> str:
    return "".join(dict.fromkeys(letters))


def _placed(b: Builder, x: Ref, letters: str, result: str) -> Ref:
    """An operand with the dimensions of the result, of size one where it has none, after a sum over its others."""
    alone = "".join(letter for letter in _once(letters) if letter not in result)
    order, sizes = result + alone, dict(zip(letters, b.node(x).shape, strict=True))
    places = [ix.number(0) if sizes[n] == () else ix.axis(order.index(n) - len(order)) for n in letters]
    return _summed(b, b.index(x, tuple(sizes.get(n, ()) for n in order), tuple(places)), len(alone))


def _summed(b: Builder, x: Ref, count: int) -> Ref:
    """Without its last dimensions, so many of which are summed."""
    if not count:
        return x
    total = b.reduce("sum", x, tuple(range(-count, 0)))
    return b.view("reshape", total, b.node(total).shape[:-count])


RULES: dict[str, Rule] = {"aten.einsum.default": einsum}
