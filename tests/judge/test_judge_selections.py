"""Places of selected elements: any of equals is right, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from kernelgen import judge
from kernelgen.judge import oracle
from kernelgen.judge.selections import Selections

Function = Callable[..., Any]
NAN = float("nan")
ROW = torch.tensor([3.0, NAN, 1.0, 3.0, -0.0, 0.0, NAN])


def settled(places: list[int], row: torch.Tensor = ROW, k: int = 4) -> bool:
    """Whether the judge takes these places for those that torch selects."""
    heard = Selections()
    (right,) = oracle.in_float64(lambda x: x.topk(k).indices.int(), [row], selections=heard)
    given = torch.tensor(places, dtype=torch.int32)
    found = heard.found[0].settled(given)
    assert found.dtype == torch.int32
    assert torch.equal(found, right) == bool(heard.found[0].right(given).all())
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
    near, far = (heard.found[0].settled(torch.tensor(places)) for places in ([2, 0, 1], [1, 2, 0]))
    assert torch.equal(near, right)
    assert not torch.equal(far, right)
    assert not settled([2, 0, 1], row, 3)


def test_no_number_is_nearly_infinite() -> None:
    heard = Selections()
    oracle.in_float64(lambda x: (x * 1).argmax(-1), [torch.tensor([[1.0, float("inf"), 2.0]])], selections=heard)
    assert heard.found[0].right(torch.tensor([1]))
    assert not heard.found[0].right(torch.tensor([2]))


def test_computed_scores_that_a_gpu_flushes_are_equal() -> None:
    """A router's softmax of large inputs: what is below 2**-126 is 0 on a GPU, and the first zero was selected."""
    heard = Selections()
    row = torch.tensor([[0.0, -200.0, -90.0, -88.5, -86.0]])
    (right,) = oracle.in_float64(lambda x: torch.softmax(x, -1).topk(3).indices, [row], selections=heard)
    assert right.tolist() == [[0, 4, 3]]
    zero, larger, twice = (heard.found[0].settled(torch.tensor([p])) for p in ([0, 4, 1], [0, 3, 4], [0, 4, 4]))
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
    other, wrong = (heard.found[0].settled(torch.full_like(right, place)) for place in (0, 2))
    assert right.unique().item() == 1
    assert torch.equal(other, right)
    assert not torch.equal(wrong, right)


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
    assert report(one_place).message.startswith("places[0, 0] names ")


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


