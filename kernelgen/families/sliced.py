"""Products whose results are taken apart as products of parts of a weight.

`gate, up = F.linear(x, w).chunk(2, -1)` is two products with one factor, of the first and the second half of `w`, which
are views. So what follows can be in one kernel with both, and the undivided result is never in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import CALL, Arg, Dim, Graph, Node, Ref, canonical
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.spec.model import OperatorSpec, TensorSpec


@dataclass(frozen=True)
class _Part:
    """One of several parts of a dimension that are of equal size."""

    dim: int
    """The dimension, counted from the last: -1."""
    count: int
    number: int
    size: Dim
    apart: bool = False
    """Whether neighbours belong to different parts, as in `h[..., ::2]`."""

    def of(self, name: str) -> str:
        """The part of a tensor, as torch's text."""
        if self.apart:
            rest = ", :" * (-1 - self.dim)
            return f"{name}[..., {self.number} :: {self.count}{rest}]"
        return f"{name}.chunk({self.count}, {self.dim})[{self.number}]"


_MOST_PRODUCTS = 2
"""Of graphs with more, such as whole layers, products are left as they are: planning both ways takes twice as long."""


def with_parts_of_weights(spec: OperatorSpec, graph: Graph) -> Graph:
    """The graph whose products are of parts, where nothing reads such a product as a whole; else as it is."""
    if sum(bool(node.equation) for node in graph.nodes) > _MOST_PRODUCTS:
        return graph
    cut = _Cut({t.name: t for t in spec.inputs}, graph)
    for i, node in enumerate(graph.nodes):
        cut.keep(i, node)
    made = [output.node for output in graph.outputs]
    needed = sorted(_needed(cut.nodes, [cut.moved[i] for i in made]))
    if not cut.products or any(cut.moved[i] in needed for i in cut.products):
        return graph
    place = {old: new for new, old in enumerate(needed)}
    nodes = tuple(_moved(cut.nodes[i], place) for i in needed)
    outputs = tuple(replace(o, node=place[cut.moved[o.node]]) for o in graph.outputs)
    return replace(graph, nodes=nodes, outputs=outputs)


def _needed(nodes: list[Node], wanted: list[int]) -> set[int]:
    found: set[int] = set()
    while wanted:
        i = wanted.pop()
        if i not in found:
            found.add(i)
            wanted += [a.node for a in nodes[i].args if isinstance(a, Ref)]
    return found


def _moved(node: Node, place: Mapping[int, int]) -> Node:
    return replace(node, args=tuple(Ref(place[a.node]) if isinstance(a, Ref) else a for a in node.args))


