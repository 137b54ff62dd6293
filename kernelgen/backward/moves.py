"""What elements are moved by, by name: slices, joins, pads, flips and the like among the `index` nodes of a graph.

A gradient's reference is written as PyTorch text, and the gradient of a slice is the pad of a gradient: both ask what
an index does as a whole, where lowering asks only where every element is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelgen.backward import lengths
from kernelgen.frontend import indices as ix
from kernelgen.frontend import moves
from kernelgen.frontend.build import Builder, Refused
from kernelgen.frontend.graph import Dim, Graph, Node, Ref
from kernelgen.frontend.indices import Condition, Expr, Indexing
from kernelgen.frontend.operations import of_kind
from kernelgen.frontend.rule import Call

MOVES = of_kind("move")
"""The operations that `named` makes of `index` nodes. Dimensions are counted from the end.

slice: attrs the dimension and the step, its place where it begins; select: the dimension, and the place that is chosen;
pad: dimensions, with two places each: how much comes before and after; flip: dimensions; roll: a dimension and by how
much, and so on; repeat, interleave: a dimension and how often, and so on; shuffle, unshuffle: the factor; cat, stack:
the dimension of the result."""

Shape = tuple[Dim, ...]


def named(graph: Graph) -> Graph:
    """The graph with a name for every `index` that has one; joins take the place of the last choice between parts."""
    nodes = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if node.op == "index" and len(node.args) == 1:
            source = node.args[0]
            assert isinstance(source, Ref)
            nodes[i] = _named(node, graph.nodes[source.node].shape) or node
        elif node.op == "where":
            nodes[i] = _join(graph, node) or node
    return replace(graph, nodes=tuple(nodes))


def _named(node: Node, shape: Shape) -> Node | None:
    indexing = node.indexing
    assert indexing is not None
    places, after = indexing.places, node.shape
    if node.attrs:
        return _made(node, "flip", node.attrs)
    if indexing.conditions:
        return _pad(node, shape) if indexing.fill is not None else None
    same = len(shape) == len(after)
    changed = [d for d in range(-len(shape), 0) if same and (places[d] != ix.axis(d) or shape[d] != after[d])]
    if changed and all(places[d].op == "%" and places[d].args[0].op != "axis" for d in changed):
        return _roll(node, changed)
    if len(changed) == 1 and (found := _affine(places[changed[0]])):
        axis, step, start = found
        return _made(node, "slice", (axis, step), start) if axis == changed[0] and step > 0 else None
    if len(after) == len(shape) - 1:
        return _select(node, shape)
    return _repeat(node, shape) or _shuffle(node, shape)


def _made(node: Node, op: str, attrs: Iterable[int | str], *places: Expr, fill: float | None = None) -> Node:
    return replace(node, op=op, attrs=tuple(attrs), indexing=Indexing(places, (), fill) if places else None)


def _affine(place: Expr) -> tuple[int, int, Expr] | None:
    """`axis * step + start` as its axis, step and start."""
    match place:
        case Expr("axis", _, axis):
            return axis, 1, ix.number(0)
        case Expr("*", (Expr("axis", _, axis), Expr("number", _, step))):
            return axis, step, ix.number(0)
        case Expr("+", (first, start)) if (found := _affine(first)) and not _has_axes(start):
            return found[0], found[1], ix.plus(found[2], start)
    return None


def _has_axes(expr: Expr) -> bool:
    return any(leaf.op in ("axis", "value") for leaf in ix.leaves(expr))


def _select(node: Node, shape: Shape) -> Node | None:
    assert node.indexing is not None
    places = list(node.indexing.places)
    chosen = [d for d, place in enumerate(places) if not _has_axes(place)]
    for d in chosen:
        if places[:d] + places[d + 1 :] == moves.axes(len(shape) - 1):
            return _made(node, "select", (d - len(shape),), places[d])
    return None


def _pad(node: Node, shape: Shape) -> Node | None:
    """A constant around dimensions; None where something is cut off as well."""
    indexing, rank = node.indexing, len(shape)
    assert indexing is not None
    if rank != len(node.shape) or not isinstance(indexing.fill, float):
        return None
    dims, found, conditions = [], [], []
    for d in range(-rank, 0):
        place, length, whole = indexing.places[d], lengths.of_dim(shape[d]), lengths.of_dim(node.shape[d])
        before = place.args[1] if place.op == "-" else ix.number(0)
        if ix.minus(ix.axis(d), before) != place:
            return None
        after = lengths.number(lengths.less(whole, lengths.added(length, lengths.of_place(before))))
        if after is None or after < 0 or before.op != "number":
            return None
        if (before, after) != (ix.number(0), 0):
            dims.append(d)
            found += [before, ix.number(after)]
        conditions += [Condition(ix.axis(d), ">=", before)] * (before != ix.number(0))
        conditions += [Condition(place, "<", ix.size(shape[d]))] * (after > 0)
    same = len(conditions) == len(indexing.conditions) and set(conditions) == set(indexing.conditions)
    return _made(node, "pad", dims, *found, fill=indexing.fill) if same else None


def _roll(node: Node, changed: list[int]) -> Node | None:
    assert node.indexing is not None
    attrs: list[int] = []
    for d in changed:
        moved, by = node.indexing.places[d].args[0], 0
        match moved:
            case Expr("+", (_, Expr("number", _, n))):
                by = -n
            case Expr("+", (_, Expr("-", (_, Expr("%", (Expr("number", _, n), _)))))):
                by = n
        attrs += [d, by]
    call = Call((Ref(0), attrs[1::2], attrs[::2]), {}, node.shape, "float", "float32")
    return _made(node, "roll", attrs) if _places(moves.roll, node.shape, call) == node.indexing.places else None


def _repeat(node: Node, shape: Shape) -> Node | None:
    """Dimensions as a whole or element by element so many times over."""
    assert node.indexing is not None
    if len(shape) != len(node.shape):
        return None
    for op, sign in (("repeat", "%"), ("interleave", "//")):
        attrs: list[int] = []
        for d in range(-len(shape), 0):
            place, length = node.indexing.places[d], lengths.of_dim(shape[d])
            if place.op == sign and place.args[0] == ix.axis(d):
                times = {a // b for a, b in zip(lengths.of_dim(node.shape[d]), length, strict=True)}
                n = times.pop()
                if times or place.args[1] != (ix.size(shape[d]) if sign == "%" else ix.number(n)):
                    return None
                attrs += [d, n]
            elif shape[d] == () and node.shape[d] != () and place == ix.number(0):
                return None
            elif place != ix.axis(d):
                break
        else:
            return _made(node, op, attrs) if attrs else None
    return None


def _shuffle(node: Node, shape: Shape) -> Node | None:
    assert node.indexing is not None
    if len(shape) != len(node.shape) or len(shape) < 3:
        return None
    one, other = lengths.of_dim(shape[-1]), lengths.of_dim(node.shape[-1])
    for op, rule, long, short in (
        ("shuffle", moves.pixel_shuffle, other, one),
        ("unshuffle", moves.pixel_unshuffle, one, other),
    ):
        factor = long[0] // max(short[0], 1)
        call = Call((Ref(0), factor), {}, node.shape, "float", "float32")
        if factor > 1 and _places(rule, shape, call) == node.indexing.places:
            return _made(node, op, (factor,))
    return None


def _places(rule: object, shape: Shape, call: Call) -> tuple[Expr, ...] | None:
    """Where a rule of the front end would read a tensor of a shape."""
    builder = Builder()
    builder.input("x", shape, "float")
    assert callable(rule)
    try:
        made = builder.node(rule(builder, call))
    except Refused:
        return None
    return None if made.indexing is None else made.indexing.places


def _join(graph: Graph, node: Node) -> Node | None:
    """The operands that a choice by place puts side by side, each of which is read only where it lies."""
    parts: list[Node] = []
    last: Node | None = node
    while last is not None and last.op == "where" and _is_place(graph, last.args[0]):
        first, rest = (graph.nodes[a.node] if isinstance(a, Ref) else None for a in last.args[1:])
        if first is None or not _is_part(first):
            return None
        parts, last = [*parts, first], rest
    if not parts or last is None or not _is_part(last):
        return None
    parts.append(last)
    (dim,) = {c.left.number for part in parts for c in part.indexing.conditions}  # type: ignore[union-attr]
    operands = [graph.nodes[a.node] for part in parts for a in part.args if isinstance(a, Ref)]
    op = "cat" if len(operands[0].shape) == len(node.shape) else "stack"
    return replace(node, op=op, args=tuple(a for part in parts for a in part.args), attrs=(dim,))


def _is_part(node: Node) -> bool:
    """Whether a value is an operand of a join, which is read where the join's conditions say."""
    return node.op == "index" and node.indexing is not None and bool(node.indexing.conditions) and (
        node.indexing.fill is None
    )  # fmt: skip


def _is_place(graph: Graph, arg: object) -> bool:
    test = graph.nodes[arg.node] if isinstance(arg, Ref) else None
    return test is not None and test.op == "lt" and all(
        isinstance(a, Ref) and graph.nodes[a.node].op == "place" for a in test.args
    )  # fmt: skip