def test_what_is_selected_in_any_order_is_a_set() -> None:
    x, values, places = (
        judge.Tensor("x", ("A", 40), "float32", rows=0),
        judge.Tensor("values", ("A", 5), "float32", rows=0),
        judge.Tensor("places", ("A", 5), "int64", rows=0),
    )

    def reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple((x * 2).topk(5, sorted=False))

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(y.roll(2, -1) for y in (x * 2).topk(5))

    def apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return turned(x)[0], (x * 2).topk(5).indices

    def last_left_out(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = (x * 2).topk(6)
        return values[:, [0, 1, 2, 3, 5]].contiguous(), places[:, [0, 1, 2, 3, 5]].contiguous()

    def passes(kernel: Function, outputs: tuple[int, ...] = (0, 1)) -> bool:
        def only(function: Function) -> Function:
            return lambda x: tuple(y for i, y in enumerate(function(x)) if i in outputs)

        declared = tuple((values, places)[i] for i in outputs)
        operator = judge.Operator("op", only(kernel), only(reference), only(reference), (x,), declared)
        distributions = ("normal", "specials", "zero-one")
        return judge.accuracy_case(
            operator, judge.Case({"A": 50}, {}), seed=1, seeds=1, distributions=distributions
        ).passed

    for outputs in ((0, 1), (0,), (1,)):
        assert passes(turned, outputs)
        assert passes(reference, outputs)
        assert not passes(last_left_out, outputs)
    assert not passes(apart)


MATRIX = judge.Tensor("x", ("A", "D"), "float32", rows=0)
CASES = (judge.Case({"A": 30, "D": 33}), judge.Case({"A": 3, "D": 8}))


def operator(kernel: Function, reference: Function, *outputs: judge.Tensor) -> judge.Operator:
    outputs = outputs or (judge.Tensor("idx", ("A",), "int64", rows=0),)
    return judge.Operator("op", kernel, reference, reference, (MATRIX,), outputs)


def judged(kernel: Function, reference: Function, *outputs: judge.Tensor, seeds: int = 1) -> list[judge.CaseReport]:
    one = operator(kernel, reference, *outputs)
    return [judge.accuracy_case(one, case, seed=seed) for seed in range(seeds) for case in CASES]


def of_equals(which: int, reference: Function = torch.argmax) -> Function:
    """Which of the elements that equal the selected one is named instead."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        first = reference(x, -1, keepdim=True)
        equal = (x == x.gather(-1, first)) | (x.isnan() & x.gather(-1, first).isnan())
        number = equal.long().cumsum(-1)
        wanted = number[:, -1:] if which < 0 else number[:, -1:].clamp(max=which + 1)
        return (equal & (number == wanted)).int().argmax(-1)

    return kernel


def after_tied(x: torch.Tensor) -> torch.Tensor:
    """No maximum at all, where there are several."""
    first = x.argmax(-1, keepdim=True)
    tied = ((x == x.gather(-1, first)) | (x.isnan() & x.gather(-1, first).isnan())).sum(-1) > 1
    return torch.where(tied, (first[:, 0] + 1) % x.shape[-1], first[:, 0])


@pytest.mark.parametrize("kernel", [of_equals(1), of_equals(-1), after_tied])
def test_another_place_than_the_first_of_equals_is_wrong_in_every_run(kernel: Function) -> None:
    for report in judged(kernel, lambda x: x.argmax(-1), seeds=4):
        assert report.message.startswith("idx["), report.message
        assert "bound" not in report.message


@pytest.mark.parametrize("find", [torch.argmax, torch.argmin])
def test_the_first_of_equals_is_right(find: Function) -> None:
    assert all(report.passed for report in judged(of_equals(0, find), lambda x: find(x, -1)))


@pytest.mark.parametrize("reference", [lambda x: (x * x).argmax(-1), lambda x: torch.softmax(x, -1).argmax(-1)])
def test_of_computed_scores_that_are_equal_whatever_rounding_does_the_first_is_right(reference: Function) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        return x.shape[-1] - 1 - reference(x.flip(-1))

    assert all(report.passed for report in judged(reference, reference))
    assert not any(report.passed for report in judged(last, reference))


def test_what_is_computed_from_places_holds_no_other_ones() -> None:
    assert all(r.passed for r in judged(lambda x: x.argmax(-1) * 2, lambda x: x.argmax(-1) * 2))
    assert not any(r.passed for r in judged(lambda x: of_equals(1)(x) * 2, lambda x: x.argmax(-1) * 2))


def same_shape(name: str = "idx", dtype: str = "int64") -> judge.Tensor:
    return judge.Tensor(name, ("A", "D"), dtype, rows=0)


def test_a_stable_sort_keeps_the_order_of_equals_and_another_one_need_not() -> None:
    def stable(x: torch.Tensor) -> torch.Tensor:
        return x.sort(dim=-1, stable=True).indices

    def mirrored(x: torch.Tensor) -> torch.Tensor:
        found = x.flip(-1).sort(dim=-1, stable=True).indices
        return x.shape[-1] - 1 - found

    assert all(r.passed for r in judged(stable, stable, same_shape()))
    assert not any(r.passed for r in judged(mirrored, stable, same_shape()))
    assert all(r.passed for r in judged(mirrored, lambda x: x.sort(-1).indices, same_shape()))
    one = [r.message for r in judged(lambda x: stable(x)[:, :1].expand(x.shape).contiguous(), stable, same_shape())]
    assert all(message.startswith("idx[0, ") for message in one)


@pytest.mark.parametrize("find", [torch.median, torch.nanmedian, torch.mode, lambda x, dim: torch.kthvalue(x, 2, dim)])
def test_any_place_that_holds_the_selected_value_is_right(find: Function) -> None:
    def mirrored(x: torch.Tensor) -> torch.Tensor:
        found = find(x, -1)
        equal = (x == found.values[:, None]) | (x.isnan() & found.values[:, None].isnan())
        return equal.int().argmax(-1)

    def beside(x: torch.Tensor) -> torch.Tensor:
        return (find(x, -1).indices + 1) % x.shape[-1]

    assert all(r.passed for r in judged(mirrored, lambda x: find(x, -1).indices))
    assert not any(r.passed for r in judged(beside, lambda x: find(x, -1).indices))


def test_the_last_of_equals_is_the_place_of_a_running_extreme() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        values, places = x.cummax(-1)
        same = torch.zeros_like(places, dtype=torch.bool)
        same[:, 1:] = (values[:, 1:] == values[:, :-1]) | (values[:, 1:].isnan() & values[:, :-1].isnan())
        return torch.where(same, 0, torch.arange(x.shape[-1])).cummax(-1).values

    assert all(r.passed for r in judged(lambda x: x.cummax(-1).indices, lambda x: x.cummax(-1).indices, same_shape()))
    assert not any(r.passed for r in judged(first, lambda x: x.cummax(-1).indices, same_shape()))


def test_places_that_no_choice_decides_are_held_exactly() -> None:
    bounds = torch.tensor([-1.0, 0.0, 1.0])

    def place(x: torch.Tensor, right: bool = False) -> torch.Tensor:
        return torch.searchsorted(bounds.to(x.dtype), x, right=right)

    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x, return_inverse=True)[1].reshape(x.shape)

    def apart(x: torch.Tensor) -> torch.Tensor:
        """Equals get numbers of their own."""
        return x.reshape(-1).argsort(stable=True).argsort().reshape(x.shape)

    assert all(r.passed for r in judged(place, place, same_shape()))
    assert not any(r.passed for r in judged(lambda x: place(x, True), place, same_shape()))
    whole = judge.Tensor("idx", ("A", "D"), "int64")
    assert all(r.passed for r in judged(inverse, inverse, whole))
    assert not any(r.passed for r in judged(apart, inverse, whole))
    two = (MATRIX, judge.Tensor("y", ("A", "D"), "float32", rows=0))
    strict = judge.Operator("op", torch.ge, torch.gt, torch.gt, two, (same_shape("more", "bool"),))
    assert not any(judge.accuracy_case(strict, case, seed=seed).passed for case in CASES for seed in range(2))


CLASSES = {"the second of equals", "the last of equals", "the next place"}


@pytest.mark.parametrize(
    ("reference", "outputs", "classes"),
    [
        (lambda x: x.argmax(-1), (), CLASSES),
        (lambda x: (x * x).argmin(-1), (), CLASSES),
        (lambda x: x.min(-1).indices, (), CLASSES),
        (lambda x: x.cummax(-1).indices, (same_shape(),), {"the first of equals", "the next place"}),
        (lambda x: x.sort(dim=-1, stable=True).indices, (same_shape(),), {"equals out of order", "one place for all"}),
        (lambda x: x.sort(-1).indices, (same_shape(),), {"one place for all", "the next place"}),
    ],
)
def test_every_class_of_wrong_places_is_told(
    reference: Function, outputs: tuple[judge.Tensor, ...], classes: set[str]
) -> None:
    for report in judged(reference, reference, *outputs):
        assert classes <= set(report.told), report.undiscriminated


def test_without_inputs_that_tie_a_wrong_choice_is_not_told() -> None:
    one = operator(lambda x: x.argmax(-1), lambda x: x.argmax(-1))
    report = judge.accuracy_case(one, CASES[0], seed=1, distributions=("normal",), seeds=1)
    assert report.passed
    assert {"the second of equals", "the last of equals"} <= set(report.undiscriminated)


def picked(places: Function) -> Function:
    """The elements of three columns; among what decides which, many are equal."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.gather(-1, places(x.floor())) * 2

    return kernel


def middle_first(scores: torch.Tensor) -> torch.Tensor:
    """Of equal scores those nearest to the middle of the row."""
    order = (torch.arange(scores.shape[-1]) - scores.shape[-1] // 2).abs().argsort(stable=True)
    found = scores[:, order].sort(dim=-1, descending=True, stable=True).indices[:, :3]
    return order[found]


PICKED = judge.Tensor("out", ("A", 3), "float32", rows=0)


@pytest.mark.parametrize(
    "places",
    [
        lambda scores: scores.topk(3).indices,
        lambda scores: scores.sort(dim=-1, descending=True, stable=True).indices[:, :3],
        lambda scores: scores.shape[-1] - 1 - scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :3],
    ],
)
def test_what_any_right_choice_gives_is_right_where_no_output_says_which_was_made(places: Function) -> None:
    for report in judged(picked(places), picked(lambda scores: scores.topk(3).indices), PICKED):
        assert report.passed, report.message
        assert not report.message


def test_what_follows_from_a_choice_that_nobody_tried_is_not_decided() -> None:
    report = judged(picked(middle_first), picked(lambda scores: scores.topk(3).indices), PICKED)[0]
    assert report.passed, report.message
    assert "elements follow from which of equals are selected: not decided" in report.message


@pytest.mark.parametrize(
    "kernel", [picked(lambda s: s.topk(3, largest=False).indices), lambda x: x[:, :3] * 0, lambda x: x[:, :3] * 2]
)
def test_what_follows_from_no_right_choice_is_wrong(kernel: Function) -> None:
    report = judged(kernel, picked(lambda scores: scores.topk(3).indices), PICKED)[0]
    assert not report.passed


def test_the_greatest_of_nearly_equal_computed_scores_may_be_either() -> None:
    """The scores of two columns differ by what rounding costs; what is read at the place is far apart."""

    def scores(x: torch.Tensor) -> torch.Tensor:
        return (x.double().cos() + 3).to(x.dtype)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.gather(-1, scores(x).argmax(-1, keepdim=True)).squeeze(-1)

    def other(x: torch.Tensor) -> torch.Tensor:
        """Of scores that differ by less than rounding the last."""
        found = scores(x)
        near = found >= found.amax(-1, keepdim=True) * (1 - 2.0**-22)
        return x.gather(-1, x.shape[-1] - 1 - near.flip(-1).int().argmax(-1, keepdim=True)).squeeze(-1)

    near = judge.Operator(
        "op", other, reference, reference, (MATRIX,), (judge.Tensor("out", ("A",), "float32", rows=0),)
    )
    report = judge.accuracy_case(near, judge.Case({"A": 100, "D": 257}), seed=1, distributions=("normal",), seeds=1)
    assert report.passed, report.message


@pytest.mark.parametrize("first_of_equals", [True, False])
def test_what_is_selected_among_equal_groups_is_judged_by_the_groups_that_lead_to_it(first_of_equals: bool) -> None:
    """Experts of the best groups, as a router takes them: of equal groups any is right, and no output names them."""
    x, weights, places = (
        judge.Tensor("x", ("A", 16), "float32", rows=0),
        judge.Tensor("weights", ("A", 4), "float32", rows=0),
        judge.Tensor("places", ("A", 4), "int64", rows=0),
    )
    Best = Callable[[torch.Tensor], torch.Tensor]

    def routed(x: torch.Tensor, best: Best) -> tuple[torch.Tensor, torch.Tensor]:
        scores = x.sigmoid()
        groups = scores.view(-1, 4, 4).topk(2).values.sum(-1)
        mask = torch.zeros_like(groups).scatter_(1, best(groups), 1).bool().unsqueeze(-1).expand(-1, 4, 4)
        found = scores.masked_fill(~mask.reshape(scores.shape), float("-inf")).topk(4, sorted=False).indices
        kept = scores.gather(1, found)
        return kept / kept.sum(-1, keepdim=True), found

    def in_order(groups: torch.Tensor) -> torch.Tensor:
        return groups.sort(descending=True, stable=True).indices

    def first(groups: torch.Tensor) -> torch.Tensor:
        return in_order(groups)[:, :2]

    def last(groups: torch.Tensor) -> torch.Tensor:
        return 3 - in_order(groups.flip(-1))[:, :2]

    def report(best: Best) -> judge.CaseReport:
        reference = partial(routed, best=lambda groups: groups.topk(2, sorted=False).indices)
        operator = judge.Operator("op", partial(routed, best=best), reference, reference, (x,), (weights, places))
        distributions = ("normal", "zero-one", "equal rows", "ties", "one value", "specials")
        return judge.accuracy_case(operator, judge.Case({"A": 50}, {}), seed=1, seeds=1, distributions=distributions)

    assert report(first if first_of_equals else last).passed
    assert not report(lambda groups: in_order(groups)[:, 1:3]).passed


def test_a_selected_element_beyond_the_dtype_is_decided():
    """In float16 the least of sums beyond its numbers is infinite, in the oracle it is none of the equals'."""

    def least(x):
        return torch.min(x @ x.mT, dim=1)[0]

    x, out = judge.Tensor("x", ("M", "K"), "float16"), judge.Tensor("out", ("M",), "float16")
    op = judge.Operator("o", least, least, least, (x,), (out,), stored="float16")
    report = judge.accuracy_case(
        op, judge.Case({"M": 9, "K": 70}, {}), distributions=("large",), seeds=1, mutants=False
    )
    assert report.passed, report.message
    assert report.message == ""


OF_SUMS = (judge.Tensor("x", ("M", "D", "L"), "T"), judge.Tensor("w", ("L", "N"), "T"))


def of_sums(kernel: Function, reference: Function, shape: tuple[str, ...], dtype: str = "T") -> judge.Operator:
    outputs = (judge.Tensor("out", shape, dtype),)
    return judge.Operator("o", kernel, reference, reference, OF_SUMS, outputs, stored="T", multiplied="T")


@pytest.mark.parametrize("places_are_read", [False, True])
def test_an_extreme_whose_places_nobody_reads_is_no_selection(places_are_read: bool) -> None:
    """Of sums that a kernel stores in bfloat16 it takes the least that it has, which may be another one's."""

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values, places = torch.min(x @ w, dim=1)
        taken = torch.gather(x @ w, 1, places[:, None])[:, 0] if places_are_read else values
        return torch.softmax(taken, -1)

    def kth(k: int) -> Function:
        def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            sums = (x.double() @ w.double()).to(x.dtype).float()
            return torch.softmax(sums.kthvalue(k, 1).values, -1).to(x.dtype)

        return kernel

    def judged(kernel: Function, length: int, dtype: str, distribution: str) -> judge.CaseReport:
        case = judge.Case({"M": 4, "D": 15, "L": length, "N": 31}, {"T": dtype})
        op = of_sums(kernel, reference, ("M", "N"))
        return judge.accuracy_case(op, case, seed=1, seeds=1, distributions=(distribution,), mutants=False)

    right = judged(kth(1), 3400, "bfloat16", "zero-one")
    assert right.passed, right.message
    assert ("not decided" in right.message) is places_are_read
    for k in (1, 2):
        assert judged(kth(k), 64, "float32", "normal").passed is (k == 1)


def _set_items(marks: torch.Tensor, places: torch.Tensor) -> None:
    marks[torch.arange(len(places)), places] = 1


def _from_a_list(marks: torch.Tensor, places: torch.Tensor) -> None:
    for row, place in enumerate(places.tolist()):
        marks[row, place] = 1


READERS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "items": _set_items,
    "a list": _from_a_list,
    "index_put_": lambda marks, p: marks.index_put_((torch.arange(len(p)), p), marks.new_ones(())),
    "scatter_": lambda marks, p: marks.scatter_(1, p[:, None], 1),
    "numpy": lambda marks, p: _set_items(marks, torch.from_numpy(p.numpy().copy())),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_places_that_are_read_in_any_way_are_a_selection(read: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        sums = (x @ w).sum(-1)
        marks = torch.zeros_like(sums)
        read(marks, sums.argmax(1))
        return marks

    def kth(k: int) -> Function:
        def kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            sums = (x.double() @ w.double()).sum(-1)
            marks = torch.zeros_like(sums)
            read(marks, (-sums).kthvalue(k, 1).indices)
            return marks.to(x.dtype)

        return kernel

    case = judge.Case({"M": 9, "D": 21, "L": 64, "N": 2}, {"T": "bfloat16"})
    for k, right in ((1, True), (5, False)):
        op = of_sums(kth(k), reference, ("M", "D"))
        report = judge.accuracy_case(op, case, seed=1, seeds=1, distributions=("uniform",), mutants=False)
        assert report.passed is right, report.message
