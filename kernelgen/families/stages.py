"""Operators that reduce twice: every row to numbers, and the rows' numbers to one.

A mean loss over a batch is the usual case. The graph is cut where the second reduction reads: what is before it leaves
a number a row in memory, what comes after is a small kernel that reads those numbers. Both parts are lowered as
operators of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelgen.families.space import atoms_of
from kernelgen.families.values import Unlowerable
from kernelgen.frontend import indices as ix
from kernelgen.frontend.graph import REDUCTIONS, SCANS, Dim, Graph, Node, Output, Ref, canonical
from kernelgen.frontend.indices import Condition, Indexing
from kernelgen.frontend.operations import of_kind
from kernelgen.spec.model import OperatorSpec, TensorFacts, TensorSpec
from kernelgen.spec.sizes import size_entry

_SPLITTABLE = of_kind("reduction")
"""Reductions that may be taken first along the rows and then over them."""


@dataclass(frozen=True)
class Stage:
    """A part of an operator that is lowered on its own."""

    spec: OperatorSpec
    graph: Graph


def stages(spec: OperatorSpec, graph: Graph) -> tuple[Stage, ...]:
    """The operator itself, or its two parts where it reduces what its rows were reduced to."""
    graph = _rows_first(read_once(graph))
    ends = _ends(graph)
    if not ends:
        return (Stage(spec, graph),)
    late = _dependent(graph, ends)
    cuts = sorted({_source(graph.nodes[i]) for i in ends})
    names = _scratch_names(spec, graph, cuts)
    tensors = {cut: _tensor(names[cut], graph.nodes[cut]) for cut in cuts}
    early = [o for o in graph.outputs if o.node not in late]
    left = [Output(names[cut], cut, tensors[cut].dtype) for cut in cuts]
    inner = replace(spec, outputs=(*(t for t in spec.outputs if t.name in {o.name for o in early}), *tensors.values()))
    first = Stage(inner, _pruned(graph, (*early, *left)))
    rest = tuple(o for o in graph.outputs if o.node in late)
    outer = replace(
        spec,
        inputs=tuple(tensors.values()),
        outputs=tuple(t for t in spec.outputs if t.name in {o.name for o in rest}),
        constraints=(),
        facts=TensorFacts(frozenset(t.name for t in tensors.values())),
    )
    return first, Stage(outer, _second(graph, late, names, rest))


def _source(node: Node) -> int:
    source = node.args[0]
    assert isinstance(source, Ref)
    return source.node


def _is_whole(graph: Graph, i: int) -> bool:
    node = graph.nodes[i]
    return node.op in REDUCTIONS and len(node.attrs) == len(graph.nodes[_source(node)].shape)


def _reduced(graph: Graph, i: int) -> tuple[Dim, ...]:
    shape = graph.nodes[_source(graph.nodes[i])].shape
    return tuple(shape[int(d)] for d in graph.nodes[i].attrs)


def _ends(graph: Graph) -> list[int]:
    """Reductions of everything that is left of rows which were reduced before, and those over as many numbers."""
    found: list[int] = []
    whole = [i for i in range(len(graph.nodes)) if _is_whole(graph, i)]
    for i in whole:
        before = [j for j in _ancestors(graph, i) - {i} if graph.nodes[j].op in REDUCTIONS and j not in found]
        own = {atom for dim in _reduced(graph, i) for atom in dim}
        if any(not own & {a for dim in _reduced(graph, j) for a in dim} and _reduced(graph, j) for j in before):
            found.append(i)
    rows = [_reduced(graph, i) for i in found]
    return [i for i in whole if _reduced(graph, i) in rows]


def _rows_first(graph: Graph) -> Graph:
    """Reductions of everything, of values that follow from reductions of rows: along the rows first, then over them."""
    return _in_two(graph, lambda i: _rows_before(graph, i) if _is_whole(graph, i) else None)


def without_unread(graph: Graph) -> Graph:
    """The graph short of what no output is computed from, but for inputs: a line of the reference that nobody reads
    must not decide how kernels walk."""
    needed = set().union(*(_ancestors(graph, o.node) for o in graph.outputs))
    kept = [i for i, node in enumerate(graph.nodes) if i in needed or node.op == "input"]
    if len(kept) == len(graph.nodes):
        return graph
    place = {old: new for new, old in enumerate(kept)}
    return replace(
        graph,
        nodes=tuple(_moved(graph.nodes[i], place) for i in kept),
        outputs=tuple(replace(o, node=place[o.node]) for o in graph.outputs),
        held=frozenset(place[i] for i in graph.held if i in place),
        deviations=frozenset(place[i] for i in graph.deviations if i in place),
        shortcuts=tuple(
            (place[i], what, tuple(Ref(place[r.node]) for r in refs)) for i, what, refs in graph.shortcuts if i in place
        ),
    )


def without_ones(graph: Graph) -> Graph:
    """The graph short of reductions over dimensions of one element, which change nothing."""
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        if node.op in _SPLITTABLE and not any(_reduced(graph, i)) and node.dtype == graph.nodes[_source(node)].dtype:
            moved[i] = moved[_source(node)]
            continue
        moved[i] = len(nodes)
        nodes.append(_moved(node, moved))
    outputs = tuple(replace(o, node=moved[o.node]) for o in graph.outputs)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), outputs=outputs)


def in_memory_order(graph: Graph) -> Graph:
    """The graph with products of sizes in the order of the dimensions that a reshape joins or takes apart, which the
    trace does not keep."""
    orders = reshaped(graph)
    shapes = [tuple(orders.get(canonical(d), d) if len(d) > 1 else d for d in node.shape) for node in graph.nodes]
    return replace(graph, nodes=tuple(replace(n, shape=s) for n, s in zip(graph.nodes, shapes, strict=True)))


def reshaped(graph: Graph) -> dict[object, Dim]:
    """The sizes of the dimensions that reshapes join or take apart, in the order of memory, by `canonical`."""
    orders: dict[object, Dim] = {}
    for node in graph.nodes:
        if node.op == "reshape":
            own = graph.nodes[_source(node)].shape
            for joined, single in ((node.shape, own), (own, node.shape)):
                orders |= {canonical(dim): dim for dim in _joined(joined, single) if canonical(dim) not in orders}
    return orders


def _joined(joined: Sequence[Dim], single: Sequence[Dim]) -> list[Dim]:
    """The products among some dimensions, numbers too, each as the others that follow one another in its place. Of a
    number at the end it may have a factor, as heads have that are joined with a batch: the rest of it comes next."""
    found: list[Dim] = []
    rest = list(single)
    for dim in joined:
        parts: Dim = ()
        while rest and canonical(parts) != canonical(dim):
            factor = _lacks(parts, dim, rest[0])
            parts = (*parts, factor) if factor else (*parts, *rest[0])
            rest[:1] = [(int(rest[0][0]) // factor,)] if factor else []
        if canonical(parts) != canonical(dim):
            break
        found += [parts] if len(dim) > 1 or len(parts) > 1 else []
    return found


def _lacks(parts: Dim, dim: Dim, after: Dim) -> int:
    """The number by which a product is more than its first sizes, where it divides the number after these; else 0."""
    (has, named), (wanted, names) = canonical(parts), canonical(dim)
    if not parts or named != names or wanted % has or len(after) != 1 or not isinstance(after[0], int):
        return 0
    factor = wanted // has
    return factor if factor < after[0] and after[0] % factor == 0 else 0


def last_first(graph: Graph) -> Graph:
    """Reductions over several dimensions along the last of these first, then over the others."""

    def last(i: int) -> tuple[int, ...] | None:
        long = [int(d) for d in graph.nodes[i].attrs if _full(graph, i)[int(d)]]
        return (max(long),) if len(long) > 1 else None

    return _in_two(graph, last)


def _in_two(graph: Graph, first: Callable[[int], tuple[int, ...] | None]) -> Graph:
    """The graph with some reductions taken in two steps: over the dimensions that `first` names, then over all."""
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        own = replace(node, args=tuple(Ref(moved[a.node]) if isinstance(a, Ref) else a for a in node.args))
        rows = first(i) if node.op in _SPLITTABLE else None
        if rows is not None:
            shape = tuple(() if d - len(node.shape) in rows else dim for d, dim in enumerate(_full(graph, i)))
            nodes.append(replace(own, shape=shape, attrs=rows, name=None))
            own = replace(own, args=(Ref(len(nodes) - 1),))
        moved[i] = len(nodes)
        nodes.append(own)
    outputs = tuple(replace(o, node=moved[o.node]) for o in graph.outputs)
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), outputs=outputs)


def _full(graph: Graph, i: int) -> tuple[Dim, ...]:
    return graph.nodes[_source(graph.nodes[i])].shape


def _rows_before(graph: Graph, i: int) -> tuple[int, ...] | None:
    """The dimensions of rows that were reduced on the way to a reduction of everything, if what it reads has rows."""
    shape = _full(graph, i)
    for j in sorted(_ancestors(graph, i) - {i}):
        node = graph.nodes[j]
        if node.op in REDUCTIONS and not _is_whole(graph, j) and _full(graph, j) == shape:
            return tuple(int(d) for d in node.attrs)
    return None


def _ancestors(graph: Graph, i: int) -> set[int]:
    found, todo = set[int](), [i]
    while todo:
        j = todo.pop()
        if j not in found:
            found.add(j)
            todo += [a.node for a in graph.nodes[j].args if isinstance(a, Ref)]
    return found


def _dependent(graph: Graph, ends: list[int]) -> set[int]:
    """The reductions over rows and everything that follows from them."""
    found = set(ends)
    for i, node in enumerate(graph.nodes):
        if any(isinstance(a, Ref) and a.node in found for a in node.args):
            found.add(i)
    for i in sorted(found):
        if graph.nodes[i].op in SCANS or atoms_of(graph.nodes[i].shape):
            raise Unlowerable("what all rows were reduced to, used in rows again", graph.nodes[i].statement)
    return found


def _scratch_names(spec: OperatorSpec, graph: Graph, cuts: list[int]) -> dict[int, str]:
    """What the numbers of the rows are called in memory."""
    taken = {t.name for t in (*spec.inputs, *spec.outputs)}
    names: dict[int, str] = {}
    for cut in cuts:
        wanted = graph.nodes[cut].name or "row_results"
        candidates = (wanted, *(f"{wanted}_{n}" for n in range(2, len(taken) + 3)))
        names[cut] = next(c for c in candidates if c not in taken)
        taken.add(names[cut])
    return names


def _tensor(name: str, node: Node) -> TensorSpec:
    shape = tuple(map(size_entry, node.shape))
    return TensorSpec(name, shape, "float32" if node.dtype == "float" else node.dtype)


def _pruned(graph: Graph, outputs: tuple[Output, ...]) -> Graph:
    """The graph short of what the outputs do not need."""
    needed = sorted(set().union(*(_ancestors(graph, o.node) for o in outputs)))
    place = {old: new for new, old in enumerate(needed)}
    return replace(
        graph,
        nodes=tuple(_moved(graph.nodes[i], place) for i in needed),
        outputs=tuple(replace(o, node=place[o.node]) for o in outputs),
    )


def _moved(node: Node, place: dict[int, int]) -> Node:
    return replace(node, args=tuple(Ref(place[a.node]) if isinstance(a, Ref) else a for a in node.args))


def _second(graph: Graph, late: set[int], names: dict[int, str], outputs: tuple[Output, ...]) -> Graph:
    """What follows from the numbers of the rows."""
    nodes = [
        Node("input", (), graph.nodes[cut].shape, graph.nodes[cut].dtype, name, None, (name,))
        for cut, name in names.items()
    ]
    place = {cut: i for i, cut in enumerate(names)}
    for i, node in enumerate(graph.nodes):
        if i not in late and not (node.op == "full" and i not in place):
            continue
        if any(isinstance(a, Ref) and a.node not in place for a in node.args):
            raise Unlowerable("a number of all rows beside another tensor", node.statement)
        place[i] = len(nodes)
        nodes.append(_moved(node, place))
    return _pruned(
        replace(graph, nodes=tuple(nodes), outputs=()), tuple(replace(o, node=place[o.node]) for o in outputs)
    )


def read_once(graph: Graph) -> Graph:
    """The graph with every sum over a row of one element of an input and zeros elsewhere as an `index` node; 0 where
    the place is outside, as the sum is. So a loss writes the logit of a row's class: compared, selected and added for
    every element of the row, where one load does. The gradient is derived from the sum; only the kernel reads."""
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
