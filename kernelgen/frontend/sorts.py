"""Sorting along a dimension, and what is read of a row in order."""

from __future__ import annotations

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Rule, StaysCall

LONGEST = 4096
"""The longest row, in elements, that a program sorts."""


def in_order(b: Builder, x: Ref, dim: int, *, falls: bool) -> tuple[Ref, Ref]:
    """The elements along a dimension in order, equal ones as they stand, and their places."""
    shape, way = b.node(x).shape, "falling" if falls else "rising"
    if b.node(x).dtype != "float" or not shape or shape[dim] == ():
        raise StaysCall("sort of integers, or of one element")
    if b.longest(shape[dim]) > LONGEST:
        raise StaysCall(f"sort of rows of more than {LONGEST} elements")
    last = dim % len(shape) == len(shape) - 1
    order = [*(d for d in range(len(shape)) if d != dim % len(shape)), dim % len(shape)]
    if not last:
        x = b.view("permute", x, tuple(shape[d] for d in order), tuple(order))
    found = b.sort(f"sort_{way}", x), b.sort(f"argsort_{way}", x)
    if last:
        return found
    back = tuple(order.index(d) for d in range(len(order)))
    values, places = (b.view("permute", one, shape, back) for one in found)
    return values, places


def sort(b: Builder, c: Call) -> tuple[Ref, Ref]:
    return in_order(b, c.args[0], c.get(1, "dim", -1), falls=c.get(2, "descending", False))


def stable_sort(b: Builder, c: Call) -> tuple[Ref, Ref]:
    return in_order(b, c.args[0], c.kwargs.get("dim", -1), falls=c.kwargs.get("descending", False))


def _nth(b: Builder, ordered: tuple[Ref, Ref], dim: int, place: ix.Expr, *, keeps: bool) -> tuple[Ref, Ref]:
    """The element at a place of the rows in order, and where it stands."""
    shape = b.node(ordered[0]).shape
    dim %= len(shape)
    kept = tuple(() if d == dim else size for d, size in enumerate(shape))
    places = axes(len(shape))
    places[dim] = place
    places = [ix.number(0) if size == () else p for p, size in zip(places, shape, strict=True)]
    found = [b.index(one, kept, tuple(places)) for one in ordered]
    if not keeps:
        found = [b.view("reshape", one, tuple(s for d, s in enumerate(shape) if d != dim)) for one in found]
    return found[0], found[1]


def kthvalue(b: Builder, c: Call) -> tuple[Ref, Ref]:
    k, dim = c.args[1], c.get(2, "dim", -1)
    if not isinstance(k, int):
        raise StaysCall("kthvalue with k from a size")
    ordered = in_order(b, c.args[0], dim, falls=False)
    return _nth(b, ordered, dim, ix.number(k - 1), keeps=c.get(3, "keepdim", False))


def median(b: Builder, c: Call) -> tuple[Ref, Ref]:
    x, dim = c.args[0], c.get(1, "dim", -1)
    if not b.node(x).shape:
        raise StaysCall("the median of one element")
    size = b.node(x).shape[dim]
    middle = ix.quotient(ix.minus(ix.size(size), ix.number(1)), ix.number(2))
    keeps, ordered = c.get(2, "keepdim", False), in_order(b, x, dim, falls=False)
    found = _nth(b, ordered, dim, middle, keeps=keeps)
    ends = _nth(b, ordered, dim, ix.minus(ix.size(size), ix.number(1)), keeps=keeps)  # NaN, if any is
    is_nan = b.map("isnan", ends[0])
    return b.map("where", is_nan, ends[0], found[0]), b.map("where", is_nan, ends[1], found[1])


def median_of_all(b: Builder, c: Call) -> Ref:
    x = c.args[0]
    line = b.view("reshape", x, (tuple(atom for dim in b.node(x).shape for atom in dim),))
    return median(b, Call((line, 0), {}, (), c.dtype, c.torch_dtype))[0]


RULES: dict[str, Rule] = {
    "aten.sort.default": sort,
    "aten.sort.stable": stable_sort,
    "aten.kthvalue.default": kthvalue,
    "aten.median.dim": median,
    "aten.median.default": median_of_all,
}
