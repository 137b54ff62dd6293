"""Sizes that a constraint declares divisible reach shapes, cases and the trace."""

from __future__ import annotations

import pytest

from kernelgen import families, frontend
from kernelgen.errors import SpecError
from kernelgen.spec import parse_spec
from kernelgen.spec.model import OperatorSpec

TEXT = """
name: grouped
summary: Channels by groups.
inputs:
  - {name: x, shape: [N, C, L], dtype: T}
  - {name: w, shape: [C], dtype: T}
outputs:
  - {name: out, shape: [N, C, L], dtype: T}
dtypes: {T: [float32]}
constraints:
  - x.is_contiguous() and CONDITION
reference: |
  def grouped(x, w):
      return F.group_norm(x, 8, w)
"""


def grouped(condition: str, more: str = "") -> OperatorSpec:
    return parse_spec(TEXT.replace("CONDITION", condition) + more)


@pytest.mark.parametrize("condition", ["x.shape[1] % 8 == 0", "x.size(-2) % 8 == 0 and w.shape[0] % 4 == 0"])
def test_a_divisible_size_is_a_product(condition: str) -> None:
    spec = grouped(condition)
    assert [t.shape for t in spec.inputs] == [("N", "8 * C_over_8", "L"), ("8 * C_over_8",)]
    assert [c.text for c in spec.constraints] == ["x.is_contiguous()"]
    assert all(case.shape(spec.inputs[0].shape)[1] % 8 == 0 for case in (*spec.accuracy, *spec.performance))
    families.lower(spec, *frontend.trace(spec))


def test_listed_sizes_are_those_of_the_file() -> None:
    spec = grouped("x.shape[1] % 8 == 0", "accuracy: {shapes: [{N: 2, C: 24, L: 5}]}\n")
    (case,) = spec.accuracy
    assert case.shape(spec.inputs[0].shape) == (2, 24, 5)
    assert "C=24" in case.label
    with pytest.raises(SpecError, match=r"'.*x\.shape\[1\] % 8 == 0' does not hold for these sizes"):
        grouped("x.shape[1] % 8 == 0", "accuracy: {shapes: [{N: 2, C: 20, L: 5}]}\n")


@pytest.mark.parametrize(
    "condition", ["x.shape[1] % 8 == 1", "x.shape[1] % w.shape[0] == 0", "x.numel() % 8 == 0", "x.shape[1] % 1 == 0"]
)
def test_other_conditions_leave_sizes_as_they_are(condition: str) -> None:
    more = "accuracy: {shapes: [{N: 8, C: 1, L: 8}]}\nperformance: {shapes: [{N: 8, C: 1, L: 8}]}\n"
    spec = grouped(condition, more)
    assert spec.inputs[0].shape == ("N", "C", "L")
    assert len(spec.constraints) == 1
