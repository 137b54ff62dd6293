"""Is `ModelNew` right by KernelBench's own rule? The same seeds, and torch.allclose within its tolerance.

Where it is not, who is off? torch's own convolutions of float32 multiply as TF32, and two results that both miss the
exact one by less than the tolerance may differ by more. Both are then measured against float64, in terms of the
tolerance, and `as_precise` is true where ModelNew's largest error is at most AS_WRONG times the original's, or within
the tolerance. `right` stays what KernelBench says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
"""Absolute and relative, from KernelBench's evaluation."""

AS_WRONG = 2.0
"""ModelNew may miss the exact result by so many times what the original misses it by."""

SEEDS = (42, 43, 44)


def compare(original: Path, exported: Path, dtype: str, device: str = "cuda") -> dict[str, Any]:
    """Run Model and ModelNew on the same inputs of the file's own sizes; both made with the same seed.

    Inputs are drawn on the device, and so are weights where the constructors can: on the host that would take longer
    than everything else.
    """
    import torch

    scopes = [_run(path) for path in (original, exported)]
    cast = _caster(getattr(torch, dtype), device)
    worst = 0.0
    for seed in SEEDS if dtype == "float32" else SEEDS[:1]:
        models = _models(scopes, seed, device, getattr(torch, dtype))
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
            differs = f"differs by {worst:.3g}"
            found = {"right": False, "message": differs, "max_difference": worst}
            return found | _against_truth(models[0], inputs, wanted, got, TOLERANCE[dtype], differs)
    return {"right": True, "max_difference": worst}


def _models(scopes: Sequence[Any], seed: int, device: str, dtype: Any) -> list[Any]:
    """Model and ModelNew, both made on the device, or both on the host where one needs what lies there."""
    import torch

    def made(where: str) -> list[Any]:
        found = []
        for scope, name in zip(scopes, ("Model", "ModelNew"), strict=True):
            torch.manual_seed(seed)
            with torch.device(where):
                found.append(getattr(scope, name)(*scope.get_init_inputs()).to(device, dtype))
        return found

    try:
        return made(device)
    except (RuntimeError, TypeError, ValueError):
        return made("cpu")


def _against_truth(
    model: Any, inputs: list[Any], wanted: Any, got: Any, tolerance: float, differs: str
) -> dict[str, Any]:
    """Who is right where the two differ; nothing where the exact result cannot be had."""
    true = _truth(model, inputs)
    if true is None:
        return {}
    ours, theirs = (_error(x.double(), true.double(), tolerance) for x in (got, wanted))
    said = f"{differs}; float64 is missed by {ours:.3g} times the tolerance, by the original by {theirs:.3g}"
    as_precise = ours <= max(AS_WRONG * theirs, 1.0)
    return {"as_precise": as_precise, "error": ours, "original_error": theirs, "message": said}


def _error(value: Any, true: Any, tolerance: float) -> float:
    """The largest error in terms of what allclose accepts."""
    return float(((value - true).abs() / (tolerance * (1 + true.abs()))).max())


def _truth(model: Any, inputs: list[Any]) -> Any:
    """The original in float64; in float32 without TF32 where that is more than the device holds or an operation takes;
    None where neither can be had."""
    import torch

    floats = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs]
    for dtype in (torch.float64, torch.float32):
        exact = [value.to(dtype) if is_float else value for value, is_float in zip(inputs, floats, strict=True)]
        products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        try:
            with torch.no_grad():
                return model.to(dtype)(*exact)
        except RuntimeError:
            continue
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
    return None


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
