"""Trace a reference to a graph with `torch.export` on tensors that have shapes but no memory.

Non-strict export of the training IR, without decomposition: core ATen would take apart what the reference says
(softmax, layer_norm) and lose its names. The trace is repeated for other dtypes and other numbers of leading
dimensions, and all must agree: a kernel is generated only for a reference that means one thing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelgen.errors import Mistake, SpecError
from kernelgen.frontend.build import Builder
from kernelgen.frontend.export import Binding, dims, export, kind, symbols_of
from kernelgen.frontend.graph import Graph, Ref
from kernelgen.frontend.mistakes import line_of, unsupported
from kernelgen.frontend.nodes import lower_node
from kernelgen.frontend.outputs import outputs_of
from kernelgen.frontend.reference import Reference, compile_reference
from kernelgen.spec.model import ELLIPSIS, OperatorSpec


def trace(spec: OperatorSpec) -> tuple[Graph, tuple[str, ...]]:
    """The graph of a spec's reference, with notes for the reviewer.

    Raises SpecError where the reference fails or does not return what `outputs` declares, UnsupportedError where an
    operation has no rule or the reference does different things for different dtypes or ranks.
    """
    reference = compile_reference(spec)
    floats = [name for name, values in spec.dtypes if any("float" in v for v in values)]
    base = {name: values[0] for name, values in spec.dtypes}
    half = {**base, **dict.fromkeys(floats, "float16")}
    graph, notes = _trace_once(spec, reference, half, 1)
    other, _ = _trace_once(spec, reference, {**base, **dict.fromkeys(floats, "bfloat16")}, 1)
    graph = _merge(spec, graph, other, half)
    if any("float32" in values for _, values in spec.dtypes):
        single, _ = _trace_once(spec, reference, {**base, **dict.fromkeys(floats, "float32")}, 1)
        if single.skeleton(rounds=False) != graph.skeleton(rounds=False):
            raise unsupported(spec, None, "the reference does something else for float32 than for float16")
    if any(ELLIPSIS in t.shape for t in spec.inputs):
        for leading in (0, 2):
            try:
                again = _trace_once(spec, reference, half, leading)[0]
            except SpecError as error:
                raise SpecError(
                    [
                        Mistake(m.path, m.line, m.column, f"with ... as {leading} dimensions: {m.message}")
                        for m in error.mistakes
                    ]
                ) from None
            if _without_variables(again) != _without_variables(graph):
                raise unsupported(
                    spec,
                    None,
                    f"the reference does something else when ... is {leading} dimensions than when it is one",
                )
    return graph, notes


def _without_variables(graph: Graph) -> tuple[object, ...]:
    return graph.skeleton(rounds=False)


def _merge(spec: OperatorSpec, graph: Graph, other: Graph, half: Binding) -> Graph:
    """Tell a cast to a dtype variable from a cast to a fixed dtype: the first follows the variable's binding."""
    if graph.skeleton(rounds=False) != other.skeleton(rounds=False) or len(graph.nodes) != len(other.nodes):
        raise unsupported(spec, None, "the reference does something else for bfloat16 than for float16")
    nodes = list(graph.nodes)
    for i, (a, b) in enumerate(zip(graph.nodes, other.nodes, strict=True)):
        if a.op == "round" and a.attrs != b.attrs:
            variable = next(name for name, dtype in half.items() if dtype == a.attrs[0])
            nodes[i] = replace(a, attrs=(variable,))
    return replace(graph, nodes=tuple(nodes))


def _trace_once(
    spec: OperatorSpec, reference: Reference, binding: Binding, leading: int
) -> tuple[Graph, tuple[str, ...]]:
    exported = export(spec, reference, binding, leading)
    builder = Builder()
    symbols = symbols_of(spec, exported, leading)
    values: dict[Any, Any] = {}
    roots: dict[int, Ref] = {}
    outputs: tuple[Any, ...] = ()
    inputs = iter(spec.inputs)
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            tensor = next(inputs)
            meta = node.meta["val"]
            values[node] = builder.input(tensor.name, dims(meta.shape, symbols), kind(meta.dtype))
        elif node.op == "output":
            outputs = node.args[0]
        elif node.op == "call_function":
            builder.statement = statement_of(reference, node)
            lower_node(spec, reference, builder, node, values, symbols)
            if isinstance(values.get(node), Ref) and builder.statement is not None:
                roots[builder.statement] = values[node]
    for statement, ref in roots.items():
        target = reference.statements[statement].target
        if target and builder.node(ref).op != "input":
            builder.rename(ref, target)
    graph = Graph((), outputs_of(spec, outputs, values, binding, builder, leading), reference.statements)
    return Graph(tuple(builder.nodes), graph.outputs, graph.statements), tuple(builder.notes)


def statement_of(reference: Reference, node: Any) -> int | None:
    line = line_of(reference, node)
    return None if line is None else reference.statement_at.get(line)
