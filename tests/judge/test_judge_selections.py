"""Places of selected elements: any of equals is right, and nothing else."""

from __future__ import annotations

import pytest
import torch

from kernelgen import judge
from kernelgen.judge import oracle
from kernelgen.judge.selections import Selections

NAN = float("nan")
ROW = torch.tensor([3.0, NAN, 1.0, 3.0, -0.0, 0.0, NAN])


def settled(places: list[int], row: torch.Tensor = ROW, k: int = 4) -> bool:
    """Whether the judge takes these places for those that torch selects."""
    heard = Selections()
    (right,) = oracle.in_float64(lambda x: x.topk(k).indices.int(), [row], selections=heard)
    (found,) = heard.settled(right, [torch.tensor(places, dtype=torch.int32)])
    assert found.dtype == torch.int32
    return torch.equal(found, right)


@pytest.mark.parametrize("places", [[1, 6, 0, 3], [6, 1, 3, 0], [1, 6, 3, 0]])
def test_equal_elements_may_change_places(places: list[int]) -> None:
    assert settled(places)


@pytest.mark.parametrize(
    "places", [[1, 1, 0, 3], [1, 6, 3, 3], [0, 1, 6, 3], [1, 6, 0, 2], [1, 6, 0, 7], [-1, 6, 0, 3]]
)
def test_a_place_that_is_taken_twice_holds_less_or_lies_outside_is_wrong(places: list[int]) -> None:
    assert not settled(places)


def test_scores_that_float32_does_not_tell_apart_are_equal() -> None:
    assert settled([1, 0], torch.tensor([1.0, 1.0 + 2.0**-40], dtype=torch.float64), 2)
    assert not settled([0, 1], torch.tensor([1.0, 1.0 + 2.0**-20], dtype=torch.float64), 2)


def test_computed_scores_that_are_nearly_equal_may_change_places() -> None:
    heard = Selections()
    row = torch.tensor([1.0, 1.0 + 2.0**-22, 1.0 + 2.0**-18])
    (right,) = oracle.in_float64(lambda x: (x * 1).topk(3).indices, [row], selections=heard)
    near, far = heard.settled(right, [torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0])])
    assert torch.equal(near, right)
    assert not torch.equal(far, right)
    assert not settled([2, 0, 1], row, 3)


def test_a_kernel_is_judged_by_what_it_selects() -> None:
    x, values, places = (
        judge.Tensor("x", ("A", 9), "float32", rows=0),
        judge.Tensor("values", ("A", 3), "float32", rows=0),
        judge.Tensor("places", ("A", 3), "int64", rows=0),
    )

    def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.topk(3)
        return found.values, found.indices

    def last_first(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.flip(-1).topk(3)
        return found.values, 8 - found.indices

    def one_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x.topk(3)
        return found.values, found.indices[:, :1].expand(-1, 3).contiguous()

    def report(kernel: object) -> judge.CaseReport:
        operator = judge.Operator("op", kernel, reference, reference, (x,), (values, places))  # type: ignore[arg-type]
        distributions = ("zero-one", "equal rows", "specials")
        return judge.accuracy_case(operator, judge.Case({"A": 50}, {}), seed=1, seeds=1, distributions=distributions)

    assert report(last_first).passed
    assert report(one_place).message.startswith("places: error")
