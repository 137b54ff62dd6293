"""Bags, segments, pools whose windows differ, windows as columns and back, and planes that are resized."""

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
    "F.max_pool2d(F.avg_pool2d(x, 5), 4)": ("x: N, L, 20 * V, 20 * D", "N, L, V, D"),
    "F.avg_pool2d(F.max_pool2d(x, 3, 2, 1).relu(), (3, 4), padding=1)": ("x: N, L, 6 * V, 8 * D", "N, L, V, D"),
    "F.adaptive_max_pool1d(x, 3)": ("x: N, 2, 7", "N, 2, 3"),
    "F.interpolate(x, scale_factor=3)": ("x: N, L, D", "N, L, 3 * D"),
    "F.interpolate(x, scale_factor=41)": ("x: N, L, D", "N, L, 41 * D"),  # not all by a division in float32
    "F.interpolate(x, scale_factor=2, mode='bilinear')": ("x: N, L, V, D", "N, L, 2 * V, 2 * D"),
    "F.interpolate(x, scale_factor=0.5, mode='bicubic')": ("x: N, L, 2 * V, 2 * D", "N, L, V, D"),
    "F.interpolate(x, y.shape, mode='bicubic', align_corners=True)": ("x: N, L, V, D; y: K, V", "N, L, K, V"),
    "F.interpolate(x, y.shape)": ("x: N, L, V, D; y: K, V", "N, L, K, V"),
    "F.fold(x, (5, 6), (3, 2), padding=1, stride=2)": ("x: N, 6 * L, 12", "N, L, 5, 6"),
    "F.unfold(x, (3, 2), padding=1, stride=2)": ("x: N, L, V, D", "N, 6 * L, (V + 1) // 2 * (D // 2 + 1)"),
    "F.pad(x, (2, 1), mode='circular')": ("x: N, D", "N, D + 3"),
    "torch.segment_reduce(x, 'mean', lengths=o, axis=0)": ("x: V, D; o: 3", "3, D"),
    "torch.segment_reduce(x, 'max', offsets=o, axis=0)": ("x: V, D; o: L", "L - 1, D"),
    "x.masked_scatter((m > 0)[:, None].expand_as(x), y)": ("x: N, D; m: N; y: V, D", "N, D"),
    "torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)).float()": ("x: N, D", "N, D"),
    "torch.searchsorted(x.cumsum(-1), y, right=True).float()": ("x: N, D; y: N, V", "N, V"),
    "torch.empty_like(x).scatter_(-1, x.argsort(-1), y)": ("x: N, D; y: N, D", "N, D"),
    "x[:, [2, 0]] - x.mean(-1, keepdim=True).expand(x.shape).sum(-1, keepdim=True)": ("x: N, D", "N, 2"),
    "x.quantile(0.3, dim=-1)": ("x: N, D", "N"),
    "F.gaussian_nll_loss(x, y, m.abs(), reduction='sum')": ("x: N, D; y: N, D; m: N", ""),
}
PLACES = {
    "torch.segment_reduce(x, 'mean', lengths=o, axis=0)": [2, 2, 1],
    "torch.segment_reduce(x, 'max', offsets=o, axis=0)": [0, 2, 2, 5],
}
LOADS = 64
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
        sizes = [eval(size, dict(SIZES)) for size in shape.split(", ")]
        given[name] = (torch.randint(0, 5, sizes) if name == "i" else torch.randn(sizes)).to(DEVICE)
    if "o" in given:
        given["o"] = torch.tensor(PLACES.get(text, [0, 4, 4]), device=DEVICE)
    if "searchsorted" in text:
        given["x"] = given["x"].abs()
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(spec.reference, scope)
    source = render.triton_source(plan)
    assert source.count("tl.load(") <= LOADS, "written out beyond what a person reads"
    made = load(source).op(*given.values())
    torch.testing.assert_close(made, scope["op"](*given.values()), rtol=1e-5, atol=1e-5)
