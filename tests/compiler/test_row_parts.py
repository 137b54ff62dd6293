"""Rows of a product that no tile holds: tiles reduce their own columns, a second kernel joins what they came to."""

from __future__ import annotations

import pytest
import torch
from references import plan_of
from test_matmul import (
    FITTING,
    INTERPRETED,
    LAYOUTS,
    TWO,
    check,
    exact,
    inputs_of,
    kinds,
    launched,
    of_sizes,
    one_kernel,
    product,
    tables,
)

from kernelgen.families.kernel import body_of
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.plan import KernelPlan
from kernelgen.schedule import problem
from kernelgen.schedule.problem import Problem

__all__ = ["launched"]  # a fixture
ROW = {"out": "M"}
FORMS = {
    "logsumexp": product("return torch.logsumexp(a @ b, dim=-1)", TWO, ROW),
    "log of the sum of exponentials": product("return (a @ b).float().logsumexp(-1).to(a.dtype)", TWO, ROW),
    "sum": product("return (a @ b).sum(-1)", TWO, ROW),
    "mean of what follows": product("return torch.relu(a @ b + 1).mean(-1)", TWO, ROW),
    "maximum": product("return torch.amax(a @ b, dim=-1, keepdim=True)", TWO, {"out": "M 1"}),
    "minimum, and what follows from rows": product(
        "return torch.sigmoid((a @ b).amin(-1)) * s", {**TWO, "s": "M"}, ROW
    ),
    "greatest and its place": product(
        "y = a @ b\nreturn y.amax(-1), y.argmax(-1)", TWO, {"out": "M", "at": "M: int64"}
    ),
    "top 1": product("return torch.topk(a @ b, 1)", TWO, {"out": "M 1", "at": "M 1: int64"}),
    "sum and square": product("y = a @ b + c\nreturn y.sum(-1), (y * y).sum(-1)", {**TWO, "c": "N"}, {"s": "M", "q": "M"}),
    "cross entropy": product(
        "return F.cross_entropy((x @ w.t()).float(), t, reduction='none').to(x.dtype)",
        {"x": "M K", "w": "N K", "t": "M: int64 < N"}, ROW,
    ),
    "in every batch": of_sizes(
        "return torch.logsumexp(torch.bmm(a, b), -1)", {"a": "B M K", "b": "B K N"}, "B M", B=2, M=17, K=24, N=40
    ),
    "a number of columns": of_sizes("return (x @ w.t()).amax(-1)", {"x": "M K", "w": "1030 K"}, "M", M=5, K=24),
    "of a triangle": of_sizes("return (torch.tril(a) @ b).sum(-1)", {"a": "N N", "b": "N N"}, "N", N=40),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


@pytest.mark.parametrize("name", FORMS)
def test_every_variant_is_right(name: str) -> None:
    found, at = FORMS[name], 0
    plan = one_kernel(found)
    body = body_of(plan)
    assert isinstance(body, ProductBody)
    assert body.in_parts
    for schedule, op in tables(plan):
        for sizes in found.sizes:
            dtype, how = kinds(found)[at % 2], LAYOUTS[at % len(LAYOUTS)]
            check(found, op, inputs_of(found, sizes, dtype, how), (schedule, sizes, dtype, how))
            at += 1


@INTERPRETED
def test_two_kernels_and_what_no_tile_can_begin_is_cut(launched: list[str]) -> None:
    plan = one_kernel(FORMS["logsumexp"])
    for schedule, op in tables(plan):
        if schedule.variant == "tiles":
            op(*inputs_of(FORMS["logsumexp"], FITTING, "float32"))
            assert launched == ["op_kernel", "op_join_kernel"]
            break
    variance = product("return torch.var(a @ b, dim=-1)", TWO, ROW)
    assert [k.family for k in plan_of(variance.spec()).kernels] == ["matmul", "reduction"]


@pytest.mark.parametrize("name", ["logsumexp", "cross entropy", "a number of columns", "in every batch"])
def test_float32_is_multiplied_by_torch_before_its_rows_are_reduced(name: str) -> None:
    """There are no matrix units for it as torch comes; half precision keeps the kernel that never writes the product."""
    plan = one_kernel(FORMS[name])
    for rows in (1, 100, 1024, 65536):
        assert _first(plan, rows, itemsize=2) in ("boxes", "tiles")
        assert _first(plan, rows, itemsize=4) == "library"


def test_float32_is_multiplied_by_torch_where_tiles_hold_rows_too() -> None:
    plan = one_kernel(of_sizes("return (x @ w.t()).amax(-1)", {"x": "M K", "w": "64 K"}, "M", M=5, K=24))
    assert [_first(plan, rows, itemsize=4) for rows in (1, 65536)] == ["library"] * 2
    assert _first(plan, 65536, itemsize=2) == "boxes"


def _first(plan: KernelPlan, rows: int, itemsize: int) -> str:
    """What the first table names for 8192 columns and sums of 8192."""
    asked = Problem((("M", rows), ("N", 8192), ("K", 8192), ("itemsize", itemsize)))
    return plan.table[problem.row_of(plan.table, asked)].schedule.variant


@INTERPRETED
def test_torchs_product_is_reduced_by_two_kernels(launched: list[str]) -> None:
    found = FORMS["logsumexp"]
    [op] = [op for schedule, op in tables(one_kernel(found)) if schedule.variant == "library"]
    check(found, op, inputs_of(found, {"M": 9, "K": 3, "N": 2500}, "float32"))
    assert launched == ["op_after_kernel", "op_join_kernel"]


def test_nan_and_infinity_are_where_torch_has_them() -> None:
    found = FORMS["log of the sum of exponentials"]
    tensors = inputs_of(found, FITTING, "float32")
    tensors[0][0] = float("-inf")
    tensors[1].abs_()
    tensors[0][1, 3], tensors[0][2, 5] = float("nan"), float("inf")
    wanted = torch.logsumexp(tensors[0].double() @ tensors[1].double(), -1)
    for schedule, op in tables(one_kernel(found)):
        made = op(*tensors)
        assert torch.equal(made.isnan(), wanted.isnan()), schedule
        assert torch.equal(made.isinf(), wanted.isinf()), schedule


@pytest.mark.parametrize("name", ["logsumexp", "log of the sum of exponentials", "sum"])
def test_rows_of_no_columns(name: str) -> None:
    """There is no part then, and minus infinity less itself is no number."""
    found, sizes = FORMS[name], {"M": 5, "K": 24, "N": 0}
    tensors = inputs_of(found, sizes, "float32")
    [wanted] = exact(found, tensors)
    for schedule, op in tables(one_kernel(found)):
        assert torch.equal(op(*tensors).double(), wanted), schedule
