"""Products of two operands, however they are written, as one kind of node.

`torch.matmul`, `mm`, `bmm`, `addmm`, `baddbmm`, `F.linear` and an `einsum` of one contraction differ in the order of
their dimensions alone. An equation says that order: a letter for every dimension of both operands and of the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_letters

from kernelgen.frontend import convolutions as windows
from kernelgen.frontend.attention import is_attention, with_nodes, written_out
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import CALL, DOT, VIEWS, Dim, Graph, Node, Ref, seen_through

GROUPED = "torch.nn.functional.grouped_mm"
"""A product of rows that are sorted by group with the matrix of their group: `dot` has a third operand, where groups
end, and of the second operand a letter that neither the first nor the result has."""
_ADDED_FIRST = ("torch.addmm", "torch.baddbmm")
_FACTOR = re.compile(r", (alpha|beta)=([^,)]+)")
"""What these multiply the product and what is added to it by."""


def equation(text: str, shapes: Sequence[tuple[Dim, ...]]) -> str:
    """The equation of the product that a call computes, as `mk,kn->mn`; empty where it is none, or scaled.

    `text`: the call as `calls.torch_call` prints it; `shapes`: those of its operands.
    """
    function, _, arguments = text.partition("(")
    if function == "torch.einsum":
        return _of_einsum(arguments.split('"')[1].replace(" ", ""), shapes)
    if function == GROUPED:
        return "xz,ezy->xy" if [len(shape) for shape in shapes] == [2, 3, 1] else ""
    first, second = shapes[1:3] if function in _ADDED_FIRST else shapes[:2] if len(shapes) > 1 else ((), ())
    if not first or not second or "=" in (_FACTOR.sub("", arguments) if function in _ADDED_FIRST else arguments):
        return ""
    match function:
        case "torch.nn.functional.linear":
            rows = ascii_letters[: len(first) - 1]
            return f"{rows}z,yz->{rows}y" if len(second) == 2 else ""
        case "torch.matmul" | "torch.mm" | "torch.bmm" | "torch.addmm" | "torch.baddbmm":
            return _of_matmul(len(first), len(second))
    return ""


def _of_matmul(first: int, second: int) -> str:
    """By the numbers of dimensions; leading ones are matched from the last."""
    leading = ascii_letters[: max(first, second) - 2] if max(first, second) > 2 else ""
    a = leading[len(leading) - max(first - 2, 0) :] + ("xz" if first > 1 else "z")
    b = leading[len(leading) - max(second - 2, 0) :] + ("zy" if second > 1 else "z")
    return f"{a},{b}->{leading}{'x' if first > 1 else ''}{'y' if second > 1 else ''}"


def _of_einsum(subscripts: str, shapes: Sequence[tuple[Dim, ...]]) -> str:
    operands, arrow, result = subscripts.partition("->")
    named = operands.split(",")
    if len(shapes) != 2 or len(named) != 2 or any(len(set(names)) != len(names) for names in named):
        return ""
    if not arrow:  # what occurs once, in alphabetical order
        counts = Counter(named[0] + named[1])
        result = "".join(sorted(letter for letter, count in counts.items() if count == 1))
    summed_alone = set(named[0]) ^ set(named[1])
    return f"{operands}->{result}" if summed_alone <= set(result) else ""


def with_products(graph: Graph, *, attention: bool = True, convolutions: bool = True) -> Graph:
    """The graph with the calls that are products as nodes `dot`, what they add to it as an addition; torch's attention
    as two of these, and `convolutions` of windows, if so wanted."""
    b = Builder()
    nodes = b.nodes
    moved: dict[int, int] = {}
    read = _read_by_torch(graph)

    def ref(old: Ref) -> Ref:
        return Ref(moved[old.node])

    for i, node in enumerate(graph.nodes):
        args = tuple(ref(a) if isinstance(a, Ref) else a for a in node.args)
        b.statement = node.statement
        operands = [a for a in args if isinstance(a, Ref)]
        if attention and node.op == CALL and is_attention(node) and (out := written_out(b, node, operands)) is not None:
            moved[i] = out.node
            continue
        if node.op == CALL and node.convolution is not None and convolutions:
            nodes += windows.products(nodes, node, operands)
        elif node.op == CALL and node.equation and (parts := _parts(node, args)):
            factors, added = parts  # of groups also where these end
            name = None if added else node.name
            dtype = (node.attrs[0],)
            nodes.append(Node(DOT, factors, node.shape, "float", name, node.statement, dtype, equation=node.equation))
            if added is not None:
                times = {name: float(text) for name, text in _FACTOR.findall(str(node.attrs[1]))}
                total = [_times(b, Ref(len(nodes) - 1), times.get("alpha", 1.0))]
                total += [_times(b, added, times.get("beta", 1.0))] if times.get("beta", 1.0) else []
                op = "add" if len(total) > 1 else "reshape"
                nodes.append(Node(op, tuple(total), node.shape, "float", node.name, node.statement))
        else:
            nodes.append(replace(node, args=args))
        if i in read and nodes[-1].op != CALL:
            b.round(Ref(len(nodes) - 1), str(node.attrs[0]))
        moved[i] = len(nodes) - 1
    return with_nodes(graph, b, moved)


def _times(b: Builder, x: Ref, factor: float) -> Ref:
    if factor == 1:
        return x
    b.nodes.append(Node("mul", (x, factor), b.node(x).shape, "float", None, b.statement))
    return Ref(len(b.nodes) - 1)


def _read_by_torch(graph: Graph) -> set[int]:
    """The results of calls that calls which stay torch's read, which torch rounds to the dtype of a tensor."""
    stays = (n for n in graph.nodes if n.op == CALL and n.convolution is None and not n.equation)
    read = {seen_through(graph.nodes, a.node) for n in stays for a in n.args if isinstance(a, Ref)}
    return {i for i in read if graph.nodes[i].op == CALL}