@dataclass
class _Cut:
    """A graph that is made anew, with what it has of parts."""

    inputs: Mapping[str, TensorSpec]
    graph: Graph
    nodes: list[Node] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)
    """Where the nodes of the graph went."""
    parts: dict[tuple[int, _Part], int | None] = field(default_factory=dict)
    """The parts of nodes of the graph; None where there is no such node."""
    products: set[int] = field(default_factory=set)
    """The products of which parts are taken."""

    def keep(self, i: int, node: Node) -> None:
        """A node as it is, unless it is a part of what a product comes to."""
        found = self._as_part(node)
        if found is not None:
            source, part = found
            made = self.part(source, part)
            if made is not None:
                if node.name and not self.nodes[made].name:
                    self.nodes[made] = replace(self.nodes[made], name=node.name)
                self.moved[i] = made
                return
        self.moved[i] = self._add(_moved(node, self.moved))

    def part(self, i: int, part: _Part) -> int | None:
        """A part of a node of the graph, as a node."""
        if (i, part) not in self.parts:
            self.parts[i, part] = self._part(self.graph.nodes[i], i, part)
        return self.parts[i, part]

    def _part(self, node: Node, i: int, part: _Part) -> int | None:
        if len(node.shape) < -part.dim or node.shape[part.dim] == ():
            return self.moved[i]
        if canonical((part.count, *part.size)) != canonical(node.shape[part.dim]):
            return None
        shape = (*node.shape[: part.dim], part.size, *node.shape[part.dim :][1:])
        if node.op == "input":
            tensor = self.inputs[str(node.attrs[0])]
            attrs = (tensor.dtype, part.of("{0}"), f"{tensor.name}_{part.number + 1}")
            return self._add(Node(CALL, (Ref(self.moved[i]),), shape, node.dtype, None, None, attrs))
        if node.op == CALL:
            args = self._factors(node, part)
            self.products |= {i} if args else set()
        elif OPERATIONS[node.op].kind in ("map", "cast", "view") and node.indexing is None:
            found = self._seen(node, part)
            args = None if found is None else self._parts_of(node.args, dict.fromkeys(range(len(node.args)), found))
        else:
            return None
        return None if args is None else self._add(replace(node, args=args, shape=shape, name=None))

    def _seen(self, node: Node, part: _Part) -> _Part | None:
        """The part of what a node computes element by element, or is a view of."""
        before = next((self.graph.nodes[a.node].shape for a in node.args if isinstance(a, Ref)), ())
        if node.op == "permute":
            return replace(part, dim=int(node.attrs[part.dim]) - len(before))
        if node.op == "reshape":  # that keeps what is before the dimension, or adds and takes away ones alone
            place = len(node.shape) + part.dim
            if node.shape[: place + 1] == before[: place + 1]:
                return replace(part, dim=place - len(before))
            kept, places = [d for d in node.shape if d], [i for i, d in enumerate(before) if d]
            if kept != [before[i] for i in places]:
                return None
            number = sum(bool(d) for d in node.shape[: part.dim])
            return replace(part, dim=places[number] - len(before))
        return part

    def _factors(self, node: Node, part: _Part) -> tuple[Arg, ...] | None:
        """What a call that is a product multiplies for a part of its last dimension."""
        operands, _, result = node.equation.partition("->")
        labels = operands.split(",")
        if part.dim != -1 or len(labels) != 2 or not result:
            return None
        text = str(node.attrs[1]).partition("(")[0]
        first = 1 if text in ("torch.addmm", "torch.baddbmm") else 0
        cut = [n for n, own in enumerate(labels) if result[-1] in own]
        if len(cut) != 1 or text == "torch.einsum":
            return None
        own = labels[cut[0]]
        wanted = {first + cut[0]: replace(part, dim=own.index(result[-1]) - len(own))}
        wanted |= {n: part for n in range(len(node.args)) if not first <= n < first + 2 and "grouped" not in text}
        return self._parts_of(node.args, wanted)

    def _parts_of(self, args: tuple[Arg, ...], wanted: Mapping[int, _Part]) -> tuple[Arg, ...] | None:
        found: list[Arg] = []
        for n, arg in enumerate(args):
            made = self.part(arg.node, wanted[n]) if isinstance(arg, Ref) and n in wanted else None
            if isinstance(arg, Ref) and n in wanted and made is None:
                return None
            found.append(arg if not isinstance(arg, Ref) else Ref(self.moved[arg.node] if made is None else made))
        return tuple(found)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _as_part(self, node: Node) -> tuple[int, _Part] | None:
        """What a node is a part of, along the last dimension, and which."""
        source = node.args[0] if node.op == "index" and len(node.args) == 1 else None
        made = node.indexing
        if not isinstance(source, Ref) or made is None or made.conditions or made.fill is not None or not made.places:
            return None
        whole = self.graph.nodes[source.node]
        axes = [ix.axis(d - len(node.shape)) for d in range(len(node.shape))]
        *outer, last = made.places
        if list(outer) == axes[:-1] and len(whole.shape) == len(axes):
            found = _places(last, whole.shape[-1], node.shape[-1])
            return None if found is None else (source.node, found)
        inner = whole.args[0] if whole.op == "reshape" else None
        if list(outer) == axes and last.op == "number" and isinstance(inner, Ref) and len(whole.shape[-1]) == 1:
            shape, (count,) = self.graph.nodes[inner.node].shape, whole.shape[-1]
            if isinstance(count, int) and len(shape) == len(axes) and shape[:-1] == whole.shape[:-2]:
                return inner.node, _Part(-1, count, last.number, node.shape[-1], apart=True)
        return None


def _places(place: ix.Expr, whole: Dim, size: Dim) -> _Part | None:
    """The part of a dimension that runs from a place of its own on."""
    (all_of, names), (own, own_names) = canonical(whole), canonical(size)
    if names != own_names or own == 0 or all_of % own or all_of == own:
        return None
    begins = (0, own_names) if place == ix.axis(-1) else None
    if place.op == "+" and place.args[0] == ix.axis(-1):
        begins = _amount(place.args[1])
    if begins is None or begins[1] != own_names or begins[0] % own:
        return None
    return _Part(-1, all_of // own, begins[0] // own, size)


def _amount(expr: ix.Expr) -> tuple[int, tuple[str, ...]] | None:
    """A number of places as a multiple of names of sizes."""
    if expr.op in ("number", "size"):
        return (expr.number, ()) if expr.op == "number" else canonical(expr.size)
    found = [_amount(arg) for arg in expr.args]
    if expr.op not in ("+", "*") or None in found:
        return None
    (n, names), (m, others) = (amount for amount in found if amount is not None)
    if expr.op == "*":
        return n * m, tuple(sorted((*names, *others)))
    return (n + m, names) if names == others else None
