"""Dimensions that join several, with their sizes in order: of a product torch says no more than what it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from kernelgen.errors import UnsupportedError
from kernelgen.frontend.graph import Dim, Graph, Ref, canonical, same_size

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
