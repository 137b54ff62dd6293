"""Trace a reference to a graph with `torch.export` on tensors that have shapes but no memory.

Non-strict export of the training IR, without decomposition: core ATen would take apart what the reference says
(softmax, layer_norm) and lose its names. The trace is repeated for other dtypes and other numbers of leading
dimensions, and all must agree: a kernel is generated only for a reference that means one thing.
"""

from __future__ import annotations

import re
from typing import Any

from kernelgen.errors import Mistake, SpecError, UnsupportedError
from kernelgen.frontend.aten import TABLE, supported
from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Atom, Dim, Graph, Output, Ref, SizeOf, same_size
from kernelgen.frontend.reference import Reference, compile_reference
from kernelgen.frontend.rule import Call, Refused
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, Size

_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
"""Traced sizes: distinct, so that no two dimensions are taken for one by accident, and not special to torch."""

_IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "sym_", "_guards", "sym_constrain")

Binding = dict[str, str]


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
            raise _unsupported(spec, None, "the reference does something else for float32 than for float16")
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
                raise _unsupported(
                    spec,
                    None,
                    f"the reference does something else when ... is {leading} dimensions than when it is one",
                )
    return graph, notes


def _without_variables(graph: Graph) -> tuple[object, ...]:
    return graph.skeleton(rounds=False)


def _merge(spec: OperatorSpec, graph: Graph, other: Graph, half: Binding) -> Graph:
    """Tell a cast to a dtype variable from a cast to a fixed dtype: the first follows the variable's binding."""
    from dataclasses import replace

    if graph.skeleton(rounds=False) != other.skeleton(rounds=False) or len(graph.nodes) != len(other.nodes):
        raise _unsupported(spec, None, "the reference does something else for bfloat16 than for float16")
    nodes = list(graph.nodes)
    for i, (a, b) in enumerate(zip(graph.nodes, other.nodes, strict=True)):
        if a.op == "round" and a.attrs != b.attrs:
            variable = next(name for name, dtype in half.items() if dtype == a.attrs[0])
            nodes[i] = replace(a, attrs=(variable,))
    return replace(graph, nodes=tuple(nodes))


def _trace_once(
    spec: OperatorSpec, reference: Reference, binding: Binding, leading: int
) -> tuple[Graph, tuple[str, ...]]:
    exported = _export(spec, reference, binding, leading)
    builder = Builder()
    symbols = _symbols(spec, exported, leading)
    values: dict[Any, Any] = {}
    roots: dict[int, Ref] = {}
    outputs: tuple[Any, ...] = ()
    inputs = iter(spec.inputs)
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            tensor = next(inputs)
            meta = node.meta["val"]
            values[node] = builder.input(tensor.name, _dims(meta.shape, symbols), _kind(meta.dtype))
        elif node.op == "output":
            outputs = node.args[0]
        elif node.op == "call_function":
            builder.statement = _statement(reference, node)
            _lower(spec, reference, builder, node, values, symbols)
            if isinstance(values.get(node), Ref) and builder.statement is not None:
                roots[builder.statement] = values[node]
    for statement, ref in roots.items():
        target = reference.statements[statement].target
        if target and builder.node(ref).op != "input":
            builder.rename(ref, target)
    graph = Graph((), _outputs(spec, reference, outputs, values, binding, builder, leading), reference.statements)
    return Graph(tuple(builder.nodes), graph.outputs, graph.statements), tuple(builder.notes)


def _export(spec: OperatorSpec, reference: Reference, binding: Binding, leading: int) -> Any:
    import torch

    sizes = dict(zip(_size_names(spec), _PRIMES, strict=False))
    args = []
    for tensor in spec.inputs:
        shape: list[int] = []
        for entry in tensor.shape:
            shape += [5, 7][:leading] if entry == ELLIPSIS else [entry if isinstance(entry, int) else sizes[entry]]
        dtype = getattr(torch, binding.get(tensor.dtype, tensor.dtype))
        args.append(torch.empty(shape, dtype=dtype, device="meta"))
    dynamic = tuple(_dynamic(tensor.shape, leading) for tensor in spec.inputs)

    class Module(torch.nn.Module):
        def forward(self, *inputs: Any) -> Any:
            return reference.function(*inputs)

    Module.forward.__code__ = Module.forward.__code__.replace(co_name="call")  # only the reference's lines are kept
    try:
        return torch.export.export(Module(), tuple(args), strict=False, dynamic_shapes=(dynamic,))
    except Exception as error:
        raise _mistake(spec, _line_of(error, reference.file), f"the reference fails: {_first_line(error)}") from error


