"""Bags of embeddings, pools whose windows differ, and planes that are resized whatever their size."""

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
{inputs}
outputs:
  - {{name: out, shape: [{out}], dtype: float32}}
reference: |
  def op({names}):
      return {text}
"""
BAGS = "w: V, D; i: N, L"
CASES = {
    "F.embedding_bag(i, w, mode='sum')": (BAGS, "N, D"),
    "F.embedding_bag(i, w, mode='max')": (BAGS, "N, D"),
    "F.embedding_bag(i, w)": ("w: V, D; i: N, 5", "N, D"),
    "F.embedding_bag(i, w, o)": ("w: V, D; i: K; o: 3", "3, D"),
    "F.embedding_bag(i, w, o, mode='sum')": ("w: V, D; i: K; o: 3", "3, D"),
    "F.adaptive_avg_pool2d(x, (3, 4))": ("x: N, 2, 7, 5", "N, 2, 3, 4"),
    "F.adaptive_max_pool1d(x, 3)": ("x: N, 2, 7", "N, 2, 3"),
    "F.interpolate(x, scale_factor=2, mode='bilinear')": ("x: N, L, V, D", "N, L, 2 * V, 2 * D"),
}
SIZES = {"N": 3, "L": 4, "D": 6, "V": 5, "K": 11}


@pytest.mark.parametrize("text", CASES)
def test_it_is_one_operator_without_calls(text: str) -> None:
    inputs, out = CASES[text]
    declared = [entry.split(": ") for entry in inputs.split("; ")]
    entries = [f"  - {{name: {n}, shape: [{s}], dtype: {'int64' if n in 'io' else 'float32'}}}" for n, s in declared]
    names = ", ".join(name for name, _ in declared)
    spec = parse_spec(SPEC.format(inputs="\n".join(entries), out=out, names=names, text=text), "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    assert not plan.calls
    torch.manual_seed(0)
    given: dict[str, torch.Tensor] = {}
    for name, shape in declared:
        sizes = [SIZES.get(size) or int(size) for size in shape.split(", ")]
        given[name] = (torch.randint(0, 5, sizes) if name == "i" else torch.randn(sizes)).to(DEVICE)
    if "o" in given:
        given["o"] = torch.tensor([0, 4, 4], device=DEVICE)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(spec.reference, scope)
    made = load(render.triton_source(plan)).op(*given.values())
    torch.testing.assert_close(made, scope["op"](*given.values()), rtol=1e-5, atol=1e-5)
