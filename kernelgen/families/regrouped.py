"""Dimensions that reshapes group in several ways, as the parts that all of them keep whole.

Of words of eight numbers each, (16 * G, 8), that are looked at as groups of 128, (G, 128), the parts are G, 16 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Dim, Graph, Node, Ref, canonical


def with_repeats(graph: Graph) -> Graph:
    """The graph with elements that stand several times as views: one after the other, (J,) as (J, 1), (J, 128) and then
    (J * 128,), or along a dimension of their own, as what `torch.stack` chooses between does."""
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
        source = args[0] if node.op == "index" and len(args) == 1 else None
        views = _views(node, nodes[source.node].shape) if isinstance(source, Ref) else ()
        for op, shape in views:
            nodes.append(Node(op, args, shape, node.dtype, None, node.statement))
            args = (Ref(len(nodes) - 1),)
        node = Node("reshape", args, node.shape, node.dtype, node.name, node.statement) if views else node
        nodes.append(replace(node, args=args))
        moved[i] = len(nodes) - 1
    outputs = tuple(replace(output, node=moved[output.node]) for output in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _views(node: Node, own: tuple[Dim, ...]) -> tuple[tuple[str, tuple[Dim, ...]], ...]:
    """The reshape and the expand that do what an index does; nothing where it does more."""
    if (counts := _repeats(node)) is not None:
        apart = [((dim, ()), (dim, (n,))) if n > 1 else ((dim,), (dim,)) for dim, n in zip(own, counts, strict=True)]
        return tuple((op, tuple(d for pair in apart for d in pair[i])) for i, op in enumerate(("reshape", "expand")))
    if (read := _stacked(node)) is not None:
        alone = tuple(dim if d in read else () for d, dim in enumerate(node.shape))
        return (("reshape", alone), ("expand", node.shape))
    return ()


def _stacked(node: Node) -> list[int] | None:
    """The dimensions of the result along which an index runs over its operand, in order: along others elements repeat.
    None where it does anything else. Where conditions fail nobody looks at the result."""
    made = node.indexing
    if made is None or made.fill is not None or len(made.places) >= len(node.shape):
        return None
    axes = [ix.axis(d - len(node.shape)) for d in range(len(node.shape))]
    read = [axes.index(place) for place in made.places if place in axes]
    return read if len(read) == len(made.places) and read == sorted(set(read)) else None


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
    sources = [(node, node.args[0]) for node in graph.nodes if node.op == "reshape"]
    pairs = [(node.shape, graph.nodes[a.node].shape) for node, a in sources if isinstance(a, Ref)]
    runs = [run for pair in pairs for run in _runs(*pair)]
    ends = _common_ends(runs)

    def whole(dim: Dim) -> Dim:
        size = canonical(dim)
        found = _between(ends.get(size, set()))
        within = tuple(found[end] for end in reversed(found)) if len(found) > 1 else tuple((a,) for a in dim)
        return tuple(atom for part in within for atom in whole(part)) if len(within) > 1 else dim

    def is_regrouped(one: list[Dim], other: list[Dim]) -> bool:
        alone = _common_ends([(one, other)])
        return min(len(one), len(other)) > 1 or any(
            ends[canonical(d)] != alone[canonical(d)] or (len(d) > 1 and whole(d) != d) for d in (*one, *other)
        )

    if not any(is_regrouped(*run) for run in runs):
        return graph
    shapes = [tuple(map(whole, node.shape)) for node in graph.nodes]
    return replace(graph, nodes=tuple(replace(n, shape=s) for n, s in zip(graph.nodes, shapes, strict=True)))


def _common_ends(runs: Sequence[tuple[list[Dim], list[Dim]]]) -> dict[_Size, set[_Size]]:
    """Of every size, those of what begins with one of its parts: a part's own parts are the whole's, and what cuts the
    whole cuts the part that it is in."""
    ends: dict[_Size, set[_Size]] = {}
    known = -1
    while known < (known := sum(map(len, ends.values()))):
        for run in runs:
            whole = ends.setdefault(_size(run[0]), set())
            for side in run:
                for dim, after in zip(side, [*_ends(side)[1:], _ONE], strict=True):
                    size = canonical(dim)
                    own = ends.setdefault(size, {size})
                    inner = {_quotient(end, after) for end in whole}
                    own |= {end for end in inner if end and end != _ONE and _quotient(size, end)}
                    whole |= {(after[0] * end[0], tuple(sorted((*after[1], *end[1])))) for end in own}
    return ends


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
