"""Products whose results are taken apart: one kernel that reads parts of the weight."""

from __future__ import annotations

from typing import Any

import pytest
from references import Sample, load, plan_of, sample, schedules
from test_matmul import check, inputs_of

from kernelgen import families, frontend, render
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.plan import KernelPlan, Plan, StepsPlan, TableRow
from kernelgen.spec import parse_spec

SIZES: tuple[dict[str, Any], ...] = ({"M": 19, "N": 16, "K": 24}, {"M": 3, "N": 5, "K": 17})
LAYER = {"x": "M K", "w": "2*N K", "b": "2*N"}


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def of(lines: str, inputs: dict[str, str], outputs: dict[str, str] | None = None) -> Sample:
    return sample(lines, inputs, outputs or {"out": "M N"}, *SIZES)


FIRST, SECOND = "{0}.chunk(2, -2)[0]", "{0}.chunk(2, -2)[1]"
FORMS = {
    "a chunk of columns": (
        of("y, z = (a @ b).chunk(2, -1)\nreturn y * torch.sigmoid(z)", {"a": "M K", "b": "K 2*N"}),
        ["{0}.chunk(2, -1)[0]", "{0}.chunk(2, -1)[1]"],
    ),
    "slices of a layer with a bias": (
        of("h = F.linear(x, w, b)\nn = h.shape[-1] // 2\nreturn F.silu(h[..., :n]) * h[..., n:]", LAYER),
        [FIRST, "{0}.chunk(2, -1)[0]", SECOND, "{0}.chunk(2, -1)[1]"],
    ),
    "a gate that is added first": (
        of("return F.glu(torch.tanh(torch.addmm(b, x, w.t())) + r, -1)", {**LAYER, "r": "2*N"}), None,
    ),
    "neighbours": (
        of("h = F.linear(x, w).view(x.shape[0], -1, 2)\nreturn F.gelu(h[..., 0]) * h[..., 1]", {"x": "M K", "w": "2*N K"}),
        ["{0}[..., 0 :: 2, :]", "{0}[..., 1 :: 2, :]"],
    ),
    "three outputs": (
        of(
            "return F.linear(x, w, b).chunk(3, -1)", {"x": "M K", "w": "3*N K", "b": "3*N"},
            {"q": "M N", "k": "M N", "v": "M N"},
        ), None,
    ),
    "a weight that is scaled": (
        of(
            "g, u = F.linear(x, (w.float() * s[:, None]).to(x.dtype)).chunk(2, -1)\nreturn F.silu(g) * u",
            {"x": "M K", "w": "2*N K: int8", "s": "2*N: float32"},
        ), None,
    ),
    "a weight that is packed": (
        sample(
            "q = (p[:, :, None] >> torch.arange(0, 8, 4, device=p.device) & 15).reshape(p.shape[0], -1, 32) - 8\n"
            "g, u = F.linear(x, (q.to(x.dtype) * s[:, :, None] * 0.02).reshape(p.shape[0], -1)).chunk(2, -1)\nreturn F.silu(g) * u",
            {"x": "M K*32", "p": "2*N K*16: uint8", "s": "2*N K"}, {"out": "M N"}, *SIZES,
        ), None,
    ),
    "one part alone": (of("return torch.relu((x @ w.t())[..., : w.shape[0] // 2])", {"x": "M K", "w": "2*N K"}), [FIRST]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_parts_of_a_product_are_products_of_parts_of_the_weight(name: str) -> None:
    found, views = FORMS[name]
    plan: Plan = plan_of(found.spec())
    assert isinstance(plan, StepsPlan)
    assert [kernel.family for kernel in plan.kernels] == ["matmul"]
    assert views is None or views == [step.text for step in plan.steps if not isinstance(step, KernelPlan)]
    assert not plan.calls
    for at, schedule in enumerate(dict.fromkeys(schedules(plan))):
        op = load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op
        sizes, dtype = SIZES[at % 2], ("float32", "float16")[at // 2 % 2]
        how = ("contiguous", "misaligned", "transposed")[at % 3]
        check(found, op, inputs_of(found, sizes, dtype, how), (schedule, sizes, dtype, how))


WHOLE = {
    "the product as well": of(
        "h = x @ w.t()\ng, u = h.chunk(2, -1)\nreturn F.silu(g) * u, h", {"x": "M K", "w": "2*N K"}, {"out": "M N", "h": "M 2*N"}
    ),
    "another layer of it": of(
        "g, u = (x @ w.t()).softmax(-1).chunk(2, -1)\nreturn F.silu(g) * u", {"x": "M K", "w": "2*N K"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_read_as_a_whole_is_one_product(name: str) -> None:
    found = WHOLE[name]
    plan = plan_of(found.spec())
    assert all(isinstance(step, KernelPlan) for step in plan.kernels)
    assert "chunk" not in render.triton_source(plan).partition("def op(")[2].replace("# g, u", "")
    check(found, load(render.triton_source(plan)).op, inputs_of(found, SIZES[0], "float32"), name)


def test_an_index_of_no_dimensions_is_no_part_of_a_weight() -> None:
    """`torch.tile(x, ())` of one number; found by torch's own samples."""
    text = """\
name: op
inputs:
  - {name: x, shape: [], dtype: float32}
outputs:
  - {name: out, shape: [], dtype: float32}
reference: |
  def op(x):
      return torch.tile(x, ())
"""
    spec = parse_spec(text, "op.yaml")
    plan = families.lower(spec, *frontend.trace(spec))
    assert isinstance(plan, KernelPlan)
    assert render.triton_source(plan)