def unturned(graph: Graph) -> Graph:
    """The graph with factors of products as they lie in memory: which of their dimensions come last, equations say."""
    nodes = list(graph.nodes)
    uses = Counter(a.node for node in nodes for a in node.args if isinstance(a, Ref))
    for i, node in enumerate(nodes):
        source = node.args[0] if node.op == "round" else None
        if isinstance(source, Ref) and nodes[source.node].op == "permute" and uses[source.node] == 1:
            turned = nodes[source.node]  # what is rounded after it is turned may be rounded before
            (inner,) = (a for a in turned.args if isinstance(a, Ref))
            nodes[source.node] = replace(node, args=(inner,), shape=nodes[inner.node].shape)
            nodes[i] = replace(turned, args=(source,))
        if node.op != DOT:
            continue
        operands, _, result = node.equation.partition("->")
        args, labels = [a for a in node.args if isinstance(a, Ref)], operands.split(",")
        for n, ref in enumerate(args):
            if nodes[ref.node].op == "permute":
                (args[n],) = (a for a in nodes[ref.node].args if isinstance(a, Ref))
                order = [int(d) for d in nodes[ref.node].attrs]
                labels[n] = "".join(labels[n][order.index(d)] for d in range(len(order)))
        nodes[i] = replace(node, args=tuple(args), equation=f"{','.join(labels)}->{result}")
    return replace(graph, nodes=tuple(nodes))


def rounded_first(graph: Graph) -> Graph:
    """The graph with what is rounded after it is moved and expanded rounded before: so it lies in memory once."""
    b = Builder()
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        b.statement = node.statement
        args = tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args)
        (source,) = (a.node for a in node.args if isinstance(a, Ref)) if node.op == "round" else (i,)
        views: list[Node] = []
        while node.op == "round" and graph.nodes[source].op in VIEWS:
            views.insert(0, graph.nodes[source])
            (source,) = (a.node for a in graph.nodes[source].args if isinstance(a, Ref))
        if views:
            again = (graph.nodes[source].op, graph.nodes[source].attrs) == ("round", node.attrs)
            made = Ref(moved[source]) if again else b.round(Ref(moved[source]), str(node.attrs[0]))
            for view in views:
                made = b.view(view.op, made, view.shape, tuple(int(d) for d in view.attrs))
        else:
            b.nodes.append(replace(node, args=args))
            made = Ref(len(b.nodes) - 1)
        moved[i] = made.node
    return with_nodes(graph, b, moved)


def _parts(node: Node, args: Sequence[object]) -> tuple[tuple[Ref, ...], Ref | None] | None:
    """The two factors, and what is added to their product."""
    refs = [a for a in args if isinstance(a, Ref)]
    if str(node.attrs[1]).startswith(GROUPED):
        return tuple(refs), None
    if str(node.attrs[1]).partition("(")[0] in _ADDED_FIRST:
        added, first, second = refs
        return (first, second), added
    return (refs[0], refs[1]), refs[2] if len(refs) == 3 else None
