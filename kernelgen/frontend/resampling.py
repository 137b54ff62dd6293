"""Resizing along the last dimensions: by whole factors, or between neighbours."""

from __future__ import annotations

import math

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Dim, Ref
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Refused, Rule, StaysCall


def nearest(rank: int) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        factors = c.get(2, "scale_factors")
        if not factors or any(f != int(f) or f < 1 for f in factors):
            raise Refused("resizing to a size, or by a factor that is not whole")
        places = axes(len(c.shape))
        for i, factor in enumerate(factors):
            dim = len(c.shape) - rank + i
            places[dim] = ix.quotient(places[dim], ix.number(int(factor)))
        return b.index(c.args[0], c.shape, tuple(places))

    return rule


def linear(rank: int) -> Rule:
    """Each element of the result lies between two of each dimension, which are weighted by how near they are."""

    def rule(b: Builder, c: Call) -> Ref:
        x, aligned, factors = c.args[0], c.args[2], c.get(3, "scale_factors")
        shape = b.node(x).shape
        if b.node(x).dtype != "float":
            raise Refused("resizing of integers between neighbours")
        ends = [
            _ends(b, i - rank, shape[i - rank], c.shape[i - rank], aligned=aligned, factor=factors and factors[i])
            for i in range(rank)
        ]
        return _weighted(b, c, x, ends, ())

    return rule


End = tuple[Ref, Ref]
"""A place along a dimension, and its weight."""


def _ends(b: Builder, dim: int, own: Dim, made: Dim, *, aligned: bool, factor: float | None) -> tuple[End, End]:
    """The two neighbours of every place of the result along a dimension, which is counted from the end."""
    named = any(isinstance(atom, str) for atom in (*own, *made))
    if named and (aligned or not factor):
        raise StaysCall("resizing to a size that is no number, or between aligned corners of one")
    size, wanted = math.prod(a for a in own if isinstance(a, int)), math.prod(a for a in made if isinstance(a, int))
    last: Ref | int = b.place((), ix.minus(ix.size(own), ix.number(1))) if named else size - 1
    along = (made, *((),) * (-1 - dim))
    counted = b.convert(b.place(along, ix.axis(dim)), "float")
    if aligned:
        at = b.map("mul", counted, (size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    else:
        step = 1 / factor if factor else size / wanted
        at = b.map("sub", b.map("mul", b.map("add", counted, 0.5), step), 0.5)
        at = b.map("maximum", at, 0.0)
    first = b.map("minimum", b.convert(at, "int64"), last)
    second = b.map("minimum", b.map("add", first, 1), last)
    weight = b.map("minimum", b.map("maximum", b.map("sub", at, b.convert(first, "float")), 0.0), 1.0)
    return (first, b.map("sub", 1.0, weight)), (second, weight)


def _weighted(b: Builder, c: Call, x: Ref, ends: list[tuple[End, End]], chosen: tuple[Ref, ...]) -> Ref:
    """The sum over both ends of the first dimension of what the others come to there."""
    if not ends:
        count, rank = len(chosen), len(c.shape)
        places = [ix.axis(i - rank) for i in range(rank - count)] + [ix.value(i) for i in range(count)]
        return b.index(x, c.shape, tuple(places), values=chosen)
    terms = [b.map("mul", weight, _weighted(b, c, x, ends[1:], (*chosen, place))) for place, weight in ends[0]]
    return b.map("add", *terms)


RULES: dict[str, Rule] = {
    **{f"aten.upsample_nearest{rank}d.vec": nearest(rank) for rank in (1, 2, 3)},
    **{
        f"aten.upsample_{name}.vec": linear(rank)
        for rank, name in enumerate(("linear1d", "bilinear2d", "trilinear3d"), 1)
    },
}
