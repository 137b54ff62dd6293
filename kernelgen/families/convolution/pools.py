"""Pools of what a convolution computes: windows that do not overlap, of which each leaves one number.

The pixels of a window are summed in one tile, where they are reduced in registers. After a pool pixels are counted
along the same axes, but there is one for every window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from kernelgen.families.values import Value
from kernelgen.frontend.graph import Graph, Node, Ref
from kernelgen.frontend.indices import Expr

REDUCED = {"maximum": "max_pool", "add": "sum_pool"}
"""What joins the elements of a window, and the value that it leaves."""


@dataclass(frozen=True)
class Pool:
    """A pool among the nodes of a graph."""

    source: int
    op: str
    window: tuple[int, ...]
    """The pixels of a window along every dimension of space."""
    inner: frozenset[int]
    """The nodes that are no more than steps on the way."""


def windows_of(value: Value) -> tuple[int, ...]:
    """The pixels of a window along every dimension of space, of what a pool leaves."""
    return tuple(map(int, str(value.attr).split()))


def pools_of(graph: Graph, rank: int) -> dict[int, Pool]:
    """The pools over the last dimensions, by the node that each ends with."""
    found: dict[int, Pool] = {}
    for i, node in enumerate(graph.nodes):
        pool = _pool(graph, i, node, rank) if node.op in REDUCED else None
        if pool is not None:
            found[i] = pool
    return found


def _pool(graph: Graph, number: int, node: Node, rank: int) -> Pool | None:
    links = list(_links(graph, number, node.op))
    if not links:
        return None
    taps = [j for link in links for j in _operands(graph.nodes[link])[link != links[-1] :]]
    seen = [graph.nodes[j] for j in taps]
    sources = {n.args[0] for n in seen if n.op == "index" and len(n.args) == 1 and n.convolution is None}
    if len(sources) != 1 or any(n.op != "index" or n.indexing is None or n.indexing.conditions for n in seen):
        return None
    found = [_offsets(n, rank) for n in seen]
    strides = {tuple(stride for stride, _ in offsets) for offsets in found if offsets}
    if not all(found) or len(strides) != 1:
        return None
    (window,) = strides
    places = sorted(tuple(offset for _, offset in offsets) for offsets in found if offsets)
    inner = {*links[1:], *taps}
    read_once = all(len(graph.readers[j]) == 1 for j in inner) and not inner & {o.node for o in graph.outputs}
    if places != list(product(*map(range, window))) or not read_once or prod(window) & (prod(window) - 1):
        return None
    (source,) = sources
    assert isinstance(source, Ref)
    return Pool(source.node, REDUCED[node.op], window, frozenset(inner))


def _links(graph: Graph, number: int, op: str) -> Iterator[int]:
    """The operations that join a window, the last first."""
    node = graph.nodes[number]
    while node.op == op and len(_operands(node)) == 2:
        yield number
        number = _operands(node)[0]
        node = graph.nodes[number]


def _operands(node: Node) -> list[int]:
    return [a.node for a in node.args if isinstance(a, Ref)]


def _offsets(node: Node, rank: int) -> list[tuple[int, int]] | None:
    """How far apart the places of neighbours are along every dimension of space, and where the first reads."""
    assert node.indexing is not None
    outer, space = node.indexing.places[:-rank], node.indexing.places[-rank:]
    whole = all(p == Expr("axis", number=d - len(node.shape)) for d, p in enumerate(outer) if node.shape[d])
    found = [_linear(place, d - rank) for d, place in enumerate(space)]
    return [pair for pair in found if pair] if whole and all(found) else None


def _linear(place: Expr, axis: int) -> tuple[int, int] | None:
    """The stride and the offset of a place along an axis."""
    offset = 0
    if place.op == "+" and place.args[1].op == "number":
        place, offset = place.args[0], place.args[1].number
    stride = 1
    if place.op == "*" and place.args[1].op == "number":
        place, stride = place.args[0], place.args[1].number
    return (stride, offset) if place == Expr("axis", number=axis) else None
