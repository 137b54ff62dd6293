"""Products by groups: rows that are sorted by group, each multiplied by the matrix of its group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import Sample, load, plan_of
from test_matmul import INTERPRETED, of_sizes, one_kernel, tables

from kernelgen import render
from kernelgen.families.kernel import body_of
from kernelgen.families.matmul import FAMILY
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.wrong_products import of_another_batch

GIVEN = {"x": "M K*8", "w": "E K*8 N*8", "ends": "E: int32"}
BF16: dict[str, Any] = {"dtypes": (("T", ("bfloat16",)),)}


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


def grouped(lines: str, **more: str) -> Sample:
    found = of_sizes(lines, {**GIVEN, **more}, "M N*8", M=37, K=5, N=4, E=4)
    return Sample(found.inputs, found.outputs, found.lines, found.sizes, **BF16)


ENDS = {
    "some of every group": [5, 20, 21, 37],
    "empty groups": [0, 0, 37, 37],
    "one group has all": [37, 37, 37, 37],
    "the last alone": [0, 0, 0, 37],
    "whole tiles": [16, 32, 32, 37],
}
PLAIN = grouped("return F.grouped_mm(x, w, offs=ends)")
BEHIND = grouped("return F.silu(F.grouped_mm(x, w, offs=ends)) * r + b", r="M N*8", b="N*8")


@INTERPRETED
@pytest.mark.parametrize("ends", ENDS)
def test_every_variant_multiplies_each_row_by_the_matrix_of_its_group(ends: str) -> None:
    generator = torch.Generator().manual_seed(1)

    def given(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    for found in (PLAIN, BEHIND):
        tensors = [given(37, 40), given(4, 40, 32), torch.tensor(ENDS[ends], dtype=torch.int32)]
        tensors += [given(37, 32), given(32)] if found is BEHIND else []
        group = torch.bucketize(torch.arange(37), tensors[2], right=True)
        wanted = torch.bmm(tensors[0].double()[:, None], tensors[1].double()[group])[:, 0]
        if found is BEHIND:
            wanted = torch.nn.functional.silu(wanted) * tensors[3].double() + tensors[4].double()
        for schedule, op in tables(one_kernel(found)):
            made = op(*tensors).double()
            assert float((made - wanted).abs().max()) < 1.6e-2 * float(wanted.abs().max()), schedule


def test_a_group_has_no_products_of_its_own_more() -> None:
    """Rows are counted once, and not once a group."""
    plan = one_kernel(PLAIN)
    (product,) = FAMILY.products(plan.spec, body_of(plan))
    assert (product.batch, product.rows) == ((), ("M",))


@INTERPRETED
def test_sizes_of_groups_are_summed_by_a_kernel_before() -> None:
    found = grouped("return F.grouped_mm(x, w, offs=torch.cumsum(ends, 0).to(torch.int32))")
    plan = plan_of(found.spec())
    assert [k.family for k in plan.kernels] == ["scan", "matmul"]
    x, w, sizes = torch.ones(37, 40).bfloat16(), torch.ones(4, 40, 32).bfloat16(), torch.tensor([5, 0, 30, 2])
    w *= torch.arange(1, 5)[:, None, None]
    made = load(render.triton_source(plan)).op(x, w, sizes.int())
    assert torch.equal(made[:, 0], 40 * torch.arange(1, 5).repeat_interleave(sizes).bfloat16())


def test_a_wrong_product_takes_the_matrix_of_another_group() -> None:
    from kernelgen.judge.contractions import Precision, of_matrices

    several = torch.randn(3, 4, 5)
    a = torch.randn(2, 4)
    for group in range(3):
        wrong = of_another_batch(of_matrices(a), (a, several[group]), Precision(0.0))
        assert wrong is not None
        torch.testing.assert_close(wrong, a @ several[group - 1])
    assert of_another_batch(of_matrices(a), (a, several[0].clone()), Precision(0.0)) is None
