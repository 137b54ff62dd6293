"""Windows of fixed size: pools and depthwise convolutions; small ones are written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder, converted
from kernelgen.frontend.convolutions import CONVOLUTIONS
from kernelgen.frontend.graph import CALL, DOT, REDUCTIONS, SCANS, SCATTERS, Arg, Dim, Graph, Ref, SizeOf, same_size
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.frontend.moves import axes
from kernelgen.frontend.reductions import mean_of
from kernelgen.frontend.rule import Call, Refused, Result, Rule, StaysCall

DEPTHWISE = "depthwise"
"""What a convolution of every channel by itself is called among a graph's shortcuts."""

_MOST_TAPS = 64
"""Every tap is a load of its own in the kernel's text, of a pool of a pool as many as the first has."""


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
    *,
    ceil: bool = False,
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
            # a window without padding on the right never ends beyond the input, but for one that is rounded up to
            if ceil or shift + padding[i] > dilation[i] * (kernel[i] - 1) - padding[i]:
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
    *,
    ceil: bool,
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
        if padding[i] or ceil:
            conditions += [Condition(at, ">=", ix.number(0)), Condition(at, "<", ix.size(shape[dim]))]
        places[dim] = at
    windows = b.index(x, (*c.shape, (elements,)), tuple(places), tuple(conditions), fill if conditions else None)
    return b.view("reshape", b.reduce(op, windows, (-1,)), c.shape)


def _is_long(b: Builder, x: Ref, kernel: list[int]) -> bool:
    """Whether a pool is not written out but reduced, window by window."""
    return math.prod(kernel) * max(_taps_of(b, x.node), 1) > _MOST_TAPS


def _taps_of(b: Builder, node: int) -> int:
    """How many elements of other places a value is computed from, element by element: of one that is computed there
    itself, all that it is computed from."""
    found, waiting, seen = 0, [node], set()
    while waiting:
        i = waiting.pop()
        if i in seen:
            continue
        seen.add(i)
        if b.nodes[i].op == "index":
            found += _loads_of(b, b.nodes[i].operands[0])
        elif b.nodes[i].op not in (*REDUCTIONS, *SCANS, *SCATTERS, DOT):
            waiting += [a.node for a in b.nodes[i].args if isinstance(a, Ref)]
    return found


def _loads_of(b: Builder, node: int) -> int:
    """How many values in memory an element is computed from: of a softmax, itself and two of its row."""
    found, waiting = set(), [node]
    while waiting:
        i = waiting.pop()
        if b.nodes[i].op in ("input", "index", CALL, *REDUCTIONS, *SCANS, *SCATTERS, DOT):
            found.add(i)
        else:
            waiting += b.nodes[i].operands
    return len(found)


def _floats(b: Builder, x: Ref) -> None:
    if b.node(x).dtype != "float":
        raise Refused("a pool of integers")


def max_pool(rank: int) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x: Ref = c.args[0]
        _floats(b, x)
        ceil = c.get(5, "ceil_mode", False)
        kernel = _sizes(c.args[1], rank)
        stride, padding = _sizes(c.get(2, "stride"), rank, kernel), _sizes(c.get(3, "padding", 0), rank)
        dilation = _sizes(c.get(4, "dilation", 1), rank)
        if _is_long(b, x, kernel):
            return _reduced(b, c, x, kernel, stride, padding, dilation, "max", -math.inf, ceil=ceil)
        taps = _taps(b, c, x, kernel, stride, padding, dilation, -math.inf, ceil=ceil)
        return reduce(lambda best, tap: b.map("maximum", best, tap), (tap for _, tap in taps))

    return rule


