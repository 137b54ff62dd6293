"""Dimensions that reshapes group in several ways, as the parts that all of them keep whole.

Of words of eight numbers each, (16 * G, 8), that are looked at as groups of 128, (G, 128), the parts are G, 16 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Dim, Graph, Node, Ref, canonical


def with_repeats(graph: Graph) -> Graph:
    """The graph with elements that stand several times one after the other as views: (J,) as (J, 1), (J, 128) and then
    (J * 128,)."""
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
        source = args[0] if node.op == "index" and len(args) == 1 else None
        counts = _repeats(node) if isinstance(source, Ref) else None
        if isinstance(source, Ref) and counts is not None:
            own = nodes[source.node].shape
            apart = tuple(part for dim, n in zip(own, counts, strict=True) for part in ((dim, ()) if n > 1 else (dim,)))
            several = tuple(
                part for dim, n in zip(own, counts, strict=True) for part in ((dim, (n,)) if n > 1 else (dim,))
            )
            for op, shape in (("reshape", apart), ("expand", several)):
                nodes.append(Node(op, (source,), shape, node.dtype, None, node.statement))
                source = Ref(len(nodes) - 1)
            node, args = Node("reshape", (source,), node.shape, node.dtype, node.name, node.statement), (source,)
        nodes.append(replace(node, args=args))
        moved[i] = len(nodes) - 1
    outputs = tuple(replace(output, node=moved[output.node]) for output in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _repeats(node: Node) -> tuple[int, ...] | None:
    """How often an index reads every element of each dimension, one time after the other; None where it does else."""
    made = node.indexing
    if made is None or made.conditions or made.fill is not None or len(made.places) != len(node.shape):
        return None
    counts = []
    for d, place in enumerate(made.places):
        axis = ix.axis(d - len(node.shape))
        if place == axis:
            counts.append(1)
        elif place.op == "//" and place.args[0] == axis and place.args[1].op == "number":
            counts.append(place.args[1].number)
        else:
            return None
    return tuple(counts)


_Size = tuple[int, tuple[str, ...]]
"""A number and names that are multiplied."""
_ONE: _Size = (1, ())


def in_common_parts(graph: Graph) -> Graph:
    """The graph with every dimension as a product of such parts, outermost first; where nothing is regrouped, as is."""
    parts: dict[_Size, tuple[Dim, ...]] = {}
    regroups = False
    for node in graph.nodes:
        source = node.args[0] if node.op == "reshape" else None
        if isinstance(source, Ref):
            for one, other in _runs(node.shape, graph.nodes[source.node].shape):
                pieces = _between({*_ends(one), *_ends(other)})
                found = _divided(one, pieces) | _divided(other, pieces)
                unordered = any(len(d) > 1 and sum(found[canonical(d)], ()) != d for d in (*one, *other))
                regroups = regroups or min(len(one), len(other)) > 1 or unordered
                for size, own in found.items():
                    parts[size] = max(parts.get(size, ()), own, key=len)
    if not regroups:
        return graph

    def whole(dim: Dim) -> Dim:
        found = parts.get(canonical(dim), ())
        within = found if len(found) > 1 else tuple((atom,) for atom in dim) if len(dim) > 1 else ()
        return tuple(atom for part in within for atom in whole(part)) or dim

    shapes = [tuple(map(whole, node.shape)) for node in graph.nodes]
    return replace(graph, nodes=tuple(replace(n, shape=s) for n, s in zip(graph.nodes, shapes, strict=True)))


def _runs(first: Sequence[Dim], second: Sequence[Dim]) -> Iterator[tuple[list[Dim], list[Dim]]]:
    """The dimensions of two shapes that have the same elements, unless they are one and the same."""
    one, other = (iter([dim for dim in shape if dim]) for shape in (first, second))
    while (dim := next(one, None)) and (facing := next(other, None)):
        ours, theirs = [dim], [facing]
        while _size(ours) != _size(theirs):
            side, run = (other, theirs) if _quotient(_size(ours), _size(theirs)) else (one, ours)
            more = next(side, None)
            if more is None:
                return
            run.append(more)
        if ours != theirs:
            yield ours, theirs


def _size(dims: Sequence[Dim]) -> _Size:
    return canonical(tuple(atom for dim in dims for atom in dim))


def _ends(dims: Sequence[Dim]) -> list[_Size]:
    """The sizes of what begins with each dimension."""
    return [_size(dims[i:]) for i in range(len(dims))]


def _quotient(size: _Size, divisor: _Size) -> _Size | None:
    """None where one does not divide the other for sure."""
    names = list(size[1])
    for name in divisor[1]:
        if name not in names:
            return None
        names.remove(name)
    return None if size[0] % divisor[0] else (size[0] // divisor[0], tuple(names))


def _between(ends: set[_Size]) -> dict[_Size, Dim]:
    """Of sizes that divide one another, each over the next smaller one; none where they do not."""
    found: dict[_Size, Dim] = {}
    before = _ONE
    for size in sorted(ends, key=lambda size: (len(size[1]), size[0])):
        part = _quotient(size, before)
        if part is None:
            return {}
        found[size] = (*part[1], *([part[0]] if part[0] > 1 else []))
        before = size
    return found


def _divided(dims: Sequence[Dim], pieces: dict[_Size, Dim]) -> dict[_Size, tuple[Dim, ...]]:
    """The parts of every dimension, outermost first."""
    ends = _ends(dims)
    found: dict[_Size, tuple[Dim, ...]] = {}
    for dim, end, after in zip(dims, ends, [*ends[1:], _ONE], strict=True):
        own = [size for size in pieces if size != after and _quotient(end, size) and _quotient(size, after)]
        found[canonical(dim)] = tuple(pieces[size] for size in reversed(own))
    return found
