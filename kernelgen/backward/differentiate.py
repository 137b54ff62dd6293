"""The gradients of a reference, derived from its graph: from the outputs back to the inputs, one rule an operation.

The graph and not torch's joint graph is what is differentiated: its composites are written out already with the names
that a reader expects, its few operations need few rules, and no private part of torch is asked. That the rules are
right is for the judge to say, which holds the result against torch's own autograd in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernelgen.backward import attention, convolution
from kernelgen.backward.gathers import through_index
from kernelgen.backward.moved import joined, summed_from_end, through_move
from kernelgen.backward.moves import MOVES, named
from kernelgen.backward.rules import RULES, SHORTCUTS
from kernelgen.backward.tape import Tape
from kernelgen.frontend import operations
from kernelgen.frontend.build import BOOLEAN, Refused
from kernelgen.frontend.convolutions import CONVOLUTIONS
from kernelgen.frontend.graph import CALL, DOT, VIEWS, Arg, Graph, Node, Ref, broadcast
from kernelgen.spec.model import OperatorSpec

NOUNS = {
    **operations.NOUNS, "rsqrt": "rstd", "maximum": "larger", "minimum": "smaller", "sigmoid": "sigmoid",
    "place": "place",
}  # fmt: skip
"""What a value without a name is called, by its operation: in formulas otherwise than in kernels."""


def gradients(
    spec: OperatorSpec, graph: Graph, attended: attention.Attention | None = None
) -> tuple[Tape, dict[str, Ref]]:
    """The graph with its gradients, and by its name the gradient of every input that has one. `attended`: its
    attention.

    The gradients of outputs are inputs called grad_OUTPUT. Raises Refused where an operation has no derivative here.
    """
    graph = convolution.named(named(graph)) if attended is None else graph
    tape = Tape(graph)
    active, dtypes = _active(spec, graph), {t.name: t.dtype for t in spec.inputs}
    flowing: dict[int, list[Ref]] = {}
    single = {name: values[0] for name, values in spec.dtypes if len(values) == 1}
    kinds = {f"grad_{o.name}": single.get(o.dtype, o.dtype) for o in spec.outputs}
    narrow, results = convolution.narrowed(graph), convolution.results(tape, graph)
    for output in graph.outputs:
        node = graph.nodes[output.node]
        if output.node in active:
            seed = tape.input(f"grad_{output.name}", node.shape, "float")
            flowing.setdefault(output.node, []).append(seed)
    found: dict[str, Ref] = {}
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        parts = flowing.pop(i, [])
        if not parts or i not in active or i in graph.held:
            continue
        g = tape.total(joined(tape, parts))
        if i in narrow:
            g = convolution.stored(tape, g, *narrow[i], kinds)
        if node.op == "input":
            found[str(node.attrs[0])] = tape.view("expand", g, node.shape)
        elif tape.node(g).op != "input" and g.node >= len(graph.nodes):
            if node.name and node.name not in dtypes:  # grad_NAME is the input's own
                tape.call(g, f"grad_{node.name}")
            tape.hints.setdefault(g.node, f"grad_{NOUNS.get(node.op, node.op)}")
        result = results.get(i, Ref(i))
        for source, part in _of_node(tape, graph, i, g, dtypes, result, attended):
            if source in active:
                flowing.setdefault(source, []).append(part)
    if not found:
        raise Refused("backward: true, but there are no gradients: no float output depends on a float input")
    convolution.save(tape, graph, found)
    return tape, {t.name: found[t.name] for t in spec.inputs if t.name in found}


def _of_node(
    tape: Tape,
    graph: Graph,
    i: int,
    g: Ref,
    dtypes: Mapping[str, str],
    result: Ref,
    attended: attention.Attention | None,
) -> Iterator[tuple[int, Ref]]:
    """What the operands of a node get, by the shortest way that is known."""
    if attended is not None and i == attended.product:
        return attention.gradients(tape, attended, g, _saved(tape, graph, attended))
    return iter(_shortcut(tape, graph, i, g) or _parts(tape, i, graph.nodes[i], g, dtypes, result))


def _saved(tape: Tape, graph: Graph, attended: attention.Attention) -> Ref:
    """The product of attention, from the output that shows it."""
    shape = graph.nodes[(attended.product, *attended.shown)[-1]].shape
    out = tape.input(attended.output, shape, "float")
    for i in reversed(attended.shown):
        (source,) = (a for a in graph.nodes[i].args if isinstance(a, Ref))
        shown = _through_view(tape, graph.nodes[i], source, out)
        assert shown is not None
        out = shown
    return out


def _active(spec: OperatorSpec, graph: Graph) -> set[int]:
    """The floats that depend on an input which can have a gradient."""
    wanted = {t.name for t in spec.inputs if t.role not in ("like", "constant")}
    found: set[int] = set()
    for i, node in enumerate(graph.nodes):
        below = any(isinstance(a, Ref) and a.node in found for a in node.args)
        if node.dtype == "float" and (below or (node.op == "input" and node.attrs[0] in wanted)):
            found.add(i)
    return found


def _shortcut(tape: Tape, graph: Graph, i: int, g: Ref) -> list[tuple[int, Ref]]:
    """Past the operations of a composite, where it has a derivative that is better known as a whole."""
    for made, name, operands in graph.shortcuts:
        if made == i:
            parts = SHORTCUTS[name](tape, operands, Ref(i), g)
            return list(_to_operands(tape, graph.nodes[i], operands, parts))
    return []


def _to_operands(
    tape: Tape, node: Node, operands: Sequence[Arg], parts: Sequence[Ref | None]
) -> Iterator[tuple[int, Ref]]:
    """What operands get, summed over what they were repeated along."""
    for operand, part in zip(operands, parts, strict=False):
        if isinstance(operand, Ref) and part is not None:
            full = broadcast(node.shape, tape.node(operand).shape)
            reduced = tape.summed_to(part, full, tape.node(operand).shape)
            if reduced is not None:
                yield operand.node, reduced


def _parts(tape: Tape, i: int, node: Node, g: Ref, dtypes: Mapping[str, str], result: Ref) -> Iterator[tuple[int, Ref]]:
    """What the operands of a node get, each in a shape that broadcasts to its own. `result`: its value, as a formula
    may have it."""
    refs = [a for a in node.args if isinstance(a, Ref)]
    if node.op in ("input", "full", "iota", "place", "convert", *operations.LIMITS, *BOOLEAN):
        return
    if node.op in ("sum", "round"):
        yield refs[0].node, g
    elif node.op in ("max", "min"):
        yield refs[0].node, _of_extreme(tape, i, node, refs[0], g)
    elif node.op in VIEWS:
        part = _through_view(tape, node, refs[0], g)
        if part is not None:
            yield refs[0].node, part
    elif node.op == "index":
        yield refs[0].node, through_index(tape, node, g)
    elif node.op in MOVES:
        yield from through_move(tape, node, g)
    elif node.op == "cumsum":
        yield refs[0].node, summed_from_end(tape, tape.view("expand", g, node.shape), int(node.attrs[0]))
    elif node.convolution is not None and node.op == CALL:
        yield from convolution.gradients(tape, node, g)
    elif node.op == DOT:
        tape.multiplied_as = tape.multiplied_as or _multiplied(tape, refs, dtypes)
        if tape.node(g).op != "input":
            tape.handed = (*tape.handed, g.node)
        yield from zip(
            (r.node for r in refs), attention.products(tape, node.equation, refs[0], refs[1], g), strict=True
        )
    elif node.op in RULES:
        yield from _to_operands(tape, node, node.args, RULES[node.op](tape, node, result, g))
    else:
        called = str(node.attrs[1]).partition("(")[0] if node.op == CALL else node.op
        unknown = ", without a batch or with a stride, window or groups that are no numbers"
        raise Refused(f"the gradient of {called}{unknown if called in CONVOLUTIONS else ''}")


def _of_extreme(tape: Tape, i: int, node: Node, x: Ref, g: Ref) -> Ref:
    """What the elements get of which the greatest or least is known: all that equal it share evenly, as torch has it;
    of `max` with a dimension, which knows a place, the element there gets all."""
    name, dims = "is_greatest" if node.op == "max" else "is_least", tuple(int(d) for d in node.attrs)
    place = next((j for j in (i + 1, i + 2) if _has_place(tape, j, node)), None)
    if place is not None:
        chosen = tape.convert(tape.map("eq", tape.iota(x, dims[0]), Ref(place)), "float")
        tape.rename(chosen, name)
        return tape.times(g, chosen)
    same = tape.convert(tape.map("eq", x, Ref(i)), "float")
    tape.rename(same, name)
    return tape.over(tape.times(g, same), tape.reduce("sum", same, dims, "count"))


def _has_place(tape: Tape, j: int, node: Node) -> bool:
    """Whether a node is the place of what another is the value of."""
    other = tape.nodes[j] if j < len(tape.nodes) else None
    return other is not None and (other.op, other.args, other.attrs, other.statement) == (
        f"arg{node.op}", node.args, node.attrs, node.statement,
    )  # fmt: skip


def _multiplied(tape: Tape, factors: Sequence[Ref], dtypes: Mapping[str, str]) -> str:
    """The dtype in which a product multiplies: what its factors are rounded to, or that of the inputs that they are."""
    for factor in factors:
        at = tape.node(factor)
        while at.op in VIEWS:
            (at,) = (tape.node(a) for a in at.args if isinstance(a, Ref))
        if at.op in ("round", "input"):
            return str(at.attrs[0]) if at.op == "round" else dtypes.get(str(at.attrs[0]), "")
    return ""


def _through_view(tape: Tape, node: Node, source: Ref, g: Ref) -> Ref | None:
    """The gradient of what a view shows."""
    shape = tape.node(source).shape
    if tape.rank(g) == 0:  # a number broadcasts to every shape
        return tape.summed_to(g, node.shape, shape) if node.op == "expand" else g
    if node.op == "expand":
        return tape.summed_to(g, node.shape, shape)
    own = ((),) * (len(node.shape) - tape.rank(g)) + tape.node(g).shape
    if node.op == "permute":
        order = [int(d) for d in node.attrs]
        back = tuple(order.index(d) for d in range(len(order)))
        if tape.rank(g) < len(order):
            g = tape.view("reshape", g, own)
        return tape.view("permute", g, tuple(own[d] for d in back), back)
    if own == node.shape:
        return tape.view("reshape", g, shape)
    kept = [d for d in node.shape if d != ()]
    if kept != [d for d in shape if d != ()]:
        return tape.view("reshape", tape.view("expand", g, node.shape), shape)
    # only sizes of one come or go: what is the same along a dimension stays so
    left = iter([d for d, whole in zip(own, node.shape, strict=True) if whole != ()])
    return tape.view("reshape", g, tuple(() if d == () else next(left) for d in shape))
