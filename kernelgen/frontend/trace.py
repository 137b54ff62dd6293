"""Trace a reference to a graph with `torch.export` on tensors that have shapes but no memory.

Non-strict export of the training IR, without decomposition: core ATen would take apart what the reference says
(softmax, layer_norm) and lose its names. The trace is repeated for other dtypes and other numbers of leading
dimensions, and all must agree: a kernel is generated only for a reference that means one thing.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

from kernelgen.errors import GuardError, Mistake, SpecError
from kernelgen.frontend.build import Builder
from kernelgen.frontend.excepted import check_guards
from kernelgen.frontend.export import LARGER, Binding, declared_dim, dims, export, is_sized, joins, kind, symbols_of
from kernelgen.frontend.graph import CALL, Dim, Graph, Node, Ref
from kernelgen.frontend.limits import with_limits
from kernelgen.frontend.mistakes import line_of, unsupported
from kernelgen.frontend.nodes import lower_node
from kernelgen.frontend.outputs import outputs_of
from kernelgen.frontend.reference import Reference, compile_reference
from kernelgen.frontend.sides import check_branches, side_notes
from kernelgen.spec.cases import admits, usual_sizes
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, TensorSpec


def trace(spec: OperatorSpec, *, derived: bool = False, whole: bool = False) -> tuple[Graph, tuple[str, ...]]:
    """The graph of a spec's reference, with notes for the reviewer.

    `derived`: the reference was written from the graph of another, which means one thing for all dtypes and ranks and
    casts to no fixed 16-bit dtype. That is not asked again: one trace says all, unless "..." stands behind a name, for
    gradients count dimensions from the end.
    `whole`: see `Reference.whole`.

    Raises SpecError where the reference fails or does not return what `outputs` declares, UnsupportedError where an
    operation has no rule or the reference does different things for different dtypes or ranks.
    """
    check_branches(spec)
    reference = replace(compile_reference(spec), whole=whole)
    halves = _halves(spec)
    graph, notes = _trace_once(spec, reference, halves[0], 1)
    if derived:
        for rank in _ranks(spec) if any(ELLIPSIS in t.shape[1:] for t in spec.inputs) else ():
            _trace_again(spec, reference, graph, halves[0], halves[0], rank)
        return replace(graph, nodes=_by_first(graph, halves)), notes
    bindings = [*halves[1:], *(b for b in map(dict, spec.dtype_bindings()) if b not in halves)]
    ranks = _ranks(spec) if any(ELLIPSIS in t.shape for t in spec.inputs) else ()
    others = itertools.zip_longest(bindings, ranks)
    again = [_trace_other(spec, reference, graph, halves[0], *other) for other in others]
    if len(halves) > 1:
        graph, again[0] = with_limits(graph, again[0], (halves[0], halves[1]))
    return replace(graph, nodes=_with_variables(spec, [graph, *again[: len(halves) - 1]], halves)), notes


def _halves(spec: OperatorSpec) -> list[Binding]:
    """Two bindings in which every float variable has another 16-bit dtype, which tells casts to one from fixed casts.

    Two variables are never alike in them, so that casts between the two stand in the trace.
    """
    base = {name: values[0] for name, values in spec.dtypes}
    floats = [n for n, values in spec.dtypes if len(values) > 1 and any("float" in v for v in values)]
    if len(floats) > 2:
        raise unsupported(spec, None, "more than two variables of float dtypes")
    kinds = ("float16", "bfloat16")
    first = base | dict(zip(floats, kinds, strict=False))
    return [first, base | dict(zip(floats, reversed(kinds), strict=False))] if floats else [first]


def _ranks(spec: OperatorSpec) -> tuple[int, ...]:
    """Other numbers of dimensions than one for "..." to stand for, of those that the constraints admit."""
    sizes = usual_sizes(spec)

    def is_admitted(rank: int) -> bool:
        return admits(spec, tuple({**sizes, ELLIPSIS: (3,) * rank}.items()))

    return tuple(rank for rank in (2, 0) if is_admitted(rank) or not is_admitted(1))


def _trace_other(
    spec: OperatorSpec, reference: Reference, first: Graph, usual: Binding, binding: Binding | None, leading: int | None
) -> Graph:
    """Trace under other conditions, None being the usual one. Another dtype and another number of leading dimensions
    are looked at together, a trace taking a tenth of a second and more, and one by one only where that goes wrong."""
    if binding is None or leading is None:
        return _trace_again(spec, reference, first, usual, binding or usual, 1 if leading is None else leading)
    with contextlib.suppress(SpecError):
        return _trace_again(spec, reference, first, usual, binding, leading)
    again = _trace_again(spec, reference, first, usual, binding, 1)
    _trace_again(spec, reference, first, usual, usual, leading)
    return again


def _trace_again(
    spec: OperatorSpec, reference: Reference, first: Graph, usual: Binding, binding: Binding, leading: int
) -> Graph:
    """Trace under other conditions; what comes out must be the same, but for what `torch.finfo` says of a dtype."""
    when, way_out = f"with {', '.join(f'{name}={dtype}' for name, dtype in binding.items())}", ""
    if leading != 1:
        when = f"with ... as {leading} dimensions"
    if leading == 0:
        name, rank = next((t.name, len(t.shape)) for t in spec.inputs if ELLIPSIS in t.shape)
        way_out = f" (if there always is one, write the constraint {name}.ndim >= {rank})"
    try:
        again = _trace_once(spec, reference, binding, leading)[0]
    except SpecError as error:
        found = [Mistake(m.path, m.line, m.column, f"{when}: {m.message}{way_out}") for m in error.mistakes]
        raise type(error)(found) from None
    limited = with_limits(first, again, (usual, binding))
    if not limited[1].agrees(limited[0]):
        raise unsupported(spec, None, f"{when} the reference computes something else than in other cases{way_out}")
    return again


def _with_variables(spec: OperatorSpec, traces: list[Graph], bindings: list[Binding]) -> tuple[Node, ...]:
    """The nodes with every rounding to what it rounds to: a fixed dtype, or the variable that its dtype follows. The
    same goes for what calls return."""
    rounds = [[(i, node) for i, node in enumerate(graph.nodes) if node.op in ("round", CALL)] for graph in traces]
    if len({len(found) for found in rounds}) > 1:
        raise unsupported(spec, None, "a cast to a fixed 16-bit dtype (cast to the dtype of an input)")
    nodes = list(traces[0].nodes)
    for same in zip(*rounds, strict=True):
        i, node = same[0]
        dtypes = [n.attrs[0] for _, n in same]
        names = [name for name in bindings[0] if [b[name] for b in bindings] == dtypes]
        if len(set(dtypes)) > 1:
            nodes[i] = replace(node, attrs=(names[0], *node.attrs[1:]))
    return tuple(nodes)


def _by_first(graph: Graph, halves: list[Binding]) -> tuple[Node, ...]:
    """The nodes of the first trace, where every cast to the dtype of a float variable is a cast to the variable."""
    first, other = halves[0], halves[-1]
    variables = {dtype: name for name, dtype in first.items() if other[name] != dtype}
    return tuple(
        replace(n, attrs=(variables[str(n.attrs[0])], *n.attrs[1:]))
        if n.op in ("round", CALL) and n.attrs[0] in variables
        else n
        for n in graph.nodes
    )


def _trace_once(
    spec: OperatorSpec, reference: Reference, binding: Binding, leading: int
) -> tuple[Graph, tuple[str, ...]]:
    """A trace at sizes of 37 and more, or of 157 and more where it would hold for some sizes alone: strided layers one
    after the other leave one element of the smaller ones, and torch then traces what is done with one."""
    try:
        return _trace_at(spec, reference, binding, leading, 0)
    except GuardError:
        with contextlib.suppress(SpecError):
            return _trace_at(spec, reference, binding, leading, LARGER)
        raise


def _builder(spec: OperatorSpec, *, whole: bool) -> Builder:
    cases = [{k: v for k, v in c.sizes if isinstance(v, int)} for c in (*spec.accuracy, *spec.performance)]
    return Builder(elastic=any(ELLIPSIS in t.shape for t in spec.inputs), sizes=cases, whole=whole)


def _trace_at(
    spec: OperatorSpec, reference: Reference, binding: Binding, leading: int, turned: int
) -> tuple[Graph, tuple[str, ...]]:
    exported = export(spec, reference, binding, leading, turned=turned)
    made = [n for n in exported.graph.nodes if n.op == "placeholder"][: -len(spec.inputs)]
    if made:
        lines = [line_of(reference, user) for user in made[0].users]
        raise unsupported(spec, next(iter(lines), None), "a tensor constant that the reference creates")
    builder = _builder(spec, whole=reference.whole)
    symbols = symbols_of(spec, exported, leading)
    values: dict[Any, Any] = {}
    roots: dict[int, Ref] = {}
    outputs: tuple[Any, ...] = ()
    inputs = iter(spec.inputs)
    parts: dict[Any, tuple[TensorSpec, int]] = {}
    """Traced inputs, each with how many steps are left to what the reference sees: each joins a dimension's two parts,
    and the last gives it the sizes that follow from other inputs'."""

    def given(node: Any) -> None:
        tensor, left = parts[node]
        meta = node.meta["val"]
        if not left:
            values[node] = builder.input(tensor.name, dims(meta.shape, symbols), kind(meta.dtype))

    for node in exported.graph.nodes:
        if node.op == "placeholder":
            tensor = next(inputs)
            parts[node] = tensor, len(joins(tensor)) + is_sized(tensor)
            given(node)
        elif node.op == "output":
            outputs = node.args[0]
        elif node.op == "call_function" and _joins(node, parts):
            tensor, left = parts[node.args[0]]
            parts[node] = tensor, left - 1
            given(node)
        elif node.op == "call_function":
            builder.statement = statement_of(reference, node)
            lower_node(spec, reference, builder, node, values, symbols)
            if isinstance(values.get(node), Ref) and builder.statement is not None:
                roots[builder.statement] = values[node]
    check_guards(spec, reference, exported, symbols_of(spec, exported, leading), binding, leading)
    for statement, ref in roots.items():
        target = reference.statements[statement].target
        if target and builder.node(ref).op != "input":
            builder.rename(ref, target)

    def sizes(entry: str) -> Dim:
        return declared_dim(entry, exported, symbols)

    declared = outputs_of(spec, outputs, values, binding, builder, leading, sizes)
    graph = Graph(
        tuple(builder.nodes),
        declared,
        reference.statements,
        frozenset(builder.held),
        frozenset(builder.deviations),
        tuple(builder.shortcuts),
        filled=tuple(builder.filled), rounded=tuple(builder.rounded.items()),
    )  # fmt: skip
    return graph, (*side_notes(spec), *builder.notes)


def _joins(node: Any, parts: dict[Any, tuple[TensorSpec, int]]) -> bool:
    """Whether a node is one of these steps; sizes may be asked before."""
    return bool(node.args and parts.get(node.args[0], (None, 0))[1]) and hasattr(node.meta.get("val"), "shape")


def statement_of(reference: Reference, node: Any) -> int | None:
    line = line_of(reference, node)
    return None if line is None else reference.statement_at.get(line)
