"""Rows in order: sorts, medians and what is read of them, with equal elements, NaN and infinity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import DEVICE, load

from kernelgen import families, frontend, render
from kernelgen.spec import parse_spec

SPEC = """\
name: op
inputs:
  - {{name: x, shape: [A, B, C], dtype: float32}}
outputs:
  - {{name: values, shape: [{shape}], dtype: float32}}
  - {{name: places, shape: [{shape}], dtype: int64}}
reference: |
  def op(x):
      found = {text}
      return found[0], found[1]
performance: {{shapes: [{{A: 2, B: {rows}, C: 7}}]}}
"""
CASES = {
    "torch.sort(x, stable=True)": "A, B, C",
    "torch.sort(x, dim=1, descending=True, stable=True)": "A, B, C",
    "x.abs().sort(dim=-1, descending=True, stable=True)": "A, B, C",
    "x.median(1)": "A, C",
    "x.median(-1, keepdim=True)": "A, B, 1",
    "x.kthvalue(2, 0)": "B, C",
}


def spec_of(text: str, rows: int = 33) -> Any:
    return parse_spec(SPEC.format(text=text, shape=CASES[text], rows=rows), "op.yaml")


@pytest.mark.parametrize("text", CASES)
def test_rows_are_in_torchs_order(text: str) -> None:
    spec = spec_of(text)
    plan = families.lower(spec, *frontend.trace(spec))
    assert any(kernel.family == "selection" for kernel in plan.kernels)
    module = load(render.triton_source(plan))
    scope: dict[str, Any] = {"torch": torch}
    exec(spec.reference, scope)
    torch.manual_seed(0)
    x = torch.randn(3, 5, 6).round(decimals=1).to(DEVICE)
    x[0, 1, 2:4], x[1, 2], x[2, :, 0], x[0, 0, 0] = float("nan"), -0.0, float("-inf"), float("inf")
    values, places = module.op(x)
    wanted = scope["op"](x)
    torch.testing.assert_close(values, wanted[0], equal_nan=True, rtol=0, atol=0)
    if "stable" in text:
        assert torch.equal(places, wanted[1])
    dim = {"A, B, C": -1, "A, C": 1, "A, B, 1": -1, "B, C": 0}[CASES[text]]
    if "dim=1" in text:
        dim = 1
    along = places if places.ndim == 3 else places.unsqueeze(dim)
    read = (x.abs() if "abs" in text else x).gather(dim, along)
    torch.testing.assert_close(read.view(values.shape), values, equal_nan=True, rtol=0, atol=0)


def test_long_rows_stay_torchs() -> None:
    text = "torch.sort(x, dim=1, descending=True, stable=True)"
    spec = spec_of(text, rows=5000)
    with pytest.raises(Exception, match=r"nothing left for a kernel: all of it is torch.sort"):
        families.lower(spec, *frontend.trace(spec))
