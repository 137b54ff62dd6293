"""The gradients of attention, from the logsumexp of the scores that the forward saves.

    weights = exp(scores - lse);  delta = sum(grad_out * out)
    grad_value = weights.mT @ grad_out;  grad_scores = weights * (grad_out @ value.mT - delta)

Neither the weights nor what they get are ever in memory: one kernel walks over the keys that a block of queries sees,
for the gradient of queries and for delta, another over the queries that see a block of keys, for those of keys and
values. The formula of Dao, Fu, Ermon, Rudra and Re ("FlashAttention", NeurIPS 2022, appendix B.4).

delta is of the output as it is saved: rounding that moves delta of a row by up to u * sum(|grad_out * out|), u the unit
roundoff of its dtype, and the row's grad_scores by as much times their weights. Where a row's elements are equal they
round alike and nothing averages out (64 keys of 64 elements: 2e-2 of the largest grad_query in bfloat16),
while autograd, which has delta from the weights, is off by nothing where one weight is left. No factor of its error
bounds that: the gradients' test hands the judge this way too, which then knows what rounding takes (`Operator.also`).
torch's own fused attention has delta from the rounded output as well.

The logsumexp is one of powers of two, by the very factor that all kernels multiply scores with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from kernelgen.backward.moves import MOVES, named
from kernelgen.backward.tape import Tape
from kernelgen.frontend.graph import CALL, DOT, VIEWS, Arg, Graph, Node, Ref
from kernelgen.frontend.parted import without_joins
from kernelgen.frontend.products import unturned, with_products
from kernelgen.frontend.searches import is_search

LSE, DELTA = "lse", "delta"
"""What the forward saves beside its output, and what the gradient of the rows leaves for the others."""
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Attention:
    """One attention of a reference, by its nodes."""

    product: int
    """The product of weights and values."""
    value: Ref
    weights: Ref
    """As they are multiplied."""
    logits: Ref
    row_sum: Ref
    factors: tuple[tuple[int, str], ...]
    """What the products multiply and other elements move into, each with the dtype in which it is multiplied: a query
    that is rotated. The forward saves these, as its kernels have them in memory."""
    sink: Ref | None
    """A logit more, of which there is no weight; None: there is none."""
    hides: bool
    """Whether a row that sees no key has weights of 0."""
    shown: tuple[int, ...]
    """The views from the product to the output, and the output itself."""
    output: str


def written_out(graph: Graph) -> tuple[Graph, Attention | None]:
    """The graph with its products, of which two and a softmax may be attention; itself where other calls stay."""
    if not any(node.op == CALL for node in graph.nodes):
        return graph, None
    if any(node.op == CALL and node.convolution for node in graph.nodes):  # these stay calls, other products do not
        return unturned(without_joins(with_products(graph, attention=False, convolutions=False))), None
    apart = named(unturned(without_joins(with_products(graph))))
    products = [i for i, node in enumerate(apart.nodes) if node.op == DOT]
    found = _attention(apart, products[1]) if len(products) == 2 else None
    calls = any((node.op == CALL and not is_search(apart, node)) or node.convolution for node in apart.nodes)
    if calls or any(len(_refs(apart.nodes[i])) > 2 for i in products):
        return graph, None
    return apart, found


def _attention(graph: Graph, product: int) -> Attention | None:
    nodes = graph.nodes
    for weights, value in (refs := _refs(nodes[product])), refs[::-1]:
        at = weights
        if nodes[at.node].op == "round":
            (at,) = _refs(nodes[at.node])
        hides = _is_hidden(nodes, at)
        at = _refs(nodes[at.node])[-1] if hides else at
        softmax = _softmax(nodes, at)
        outputs = {o.node: o.name for o in graph.outputs}
        shown = [product]
        while shown[-1] not in outputs:
            after = [i for i, n in enumerate(nodes) if Ref(shown[-1]) in n.args]
            if len(after) != 1 or nodes[after[0]].op not in VIEWS:
                return None
            shown += after
        if softmax is not None:
            logits, total, sink = softmax
            first = next(i for i, n in enumerate(nodes) if n.op == DOT)
            factors = tuple(dict.fromkeys(_gathered(nodes, r) for r in (*_refs(nodes[first]), value)))
            kept = tuple(f for f in factors if f is not None)
            return Attention(
                product, value, weights, logits, total, kept, sink, hides, tuple(shown[1:]), outputs[shown[-1]]
            )
    return None


def _gathered(nodes: Sequence[Node], factor: Ref) -> tuple[int, str] | None:
    """A factor short of views, with its dtype, if it is computed from elements of several places; None of one that a
    kernel computes, or finds in an input, where it multiplies it."""
    at = _short_of(nodes, factor.node, VIEWS)
    if nodes[_short_of(nodes, at, (*VIEWS, "round", "slice", "select"))].op == "input":
        return None
    dtype = str(nodes[at].attrs[0]) if nodes[at].op == "round" else "float32"
    below, todo = set[int](), [at]
    while todo:
        i = todo.pop()
        if i not in below:
            below.add(i)
            todo += [r.node for r in _refs(nodes[i])]
    return (at, dtype) if any(nodes[i].op in MOVES for i in below) else None


def _short_of(nodes: Sequence[Node], i: int, ops: Collection[str]) -> int:
    """What a value is made of by some operations alone."""
    while nodes[i].op in ops:
        (i,) = (r.node for r in _refs(nodes[i]))
    return i


def _is_hidden(nodes: Sequence[Node], weights: Ref) -> bool:
    """Whether weights are `where(row_max == -inf, 0, weights)`, as torch's attention has them under a mask."""
    chosen = nodes[weights.node]
    if chosen.op != "where" or chosen.args[1] != 0.0 or len(_refs(chosen)) != 2:
        return False
    test = nodes[_refs(chosen)[0].node]
    return test.op == "eq" and test.args[1] == -math.inf and nodes[_refs(test)[0].node].op == "max"