def _dynamic(shape: tuple[Size, ...], leading: int) -> dict[int, Any]:
    import torch

    entries: list[Size] = []
    for entry in shape:
        entries += [entry] * leading if entry == ELLIPSIS else [entry]
    return {i: torch.export.Dim.AUTO for i, e in enumerate(entries) if isinstance(e, str)}


def _size_names(spec: OperatorSpec) -> list[str]:
    names = dict.fromkeys(e for t in spec.inputs for e in t.shape if isinstance(e, str) and e != ELLIPSIS)
    return list(names)


def _symbols(spec: OperatorSpec, exported: Any, leading: int) -> dict[Any, Atom]:
    """torch's symbols by the spec's size names; two names for one symbol, or a fixed size, is a mistake of the spec."""
    names: dict[Any, Atom] = {}
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    for tensor, node in zip(spec.inputs, placeholders, strict=True):
        entries: list[Size] = []
        for entry in tensor.shape:
            entries += (
                [f"...{i}" if leading > 1 else ELLIPSIS for i in range(leading)] if entry == ELLIPSIS else [entry]
            )
        for entry, size in zip(entries, node.meta["val"].shape, strict=True):
            if isinstance(entry, int):
                continue
            if isinstance(size, int):
                raise _place(
                    spec,
                    tensor.place,
                    f"the reference takes {entry} of {tensor.name} to be {size}; declare that number",
                )
            known = names.setdefault(size.node.expr, entry)
            if known != entry:
                raise _place(
                    spec, tensor.place, f"the reference needs {known} and {entry} to be equal; give them one name"
                )
    return names


def _dims(shape: Any, symbols: dict[Any, Atom]) -> tuple[Dim, ...]:
    return tuple(_dim(size, symbols) for size in shape)


def _dim(size: Any, symbols: dict[Any, Atom]) -> Dim:
    if isinstance(size, int):
        return () if size == 1 else (size,)
    expression = size.node.expr
    if expression in symbols:
        return (symbols[expression],)
    coefficient, factors = expression.as_coeff_mul()
    atoms: list[Atom] = [] if coefficient == 1 else [int(coefficient)]
    for factor in factors:
        base, power = factor.as_base_exp()
        if base not in symbols or not power.is_Integer or power < 1:
            raise Refused(f"a size that is not a product of declared sizes: {expression}")
        atoms += [symbols[base]] * int(power)
    return tuple(atoms)


