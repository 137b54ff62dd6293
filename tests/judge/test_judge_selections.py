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


def test_computed_scores_that_a_gpu_flushes_are_equal() -> None:
    """A router's softmax of large inputs: what is below 2**-126 is 0 on a GPU, and the first zero was selected."""
    heard = Selections()
    row = torch.tensor([[0.0, -200.0, -90.0, -88.5, -86.0]])
    (right,) = oracle.in_float64(lambda x: torch.softmax(x, -1).topk(3).indices, [row], selections=heard)
    assert right.tolist() == [[0, 4, 3]]
    zero, larger, twice = heard.settled(right, [torch.tensor([p]) for p in ([0, 4, 1], [0, 3, 4], [0, 4, 4])])
    assert torch.equal(zero, right)
    assert not torch.equal(larger, right)
    assert not torch.equal(twice, right)
    tiny = torch.tensor([2.0**-130, 0.0])  # as inputs they are not computed
    assert not settled([1], tiny, 1)


@pytest.mark.parametrize("find", ["argmax", "max", "argmin", "min"])
@pytest.mark.parametrize("kept", [False, True])
def test_of_computed_extremes_that_are_nearly_equal_either_is_right(find: str, kept: bool) -> None:
    def place(x: torch.Tensor) -> torch.Tensor:
        found = getattr(x * x, find)(-1, keepdim=kept)
        return found if find.startswith("arg") else found.indices

    heard, sign = Selections(), -1 if find.endswith("min") else 1
    (right,) = oracle.in_float64(place, [(2 + sign * torch.tensor([[1.0, 1.0 + 2.0**-22, 0.5]]))], selections=heard)
    other, wrong = heard.settled(right, [torch.full_like(right, 0), torch.full_like(right, 2)])
    assert right.unique().item() == 1
    assert torch.equal(other, right)
    assert not torch.equal(wrong, right)


def test_the_first_of_equal_inputs_is_the_place_of_the_greatest() -> None:
    heard = Selections()
    (right,) = oracle.in_float64(lambda x: x.argmax(-1), [torch.tensor([[1.0, 3.0, 3.0]])], selections=heard)
    (found,) = heard.settled(right, [torch.tensor([2])])
    assert not torch.equal(found, right)


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


def test_what_is_computed_from_other_places_that_are_as_right_is_right() -> None:
    """A router whose bias decides, and whose weights are the scores without it: of equal biased scores either is taken."""
    x, bias = judge.Tensor("x", ("A", 9), "float32", rows=0), judge.Tensor("bias", (9,), "float32")
    weights, places = (judge.Tensor(n, ("A", 3), d, rows=0) for n, d in (("weights", "float32"), ("places", "int64")))

    def chosen(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = (x.floor() + bias.floor()).topk(3).indices
        return x.gather(1, found) * 2, found

    def last_first(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = 8 - (x.floor() + bias.floor()).flip(-1).topk(3).indices
        return x.gather(1, found) * 2, found

    def beside(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Its weights are not those of its places."""
        return last_first(x, bias)[0], chosen(x, bias)[1]

    def report(kernel: object) -> judge.CaseReport:
        operator = judge.Operator("op", kernel, chosen, chosen, (x, bias), (weights, places))  # type: ignore[arg-type]
        return judge.accuracy_case(
            operator, judge.Case({"A": 50}, {}), seed=1, seeds=1, distributions=("normal", "specials")
        )

    assert report(last_first).passed
    assert report(beside).message.startswith("weights: ")
