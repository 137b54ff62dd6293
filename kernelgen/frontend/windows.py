"""Windows of fixed size: pools, depthwise convolutions, resizing by whole factors; small ones are written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import reduce

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref, SizeOf, same_size
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.frontend.moves import axes
from kernelgen.frontend.rule import Call, Refused, Rule

_MOST_TAPS = 64
"""Every tap is a load of its own in the kernel's text."""


def _sizes(given: object, rank: int, default: list[int] | None = None) -> list[int]:
    """A number for each dimension of the window."""
    if given is None or given == []:
        given = default
    values = [v for v in (given if isinstance(given, list) else [given]) if isinstance(v, int)]
    if not values or (isinstance(given, list) and len(values) != len(given)):
        raise Refused("a window whose size, stride or padding is not a number")
    return values * rank if len(values) == 1 else values


def _taps(
    b: Builder,
    c: Call,
    x: Ref,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    fill: float,
) -> Iterator[tuple[tuple[int, ...], Ref]]:
    """Every place in the window, and the input as it is seen there."""
    if math.prod(kernel) > _MOST_TAPS:
        raise Refused(f"a window of {math.prod(kernel)} elements (supported: up to {_MOST_TAPS})")
    shape, count = b.node(x).shape, len(kernel)
    for offsets in itertools.product(*map(range, kernel)):
        places, conditions = axes(len(shape)), []
        for i, offset in enumerate(offsets):
            dim = len(shape) - count + i
            shift = offset * dilation[i] - padding[i]
            at = ix.plus(ix.times(places[dim], ix.number(stride[i])), ix.number(shift))
            if shift < 0:
                conditions.append(Condition(at, ">=", ix.number(0)))
            # a window without padding on the right never ends beyond the input
            if shift + padding[i] > dilation[i] * (kernel[i] - 1) - padding[i]:
                conditions.append(Condition(at, "<", ix.size(shape[dim])))
            places[dim] = at
        yield offsets, b.index(x, c.shape, tuple(places), tuple(conditions), fill)


def _reduced(
    b: Builder,
    c: Call,
    x: Ref,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    op: str,
    fill: float,
) -> Ref:
    """The windows as rows of a reduction, their elements in a dimension of their own behind the result's."""
    shape, count, elements = b.node(x).shape, len(kernel), math.prod(kernel)
    places: list[Expr] = [ix.axis(i - len(shape) - 1) for i in range(len(shape))]
    conditions = []
    for i in range(count):
        dim, within = len(shape) - count + i, math.prod(kernel[i + 1 :])
        offset = ix.quotient(ix.axis(-1), ix.number(within)) if within > 1 else ix.axis(-1)
        offset = ix.remainder(offset, ix.number(kernel[i])) if i else offset
        at = ix.plus(ix.times(places[dim], ix.number(stride[i])), ix.times(offset, ix.number(dilation[i])))
        at = ix.plus(at, ix.number(-padding[i]))
        if padding[i]:
            conditions += [Condition(at, ">=", ix.number(0)), Condition(at, "<", ix.size(shape[dim]))]
        places[dim] = at
    windows = b.index(x, (*c.shape, (elements,)), tuple(places), tuple(conditions), fill if conditions else None)
    return b.view("reshape", b.reduce(op, windows, (-1,)), c.shape)


def _floats(b: Builder, x: Ref) -> None:
    if b.node(x).dtype != "float":
        raise Refused("a window over integers")


def max_pool(rank: int) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x: Ref = c.args[0]
        _floats(b, x)
        if c.get(5, "ceil_mode", False):
            raise Refused("a pool with ceil_mode")
        kernel = _sizes(c.args[1], rank)
        stride, padding = _sizes(c.get(2, "stride"), rank, kernel), _sizes(c.get(3, "padding", 0), rank)
        dilation = _sizes(c.get(4, "dilation", 1), rank)
        if math.prod(kernel) > _MOST_TAPS:
            return _reduced(b, c, x, kernel, stride, padding, dilation, "max", -math.inf)
        taps = _taps(b, c, x, kernel, stride, padding, dilation, -math.inf)
        return reduce(lambda best, tap: b.map("maximum", best, tap), (tap for _, tap in taps))

    return rule


def avg_pool(rank: int) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x: Ref = c.args[0]
        _floats(b, x)
        kernel, padding = _sizes(c.args[1], rank), _sizes(c.get(3, "padding", 0), rank)
        if c.get(4, "ceil_mode", False):
            raise Refused("a pool with ceil_mode")
        if any(padding) and not c.get(5, "count_include_pad", True):
            raise Refused("a pool that does not count its padding")
        stride = _sizes(c.get(2, "stride"), rank, kernel)
        if math.prod(kernel) > _MOST_TAPS:
            total = _reduced(b, c, x, kernel, stride, padding, [1] * rank, "sum", 0.0)
        else:
            taps = _taps(b, c, x, kernel, stride, padding, [1] * rank, 0.0)
            total = reduce(lambda sum_, tap: b.map("add", sum_, tap), (tap for _, tap in taps))
        return b.map("div", total, float(c.get(6, "divisor_override") or math.prod(kernel)))

    return rule


def depthwise(rank: int) -> Rule:
    """A convolution with a window for every channel and no sum over channels."""

    def rule(b: Builder, c: Call) -> Ref:
        x, weight, bias = c.args[0], c.args[1], c.get(2, "bias")
        shape, window = b.node(x).shape, b.node(weight).shape
        groups = c.get(6, "groups", 1)
        channels = groups.dim if isinstance(groups, SizeOf) else (groups,)
        if not same_size(shape[-rank - 1], channels) or not same_size(window[0], channels) or window[1] != ():
            raise Refused("a convolution that sums over channels (supported: groups == channels, depthwise)")
        kernel = [math.prod(a for a in d if isinstance(a, int)) for d in window[2:]]
        if any(isinstance(a, str) for d in window[2:] for a in d):
            raise Refused("a window whose size is not a number")
        padding = c.get(4, "padding", 0)
        if isinstance(padding, str):
            raise Refused(f"padding={padding!r}")
        taps = _taps(
            b, c, x, kernel, _sizes(c.get(3, "stride", 1), rank), _sizes(padding, rank),
            _sizes(c.get(5, "dilation", 1), rank), 0.0,
        )  # fmt: skip
        channel = ix.axis(-rank - 1)
        across = (c.shape[-rank - 1], *((),) * rank)
        terms = (
            b.map("mul", tap, b.index(weight, across, (channel, ix.number(0), *map(ix.number, offsets))))
            for offsets, tap in taps
        )
        total = reduce(lambda sum_, term: b.map("add", sum_, term), terms)
        return total if bias is None else b.map("add", total, b.index(bias, across, (channel,)))

    return rule


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


def _each(name: str, make: Callable[[int], Rule], ending: str = "default") -> dict[str, Rule]:
    return {f"aten.{name}{rank}d.{ending}": make(rank) for rank in (1, 2, 3)}


RULES: dict[str, Rule] = {
    **_each("max_pool", max_pool),
    **_each("avg_pool", avg_pool),
    **_each("conv", depthwise),
    **_each("upsample_nearest", nearest, "vec"),
}
