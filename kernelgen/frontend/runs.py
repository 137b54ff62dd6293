"""Does a reference that is not traced do what its spec says? It is run, once a combination of dtypes."""

from __future__ import annotations

from math import prod
from typing import Any

from kernelgen.errors import Mistake, SpecError
from kernelgen.frontend.mistakes import at_place, first_line, mistake, raised_at
from kernelgen.frontend.reference import compile_reference
from kernelgen.spec.model import Case, OperatorSpec, Place, TensorSpec


def check_runs(spec: OperatorSpec) -> None:
    """Run the reference on zeros of the smallest accuracy case of every combination of dtypes.

    Raises SpecError where it fails, or does not return the shapes and dtypes that `outputs` declares.
    """
    import torch

    reference = compile_reference(spec)
    for case in _smallest(spec):
        inputs = [torch.zeros(case.shape(t.shape), dtype=getattr(torch, case.dtype(t.dtype))) for t in spec.inputs]
        try:
            with torch.no_grad():
                returned = reference.function(*inputs)
        except Exception as error:
            message = f"the reference fails at {case.label}: {first_line(error)}"
            raise mistake(spec, raised_at(error, reference.file), message) from error
        _check(spec, case, returned if isinstance(returned, tuple) else (returned,))


def check_listed(spec: OperatorSpec) -> None:
    """Raise SpecError for a listed shape that the reference does not take where it takes others, which tensors without
    memory show."""
    reference = compile_reference(spec)
    failed: dict[Place, tuple[str, Exception]] = {}
    taken = False
    for case in (*spec.accuracy, *spec.performance):
        inputs = [_without_memory(t, case) for t in spec.inputs]
        try:
            reference.function(*inputs)
            taken = True
        except Exception as error:
            failed.setdefault(case.place, (case.label, error))
    if taken and failed:
        raise SpecError([
            Mistake(spec.path, place.line, place.column, f"{label}: the reference fails: {first_line(error)}")
            for place, (label, error) in failed.items()
        ])  # fmt: skip


def _without_memory(tensor: TensorSpec, case: Case) -> Any:
    import torch

    told: Any
    told, dtype = case.argument(tensor)
    return told if dtype == "value" else torch.empty(told, dtype=getattr(torch, dtype), device="meta")


def _smallest(spec: OperatorSpec) -> list[Case]:
    """A case with elements for every combination of dtypes, by the elements of its tensors."""
    found: dict[object, Case] = {}
    for case in sorted(spec.accuracy, key=lambda one: _elements(spec, one)):
        if all(prod(case.shape(t.shape)) for t in spec.inputs):
            found.setdefault(case.dtypes, case)
    return list(found.values())


def _elements(spec: OperatorSpec, case: Case) -> int:
    return sum(prod(case.shape(t.shape)) for t in (*spec.inputs, *spec.outputs))


def _check(spec: OperatorSpec, case: Case, returned: tuple[Any, ...]) -> None:
    import torch

    if len(returned) != len(spec.outputs):
        count = len(spec.outputs)
        raise mistake(spec, None, f"the reference returns {len(returned)} tensors, but outputs declares {count}")
    for declared, tensor in zip(spec.outputs, returned, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise mistake(spec, None, f"the reference returns something that is not a tensor for {declared.name}")
        wanted = f"{case.dtype(declared.dtype)} {list(case.shape(declared.shape))}"
        got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        if got != wanted:
            message = f"outputs declares {declared.name} as {wanted} at {case.label}, but the reference returns {got}"
            raise at_place(spec, declared.place, message)
