"""Reductions of no elements: what torch refuses is refused by name, and what it computes is computed."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from references import DEVICE, Sample, load, plan_of, sample, schedules

from kernelgen import render
from kernelgen.plan import StepsPlan, TableRow

ROWS, MATRIX = {"x": "... D"}, {"x": "A B D"}
NUMBER = {"out": ": float32"}
SAMPLES: dict[str, tuple[Sample, str]] = {
    "amax": (sample("return x.amax(-1)", ROWS, {"out": "..."}), "x.shape[-1] >= 1"),
    "amin of the middle": (sample("return x.amin(1, keepdim=True)", MATRIX, {"out": "A 1 D"}), "x.shape[1] >= 1"),
    "two dimensions": (sample("return x.amax((0, 2))", MATRIX, {"out": "B"}), "x.shape[0] >= 1|x.shape[2] >= 1"),
    "max and where": (
        sample("values, places = x.max(-1)\nreturn values, places", ROWS, {"values": "...", "places": "...: int64"}),
        "x.shape[-1] >= 1",
    ),
    "least of all": (sample("return x.float().min()", ROWS, NUMBER), "x.shape[:-1].numel() >= 1|x.shape[-1] >= 1"),
    "argmax": (sample("return x.argmax(-1)", ROWS, {"out": "...: int64"}), "x.shape[-1] >= 1"),
    "argmin of all": (sample("return x.argmin()", MATRIX, {"out": ": int64"}), "x.shape[0] >= 1|x.shape[1] >= 1|x.shape[2] >= 1"),
    "aminmax": (
        sample("low, high = x.aminmax(dim=-1)\nreturn high - low", ROWS, {"out": "..."}), "x.shape[-1] >= 1",
    ),
    "greatest norm": (
        sample("return torch.linalg.vector_norm(x, float('inf'), -1)", ROWS, {"out": "..."}), "x.shape[-1] >= 1",
    ),
    "blocks": (
        sample("return x.unflatten(-1, (-1, 4)).amax((-2, -1))", {"x": "A D*4"}, {"out": "A"}), "x.shape[1] // 4 >= 1",
    ),
    "the greatest of sums": (
        sample("return x.float().sum(-1).amax()", {"x": "A D"}, NUMBER), "x.shape[0] >= 1",
    ),
    "beside a scale": (
        sample("scale = x.abs().amax(-1, keepdim=True)\nreturn x - scale, scale.squeeze(-1)", ROWS, {"out": "... D", "scale": "..."}),
        "x.shape[-1] >= 1",
    ),
    "centred": (sample("return x - x.amax(-1, keepdim=True)", ROWS, {"out": "... D"}), ""),
    "after a call": (
        sample("return F.linear(x, w).amax(-1)", {"x": "A D", "w": "B D"}, {"out": "A"}), "w.shape[0] >= 1",
    ),
    "sum": (sample("return x.sum(-1)", ROWS, {"out": "..."}), ""),
    "norm": (sample("return torch.linalg.vector_norm(x, 2, -1)", ROWS, {"out": "..."}), ""),
    "softmax": (sample("return F.softmax(x, -1)", ROWS, {"out": "... D"}), ""),
    "log of softmax": (sample("return F.log_softmax(x, -1)", ROWS, {"out": "... D"}), ""),
    "logsumexp": (sample("return x.logsumexp(-1)", ROWS, {"out": "..."}), ""),
    "some": (sample("return (x > 0).any(-1), (x > 0).all(-1)", ROWS, {"one": "...: bool", "every": "...: bool"}), ""),
    "running": (sample("return x.cummax(-1).values", ROWS, {"out": "... D"}), ""),
}  # fmt: skip
"""References, each with what its kernel says that it needs, one of several; nothing where torch refuses no shape."""


def inputs(found: Sample, sizes: dict[str, int]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    values: dict[str, Any] = {"...": (sizes["A"],), **{n: (s,) for n, s in sizes.items()}, "D*4": (4 * sizes["D"],)}
    shapes = [[s for e in t.shape for s in values[str(e).replace(" ", "")]] for t in found.inputs]
    return [torch.randn(shape, device=DEVICE) for shape in shapes]


@pytest.mark.parametrize("name", SAMPLES)
def test_of_no_elements_is_refused_what_torch_refuses(name: str) -> None:
    """Where a result has elements; where it has none, there is nothing to be wrong."""
    found, text = SAMPLES[name]
    needs = text.split("|") if text else []
    plan = plan_of(found.spec())
    reference = load(render.baseline_source(found.spec())).reference
    tables = [plan] if isinstance(plan, StepsPlan) else [plan.with_table((TableRow((), s),)) for s in schedules(plan)]
    said = set()
    for one, counts in itertools.product(tables, itertools.product((0, 3), repeat=3)):
        operator = load(render.triton_source(one)).op
        given = inputs(found, dict(zip("ABD", counts, strict=True)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wanted = reference(*given)
            except (IndexError, RuntimeError):
                said |= _refusal(operator, given)
                continue
            torch.testing.assert_close(operator(*given), wanted)
    assert {text.removeprefix("op: needs ").partition(", got")[0] for text in said} == set(needs)


def _refusal(operator: Any, given: list[torch.Tensor]) -> set[str]:
    """What a kernel says; nothing where it has no element to return."""
    try:
        returned = operator(*given)
    except ValueError as error:
        return {str(error)}
    every = returned if isinstance(returned, tuple) else (returned,)
    assert all(tensor.numel() == 0 for tensor in every)
    return set()