def avg_pool(rank: int) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x: Ref = c.args[0]
        _floats(b, x)
        kernel, padding = _sizes(c.args[1], rank), _sizes(c.get(3, "padding", 0), rank)
        ceil, counts_pad = c.get(4, "ceil_mode", False), c.get(5, "count_include_pad", True)
        stride = _sizes(c.get(2, "stride"), rank, kernel)
        if _is_long(b, x, kernel):
            total = _reduced(b, c, x, kernel, stride, padding, [1] * rank, "sum", 0.0, ceil=ceil)
        else:
            taps = _taps(b, c, x, kernel, stride, padding, [1] * rank, 0.0, ceil=ceil)
            total = reduce(lambda sum_, tap: b.map("add", sum_, tap), (tap for _, tap in taps))
        divisor: Arg = float(c.get(6, "divisor_override") or math.prod(kernel))
        if not c.get(6, "divisor_override") and (ceil or (any(padding) and not counts_pad)):
            divisor = _counted(b, c, x, kernel, stride, padding, counts_pad=counts_pad)
        return b.map("div", total, divisor)

    return rule


def _counted(
    b: Builder, c: Call, x: Ref, kernel: list[int], stride: list[int], padding: list[int], *, counts_pad: bool
) -> Ref:
    """How many elements of a window lie in the input, or in the padding that counts as well."""
    shape, rank, found = b.node(x).shape, len(kernel), None
    for i, size in enumerate(kernel):
        dim, pad = len(shape) - rank + i, padding[i]
        along = (c.shape[dim], *((),) * (rank - 1 - i))
        first = ix.plus(ix.times(ix.axis(i - rank), ix.number(stride[i])), ix.number(-pad))
        start, end = b.place(along, first), b.place(along, ix.plus(first, ix.number(size)))
        last = b.place((), ix.plus(ix.size(shape[dim]), ix.number(pad if counts_pad else 0)))
        begin: Arg = start if counts_pad else b.map("maximum", start, 0)
        count = b.map("sub", b.map("minimum", end, last), begin)
        found = count if found is None else b.map("mul", found, count)
    assert found is not None
    return b.convert(found, "float")


