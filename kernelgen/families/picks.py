"""A sum over a row of one element and zeros elsewhere is a read of that element.

So a loss writes the logit of a row's class: compared, selected and added for every element of the row, where one load
does. The gradient is derived from the sum, of which it is the mask; only the kernel reads.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import Graph, Node, Ref
from kernelgen.frontend.indices import Condition, Indexing


def read_once(graph: Graph) -> Graph:
    """The graph with every such sum over an input as an `index` node; 0 where the place is outside, as the sum is."""
    nodes = tuple(_read(graph, node) or node for node in graph.nodes)
    return replace(graph, nodes=nodes) if nodes != graph.nodes else graph


def _read(graph: Graph, total: Node) -> Node | None:
    """`sum(where(place == number, x, 0))` over the dimension that `place` counts, as the read of `x` at `number`."""
    if total.op != "sum" or len(total.attrs) != 1:
        return None
    dim = int(total.attrs[0])
    chosen = _argument(graph, total, 0)
    if chosen is None or chosen.op != "where" or chosen.args[2] != 0.0:
        return None
    test, x = _argument(graph, chosen, 0), _argument(graph, chosen, 1)
    if test is None or test.op != "eq" or x is None or not _is_input(graph, x) or x.shape != chosen.shape:
        return None
    place, number = _argument(graph, test, 0), _argument(graph, test, 1)
    if place is None or number is None or place.op != "iota" or place.attrs != (dim,):
        return None
    rank = len(x.shape)
    if len(number.shape) != rank or number.shape[dim] != () or "int" not in number.dtype:
        return None
    places = tuple(ix.value(0) if i - rank == dim else ix.axis(i - rank) for i in range(rank))
    inside = (Condition(ix.value(0), ">=", ix.number(0)), Condition(ix.value(0), "<", ix.size(x.shape[dim])))
    operands = (chosen.args[1], test.args[1])
    return replace(total, op="index", args=operands, attrs=(), indexing=Indexing(places, inside, 0.0))


def _argument(graph: Graph, node: Node, position: int) -> Node | None:
    ref = node.args[position]
    return graph.nodes[ref.node] if isinstance(ref, Ref) else None


def _is_input(graph: Graph, node: Node) -> bool:
    """Whether a value is an input as it is, up to its dtype: reading one element of it costs one element."""
    while node.op == "convert" and isinstance(node.args[0], Ref):
        node = graph.nodes[node.args[0].node]
    return node.op == "input"
