"""Between which numbers the whole numbers of a graph lie, and those of int64 that fit int32 as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.frontend.graph import VIEWS, Arg, Dim, Graph, Node, Ref
from kernelgen.frontend.indices import Expr

Interval = tuple[int, int]
"""The least and the greatest."""

_WIDTHS = {"bool": (0, 1), "uint8": (0, 2**8 - 1), "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1)}
_INT32 = (-(2**31), 2**31 - 1)
_WIDTHS["int32"] = _INT32
_MADE = ("add", "sub", "mul", "and", "or", "shl", "shr", "where", "convert", "place", *VIEWS)
"""Operations that are made in int32 where their numbers fit."""


def interval(nodes: Sequence[Node], arg: Arg, known: dict[int, Interval | None] | None = None) -> Interval | None:
    """Between which numbers an operand lies; None where that is not known, or it is no whole number. `known`: what was
    found of nodes before."""
    if not isinstance(arg, Ref):
        return (int(arg), int(arg)) if isinstance(arg, int) else None
    known = {} if known is None else known
    if arg.node not in known:
        node = nodes[arg.node]
        own = _WIDTHS.get(node.dtype)
        found = _made(nodes, node, known) if node.dtype != "float" else None
        wraps = found is not None and own is not None and not _within(found, own)
        known[arg.node] = own if found is None or wraps else found
    return known[arg.node]


def _made(nodes: Sequence[Node], node: Node, known: dict[int, Interval | None]) -> Interval | None:
    if node.op == "place":
        assert node.indexing is not None
        return _counted(node.indexing.places[0], node.shape)
    sides = [interval(nodes, a, known) for a in node.args]
    if node.op in (*VIEWS, "convert", "full") and sides:
        return sides[0]
    if node.op == "where" and None not in sides[1:]:
        chosen = [side for side in sides[1:] if side]
        return min(low for low, _ in chosen), max(high for _, high in chosen)
    if len(sides) != 2:
        return None
    if node.op == "and" and any(side and side[0] >= 0 for side in sides):
        return 0, min(side[1] for side in sides if side and side[0] >= 0)
    left, right = sides
    return _joined(node.op, left, right) if left and right else None


def _joined(op: str, left: Interval, right: Interval) -> Interval | None:
    (a, b), (c, d) = left, right
    match op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            ends = [x * y for x in left for y in right]
            return min(ends), max(ends)
        case "shr" if c >= 0:
            ends = [x >> min(y, 64) for x in left for y in right]
            return min(ends), max(ends)
        case "shl" if c >= 0 and d < 64:
            ends = [x << y for x in left for y in right]
            return min(ends), max(ends)
        case "or" if a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
    return None


def _counted(expr: Expr, shape: tuple[Dim, ...]) -> Interval | None:
    """Of an expression in terms of the dimensions of a shape."""
    if expr.op == "number":
        return expr.number, expr.number
    if expr.op == "axis":
        size = 1
        for atom in shape[len(shape) + expr.number]:
            if not isinstance(atom, int):
                return None
            size *= atom
        return 0, size - 1
    if len(expr.args) != 2:
        return None
    left, right = (_counted(arg, shape) for arg in expr.args)
    if not left or not right:
        return None
    if expr.op in "//%":
        if right[0] != right[1] or right[0] < 1 or left[0] < 0:
            return None
        return (left[0] // right[0], left[1] // right[0]) if expr.op == "//" else (0, min(left[1], right[0] - 1))
    return _joined({"+": "add", "-": "sub", "*": "mul"}[expr.op], left, right)


def narrowed(graph: Graph) -> Graph:
    """The graph with whole numbers of int64 that are surely within int32 computed as such."""
    narrow: set[int] = set()
    known: dict[int, Interval | None] = {}
    for i, node in enumerate(graph.nodes):
        found = interval(graph.nodes, Ref(i), known) if node.dtype == "int64" and node.op in _MADE else None
        sources = [
            graph.nodes[a.node].dtype == "int64" and a.node not in narrow for a in node.args if isinstance(a, Ref)
        ]
        if found is not None and _within(found, _INT32) and not any(sources):
            narrow.add(i)
    narrow -= {output.node for output in graph.outputs}
    nodes: list[Node] = []
    moved: dict[int, int] = {}

    def used(arg: Arg, *, wide: bool) -> Arg:
        if not isinstance(arg, Ref):
            return arg
        if wide and arg.node in narrow:
            source = nodes[moved[arg.node]]
            nodes.append(Node("convert", (Ref(moved[arg.node]),), source.shape, "int64", None, source.statement))
            return Ref(len(nodes) - 1)
        return Ref(moved[arg.node])

    for i, node in enumerate(graph.nodes):
        wide = i not in narrow and node.op != "convert"
        args = tuple(used(a, wide=wide) for a in node.args)
        made = replace(node, args=args, dtype="int32" if i in narrow else node.dtype)
        source = args[0] if node.op == "convert" else None
        if isinstance(source, Ref) and nodes[source.node].dtype == made.dtype:
            moved[i] = source.node
            continue
        nodes.append(made)
        moved[i] = len(nodes) - 1
    outputs = tuple(replace(output, node=moved[output.node]) for output in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _within(inner: Interval, outer: Interval) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