def _softmax(nodes: Sequence[Node], weights: Ref) -> tuple[Ref, Ref, Ref | None] | None:
    """Logits and the sum of exp(logits - max) / sum along the last dimension, and the sink that both the maximum and
    the sum take in."""
    quotient = nodes[weights.node]
    if quotient.op != "div" or len(_refs(quotient)) != 2:
        return None
    numerator, total = _refs(quotient)
    sink, sums = None, nodes[total.node]
    if sums.op == "add":
        own, other = _refs(sums)
        sums, beside = nodes[own.node], nodes[other.node]
        sink = _refs(nodes[_refs(beside)[0].node])[0] if beside.op == "exp" else None
    power = nodes[numerator.node]
    if power.op != "exp" or sums.op != "sum" or sums.args != (numerator,) or sums.attrs != (-1,):
        return None
    difference = nodes[_refs(power)[0].node]
    if difference.op != "sub" or len(_refs(difference)) != 2:
        return None
    logits, greatest = _refs(difference)
    shift = nodes[greatest.node]
    if sink is not None:
        beside = nodes[_refs(nodes[_refs(nodes[total.node])[1].node])[0].node]
        if shift.op != "maximum" or sink not in shift.args or beside.op != "sub" or beside.args != (sink, greatest):
            return None
        shift = nodes[next(a for a in _refs(shift) if a != sink).node]
    return (logits, total, sink) if shift.op == "max" and shift.args == (logits,) else None


def _refs(node: Node) -> tuple[Ref, ...]:
    return tuple(a for a in node.args if isinstance(a, Ref))


def saved(tape: Tape, found: Attention) -> None:
    """The forward once more in powers of two, with the logsumexp of its scores."""
    product = tape.nodes[found.product]
    powers = tape.map("mul", found.logits, _LOG2_E, name="powers")
    row_max = tape.reduce("max", powers, (-1,), "row_max")
    sink = found.sink and tape.map("mul", found.sink, _LOG2_E, name="sink_power")
    row_max = tape.map("maximum", row_max, sink, name="greatest") if sink else row_max
    # of scores that are all minus infinity the logsumexp is that too
    row_max = tape.map("where", tape.map("eq", row_max, -math.inf), 0.0, row_max, name="finite_max")
    numerator = tape.map("exp2", tape.map("sub", powers, row_max), name="numerator")
    total = tape.reduce("sum", numerator, (-1,), "row_sum")
    total = tape.map("add", total, tape.map("exp2", tape.map("sub", sink, row_max)), name="total") if sink else total
    lse = tape.map("add", row_max, tape.map("log2", total), name=LSE)
    if found.hides:  # such a row has weights of 0 then
        is_hidden = tape.map("eq", total, 0.0)
        lse = tape.map("where", is_hidden, 0.0, lse, name=LSE)
        total = tape.map("where", is_hidden, 1.0, total, name="divisor")
    weights = tape.map("div", numerator, total)
    weights = tape.round(weights, tape.multiplied_as) if tape.multiplied_as else weights
    first, second = (weights if a == found.weights else a for a in _refs(product))
    shown = tape.dot(first, second, product.equation)
    for i in found.shown:
        shown = tape.view(tape.nodes[i].op, shown, tape.nodes[i].shape, tuple(int(d) for d in tape.nodes[i].attrs))
    tape.call(shown, found.output)
    tape.forward = {found.output: shown.node}
    tape.saved = {lse.node: "float32", **dict(found.factors)}
    for i, _ in found.factors:  # what is saved has the name of what it rounds
        for source in _refs(tape.nodes[i]) if tape.nodes[i].op == "round" else ():
            tape.nodes[i] = replace(tape.nodes[i], name=tape.node(source).name)
            tape.nodes[source.node] = replace(tape.node(source), name=None)


