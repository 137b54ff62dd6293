"""What a traced reference returns, held against what the spec declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelgen.frontend.build import Builder
from kernelgen.frontend.export import Binding
from kernelgen.frontend.graph import Dim, Output, Ref, same_size
from kernelgen.frontend.mistakes import at_place, mistake
from kernelgen.spec.model import ELLIPSIS, OperatorSpec
from kernelgen.spec.sizes import is_expression, size_text


def outputs_of(
    spec: OperatorSpec,
    outputs: Any,
    values: dict[Any, Any],
    binding: Binding,
    b: Builder,
    leading: int,
    sizes: Callable[[str], Dim],
) -> tuple[Output, ...]:
    """The outputs in the order of their declarations; `sizes` gives a declared expression as a dimension."""
    if len(outputs) != len(spec.outputs):
        raise mistake(
            spec, None, f"the reference returns {len(outputs)} tensors, but outputs declares {len(spec.outputs)}"
        )
    found = []
    for declared, node in zip(spec.outputs, outputs, strict=True):
        if node not in values or not isinstance(values[node], Ref):
            raise mistake(spec, None, f"the reference returns something that is not a tensor for {declared.name}")
        ref: Ref = values[node]
        meta = node.meta["val"]
        _check_output(
            spec, declared, b.node(ref).shape, str(meta.dtype).removeprefix("torch."), binding, leading, sizes
        )
        if b.node(ref).op != "input" and b.node(ref).name is None:
            b.rename(ref, declared.name)
        found.append(Output(declared.name, ref.node, declared.dtype, meta.is_contiguous()))
    return tuple(found)


def _check_output(
    spec: OperatorSpec,
    declared: Any,
    shape: tuple[Dim, ...],
    dtype: str,
    binding: Binding,
    leading: int,
    sizes: Callable[[str], Dim],
) -> None:
    wanted: list[Dim] = []
    for entry in declared.shape:
        if entry == ELLIPSIS:
            wanted += [(f"...{i}" if leading > 1 else ELLIPSIS,) for i in range(leading)]
        elif is_expression(entry):
            try:
                wanted.append(sizes(entry))
            except ZeroDivisionError:
                message = f"outputs declares {declared.name} with a size of {entry}, which divides by zero"
                raise at_place(spec, declared.place, message) from None
        else:
            wanted.append(() if entry == 1 else (entry,))
    if len(wanted) != len(shape) or not all(same_size(a, b) for a, b in zip(wanted, shape, strict=True)):
        raise at_place(
            spec,
            declared.place,
            f"outputs declares {declared.name} as {_show(tuple(wanted))}, but the reference returns {_show(shape)}",
        )
    if binding.get(declared.dtype, declared.dtype) != dtype:
        names = {v: k for k, v in binding.items()}
        raise at_place(
            spec,
            declared.place,
            f"outputs declares {declared.name} as {declared.dtype}, "
            f"but the reference returns {names.get(dtype, dtype)}",
        )


def _show(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(size_text(dim) or '1' for dim in shape)}]"
