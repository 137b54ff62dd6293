"""Zeros beyond the edges of a convolution's input: whether they are multiplied decides where NaN are."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelgen import judge
from kernelgen.judge import outside
from kernelgen.judge.oracle import in_float64

PLANES = ("B", "C", "H", "W")


def taps(x, height, width):
    """Of every place of a window of 3 by 3, what it sees of images with a zero around each."""
    wide = F.pad(x, (1, 1, 1, 1))
    return [[wide[..., i : i + height, j : j + width] for j in range(3)] for i in range(3)]


def exists(x):
    return taps(torch.ones_like(x), *x.shape[2:])


def convolved(x, w, multiplied):
    """A depthwise convolution, with or without the products of zeros beyond the edges."""
    found, seen = taps(x, *x.shape[2:]), exists(x)
    total = torch.zeros_like(x)
    for i in range(3):
        for j in range(3):
            product = found[i][j] * w[:, 0, i, j].reshape(-1, 1, 1)
            total += product if multiplied else torch.where(seen[i][j] > 0, product, 0.0)
    return total


def by_weight(g, x, multiplied):
    found, seen = taps(x, *x.shape[2:]), exists(x)
    rows = []
    for i in range(3):
        products = [found[i][j] * g for j in range(3)]
        if not multiplied:
            products = [torch.where(seen[i][j] > 0, products[j], 0.0) for j in range(3)]
        rows.append(torch.stack([p.sum((0, 2, 3)) for p in products], -1))
    return torch.stack(rows, -2).unsqueeze(1)


def gradients(forward, backward):
    """The gradient by the weight of hardswish of a convolution; which of the two multiply zeros."""

    def kernel(g, x, w):
        z = convolved(x, w, forward)
        inner = torch.where(z < 3.0, g * (z / 3.0 + 0.5), g)
        return by_weight(torch.where(z <= -3.0, 0.0, inner), x, backward)

    return kernel


def reference(g, x, w):
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        z = F.hardswish(F.conv2d(x, w, padding=1, groups=x.shape[1]))
        return torch.autograd.grad(z, w, g)[0]


def judged(kernel, eager, seed):
    op = judge.Operator(
        "o", kernel, eager, reference,
        (judge.Tensor("g", PLANES, "T"), judge.Tensor("x", PLANES, "T"), judge.Tensor("w", ("C", 1, 3, 3), "T")),
        (judge.Tensor("out", ("C", 1, 3, 3), "T"),), terms=("g",), stored="T", multiplied="T",
    )  # fmt: skip
    case = judge.Case({"B": 2, "C": 12, "H": 2, "W": 3}, {"T": "float32"})
    return judge.accuracy_case(op, case, distributions=("specials",), seeds=1, seed=seed, mutants=False)


CHOICES = [(f, b) for f in (True, False) for b in (True, False)]


@pytest.mark.parametrize(
    ("eager", "kernels"),
    [
        (gradients(False, False), CHOICES),
        # a kernel whose first convolution multiplies none has other numbers than both then, which are called wrong
        (gradients(True, True), CHOICES[:2]),
        (reference, CHOICES[:2]),
    ],
)
def test_each_convolution_may_multiply_zeros_beyond_its_edges_or_not(eager, kernels):
    for seed in range(4):
        for forward, backward in kernels:
            found = judged(gradients(forward, backward), eager, seed)
            assert found.passed, (seed, forward, backward, found.message)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1.0])
def test_nothing_else_is_accepted_for_it(wrong):
    def kernel(g, x, w):
        every = torch.stack([gradients(*choice)(g, x, w) for choice in CHOICES])
        # where all readings have a number, or none has
        where = every.isnan().all(0) if math.isfinite(wrong) else every.isfinite().all(0)
        assert where.any()
        return torch.where(where, wrong, every[2])

    for seed in range(2):
        assert not judged(kernel, gradients(False, False), seed).passed


def test_a_wrong_number_is_told_beside_one_that_another_reading_gives():
    """The number of another reading is no error of the oracles that widen a bound."""

    def kernel(g, x, w):
        found = gradients(False, False)(g, x, w)
        some = found[1:4]
        found[1:4] = torch.where(some.isfinite(), some * 1.5 + 1.0, some)
        return found

    for seed in range(4):
        assert not judged(kernel, gradients(False, False), seed).passed


@pytest.mark.parametrize("call", [F.conv2d, F.conv_transpose2d])
def test_one_number_may_stand_for_all_dimensions_of_space(call):
    x, w = torch.randn(2, 4, 5, 7), torch.randn(4, 4, 3, 3)
    for sizes in ((1, 1), ((1,), (1,))):
        found = list(outside.results(lambda x, w, s=sizes: call(x, w, None, *s), (x, w), torch.Generator()))
        assert len(found) == 2
        for (outputs,) in found:
            torch.testing.assert_close(outputs, call(x.double(), w.double(), padding=1))


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    size = st.integers(1, 3)
    each = st.lists(size, min_size=rank, max_size=rank)
    window, stride, dilation = draw(each), draw(each), draw(each)
    padding = [draw(st.integers(0, d * (k - 1))) for d, k in zip(dilation, window, strict=True)]
    groups, transposed = draw(st.integers(1, 2)), draw(st.booleans())
    space = [d * (k - 1) + draw(size) for d, k in zip(dilation, window, strict=True)]
    left = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    channels = groups * 2, groups * draw(size)
    ends = (channels[0], channels[1] // groups) if transposed else (channels[1], channels[0] // groups)
    x, w = torch.randn(2, channels[0], *space), torch.randn(*ends, *window)
    return x, w, torch.randn(channels[1]), (stride, padding, dilation, transposed, left, groups)


@given(drawn=convolutions(), bias=st.booleans())
@settings(max_examples=60, deadline=None)
def test_of_numbers_every_reading_is_the_same(drawn, bias):
    x, w, b, rest = drawn

    def function(x, w, b):
        with torch.enable_grad():
            x, w = (t.detach().requires_grad_() for t in (x, w))
            z = torch.ops.aten.convolution(x, w, b if bias else None, *rest)
            return (z.detach(), *torch.autograd.grad(z, (x, w), torch.sin(z)))

    z = function(x, w, b)[0]
    if not z.numel():
        return
    found = list(outside.results(function, (x, w, b), torch.Generator()))
    right = in_float64(function, (x, w, b))
    assert len(found) == 8
    for outputs in found:
        for one, other in zip(outputs, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