def adaptive(rank: int, op: str) -> Rule:
    """Of each dimension all elements together, or equal parts of a fixed one."""

    def rule(b: Builder, c: Call) -> Result:
        x: Ref = c.args[0]
        _floats(b, x)
        given, shape = c.args[1], b.node(x).shape
        wanted = list(given) if isinstance(given, list) else [given] * rank
        if all(size == 1 for size in wanted):
            dims = tuple(range(-rank, 0))
            reduced = mean_of(b, x, dims) if op == "mean" else b.reduce("max", x, dims)
            return reduced if op == "mean" else (reduced, b.reduce("argmax", x, dims))
        kernel = []
        for size, dim in zip(wanted, shape[-rank:], strict=True):
            length = math.prod(a for a in dim if isinstance(a, int))
            if not isinstance(size, int) or any(isinstance(a, str) for a in dim):
                raise StaysCall("an adaptive pool whose input or output size is not a number")
            kernel.append(length // size if length % size == 0 else 0)
        if 0 in kernel:
            return _of_uneven(b, c, rank, op)
        pool = avg_pool(rank) if op == "mean" else max_pool_places(rank)
        return pool(b, replace(c, args=(x, kernel), kwargs={}))

    return rule


def _of_uneven(b: Builder, c: Call, rank: int, op: str) -> Result:
    """An adaptive pool whose windows have different sizes: each runs from where its share begins to where it ends."""
    x: Ref = c.args[0]
    plane, made = b.node(x).shape[-rank:], c.shape[-rank:]
    starts, ends, widths = [], [], []
    for i, (own, out) in enumerate(zip(plane, made, strict=True)):
        length, count = (math.prod(a for a in dim if isinstance(a, int)) for dim in (own, out))
        begin = ix.times(ix.axis(i - rank), ix.number(length))
        starts.append(ix.quotient(begin, ix.number(count)))
        ends.append(ix.quotient(ix.plus(begin, ix.number(length + count - 1)), ix.number(count)))
        widths.append(max(-(-(j + 1) * length // count) - j * length // count for j in range(count)))
    if math.prod(widths) > _MOST_TAPS:
        raise StaysCall("an adaptive pool with large windows of different sizes")
    found, best, place = None, None, None
    for offsets in itertools.product(*map(range, widths)):
        at = [ix.plus(start, ix.number(o)) for start, o in zip(starts, offsets, strict=True)]
        inside = tuple(Condition(here, "<", end) for here, end in zip(at, ends, strict=True))
        places = [*axes(len(c.shape))[:-rank], *at]
        tap = b.index(x, c.shape, tuple(places), inside, 0.0 if op == "mean" else -math.inf)
        if op == "mean":
            found = tap if found is None else b.map("add", found, tap)
            continue
        number = b.place(made, ix.linear(tuple(at), plane))
        if best is None or place is None:
            best, place = tap, number
            continue
        is_better = b.map("or", b.map("gt", tap, best), b.map("isnan", tap))
        best, place = b.map("where", is_better, tap, best), b.map("where", is_better, number, place)
    if found is not None:
        sizes = [ix.minus(end, start) for start, end in zip(starts, ends, strict=True)]
        return b.map("div", found, b.convert(b.place(made, reduce(ix.times, sizes)), "float"))
    assert best is not None
    assert place is not None
    return best, b.view("expand", place, c.shape)


def max_pool_places(rank: int) -> Rule:
    """Values, and the number of each within its plane: the first of equals, a NaN before any number."""

    def rule(b: Builder, c: Call) -> Result:
        x: Ref = c.args[0]
        _floats(b, x)
        kernel = _sizes(c.args[1], rank)
        stride, padding = _sizes(c.get(2, "stride"), rank, kernel), _sizes(c.get(3, "padding", 0), rank)
        dilation, ceil = _sizes(c.get(4, "dilation", 1), rank), c.get(5, "ceil_mode", False)
        plane = b.node(x).shape[-rank:]
        best = place = None
        for offsets, tap in _taps(b, c, x, kernel, stride, padding, dilation, -math.inf, ceil=ceil):
            own = [
                ix.plus(ix.times(ix.axis(i - rank), ix.number(stride[i])), ix.number(o * dilation[i] - padding[i]))
                for i, o in enumerate(offsets)
            ]
            at = b.place(c.shape[-rank:], ix.linear(tuple(own), plane))
            if best is None or place is None:
                best, place = tap, at
                continue
            is_better = b.map("or", b.map("gt", tap, best), b.map("isnan", tap))
            best, place = b.map("where", is_better, tap, best), b.map("where", is_better, at, place)
        assert best is not None
        assert place is not None
        return best, b.view("expand", place, c.shape)

    return rule


def is_depthwise(graph: Graph) -> bool:
    """Whether it may have a convolution of every channel by itself: one that is written out, or a call of torch's of
    which no kernel makes a product of matrices, as a transposed one is."""
    calls = (node for node in graph.nodes if node.op == CALL and node.convolution is None)
    return any(name == DEPTHWISE for _, name, _ in graph.shortcuts) or any(
        str(node.attrs[1]).startswith(CONVOLUTIONS) for node in calls
    )


def depthwise(rank: int) -> Rule:
    """A convolution with a window for every channel and no sum over channels."""

    def rule(b: Builder, c: Call) -> Ref:
        x, weight, bias = c.args[0], c.args[1], c.get(2, "bias")
        shape, window = b.node(x).shape, b.node(weight).shape
        groups = c.get(6, "groups", 1)
        channels = groups.dim if isinstance(groups, SizeOf) else (groups,)
        if not same_size(shape[-rank - 1], channels) or not same_size(window[0], channels) or window[1] != ():
            raise Refused("a convolution that sums over channels (supported: groups == channels, depthwise)")
        if b.whole:
            raise Refused("a depthwise convolution as a whole")
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
        total = b.shortcut(reduce(lambda sum_, term: b.map("add", sum_, term), terms), DEPTHWISE, x, weight)
        return total if bias is None else b.map("add", total, b.index(bias, across, (channel,)))

    return rule


def unfold(b: Builder, c: Call) -> Ref:
    """im2col: the windows of a plane as columns, a row for every channel and place in the window."""
    x: Ref = c.args[0]
    kernel, dilation, padding, stride = (_sizes(c.args[i], 2) for i in range(1, 5))
    shape = b.node(x).shape
    offsets = (ix.quotient(ix.axis(-2), ix.number(kernel[1])), ix.axis(-2))
    count = _windows(shape[-1], kernel[1], dilation[1], padding[1], stride[1])
    places: list[Expr] = axes(len(c.shape))[: len(c.shape) - 2]
    places.append(ix.quotient(ix.axis(-2), ix.number(math.prod(kernel))))
    conditions: list[Condition] = []
    for i, window in enumerate((ix.quotient(ix.axis(-1), count), ix.remainder(ix.axis(-1), count))):
        offset = ix.times(ix.remainder(offsets[i], ix.number(kernel[i])), ix.number(dilation[i]))
        at = ix.plus(ix.plus(ix.times(window, ix.number(stride[i])), offset), ix.number(-padding[i]))
        if padding[i]:
            conditions += [Condition(at, ">=", ix.number(0)), Condition(at, "<", ix.size(shape[i - 2]))]
        places.append(at)
    return b.index(x, c.shape, tuple(places), tuple(conditions), converted(0, c.dtype) if conditions else None)


def fold(b: Builder, c: Call) -> Ref:
    """col2im: every element of the plane the sum of what the windows that reach it hold there."""
    x: Ref = c.args[0]
    kernel, dilation, padding, stride = (_sizes(c.args[i], 2) for i in range(2, 6))
    reach = [range(-(-size // step)) for size, step in zip(kernel, stride, strict=True)]
    if dilation != [1, 1] or math.prod(map(len, reach)) > _MOST_TAPS:
        raise StaysCall("fold with dilation, or with too many overlapping windows")
    plane = c.shape[-2:]
    counts = [_windows(plane[i], kernel[i], 1, padding[i], stride[i]) for i in range(2)]
    total: Ref | None = None
    for back in itertools.product(*reach):  # so many windows before the last that reaches an element
        offsets, windows, conditions = [], [], []
        for i in range(2):
            at, step = ix.plus(ix.axis(i - 2), ix.number(padding[i])), ix.number(stride[i])
            offsets.append(ix.plus(ix.remainder(at, step), ix.number(back[i] * stride[i])))
            windows.append(ix.minus(ix.quotient(at, step), ix.number(back[i])))
            conditions += [Condition(windows[i], ">=", ix.number(0))] if back[i] else []
            conditions.append(Condition(windows[i], "<", counts[i]))
            if (back[i] + 1) * stride[i] > kernel[i]:
                conditions.append(Condition(offsets[i], "<", ix.number(kernel[i])))
        channel = ix.times(ix.axis(-3), ix.number(math.prod(kernel)))
        row = ix.plus(ix.plus(channel, ix.times(offsets[0], ix.number(kernel[1]))), offsets[1])
        column = ix.plus(ix.times(windows[0], counts[1]), windows[1])
        places = (*axes(len(c.shape))[: len(c.shape) - 3], row, column)
        tap = b.index(x, c.shape, places, tuple(conditions), converted(0, c.dtype))
        total = tap if total is None else b.map("add", total, tap)
    assert total is not None
    return total


def _windows(dim: Dim, kernel: int, dilation: int, padding: int, stride: int) -> Expr:
    """How many windows there are along a dimension."""
    free = ix.plus(ix.size(dim), ix.number(2 * padding - dilation * (kernel - 1) - 1))
    return ix.plus(ix.quotient(free, ix.number(stride)), ix.number(1))


def _each(name: str, make: Callable[[int], Rule]) -> dict[str, Rule]:
    return {f"aten.{name}{rank}d.default": make(rank) for rank in (1, 2, 3)}


RULES: dict[str, Rule] = {
    **_each("max_pool", max_pool),
    **_each("avg_pool", avg_pool),
    **_each("adaptive_avg_pool", lambda rank: adaptive(rank, "mean")),
    **_each("adaptive_max_pool", lambda rank: adaptive(rank, "max")),
    "aten.max_pool1d_with_indices.default": max_pool_places(1),
    "aten.max_pool2d_with_indices.default": max_pool_places(2),
    "aten.max_pool3d_with_indices.default": max_pool_places(3),
    **_each("conv", depthwise),
    "aten.im2col.default": unfold,
    "aten.col2im.default": fold,
}
