"""Float32 as three products of TF32, whose factors are taken apart once and written to memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from references import Sample, load, plan_of, sample
from test_matmul import EVERY as FORMS
from test_matmul import FITTING, INTERPRETED, LAYER, TWO, check, exact, inputs_of, of, product, tables

from kernelgen import families, render
from kernelgen.errors import SpecError
from kernelgen.families.kernel import body_of
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import KernelPlan, TableRow
from kernelgen.spec.model import TensorSpec

EVERY = {
    "bare": product("return a @ b", TWO, dtypes=(("T", ("float32",)),)),
    "between others": product("return torch.relu(F.linear(x, w, b))", LAYER, dtypes=(("T", ("float32",)),)),
    "of one dtype": sample(
        "return (x + 1) @ w + b", {"x": "M K: float32", "w": "K N: float32", "b": "M N: float32"},
        {"out": "M N: float32"}, FITTING, dtypes=(),
    ),
    "of a batch": product(
        "return torch.bmm(a, b) + 1", {"a": "P M K", "b": "P K N"}, {"out": "P M N"}, dtypes=(("T", ("float32",)),)
    ),
    "rows of a batch": product("return a @ b", {"a": "P M K", "b": "K N"}, {"out": "P M N"}, dtypes=(("T", ("float32",)),)),
    "of which a triangle is kept": product("return torch.triu(a @ b)", TWO, dtypes=(("T", ("float32",)),)),
}  # fmt: skip
SIZES = {"P": 3, "M": 40, "N": 24, "K": 128}
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


@pytest.mark.parametrize("summed", [128, 41])
@pytest.mark.parametrize("name", EVERY)
def test_errors_are_no_larger_than_those_of_float32(name: str, summed: int) -> None:
    """Also where rows are no multiples of 16 bytes; and infinity and NaN are where they were, also NaN as GPUs write
    it."""
    found, plan = EVERY[name], planned(name)
    assert plan.table[-1].schedule.variant == "written"
    op, tensors = of("written", plan), inputs_of(found, {**SIZES, "K": summed}, "float32")
    check(found, op, tensors)
    (wanted,), torchs = exact(found, tensors), by_torch(found, tensors)
    assert (op(*tensors).double() - wanted).abs().max() <= 1.1 * (torchs.double() - wanted).abs().max()
    first, second = (t if t.ndim == 2 else t[-1] for t in tensors[:2])
    first[3, 5], first[4, 6], first[5, 7], second[1, 2] = float("inf"), float("nan"), 3.4028e38, -float("inf")
    first.view(torch.int32)[6, 8] = 0x7FFFFFFF
    (wanted,), made = exact(found, tensors), op(*tensors)
    assert torch.equal(made.isnan(), wanted.isnan())
    assert torch.equal(made[..., 3:5, :].isinf(), wanted[..., 3:5, :].isinf())


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


@pytest.mark.parametrize("variant", ["tiles", "split"])
def test_tiles_that_take_factors_apart_add_blocks_in_float32(variant: str) -> None:
    """Matrix units would cut off what a large sum has no room for, which the interpreter does not."""
    plan = planned("bare")
    schedule = next(s for s, _ in tables(plan) if s.variant == variant)
    text = render.triton_source(plan.with_table((TableRow((), schedule),)))
    assert text.count("tl.dot(") == text.count(" += tl.dot(") == text.count("max_num_imprecise_acc=BLOCK_K") == 1


def test_sums_of_float32_are_not_left_to_matrix_units() -> None:
    plan = planned("bare")
    boxes = next(s for s, _ in tables(plan) if s.variant == "boxes")
    assert "cut off" in (families.family_of(plan).holds(body_of(plan), boxes, 4) or "")
    assert families.family_of(plan).holds(body_of(plan), boxes, 2) is None


def test_rows_are_made_as_long_as_descriptors_take_them() -> None:
    """Or the copies of a launch begin anywhere, which ends the process on a GPU and is the same in the interpreter."""
    text = render.triton_source(planned("bare"))
    assert "left_high = torch.empty(\n                (M, cdiv(K, 4) * 4)," in text
    assert "width = tl.cdiv(K, 4) * 4" in text
    assert text.count("mask=row_mask[:, None] & (ks < width)[None, :]") == 2


def test_a_sum_of_nothing_is_no_matter_of_descriptors() -> None:
    """Which the interpreter takes and a driver refuses."""
    text = render.triton_source(planned("bare"))
    assert "has_copy_engine(a.device) and K > 0" in text
    assert not load(text).op(torch.ones(700, 0), torch.ones(0, 3)).any()


def test_descriptors_of_what_comes_in_are_not_asked_for() -> None:
    """Rows that begin anywhere keep half precision from the copy engine, and not float32 that is written first."""
    text = render.triton_source(plan_of(replace(product("return a @ b", TWO).spec(), precision="tf32x3")))
    line = next(line for line in text.splitlines() if "op_written_kernel and not" in line)
    assert "fit_descriptors" not in line
    assert text.count("no TMA descriptors") == 2


@pytest.mark.parametrize("summed", [1, 64])
def test_short_sums_are_as_exact_as_the_documentation_says(summed: int) -> None:
    """docs/spec.md: of 64 terms no worse than float32, of one up to 4e-7 of the terms' magnitudes."""
    found = EVERY["bare"]
    tensors = inputs_of(found, {"M": 64, "N": 48, "K": summed}, "float32")
    (wanted,), torchs = exact(found, tensors), by_torch(found, tensors)
    size = tensors[0].double().abs() @ tensors[1].double().abs()
    made, theirs = (
        (one.double() - wanted).abs().div(size).max() for one in (of("written", planned("bare"))(*tensors), torchs)
    )
    assert made <= (4.5e-7 if summed == 1 else 1.1 * theirs)


