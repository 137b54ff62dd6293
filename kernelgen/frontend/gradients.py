"""Whether torch itself can differentiate a reference, against which its gradients are tested."""

from __future__ import annotations

import re
from typing import Any

from kernelgen.frontend.mistakes import raised_at, unsupported
from kernelgen.frontend.reference import Reference, compile_reference
from kernelgen.spec.model import Case, OperatorSpec


def check_differentiable(spec: OperatorSpec) -> None:
    """Run the reference forward and back on tensors without memory, as the test of the gradients will.

    Raises UnsupportedError where torch has no derivative for an input, or needs what the reference has overwritten.
    Whatever else may go wrong is told by the trace.
    """
    case = next((c for c in spec.accuracy if all(0 not in c.shape(t.shape) for t in spec.inputs)), None)
    if case is None:
        return
    reference = compile_reference(spec)
    wanted = [t.name for t in spec.inputs if t.role not in ("like", "constant")]
    error = _error(spec, reference, case, wanted)
    line = raised_at(error, reference.file) if error else None
    found = re.search(r"The function '(\w+)' is not differentiable with respect to argument '(\w+)'", str(error))
    if found:
        blamed = [n for n in wanted if _error(spec, reference, case, [other for other in wanted if other != n]) is None]
        named = f"; give {blamed[0]} role: constant" if blamed else "; give that input role: constant"
        raise unsupported(spec, line, f"torch has no gradient of {found[1]} for its {found[2]}{named}")
    if "modified by an inplace operation" in str(error):
        raise unsupported(
            spec, line, "backward: true, but the reference overwrites in place what torch needs for a gradient"
        )


def _error(spec: OperatorSpec, reference: Reference, case: Case, wanted: list[str]) -> Exception | None:
    """What torch says to the gradients of the wanted inputs, None where it has them all."""
    import torch

    tensors: list[Any] = []
    for tensor in spec.inputs:
        made = torch.empty(case.shape(tensor.shape), dtype=getattr(torch, case.dtype(tensor.dtype)), device="meta")
        tensors.append(made.requires_grad_(made.dtype.is_floating_point and tensor.name in wanted))
    try:
        results = reference.function(*tensors)
        floats = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
        torch.autograd.backward(floats, [torch.empty_like(r) for r in floats])
    except Exception as error:
        return error
    return None