def gradients(tape: Tape, found: Attention, g: Ref, out: Ref) -> Iterator[tuple[int, Ref]]:
    """What values and logits get. `g`: the gradient of the product; `out`: the product, as the forward saves it."""
    node, weighed = tape.nodes[found.product], tape.node(found.weights)
    tape.multiplied_as = str(weighed.attrs[0]) if weighed.op == "round" else ""
    saved(tape, found)
    shape = tape.node(found.row_sum).shape
    seen, logits = _unmasked(tape, found.logits)
    powers = tape.map("mul", logits, _LOG2_E, name="powers")
    lse = tape.input(LSE, shape, "float")
    weights = tape.map("exp2", tape.map("sub", powers, lse), name="weights")
    for test, holds in seen:
        weights = tape.map("where", test, *((weights, 0.0) if holds else (0.0, weights)), name="weights")
    delta = tape.reduce("sum", tape.map("mul", g, out), (-1,), DELTA)
    tape.delta = delta.node
    first, second = (weights if a == found.weights else a for a in _refs(node))
    of_first, of_second = products(tape, node.equation, first, second, g)
    swapped = second == weights
    grad_value, grad_weights = (of_first, of_second) if swapped else (of_second, of_first)
    tape.call(grad_weights, "grad_weights")
    yield found.value.node, grad_value
    yield found.logits.node, tape.map("mul", weights, tape.map("sub", grad_weights, delta), name="grad_scores")
    if found.sink is not None:
        sink = tape.map("mul", found.sink, _LOG2_E, name="sink_power")
        weight = tape.map("exp2", tape.map("sub", sink, lse), name="sink_weight")
        yield found.sink.node, tape.minus(tape.map("mul", weight, delta))


def _unmasked(tape: Tape, logits: Ref) -> tuple[list[tuple[Ref, bool]], Ref]:
    """The conditions under which logits are not minus infinity, each with whether it has to hold, and the logits."""
    node = tape.node(logits)
    if node.op == "where" and -math.inf in node.args[1:]:
        test, kept = (a for a in node.args if isinstance(a, Ref))
        conditions, inner = _unmasked(tape, kept)
        return [(test, node.args[1] == kept), *conditions], inner
    return [], logits


def products(tape: Tape, equation: str, first: Ref, second: Ref, g: Ref) -> tuple[Ref, Ref]:
    """What the factors of a product get: products themselves, out of which numbers are taken."""
    operands, _, result = equation.partition("->")
    one, other = operands.split(",")
    scale, core = _apart(tape, g)
    found = []
    for own, labels, factor, its in ((first, one, second, other), (second, other, first, one)):
        shape = tape.node(own).shape
        kept = "".join(c for c, dim in zip(labels, shape, strict=True) if dim or c not in result)
        made = tape.dot(_narrow(tape, core), _narrow(tape, factor), f"{result},{its}->{kept}")
        made = tape.view("reshape", made, shape)
        for number in scale:
            made = tape.times(made, number)
        found.append(made)
    return found[0], found[1]


def _narrow(tape: Tape, factor: Ref) -> Ref:
    """A factor in the dtype in which the reference multiplies."""
    at = factor
    while tape.node(at).op in VIEWS:
        (at,) = _refs(tape.node(at))
    is_narrow = not tape.multiplied_as or tape.node(at).op in ("input", "round")
    return factor if is_narrow else tape.round(factor, tape.multiplied_as)


def _apart(tape: Tape, g: Ref) -> tuple[list[Arg], Ref]:
    """Numbers of the program that a gradient is multiplied by, and the rest of it."""
    node = tape.node(g)
    if node.op == "mul":
        for one, other in (node.args, node.args[::-1]):
            if isinstance(other, Ref) and (not isinstance(one, Ref) or not tape.node(one).shape):
                numbers, core = _apart(tape, other)
                return [one, *numbers], core
    return [], g