def _kind(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "float" if dtype.is_floating_point else name


def _lower(
    spec: OperatorSpec, reference: Reference, b: Builder, node: Any, values: dict[Any, Any], symbols: dict[Any, Atom]
) -> None:
    name = str(node.target)
    if any(part in name for part in _IGNORED):
        meta = node.meta.get("val")
        if meta is not None and not hasattr(meta, "shape"):
            values[node] = _size_value(meta, symbols)
        return
    try:
        if "getitem" in name:
            values[node] = _item(values[node.args[0]], node.args[1])
            return
        meta = node.meta["val"]
        if not hasattr(meta, "shape") and not isinstance(meta, tuple):
            values[node] = _size_value(meta, symbols)
            return
        multiple = name in ("aten.max.dim", "aten.min.dim")
        first = meta[0] if multiple else meta
        rule = TABLE.get("aten.amax.default" if name == "aten.max.dim" else "aten.amin.default" if multiple else name)
        if rule is None or isinstance(first, tuple):
            raise Refused(name.removeprefix("aten.") + f" (supported: {', '.join(supported())})")
        call = Call(
            tuple(_argument(a, values) for a in node.args),
            {k: _argument(v, values) for k, v in node.kwargs.items()},
            _dims(first.shape, symbols), _kind(first.dtype), str(first.dtype).removeprefix("torch."),
        )  # fmt: skip
        value = rule(b, call)
        values[node] = (value, None) if multiple else value
    except Refused as refusal:
        raise _unsupported(spec, _line(reference, node), str(refusal)) from None


def _item(value: Any, index: int) -> Any:
    picked = value[index]
    if picked is None:
        raise Refused("the indices of a maximum or minimum")
    return picked


def _size_value(meta: Any, symbols: dict[Any, Atom]) -> Any:
    if isinstance(meta, int | float | bool) or meta is None:
        return meta
    try:
        return SizeOf(_dim(meta, symbols))
    except Refused:
        return meta


def _argument(value: Any, values: dict[Any, Any]) -> Any:
    if hasattr(value, "op") and hasattr(value, "meta"):
        result = values.get(value)
        if isinstance(result, tuple):
            raise Refused("a value that is several tensors")
        return result
    if isinstance(value, list | tuple):
        return [_argument(v, values) for v in value]
    return value


def _statement(reference: Reference, node: Any) -> int | None:
    line = _line(reference, node)
    return None if line is None else reference.statement_at.get(line)


def _line(reference: Reference, node: Any) -> int | None:
    found = re.findall(rf'File "{re.escape(reference.file)}", line (\d+)', node.meta.get("stack_trace") or "")
    return int(found[-1]) if found else None


def _line_of(error: BaseException, file: str) -> int | None:
    trace_back, line = error.__traceback__, None
    while trace_back is not None:
        if trace_back.tb_frame.f_code.co_filename == file:
            line = trace_back.tb_lineno
        trace_back = trace_back.tb_next
    return line


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _outputs(
    spec: OperatorSpec,
    reference: Reference,
    outputs: Any,
    values: dict[Any, Any],
    binding: Binding,
    b: Builder,
    leading: int,
) -> tuple[Output, ...]:
    if len(outputs) != len(spec.outputs):
        raise _mistake(
            spec, None, f"the reference returns {len(outputs)} tensors, but outputs declares {len(spec.outputs)}"
        )
    found = []
    for declared, node in zip(spec.outputs, outputs, strict=True):
        if node not in values or not isinstance(values[node], Ref):
            raise _mistake(spec, None, f"the reference returns something that is not a tensor for {declared.name}")
        ref: Ref = values[node]
        meta = node.meta["val"]
        _check_output(spec, declared, b.node(ref).shape, str(meta.dtype).removeprefix("torch."), binding, leading)
        if b.node(ref).op != "input" and b.node(ref).name is None:
            b.rename(ref, declared.name)
        found.append(Output(declared.name, ref.node, declared.dtype))
    return tuple(found)


def _check_output(
    spec: OperatorSpec, declared: Any, shape: tuple[Dim, ...], dtype: str, binding: Binding, leading: int
) -> None:
    wanted: list[Dim] = []
    for entry in declared.shape:
        if entry == ELLIPSIS:
            wanted += [(f"...{i}" if leading > 1 else ELLIPSIS,) for i in range(leading)]
        else:
            wanted.append(() if entry == 1 else (entry,))
    if len(wanted) != len(shape) or not all(same_size(a, b) for a, b in zip(wanted, shape, strict=True)):
        raise _place(
            spec,
            declared.place,
            f"outputs declares {declared.name} as {_show(tuple(wanted))}, but the reference returns {_show(shape)}",
        )
    if binding.get(declared.dtype, declared.dtype) != dtype:
        names = {v: k for k, v in binding.items()}
        raise _place(
            spec,
            declared.place,
            f"outputs declares {declared.name} as {declared.dtype}, but the reference returns {names.get(dtype, dtype)}",
        )


def _show(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("*".join(str(a) for a in dim) or "1" for dim in shape) + "]"


def _place(spec: OperatorSpec, place: Any, message: str) -> SpecError:
    return SpecError([Mistake(spec.path, place.line, place.column, message)])


def _mistake(spec: OperatorSpec, line: int | None, message: str) -> SpecError:
    return SpecError([_at(spec, line, message)])


def _unsupported(spec: OperatorSpec, line: int | None, message: str) -> UnsupportedError:
    return UnsupportedError([_at(spec, line, f"unsupported: {message}")])


def _at(spec: OperatorSpec, line: int | None, message: str) -> Mistake:
    place = spec.reference_place
    return Mistake(spec.path, place.line + (line or 1) - 1, place.column, message)
