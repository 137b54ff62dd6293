"""Float32 as three products of TF32, whose factors are taken apart once and written to memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from references import Sample, load, plan_of, sample
from test_matmul import FITTING, INTERPRETED, LAYER, TWO, check, exact, inputs_of, of, product, tables

from kernelgen import render
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import KernelPlan, TableRow

EVERY = {
    "bare": product("return a @ b", TWO, dtypes=(("T", ("float32",)),)),
    "between others": product("return torch.relu(F.linear(x, w, b))", LAYER, dtypes=(("T", ("float32",)),)),
    "of one dtype": sample(
        "return (x + 1) @ w + b", {"x": "M K: float32", "w": "K N: float32", "b": "M N: float32"},
        {"out": "M N: float32"}, FITTING, dtypes=(),
    ),
}  # fmt: skip
SIZES = {"M": 40, "N": 24, "K": 128}
LEFT_OUT = {
    "both rests": ("out += tl.where(", "out += 0 * tl.where("),
    "one rest": ("(left_low, right_high, rest", "(left_low * 0, right_high, rest"),
    "the other": ("(left_high, right_low, rest", "(left_high, right_low * 0, rest"),
    "bits that TF32 has not": ("right_high = _tf32(b)", "right_high = b"),
    "the last block": ("range(0, K, BLOCK_K)", "range(0, K - BLOCK_K, BLOCK_K)"),
}


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def planned(name: str) -> KernelPlan:
    plan = plan_of(replace(EVERY[name].spec(), precision="tf32x3"))
    assert isinstance(plan, KernelPlan)
    return plan


def by_torch(found: Sample, tensors: list[torch.Tensor]) -> torch.Tensor:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(found.source(), scope)
    return as_tuple(scope["op"](*tensors))[0]


@pytest.mark.parametrize("name", EVERY)
def test_errors_are_no_larger_than_those_of_float32(name: str) -> None:
    """And infinity and NaN are where they were, also NaN as GPUs write it."""
    found, plan = EVERY[name], planned(name)
    assert plan.table[-1].schedule.variant == "written"
    op, tensors = of("written", plan), inputs_of(found, SIZES, "float32")
    check(found, op, tensors)
    (wanted,), torchs = exact(found, tensors), by_torch(found, tensors)
    assert (op(*tensors).double() - wanted).abs().max() <= 1.1 * (torchs.double() - wanted).abs().max()
    first, second = tensors[:2]
    first[3, 5], first[4, 6], first[5, 7], second[1, 2] = float("inf"), float("nan"), 3.4028e38, -float("inf")
    first.view(torch.int32)[6, 8] = 0x7FFFFFFF
    (wanted,), made = exact(found, tensors), op(*tensors)
    assert torch.equal(made.isnan(), wanted.isnan())
    assert torch.equal(made[3:5].isinf(), wanted[3:5].isinf())


@INTERPRETED
@pytest.mark.parametrize("part", LEFT_OUT)
def test_a_part_that_is_left_out_is_seen(part: str) -> None:
    plan = planned("bare")
    schedule = next(s for s, _ in tables(plan) if s.variant == "written")
    text = render.triton_source(plan.with_table((TableRow((), schedule),)))
    was, instead = LEFT_OUT[part]
    assert was in text
    with pytest.raises(AssertionError, match="off by"):
        check(EVERY["bare"], load(text.replace(was, instead)).op, inputs_of(EVERY["bare"], SIZES, "float32"))


def test_the_compiler_may_not_join_a_block_with_the_sum() -> None:
    """It makes one product of `sum += dot(a, b)`, but where a product says how many it sums by itself."""
    text = render.triton_source(planned("bare"))
    kernel = text.partition("product_kernel(")[2].partition("@triton.jit")[0]
    assert kernel.count("max_num_imprecise_acc=BLOCK_K") == kernel.count("out += tl.dot(") == 1


def test_sides_that_no_boxes_fit_are_taken_apart_by_every_tile() -> None:
    found = EVERY["bare"]
    check(found, of("written", planned("bare")), inputs_of(found, {"M": 20, "N": 24, "K": 41}, "float32"))
