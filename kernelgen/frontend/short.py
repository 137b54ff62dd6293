"""Sums, maxima and minima of a few elements along a dimension that is not the last, written out as additions.

Of what `torch.stack` joins, say: what follows need not wait for a reduction then, and is one kernel with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from kernelgen.frontend import indices as ix
from kernelgen.frontend.attention import with_nodes
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Dim, Graph, Node, Ref

MOST = 8
"""Elements that are written out at the most, those of reductions of reductions multiplied."""
MOST_READ = 4 * MOST
"""Elements that are read for one of a result where reductions are all that is written out."""
_JOINED = {"max": "maximum", "min": "minimum", "sum": "add"}


def without_short_reductions(graph: Graph, *, last: bool = False) -> Graph:
    """The graph with reductions of few elements written out, but not of a value that something else needs whole.
    `last`: those of a last dimension too, such as the weights of a softmax that a sum along another dimension has."""
    short = _short(graph, last)
    while short:
        whole = _wanted(graph, short)
        kept = {i for i in short if _source(graph.nodes[i]) not in whole}
        if kept == short:
            break
        short = kept
    if not short:
        return graph
    b, moved = Builder(), dict[int, int]()
    for i, node in enumerate(graph.nodes):
        b.statement = node.statement
        args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
        if i in short:
            made = _written_out(b, replace(node, args=args))
            moved[i] = made.node
        else:
            b.nodes.append(replace(node, args=args))
            moved[i] = len(b.nodes) - 1
    return with_nodes(graph, b, moved)


def is_all_written(graph: Graph, written: Graph) -> bool:
    """Whether nothing is left to reduce, and no result has more elements than the reductions of other dimensions than
    the last had, which would be read again for each: lanes then lie along what is read (H200, the weighted sum of 8
    rows for each of 8192 by 2048 elements: 67 us, as a reduction 405)."""
    sizes = {_elements(node.shape) for node in graph.nodes if _is_short(graph, node, last=False)}
    return written.kind == "map" and {_elements(graph.nodes[o.node].shape) for o in graph.outputs} == sizes


def _elements(shape: tuple[Dim, ...]) -> tuple[str, ...]:
    return tuple(sorted(str(atom) for dim in shape for atom in dim if atom != 1))


def _short(graph: Graph, last: bool) -> set[int]:
    """The reductions of few elements, of which none is of so many others that there would be more in all. Those of a
    last dimension are counted for themselves: a softmax has one of the other, but what both are of is computed once."""
    found: set[int] = set()
    counts: list[tuple[int, int]] = []
    for i, node in enumerate(graph.nodes):
        sources = [counts[a.node] for a in node.args if isinstance(a, Ref)]
        apart, along = (max((count[k] for count in sources), default=1) for k in (0, 1))
        if _is_short(graph, node, last=last):
            is_last, length = node.attrs[0] == -1, _length(graph, node)
            apart, along = (apart, along * length) if is_last else (apart * length, along)
            if apart <= MOST and along <= MOST**2:
                found.add(i)
            else:
                apart, along = (apart, along // length) if is_last else (apart // length, along)
        counts.append((apart, along))
    return found


def _length(graph: Graph, node: Node) -> int:
    """How many elements a reduction along one dimension of known size is of."""
    dim = graph.nodes[_source(node)].shape[int(node.attrs[0])]
    return prod(atom for atom in dim if isinstance(atom, int))


def _is_short(graph: Graph, node: Node, *, last: bool) -> bool:
    """Whether it reduces one dimension of a few elements, which is not the last of its source, or may be."""
    if node.op not in _JOINED or len(node.attrs) != 1 or not isinstance(node.attrs[0], int):
        return False
    if node.attrs[0] > -2 and not last:
        return False
    dim = graph.nodes[_source(node)].shape[node.attrs[0]]
    return all(isinstance(atom, int) for atom in dim) and 1 < _length(graph, node) <= MOST


def _source(node: Node) -> int:
    (source,) = node.args
    assert isinstance(source, Ref)
    return source.node


def _wanted(graph: Graph, but: Iterable[int]) -> set[int]:
    """The nodes that outputs are computed from, not counting what these reductions are made of."""
    found = {o.node for o in graph.outputs}
    for i in range(len(graph.nodes) - 1, -1, -1):
        if i in found and i not in but:
            found |= {a.node for a in graph.nodes[i].args if isinstance(a, Ref)}
    return found


def _written_out(b: Builder, node: Node) -> Ref:
    (source,), (reduced,) = node.args, node.attrs
    assert isinstance(source, Ref)
    assert isinstance(reduced, int)
    shape = b.node(source).shape
    count = prod(atom for atom in shape[reduced] if isinstance(atom, int))
    places = [ix.number(0) if dim == () else ix.axis(d - len(shape)) for d, dim in enumerate(shape)]
    whole: Ref | None = None
    for number in range(count):
        places[reduced] = ix.number(number)
        part = b.index(source, node.shape, tuple(places))
        whole = part if whole is None else b.map(_JOINED[node.op], whole, part)
    assert whole is not None
    if node.name:
        b.rename(whole, node.name)
    return whole
