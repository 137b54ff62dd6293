"""What is computed from a join along the last dimension, computed from its parts instead.

So a softmax over scores with a sink beside them is one over the scores alone, whose maximum and sum take in the sink:

    torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.frontend import indices as ix
from kernelgen.frontend.attention import with_nodes
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Graph, Node, Ref, broadcast
from kernelgen.frontend.operations import of_kind

_MAPS = of_kind("map", "cast")
_JOINED = {"max": "maximum", "min": "minimum", "sum": "add"}
"""The operation that joins what the parts are reduced to."""

Parts = tuple[Ref, Ref]


def without_joins(graph: Graph) -> Graph:
    """The graph itself where something else is made of a join than maps, reductions and one of its two parts."""
    b = Builder()
    moved: dict[int, int] = {}
    parts: dict[int, Parts] = {}
    joins = {i: found for i, node in enumerate(graph.nodes) if (found := _join(graph, node))}
    needed = _needed(graph)
    within = {a.node for i in joins for a in graph.nodes[i].args[1:] if isinstance(a, Ref)}
    for i, node in enumerate(graph.nodes):
        if i in within:
            continue
        b.statement = node.statement
        read = [a.node for a in node.args if isinstance(a, Ref)]
        joined = joins.get(i)
        if joined is not None:
            parts[i] = (Ref(moved[joined[0].node]), Ref(moved[joined[1].node]))
        elif parts.keys() & set(read):
            made = _of_parts(b, graph, node, parts, moved)
            if made is None and i in needed:
                return graph
            if made is None:  # nobody looks at it
                moved[i] = next(moved[j] for j in read if j in parts)
            elif isinstance(made, Ref):
                moved[i] = made.node
            else:
                parts[i] = made
        if i in parts:  # nothing is made of the whole
            moved[i] = parts[i][0].node
        elif i not in moved:
            args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
            b.nodes.append(replace(node, args=args))
            moved[i] = len(b.nodes) - 1
    if not parts or any(o.node in parts for o in graph.outputs):
        return graph
    return with_nodes(graph, b, moved)


def _needed(graph: Graph) -> set[int]:
    """The nodes that outputs are computed from, and these."""
    found = {o.node for o in graph.outputs}
    for i in range(len(graph.nodes) - 1, -1, -1):
        found |= {a.node for a in graph.nodes[i].args if isinstance(a, Ref)} if i in found else set()
    return found


def _join(graph: Graph, node: Node) -> Parts | None:
    """The two parts that a node joins along its last dimension."""
    refs = [a for a in node.args if isinstance(a, Ref)]
    if node.op != "where" or len(refs) != 3:
        return None
    first, second = (graph.nodes[r.node] for r in refs[1:])
    sources = [a for part in (first, second) for a in part.args]
    if first.indexing is None or second.indexing is None or len(sources) != 2:
        return None
    one, other = sources
    if not isinstance(one, Ref) or not isinstance(other, Ref):
        return None
    along, size = ix.axis(-1), ix.size(graph.nodes[one.node].shape[-1])
    own = tuple(ix.axis(d - len(node.shape)) for d in range(len(node.shape)))
    expected = (
        (own, (ix.Condition(along, "<", size),)),
        ((*own[:-1], ix.minus(along, size)), (ix.Condition(along, ">=", size),)),
    )
    found = tuple((part.indexing.places, part.indexing.conditions) for part in (first, second) if part.indexing)
    return (one, other) if found == expected else None


def _of_parts(
    b: Builder, graph: Graph, node: Node, parts: dict[int, Parts], moved: dict[int, int]
) -> Ref | Parts | None:
    """What a node makes of parts: parts, or what has no part left; None where it needs the whole."""
    if node.op in _MAPS:
        whole = [a.node for a in node.args if isinstance(a, Ref) and a.node not in parts]
        if any(graph.nodes[i].shape and graph.nodes[i].shape[-1] for i in whole):
            return None
        first, second = (_mapped(b, node, parts, moved, n) for n in range(2))
        return first, second
    source, *others = (a.node for a in node.args if isinstance(a, Ref))
    if others:
        return None
    if node.op in _JOINED and node.attrs == (-1,):
        reduced = [r if b.node(r).shape[-1] == () else b.reduce(node.op, r, (-1,), node.name) for r in parts[source]]
        return b.map(_JOINED[node.op], *reduced)
    return _taken(b, node, parts[source]) if node.op == "index" else None


def _mapped(b: Builder, node: Node, parts: dict[int, Parts], moved: dict[int, int], n: int) -> Ref:
    args = tuple(
        (parts[a.node][n] if a.node in parts else Ref(moved[a.node])) if isinstance(a, Ref) else a for a in node.args
    )
    shape = broadcast(*(b.node(a).shape for a in args if isinstance(a, Ref)))
    b.nodes.append(replace(node, args=args, shape=shape, name=None if n else node.name))
    return Ref(len(b.nodes) - 1)


def _taken(b: Builder, node: Node, parts: Sequence[Ref]) -> Ref | None:
    """The part that a slice takes, whole."""
    assert node.indexing is not None
    start = ix.number(0)
    for part in parts:
        shape = b.node(part).shape
        places = [ix.axis(d - len(shape)) for d in range(len(shape))]
        places[-1] = ix.plus(places[-1], start)
        if node.shape == shape and node.indexing.places == tuple(places) and not node.indexing.conditions:
            if node.name:
                b.rename(part, node.name)
            return part
        start = ix.size(shape[-1])
    return None
