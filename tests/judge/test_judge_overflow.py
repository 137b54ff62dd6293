"""Sums whose parts overflow float32: which order they are added in decides between NaN, infinity and a number."""

import math

import pytest
import torch
import torch.nn.functional as F

from kernelgen import judge

X, W = judge.Tensor("x", ("B", "C", "H"), "T"), judge.Tensor("w", ("J", "C", 3), "T")
LARGE = 1.2e38
"""Sums of so many times numbers of about 1 are beyond float32, or their parts are."""


def by_input(g, w):
    given, ones = g.new_empty(g.shape[0], w.shape[1], g.shape[2]), [1]
    call = torch.ops.aten.convolution_backward
    return call(g, given, w, None, ones, ones, ones, False, [0], 1, [True, False, False])[0]


def by_weight(g, x):
    weight, ones = g.new_empty(g.shape[1], x.shape[1], 3), [1]
    call = torch.ops.aten.convolution_backward
    return call(g, x, weight, None, ones, ones, ones, False, [0], 1, [False, True, False])[1]


SUMS = {
    "sum": (lambda x: x.sum(1), (1,), ("B", "H")),
    "mean": (lambda x: x.mean(1), (1,), ("B", "H")),
    "product": (lambda x, w: w[..., 0] @ x, (1, 1), ("B", "J", "H")),
    "convolution": (lambda x, w: F.conv1d(x, w, padding=1), (1, 1), ("B", "J", "H")),
    "gradient by input": (by_input, (1, 0), ("B", "C", "H")),
    "gradient by weight": (by_weight, (0, 0), ("C", "C", 3)),
}
"""By name: what is computed of x and w; along which dimensions of these its sums run; the shape of the result."""


def operator(name, multiplied):
    function, summed, shape = SUMS[name]
    second = [W] if len(summed) > 1 else []
    inputs = (X, *([judge.Tensor("w", X.shape, "T")] if name == "gradient by weight" else second))

    def reference(x, *w):
        return function(x * LARGE, *w)

    def halves(*given):
        """The same sums, of every second element first."""
        parts = [
            reference(*(t.index_select(d, torch.arange(n, t.shape[d], 2)) for t, d in zip(given, summed, strict=True)))
            for n in (1, 0)
        ]
        return (parts[0] + parts[1]) * (0.5 if name == "mean" else 1.0)

    out = judge.Tensor("out", shape, "T")
    key = {"multiplied" if multiplied else "stored": "T"} if second else {}
    return judge.Operator("o", halves, reference, reference, inputs, (out,), **key)


def judged(op, kernel, seed):
    few = {"B": 4, "C": 8, "H": 1} if op.outputs[0].shape[-1] == 3 else {"B": 4, "C": 4, "H": 10}  # in a sum
    case = judge.Case({**few, "J": 4}, {"T": "float32"})
    return judge.accuracy_case(op, case, kernel=kernel, distributions=("normal",), seeds=1, seed=seed, mutants=False)


@pytest.mark.parametrize("multiplied", [True, False])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_in_another_order_may_overflow_on_the_way(name, multiplied):
    op = operator(name, multiplied)
    for seed in range(6):
        found = judged(op, op.kernel, seed)
        assert found.passed, found.message


@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
@pytest.mark.parametrize("name", SUMS)
def test_what_no_order_gives_is_wrong(name, wrong):
    op = operator(name, multiplied=True)

    def spoiled(*given):
        """Wrong where the negative parts of a sum are smallest."""
        right = op.reference(*(x.double() for x in given))
        negative = op.reference(*(x.double().abs() for x in given)) - right
        found = right.float()
        found.view(-1)[negative.argmin()] = wrong
        return found

    found = judged(op, spoiled, 3)
    assert "1 of " in found.message
    assert "in the wrong place" in found.message


def test_two_sums_may_overflow_each_by_itself():
    def reference(x, y):
        return (x * LARGE).sum(1) - (y * LARGE).sum(1)

    def halves(x, y):
        one, other = ((t[:, 1::2] * LARGE).sum(1) + (t[:, ::2] * LARGE).sum(1) for t in (x, y))
        return one - other

    inputs = tuple(judge.Tensor(name, ("B", "C", "H"), "T") for name in "xy")
    op = judge.Operator("o", halves, reference, reference, inputs, (judge.Tensor("out", ("B", "H"), "T"),))
    for seed in range(10):
        found = judged(op, halves, seed)
        assert found.passed, found.message


@pytest.mark.parametrize(("made", "right"), [(0.0, True), (7.0, False), (-123.0, False)])
def test_a_number_that_follows_from_an_overflow_is_that_number(made, right):
    """exp of a sum that is -inf on the way is 0 where the reference has infinity, and never another number."""

    def reference(x):
        return (x * LARGE).sum(1).exp()

    def kernel(x):
        sums, sizes = (x.double() * LARGE).sum(1), (x.double() * LARGE).abs().sum(1)
        both = torch.minimum(sizes + sums, sizes - sums) / 2 > 4e38
        possible = both & (x * LARGE).isfinite().all(1)
        return torch.where(possible & (sums > 0), made, reference(x))

    op = judge.Operator("o", kernel, reference, reference, (X,), (judge.Tensor("out", ("B", "H"), "T"),))
    found = judge.accuracy_case(
        op, judge.Case({"B": 4, "C": 16, "H": 10}, {"T": "float32"}), distributions=("normal",), seeds=1, seed=3,
        mutants=False,
    )  # fmt: skip
    assert found.passed is right, found.message


def test_a_relu_of_what_overflowed_below_is_0():
    def reference(x, w):
        return torch.relu(x * LARGE @ w * 0.5)

    def from_behind(x, w):
        """The same, of the last products first."""
        total = torch.zeros(x.shape[0], w.shape[1])
        for k in reversed(range(x.shape[1])):
            total = torch.addcmul(total, x[:, k : k + 1] * LARGE, w[k : k + 1])
        return torch.relu(total * 0.5)

    inputs = judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T")
    out = judge.Tensor("out", ("M", "N"), "T")
    op = judge.Operator("o", from_behind, reference, reference, inputs, (out,), multiplied="T")
    case = judge.Case({"M": 8, "K": 5, "N": 32}, {"T": "float32"})
    given = {"distributions": ("normal",), "seeds": 1, "mutants": False}
    for seed in (9, 11, 18, 25):
        found = judge.accuracy_case(op, case, seed=seed, **given)
        assert found.passed, found.message
    never = judge.accuracy_case(op, case, kernel=lambda x, w: from_behind(x, w).nan_to_num(1.0, 1.0), seed=9, **given)
    assert not never.passed


@pytest.mark.parametrize("bias", [None, 1.0])
def test_a_sum_of_positive_products_is_never_below_0(bias):
    def reference(x, w):
        added = None if bias is None else x.new_full((w.shape[1],), bias)
        return F.linear(x.abs() * LARGE, w.abs().T * LARGE, added)

    inputs = judge.Tensor("x", ("M", "K"), "T"), judge.Tensor("w", ("K", "N"), "T")
    out = judge.Tensor("out", ("M", "N"), "T")
    op = judge.Operator("o", reference, reference, reference, inputs, (out,), multiplied="T")
    case = judge.Case({"M": 8, "K": 50, "N": 32}, {"T": "float32"})
    given = {"distributions": ("normal",), "seeds": 1, "seed": 1, "mutants": False}
    assert judge.accuracy_case(op, case, **given).passed
    found = judge.accuracy_case(op, case, kernel=lambda x, w: -reference(x, w), **given)
    assert "256 of 256 elements have NaN or infinity in the wrong place" in found.message
