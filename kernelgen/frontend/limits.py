"""Numbers that `torch.finfo` says of a variable dtype: a trace has those of one dtype, and two tell which they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelgen.frontend.attention import with_nodes
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Arg, Graph, Node, Ref
from kernelgen.frontend.operations import LIMITS

_LEFT_OUT = ("expand", "reshape", "round")
"""Nodes that a trace has for some dtypes alone."""
_Place = tuple[int, int]
"""A node, and which of its arguments."""


def with_limits(
    first: Graph, again: Graph, bindings: tuple[Mapping[str, str], Mapping[str, str]]
) -> tuple[Graph, Graph]:
    """Two traces with a node for each number in which they differ as `torch.finfo` of a variable's dtypes does; as they
    are where they differ otherwise. `bindings`: the dtypes that they were made with."""
    numbers = [_numbers(graph) for graph in (first, again)]
    if len(numbers[0]) != len(numbers[1]):
        return first, again
    found: list[dict[_Place, tuple[str, str]]] = [{}, {}]
    for (place, value), (other, changed) in zip(*numbers, strict=True):
        if value != changed:
            limit = _limit((value, changed), bindings)
            if limit is None:
                return first, again
            found[0][place] = found[1][other] = limit
    return (_placed(first, found[0]), _placed(again, found[1])) if found[0] else (first, again)


def _numbers(graph: Graph) -> list[tuple[_Place, float]]:
    return [
        ((i, k), arg)
        for i, node in enumerate(graph.nodes) if node.op not in _LEFT_OUT
        for k, arg in enumerate(node.args) if isinstance(arg, float)
    ]  # fmt: skip


def _limit(
    values: tuple[float, float], bindings: tuple[Mapping[str, str], Mapping[str, str]]
) -> tuple[str, str] | None:
    """The operation and the variable that give these values under these bindings."""
    import torch

    for variable in bindings[0]:
        dtypes = [getattr(torch, binding[variable]) for binding in bindings]
        if all(dtype.is_floating_point for dtype in dtypes):
            infos = [torch.finfo(dtype) for dtype in dtypes]
            for op, name in LIMITS.items():
                if values == tuple(getattr(info, name) for info in infos):
                    return op, variable
    return None


def _placed(graph: Graph, limits: Mapping[_Place, tuple[str, str]]) -> Graph:
    b = Builder()
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        args: list[Arg] = []
        for k, arg in enumerate(node.args):
            if (i, k) in limits:
                op, variable = limits[i, k]
                b.nodes.append(Node(op, (), (), "float", None, node.statement, (variable,)))
                args.append(Ref(len(b.nodes) - 1))
            else:
                args.append(Ref(moved[arg.node]) if isinstance(arg, Ref) else arg)
        made = replace(
            node, op="expand" if node.op == "full" and args[0] != node.args[0] else node.op, args=tuple(args)
        )
        b.nodes.append(made)
        moved[i] = len(b.nodes) - 1
    return with_nodes(graph, b, moved)
