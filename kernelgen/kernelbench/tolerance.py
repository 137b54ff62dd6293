"""Is `ModelNew` right by KernelBench's own rule? The same seeds, and torch.allclose within its tolerance."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
"""Absolute and relative, from KernelBench's evaluation."""

SEEDS = (42, 43, 44)


def compare(original: Path, exported: Path, dtype: str, device: str = "cuda") -> dict[str, Any]:
    """Run Model and ModelNew on the same inputs of the file's own sizes; both made with the same seed.

    The inputs are drawn on the device: on the host they would take longer than everything else.
    """
    import torch

    scopes = [_run(path) for path in (original, exported)]
    cast = _caster(getattr(torch, dtype), device)
    worst = 0.0
    for seed in SEEDS if dtype == "float32" else SEEDS[:1]:
        models = []
        for scope, name in zip(scopes, ("Model", "ModelNew"), strict=True):
            torch.manual_seed(seed)
            models.append(getattr(scope, name)(*scope.get_init_inputs()).to(device, getattr(torch, dtype)))
        torch.manual_seed(seed)
        with torch.device(device):
            inputs = [cast(value) for value in scopes[0].get_inputs()]
        with torch.no_grad():
            try:
                wanted = models[0](*inputs)
            except RuntimeError as error:  # so torch says of a dtype that an operation does not take, too
                return {"right": None, "message": f"the original fails: {str(error).splitlines()[0]}"}
            got = models[1](*inputs)
        if wanted.shape != got.shape:
            return {"right": False, "message": f"shape {tuple(got.shape)} where {tuple(wanted.shape)} is right"}
        right = torch.allclose(wanted, got, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        worst = max(worst, (wanted.float() - got.float()).abs().max().item()) if wanted.numel() else worst
        if not right:
            found = {"message": f"differs by {worst:.3g}", "max_difference": worst}
            return found | _against_float64(models[0], inputs, wanted, got, TOLERANCE[dtype])
    return {"right": True, "max_difference": worst}


def _against_float64(model: Any, inputs: list[Any], wanted: Any, got: Any, tolerance: float) -> dict[str, Any]:
    """Who is right where the two differ: an original that is itself off says nothing of ours."""
    import torch

    floats = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs]
    exact = [value.double() if is_float else value for value, is_float in zip(inputs, floats, strict=True)]
    try:
        with torch.no_grad():
            true = model.double()(*exact)
        ours, theirs = (torch.allclose(true, x.double(), atol=tolerance, rtol=tolerance) for x in (got, wanted))
    except RuntimeError:  # float64 is more than the device holds, or than an operation takes
        return {"right": False}
    if ours and not theirs:
        return {"right": None, "message": "the original misses float64 by more than the tolerance, ModelNew does not"}
    return {"right": False}


def _run(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"kernelbench_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _caster(dtype: Any, device: str) -> Callable[[Any], Any]:
    """Tensors to the device, floats among them to the precision under test."""
    import torch

    def cast(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    return cast