def of_float32(found: Sample) -> Sample:
    def one(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(t, dtype="float32") if t.dtype == "T" else t for t in tensors)

    return replace(found, inputs=one(found.inputs), outputs=one(found.outputs), dtypes=())


OTHERS = {
    name: of_float32(found)
    for name, found in FORMS.items()
    if "T" in dict(found.dtypes) and not name.startswith(("scaled", "packed"))
} | {
    "a value of the name of another": of_float32(product("width = torch.exp(a)\nreturn width @ b", TWO)),
    "both are computed, and of zero no zero": of_float32(product("return torch.exp(a) @ torch.exp(b)", TWO)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_is_multiplied_may_be_written_in_two_parts(name: str) -> None:
    """Forms that have no such kernel are made as others; none stops a spec that says so from being made."""
    found = OTHERS[name]
    try:
        plan = plan_of(replace(found.spec(), precision="tf32x3"))
    except SpecError as error:
        if "precision says" not in str(error):
            raise
        return
    render.triton_source(plan)
    if isinstance(plan, KernelPlan) and any(schedule.variant == "written" for schedule, _ in tables(plan)):
        op = of("written", plan)
        for sizes in found.sizes:
            odd = {**sizes, **{n: 7 for n in ("K",) if n in sizes and "K // " not in str(found)}}
            check(found, op, inputs_of(found, odd, "float32"))


@pytest.mark.parametrize(
    "found",
    [OTHERS["both are computed, and of zero no zero"], product("return torch.exp(a) @ torch.exp(b)", TWO)],
    ids=["written too", "of tiles alone"],
)
def test_what_factors_are_computed_of_fits_a_program(found: Sample) -> None:
    """Both sides of a tile are taken apart in shared memory, beside what is loaded: 64 deep that was 257 KB (sm_90)."""
    plan = plan_of(replace(found.spec(), precision="tf32x3"))
    bodies = [(kernel, body_of(kernel)) for kernel in plan.kernels if kernel.family == "matmul"]
    depths = {
        row.schedule.int("BLOCK_K")
        for kernel, _ in bodies
        for row in kernel.table
        if row.schedule.variant == "tiles" and row.limit("itemsize") is None
    }
    assert depths == {32}
