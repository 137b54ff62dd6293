"""Reductions of a few elements that lie apart: written out where one kernel then does what takes several, and right."""

from __future__ import annotations

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen import families, frontend, render
from kernelgen.frontend.short import MOST, without_short_reductions
from kernelgen.plan import KernelPlan
from kernelgen.spec import parse_spec

SIZES = {"B": 3, "D": 17}
ROWS = "a, b = torch.log_softmax(x[:, 0].float(), -1), torch.softmax(x[:, 1].float(), -1)\n"
WRITTEN = {
    "log of a sum of exponentials": "m = torch.logsumexp(torch.stack((a, b)), 0)\nreturn (a - m).sum(-1)",
    "mean": "m = torch.stack((a, b, a * b)).mean(0)\nreturn (m * b).sum(-1)",
    "greatest and least": "m = torch.stack((a, b))\nreturn (m.amax(0) - m.amin(0)).sum(-1)",
    "variance": "m = torch.stack((a, b)).var(0)\nreturn (m * a).amax(-1)",
    "integers": "m = (torch.stack((a, b)) > -1).sum(0)\nreturn (m * b).sum(-1)",
}
WHOLE = {
    "a softmax": "return torch.softmax(x.float(), 1).sum(-1).to(x.dtype)",
    "shares": "return (x / x.abs().sum(1, keepdim=True)).to(x.dtype)",
    "weighted": "w = torch.softmax(x.float().mean(-1), -1)\nreturn (x.float() * w[..., None]).sum(1).to(x.dtype)",
}


def of(lines: str, out: str = "B: float32") -> Sample:
    return sample(lines, {"x": "B 4 D"}, {"out": out}, SIZES, {"B": 1, "D": 1})


@pytest.mark.parametrize("name", WRITTEN)
def test_what_follows_them_is_one_kernel_with_them(name: str) -> None:
    found = of(ROWS + WRITTEN[name])
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "reduction"
    assert failures(found, thorough=False) == []


@pytest.mark.parametrize("name", WHOLE)
def test_they_stay_where_kernels_are_as_many(name: str) -> None:
    out = {"a softmax": "B 4", "shares": "B 4 D"}.get(name, "B D")
    found = of(WHOLE[name], out)
    assert all(kernel.family == "reduction" for kernel in plan_of(found.spec()).kernels)
    assert failures(found, thorough=False) == []


@pytest.mark.parametrize(
    "line",
    [
        "x.float().sum(1)", "(x - x[:, :1]).amax(1)", "(x * y[..., None]).mean(1)",
        "(x.float() * torch.softmax(y.float(), -1)[..., None]).sum(1)",
        "(x.float() * (y.float() / (y.float().norm(dim=-1, keepdim=True) + 1))[..., None]).sum(1)",
    ],
)  # fmt: skip
def test_alone_they_are_no_reduction(line: str) -> None:
    found = sample(f"return {line}.to(x.dtype)", {"x": "B 4 D", "y": "B 4"}, {"out": "B D"}, SIZES, {"B": 1, "D": 1})
    assert [kernel.family for kernel in plan_of(found.spec()).kernels] == ["pointwise"]
    assert failures(found, thorough=False) == []


@pytest.mark.parametrize("lines", ["return x.sum(1).sum(1).sum(1)", "return (x.sum(-1).sum(-1) * y[:, None]).sum(1)"])
def test_what_would_load_too_much_stays(lines: str) -> None:
    x, out = ("B 4 8 4 D", "B D") if "x.sum(1)" in lines else ("B 4 8 8", "B")
    found = sample(lines, {"x": x, "y": "B"}, {"out": out}, SIZES, {"B": 1, "D": 1})
    assert "pointwise" not in [kernel.family for kernel in plan_of(found.spec()).kernels]
    assert failures(found, thorough=False) == []


def test_reductions_of_reductions_are_written_out_as_far_as_there_are_few_elements_in_all() -> None:
    found = sample("return x.sum(1).sum(1).sum(1)", {"x": "B 4 2 4 D"}, {"out": "B D"}, SIZES)
    graph, _ = frontend.trace(found.spec())
    left = [node for node in without_short_reductions(graph).nodes if node.op == "sum"]
    assert len(left) == 1
    assert sum(node.op == "sum" for node in graph.nodes) == 3
    assert MOST == 8


def test_a_type_that_is_stated_stays() -> None:
    text = """\
name: op
type: reduction
inputs:
  - {name: x, shape: [B, 4, D], dtype: float32}
outputs:
  - {name: out, shape: [B, D], dtype: float32}
reference: |
  def op(x):
      return x.sum(1)
"""
    spec = parse_spec(text, "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    assert isinstance(plan, KernelPlan)
    assert plan.family == "reduction"
    assert render.triton_source(plan)
