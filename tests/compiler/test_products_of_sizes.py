"""Rows whose length is a product of sizes, reduced and then read at other places: one kernel, and right."""

from __future__ import annotations

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen import frontend
from kernelgen.frontend.joined import as_one
from kernelgen.plan import KernelPlan

SIZES = {"B": 3, "D": 9}
HALVES = "first, second = n.chunk(2, dim=-1)\n"
FORMS = {
    "rotated halves of what is normalized": (
        "n = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)\n" + HALVES +
        "return (n * w + torch.cat((-second, first), dim=-1) * w).to(x.dtype)", "B 2*D",
    ),
    "halves of a softmax, swapped": (
        "n = torch.softmax(x.float(), -1)\n" + HALVES + "return torch.cat((second, first), -1).to(x.dtype)", "B 2*D",
    ),
    "a third against the greatest": (
        "n = x - x.amax(-1, keepdim=True)\nreturn n + n.roll(w.shape[0] // 3, -1)", "B 3*D",
    ),
}  # fmt: skip


def of(name: str) -> Sample:
    lines, shape = FORMS[name]
    return sample(lines, {"x": shape, "w": shape.partition(" ")[2]}, {"out": shape}, SIZES, {"B": 1, "D": 1})


@pytest.mark.parametrize("name", FORMS)
def test_they_are_one_kernel_and_right(name: str) -> None:
    found = of(name)
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "reduction"
    assert failures(found, thorough=False) == []


def test_what_is_taken_apart_keeps_its_sizes() -> None:
    lines = "n = x / x.sum(-1, keepdim=True)\nreturn n.unflatten(-1, (2, -1)).flip(-2).flatten(-2)"
    found = sample(lines, {"x": "B 2*D"}, {"out": "B 2*D"}, SIZES, {"B": 1, "D": 1})
    graph, _ = frontend.trace(found.spec())
    assert as_one(graph) is graph
    assert failures(found, thorough=False) == []


QUOTIENTS = {
    "a half, three times": (
        "h = x[:, : x.shape[1] // 2]\nn = torch.softmax(torch.cat((h, h, h), -1).float(), -1)\n"
        "return (n + n.roll(1, -1)).to(x.dtype)", "B 3*(D//2)",
    ),
    "every second element, twice": (
        "h = x[:, ::2]\nn = torch.softmax(torch.cat((h, h), -1).float(), -1)\nreturn (n + n.flip(-1)).to(x.dtype)",
        "B 2*((D+1)//2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUOTIENTS)
def test_products_of_quotients_are_right_whatever_is_left_over(name: str) -> None:
    lines, out = QUOTIENTS[name]
    found = sample(lines, {"x": "B D"}, {"out": out}, {"B": 3, "D": 9}, {"B": 2, "D": 18}, {"B": 1, "D": 3})
    assert failures(found, thorough=False) == []
