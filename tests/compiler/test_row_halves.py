"""Rows that are reduced and whose parts change places: every part is read once, whatever the reduction sees of it."""

from __future__ import annotations

import re

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen import families, render
from kernelgen.plan import KernelPlan, TableRow

SIZES = {"B": 3, "D": 7}
NORM = "wide = x.float()\nnormal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
FORMS = {
    "rotated": (
        NORM + "first, second = normal.chunk(2, dim=-1)\nturned = torch.cat((-second, first), dim=-1)\n"
        "return (normal * 0.5 + turned).to(x.dtype)",
        "B 2*D", 2,
    ),
    "softmax with halves changed": (
        "shares = torch.softmax(x.float(), -1)\nfirst, second = shares.chunk(2, dim=-1)\n"
        "return torch.cat((second, first), dim=-1).to(x.dtype)",
        "B 2*D", 2,
    ),
    "thirds from back to front": (
        "centred = x.float() - x.float().amin(-1, keepdim=True)\na, b, c = centred.chunk(3, dim=-1)\n"
        "return torch.cat((c, b, a), dim=-1).to(x.dtype)",
        "B 3*D", 3,
    ),
    "variance beside halves of each other": (
        "first, second = x.float().chunk(2, dim=-1)\n"
        "return (torch.cat((second, first), dim=-1) / (1 + x.float().var(-1, keepdim=True))).to(x.dtype)",
        "B 2*D", 2,
    ),
}  # fmt: skip


def of(name: str) -> Sample:
    lines, shape, _ = FORMS[name]
    return sample(lines, {"x": shape}, {"out": shape}, SIZES, {"B": 1, "D": 1})


@pytest.mark.parametrize("name", FORMS)
def test_every_part_is_read_once_and_the_result_is_right(name: str) -> None:
    found, parts = of(name), FORMS[name][2]
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert len(plan.body.lowered.outputs) == parts
    text = render.triton_source(plan.with_table((TableRow((), families.family_of(plan).default("rows")),)))
    assert len(re.findall(r"x_ptr \+", text)) == parts
    assert len(re.findall(r"tl\.store\(\s*out_ptr", text)) == parts
    assert failures(found, thorough=False) == []


def test_a_row_that_nothing_takes_apart_is_one() -> None:
    found = sample(
        NORM + "return torch.cat((normal, normal), dim=-1).to(x.dtype)", {"x": "B D"}, {"out": "B 2*D"}, SIZES
    )
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert failures(found, thorough=False) == []


@pytest.mark.parametrize("line", ["torch.softmax(torch.cat([x, -x], -1), -1)", "torch.cat([x, x * 2], -1) / x.sum()"])
def test_parts_of_one_row_alone_have_no_rows_before_them(line: str) -> None:
    found = sample(f"return {line}", {"x": "D"}, {"out": "2*D"}, {"D": 7}, {"D": 1})
    plan_of(found.spec())
    assert failures(found) == []


def test_parts_of_what_is_reduced_to_one_number_are_none() -> None:
    lines = "first, second = x.float().chunk(2, dim=-1)\nreturn torch.cat((second, first), dim=-1).pow(2).sum()"
    found = sample(lines, {"x": "2*D"}, {"out": ": float32"}, {"D": 7}, {"D": 1})
    plan_of(found.spec())
    assert failures(found, thorough=False) == []


def test_what_a_product_is_divided_by_is_no_length_of_its_rows() -> None:
    lines = "return torch.tanh((x / (w.shape[-2] + w.shape[-2])).to(x.dtype) @ w) * (w.shape[-2] // 2 + 1)"
    found = sample(
        lines, {"x": "A D", "w": "D B"}, {"out": "A B"}, {"A": 3, "B": 20, "D": 16}, {"A": 1, "B": 3, "D": 5}
    )
    assert failures(found, thorough=False) == []
