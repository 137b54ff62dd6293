"""Dimensions that join several, with their sizes in order: of a product torch says no more than what it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kernelgen.errors import UnsupportedError
from kernelgen.frontend.graph import CALL, DOT, Dim, Graph, Node, Ref, SizeOf, canonical, same_size
from kernelgen.frontend.indices import Expr, Indexing

_Plan = TypeVar("_Plan")
_Joined = dict[tuple[int, tuple[str, ...]], Dim]
"""By what equal sizes have in common, the sizes in the order in which a reshape joins them."""


def or_in_order(made: Callable[[Graph], _Plan], graph: Graph) -> _Plan:
    """What is made of a graph or, where that is refused, of the one with sizes in order."""
    try:
        return made(graph)
    except UnsupportedError:
        if (other := in_order(graph)) != graph:
            with contextlib.suppress(UnsupportedError):
                return made(other)
        raise


def in_order(graph: Graph) -> Graph:
    """The graph with B, H, W joined as B * H * W wherever torch said W * H * B, and 4, 64 joined as 4 * 64 and not as
    256, so that what is read apart again is found in it."""
    joined: _Joined = {}
    for node in graph.nodes:
        if node.op == "reshape" and isinstance(node.args[0], Ref):
            source = graph.nodes[node.args[0].node].shape
            _collect([joined.get(canonical(dim), dim) for dim in source], node.shape, joined)
    if not joined:
        return graph
    shapes = (tuple(joined.get(canonical(dim), dim) for dim in node.shape) for node in graph.nodes)
    nodes = (
        node if node.op == "input" else replace(node, shape=shape)
        for node, shape in zip(graph.nodes, shapes, strict=True)
    )
    return replace(graph, nodes=tuple(nodes))


def as_one(graph: Graph) -> Graph:
    """The graph with every product of sizes as one size, so that a place is asked for along one dimension: halves of
    heads of 2 * D that are rotated after they are normalized, say. The graph itself where a reshape takes one apart."""
    names: dict[tuple[int, tuple[str, ...]], Dim] = {}

    def of(dim: Dim) -> Dim:
        names_alone = [atom.isidentifier() for atom in dim if isinstance(atom, str)]
        if len(dim) < 2 or not names_alone or not all(names_alone):  # of a product of quotients there is no short name
            return dim
        return names.setdefault(canonical(dim), (" * ".join(map(str, dim)),))

    def placed(expr: Expr) -> Expr:
        return replace(expr, size=of(expr.size), args=tuple(map(placed, expr.args)))

    def read(indexing: Indexing) -> Indexing:
        conditions = tuple(replace(c, left=placed(c.left), right=placed(c.right)) for c in indexing.conditions)
        return replace(indexing, places=tuple(map(placed, indexing.places)), conditions=conditions)

    nodes: list[Node] = []
    for node in graph.nodes:
        made = replace(
            node, shape=tuple(map(of, node.shape)), indexing=node.indexing and read(node.indexing),
            args=tuple(replace(a, dim=of(a.dim)) if isinstance(a, SizeOf) else a for a in node.args),
        )  # fmt: skip
        if made.op in (CALL, DOT):
            return graph
        if made.op == "reshape" and isinstance(made.args[0], Ref):
            source = nodes[made.args[0].node]
            if [d for d in source.shape if d] != [d for d in made.shape if d]:
                return graph
        nodes.append(made)
    return replace(graph, nodes=tuple(nodes)) if names else graph


def _collect(source: Sequence[Dim], shape: Sequence[Dim], joined: _Joined) -> None:
    """The sizes of a reshape's dimensions, each those that follow in its source, as far as these come out even."""
    rest = [atom for dim in source for atom in dim]
    for dim in shape:
        count = next((n for n in range(len(rest) + 1) if same_size(tuple(rest[:n]), dim)), None)
        if count is None:
            return
        run = tuple(rest[:count])
        if run != dim:
            joined.setdefault(canonical(dim), run)
        rest = rest[count:]
