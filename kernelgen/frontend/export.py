"""One run of `torch.export` over a reference, and torch's symbolic sizes by the spec's names."""

from __future__ import annotations

import logging
import re
from typing import Any

from kernelgen.frontend.graph import Atom, Dim
from kernelgen.frontend.mistakes import at_place, first_line, mistake, raised_at, unsupported
from kernelgen.frontend.reference import Reference
from kernelgen.frontend.rule import Refused
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, Size

_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
"""Traced sizes: distinct, so that no two dimensions are taken for one by accident, and not special to torch."""

Binding = dict[str, str]
"""A dtype for every dtype variable of the spec."""


def export(spec: OperatorSpec, reference: Reference, binding: Binding, leading: int) -> Any:
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
    noise = logging.getLogger("torch._subclasses.fake_tensor")  # logs a traceback where one line is raised below
    noise.disabled = True
    try:
        return torch.export.export(Module(), tuple(args), strict=False, dynamic_shapes=(dynamic,))
    except Exception as error:
        raise mistake(spec, raised_at(error, reference.file), f"the reference fails: {first_line(error)}") from error
    finally:
        noise.disabled = False


def _dynamic(shape: tuple[Size, ...], leading: int) -> dict[int, Any]:
    import torch

    entries: list[Size] = []
    for entry in shape:
        entries += [entry] * leading if entry == ELLIPSIS else [entry]
    return {i: torch.export.Dim.AUTO for i, e in enumerate(entries) if isinstance(e, str)}


def _size_names(spec: OperatorSpec) -> list[str]:
    names = dict.fromkeys(e for t in spec.inputs for e in t.shape if isinstance(e, str) and e != ELLIPSIS)
    return list(names)


def symbols_of(spec: OperatorSpec, exported: Any, leading: int) -> dict[Any, Atom]:
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
                raise at_place(
                    spec,
                    tensor.place,
                    f"the reference takes {entry} of {tensor.name} to be {size}; declare that number",
                )
            known = names.setdefault(size.node.expr, entry)
            if known != entry:
                raise at_place(
                    spec, tensor.place, f"the reference needs {known} and {entry} to be equal; give them one name"
                )
    return names


def check_guards(spec: OperatorSpec, exported: Any, names: dict[Any, Atom]) -> None:
    """Refuse a reference whose trace holds only for some sizes means something else for the others."""
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    sizes = [size for node in placeholders for size in node.meta["val"].shape if not isinstance(size, int)]
    if not sizes:
        return
    environment = sizes[0].node.shape_env
    for guard in environment.guards:
        condition = environment.replace(guard.expr)  # sizes that were found equal become one: D == D holds
        if condition.free_symbols:
            shown = str(condition)
            for symbol, name in names.items():
                shown = re.sub(rf"\b{symbol}\b", str(name), shown)
            raise unsupported(spec, None, f"a reference that does one thing where {shown} and another elsewhere")


def dims(shape: Any, symbols: dict[Any, Atom]) -> tuple[Dim, ...]:
    return tuple(dim(size, symbols) for size in shape)


def dim(size: Any, symbols: dict[Any, Atom]) -> Dim:
    if isinstance(size, int):
        return () if size == 1 else (size,)
    expression = size.node.expr
    if expression in symbols:
        return (symbols[expression],)
    if not hasattr(expression, "as_coeff_mul"):
        raise Refused(f"a condition on sizes: {expression}")
    coefficient, factors = expression.as_coeff_mul()
    atoms: list[Atom] = [] if coefficient == 1 else [int(coefficient)]
    for factor in factors:
        base, power = factor.as_base_exp()
        if base not in symbols or not power.is_Integer or power < 1:
            raise Refused(f"a size that is not a product of declared sizes: {expression}")
        atoms += [symbols[base]] * int(power)
    return tuple(atoms)


def kind(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "float" if dtype.is_floating_point else name
