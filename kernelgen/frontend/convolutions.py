"""Convolutions as products: windows of the input by weights, summed over the places of a window and the channels.

The windows are a node `index` with a dimension for every place of the result, then one for every place of a window,
then the channels; nothing of them is ever in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import DOT, Convolution, Dim, Node, Ref, SizeOf
from kernelgen.frontend.indices import Condition, Expr, Indexing
from kernelgen.frontend.rule import Call, Refused

_TRANSPOSED = tuple(f"torch.nn.functional.conv_transpose{d}d" for d in (1, 2, 3))
CONVOLUTIONS = (*(f"torch.nn.functional.conv{d}d" for d in (1, 2, 3)), *_TRANSPOSED)
_PLACES, _TAPS = "xyz", "rst"
"""Letters of the dimensions of space in the result, and of those of a window."""


def convolution(
    function: str, call: Call, shapes: Sequence[tuple[Dim, ...]], *, whole: bool = False
) -> Convolution | None:
    """How the windows of a call lie; None where that is not known as numbers, or there is no batch. Raises Refused for
    what torch itself refuses when it runs, and not before.

    `shapes`: of the input and of the weight. `whole`: groups may have one channel each, of which no kernel makes a
    product of matrices.
    """
    given, weight = shapes[:2]
    rank = len(weight) - 2
    transposed = function in _TRANSPOSED
    window = [_number(dim) for dim in weight[2:]]
    places = ((3, "stride"), (7, "dilation")) if transposed else ((3, "stride"), (5, "dilation"))
    strides, dilation = (_each(call.get(i, name, 1), rank) for i, name in places)
    groups = call.get(6, "groups", 1)
    if whole and isinstance(groups, SizeOf) and given[1] == weight[0] == groups.dim and weight[1] == ():
        groups = 0
    if len(given) != rank + 2 or None in window or not strides or not dilation or not isinstance(groups, int):
        return None
    if min(dilation, default=1) < 1:
        raise Refused(f"{function} with dilation={dilation} (must be at least 1)")
    each = [_parts(dim, groups) for dim in (given[1], weight[0])] if groups > 1 else []
    if None in each or (() in each and not whole):
        return None
    reach = [d * (size - 1) for d, size in zip(dilation, window, strict=True) if size is not None]
    padding = call.get(4, "padding", 0)
    if isinstance(padding, str):
        before = [n // 2 if padding == "same" else 0 for n in reach]
        behind = [n - b if padding == "same" else 0 for n, b in zip(reach, before, strict=True)]
    else:
        before = behind = _each(padding, rank)
    if transposed:
        behind = _each(call.get(5, "output_padding", 0), rank)
        if any(rest >= max(s, d) for rest, s, d in zip(behind, strides, dilation, strict=False)):
            raise Refused(f"{function} with output_padding={behind} (must be less than stride or dilation)")
    if not (before and behind) and rank:
        return None
    return Convolution(tuple(strides), tuple(before), tuple(behind), tuple(dilation), groups, transposed)


def _each(given: object, rank: int) -> list[int]:
    """A number for each dimension of space; none where they are not known."""
    values = [v for v in (given if isinstance(given, list) else [given]) if isinstance(v, int)]
    if isinstance(given, list) and len(values) != len(given):
        return []
    return values * rank if len(values) == 1 else values


def _number(dim: Dim) -> int | None:
    return None if any(isinstance(a, str) for a in dim) else prod(a for a in dim if isinstance(a, int))


def _parts(dim: Dim, count: int) -> Dim | None:
    """A size divided by a number; None where that is no size."""
    if count == 1:
        return dim
    whole = prod(a for a in dim if isinstance(a, int))
    if whole % count:
        return None
    rest = (whole // count,) if whole != count else ()
    return (*rest, *(a for a in dim if isinstance(a, str)))


def products(nodes: Sequence[Node], node: Node, args: Sequence[Ref]) -> tuple[Node, ...]:
    """What stands for a call, after the nodes that there are: windows, their product with the weight, and the bias."""
    made = list(nodes)
    windows = node.convolution
    assert windows is not None
    given, weight, *bias = args
    x, w = made[given.node], made[weight.node]
    rank, groups = len(w.shape) - 2, windows.groups
    batch, out, taps = node.shape[0], node.shape[2:], w.shape[2:]
    of_group = _parts(w.shape[0], groups)
    assert of_group is not None
    channels = of_group if windows.transposed else w.shape[1]

    def add(new: Node) -> Ref:
        made.append(new)
        return Ref(len(made) - 1)

    places, conditions = _places(windows, x.shape, taps, channels)
    group: tuple[Dim, ...] = ((groups,),) if groups > 1 else ()
    shape = (*group, batch, *out, *taps, channels)
    fill = 0.0 if conditions else None
    indexing = Indexing(tuple(places), tuple(conditions), fill)
    read = add(Node(
        "index", (given,), shape, "float", x.name, node.statement, (), indexing, convolution=windows
    ))  # fmt: skip
    right = f"{'cj' if windows.transposed else 'jc'}{_TAPS[:rank]}"
    if groups > 1:
        across = ix.plus(ix.times(ix.axis(-rank - 3), ix.size(of_group)), ix.axis(-rank - 2))
        rest = tuple(ix.axis(d - rank - 1) for d in range(rank + 1))
        weight = add(Node(
            "index", (weight,), ((groups,), of_group, *w.shape[1:]), "float", w.name, node.statement, (),
            Indexing((across, *rest)), convolution=windows,
        ))  # fmt: skip
        right = f"g{right}"
    g = "g" if groups > 1 else ""
    equation = f"{g}b{_PLACES[:rank]}{_TAPS[:rank]}c,{right}->b{g}j{_PLACES[:rank]}"
    result = (batch, *group, w.shape[1] if windows.transposed else of_group, *out)
    name = None if bias or groups > 1 else node.name
    total = add(Node(
        DOT, (read, weight), result, "float", name, node.statement, node.attrs[:2], None, equation, windows
    ))  # fmt: skip
    if groups > 1:
        name = None if bias else node.name
        total = add(Node("reshape", (total,), node.shape, "float", name, node.statement))
    if bias:
        beside = (made[bias[0].node].shape[0], *((),) * rank)
        addend = add(Node("reshape", (bias[0],), beside, "float", None, node.statement))
        total = add(Node("add", (total, addend), node.shape, "float", node.name, node.statement))
    return tuple(made[len(nodes) :])


def _places(
    windows: Convolution, shape: tuple[Dim, ...], taps: tuple[Dim, ...], channels: Dim
) -> tuple[list[Expr], list[Condition]]:
    """Where the windows read their operand, and where that is inside."""
    rank = len(taps)
    first = -2 * rank - 2  # the dimension of the batch, behind that of the group
    channel = ix.axis(-1)
    if windows.groups > 1:
        channel = ix.plus(ix.times(ix.axis(first - 1), ix.size(channels)), channel)
    places, conditions = [ix.axis(first), channel], []
    for d in range(rank):
        pixel = ix.axis(first + 1 + d)
        tap = ix.times(ix.axis(d - rank - 1), ix.number(windows.dilation[d])) if taps[d] else ix.number(0)
        if windows.transposed:
            place, within = _spread(windows, d, pixel, tap, _number(taps[d]) or 1, ix.size(shape[2 + d]))
            places.append(place)
            conditions += within
            continue
        at = ix.plus(ix.times(pixel, ix.number(windows.stride[d])), tap)
        at = ix.plus(at, ix.number(-windows.padding[d]))
        if windows.padding[d] > 0:
            conditions.append(Condition(at, ">=", ix.number(0)))
        if windows.behind[d] > 0:
            conditions.append(Condition(at, "<", ix.size(shape[2 + d])))
        places.append(at)
    return places, conditions


def _spread(
    windows: Convolution, d: int, pixel: Expr, tap: Expr, window: int, size: Expr
) -> tuple[Expr, list[Condition]]:
    """The element that a tap of a transposed convolution spreads to a pixel, and where there is one: an element lands
    at every multiple of the stride."""
    stride, padding, reach = windows.stride[d], windows.padding[d], windows.dilation[d] * (window - 1)
    landed = ix.minus(ix.plus(pixel, ix.number(padding)), tap)
    place = ix.quotient(landed, ix.number(stride))
    found = [Condition(ix.remainder(landed, ix.number(stride)), "<", ix.number(1))] if stride > 1 else []
    if reach - padding >= stride:
        found.append(Condition(place, ">=", ix.number(0)))
    if reach - padding + windows.behind[d] >= stride:
        found.append(Condition(place, "<", size))
    return place, found
