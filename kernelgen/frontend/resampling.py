"""Resizing along the last dimensions: the nearest element, or a sum of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Arg, Dim, Ref
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Refused, Rule

FEWEST_EXACT = 2**20
"""Places that a dimension may well have: where torch's differ from a division's before that, they are computed as torch
computes them."""


@cache
def exact_places(factor: int) -> int:
    """How many places of a dimension that is so many times as long torch gives the element that a division by the
    factor gives: it multiplies by the reciprocal in float32 (`nearest_neighbor_compute_source_index`, UpSample.cuh),
    which tells 2**24 places apart."""
    import torch

    if factor & (factor - 1) == 0:
        return 1 << 24
    step, block = torch.tensor(1 / factor, dtype=torch.float32), 1 << 20
    for start in range(0, 1 << 24, block):
        places = torch.arange(start, start + block)
        wrong = ((places.float() * step).floor().long() != places // factor).nonzero()
        if len(wrong):
            return start + int(wrong[0])
    return 1 << 24


def nearest(rank: int) -> Rule:
    """Each element of the result is the one that its place falls on."""

    def rule(b: Builder, c: Call) -> Ref:
        x, factors = c.args[0], c.get(2, "scale_factors")
        shape = b.node(x).shape
        places, chosen = axes(len(c.shape)), list[Ref]()
        for i in range(rank):
            dim = i - rank
            factor = factors and factors[i]
            if factor and factor == int(factor) and (exact := exact_places(int(factor))) >= FEWEST_EXACT:
                places[dim] = ix.quotient(places[dim], ix.number(int(factor)))
                b.rounded[c.shape[dim]] = min(exact, b.rounded.get(c.shape[dim], exact))
                continue
            at = b.map("mul", _counted(b, dim, c.shape[dim]), _step(b, shape[dim], c.shape[dim], factor))
            places[dim] = ix.value(len(chosen))
            chosen.append(b.map("minimum", b.convert(at, "int64"), _last(b, shape[dim])))
        return b.index(x, c.shape, tuple(places), values=tuple(chosen))

    return rule


Tap = tuple[Ref, Ref]
"""A place along a dimension, and its weight."""


def between(rank: int, taps: Callable[..., tuple[Tap, ...]]) -> Rule:
    """Each element of the result lies between some of each dimension, which are weighted by how near they are."""

    def rule(b: Builder, c: Call) -> Ref:
        x, aligned, factors = c.args[0], c.args[2], c.get(3, "scale_factors")
        shape = b.node(x).shape
        if b.node(x).dtype != "float":
            raise Refused("interpolation of integers")
        found = []
        for dim in range(-rank, 0):
            own, made = shape[dim], c.shape[dim]
            counted = _counted(b, dim, made)
            if aligned:
                at = b.map("mul", counted, _aligned_step(b, own, made))
            else:
                step = _step(b, own, made, factors and factors[dim + rank])
                at = b.map("sub", b.map("mul", b.map("add", counted, 0.5), step), 0.5)
            found.append(taps(b, at, _last(b, own)))
        return _weighted(b, c, x, found, ())

    return rule


def linear(b: Builder, at: Ref, last: Ref | int) -> tuple[Tap, ...]:
    """The two neighbours of a place."""
    at = b.map("maximum", at, 0.0)
    first = b.map("minimum", b.convert(at, "int64"), last)
    second = b.map("minimum", b.map("add", first, 1), last)
    weight = b.map("minimum", b.map("maximum", b.map("sub", at, b.convert(first, "float")), 0.0), 1.0)
    return (first, b.map("sub", 1.0, weight)), (second, weight)


_BEND = -0.75
"""The derivative of torch's cubic at its ends (`A` in Keys' convolution)."""


def cubic(b: Builder, at: Ref, last: Ref | int) -> tuple[Tap, ...]:
    """The four neighbours of a place, those beyond the border being the border's."""
    floor = b.map("floor", at)
    after = b.map("sub", at, floor, name="fraction")
    before = b.map("sub", 1.0, after)
    weights = (_far(b, b.map("add", after, 1.0)), _near(b, after), _near(b, before), _far(b, b.map("add", before, 1.0)))
    first = b.convert(floor, "int64")
    moved = (b.map("add", first, i) for i in range(-1, 3))
    return tuple((b.map("minimum", b.map("maximum", p, 0), last), w) for p, w in zip(moved, weights, strict=True))


def _near(b: Builder, x: Ref) -> Ref:
    """The weight of a neighbour less than one away."""
    inner = b.map("sub", b.map("mul", x, _BEND + 2), _BEND + 3)
    return b.map("add", b.map("mul", b.map("mul", inner, x), x), 1.0)


def _far(b: Builder, x: Ref) -> Ref:
    """The weight of a neighbour one to two away."""
    inner = b.map("sub", b.map("mul", x, _BEND), 5 * _BEND)
    return b.map("sub", b.map("mul", b.map("add", b.map("mul", inner, x), 8 * _BEND), x), 4 * _BEND)


def _counted(b: Builder, dim: int, made: Dim) -> Ref:
    """The places of the result along a dimension, which is counted from the end, as floats."""
    return b.convert(b.place((made, *((),) * (-1 - dim)), ix.axis(dim)), "float")


def _number(dim: Dim) -> int | None:
    """A size that is a number."""
    return None if any(isinstance(a, str) for a in dim) else math.prod(a for a in dim if isinstance(a, int))


def _last(b: Builder, own: Dim) -> Ref | int:
    size = _number(own)
    return b.place((), ix.minus(ix.size(own), ix.number(1))) if size is None else size - 1


def _step(b: Builder, own: Dim, made: Dim, factor: float | None) -> Arg:
    """How far apart neighbours of the result lie in what is resized."""
    if factor:
        return 1 / factor
    size, wanted = _number(own), _number(made)
    if size is not None and wanted is not None:
        return size / wanted
    return b.map("div", *(b.convert(b.place((), ix.size(d)), "float") for d in (own, made)))


def _aligned_step(b: Builder, own: Dim, made: Dim) -> Arg:
    """The same where the first and the last of both are one; of a single one it does not matter."""
    size, wanted = _number(own), _number(made)
    if size is not None and wanted is not None:
        return (size - 1) / max(wanted - 1, 1)
    apart = [b.place((), ix.minus(ix.size(d), ix.number(1))) for d in (own, made)]
    apart[1] = b.map("maximum", apart[1], 1)
    return b.map("div", *(b.convert(d, "float") for d in apart))


def _weighted(b: Builder, c: Call, x: Ref, taps: list[tuple[Tap, ...]], chosen: tuple[Ref, ...]) -> Ref:
    """The sum over the taps of the first dimension of what the others come to there."""
    if not taps:
        count, rank = len(chosen), len(c.shape)
        places = [ix.axis(i - rank) for i in range(rank - count)] + [ix.value(i) for i in range(count)]
        return b.index(x, c.shape, tuple(places), values=chosen)
    terms = (b.map("mul", weight, _weighted(b, c, x, taps[1:], (*chosen, place))) for place, weight in taps[0])
    return reduce(lambda total, term: b.map("add", total, term), terms)


RULES: dict[str, Rule] = {
    **{f"aten.upsample_nearest{rank}d.vec": nearest(rank) for rank in (1, 2, 3)},
    **{
        f"aten.upsample_{name}.vec": between(rank, linear)
        for rank, name in enumerate(("linear1d", "bilinear2d", "trilinear3d"), 1)
    },
    "aten.upsample_bicubic2d.vec": between(2, cubic),
}
