"""`[N, C, ...]`: any number of dimensions behind or between those that have names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen.backward import backward
from kernelgen.errors import SpecError
from kernelgen.frontend import trace

SIZES = tuple({"N": 3, "C": 5, "...": rest} for rest in ((), (7,), (2, 1, 3)))
X = "N C ..."
W = {"weight": "C", "bias": "C"}

RIGHT = {
    "element by element": sample("return torch.relu(x) * y", {"x": X, "y": X}, {"out": X}, *SIZES),
    "a batch norm": sample(
        "return F.batch_norm(x, mean, var.abs(), weight, bias)",
        {"x": X, "mean": "C", "var": "C", **W}, {"out": X}, *SIZES,
    ),
    "a batch norm in training": sample(
        "return F.batch_norm(x, None, None, weight, bias, training=True)", {"x": X, **W}, {"out": X}, *SIZES
    ),
    "a group norm": sample(
        "return F.group_norm(x, 4, weight, bias)",
        {"x": "N 4*C ...", "weight": "4*C", "bias": "4*C"}, {"out": "N 4*C ..."}, *SIZES[1:],
    ),
    "a softmax of channels": sample("return F.softmax(x, dim=1)", {"x": X}, {"out": X}, *SIZES),
    "a scale by channel": sample(
        "return x * weight.reshape(-1, *([1] * (x.ndim - 2)))", {"x": X, "weight": "C"}, {"out": X}, *SIZES
    ),
    "gated channels": sample(
        "a, b = x.chunk(2, 1)\nreturn a * torch.sigmoid(b)", {"x": "N 2*C ..."}, {"out": X}, *SIZES
    ),
    "channels turned around": sample("return x.flip(1)", {"x": X}, {"out": X}, *SIZES),
    "the last stays": sample("return x.amax(-1) + b", {"x": "N ... C", "b": "N ..."}, {"out": "N ..."}, *SIZES),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_dimensions_behind_named_ones_may_be_any_number(name: str) -> None:
    assert not failures(RIGHT[name], thorough=False, most=2)


def refused(reference: str, *constraints: str, out: str = X) -> str:
    one: Sample = sample(f"return {reference}", {"x": X}, {"out": out}, SIZES[1], constraints=constraints)
    with pytest.raises(SpecError) as error:
        plan_of(one.spec())
    return str(error.value)


def test_what_differs_with_their_number_is_refused() -> None:
    assert "with ... as 2 dimensions the reference computes something else" in refused("x.softmax(-1)")
    assert "with ... as 2 dimensions the reference computes something else" in refused("x / x.shape[2]", "x.ndim >= 3")
    assert "with ... as 2 dimensions the reference computes something else" in refused("x / x.shape[-1]", "x.ndim >= 3")
    assert "write the constraint x.ndim >= 3" in refused("x.flatten(2).sum(-1)", out="N C")


def test_a_constraint_says_that_there_is_one_at_least() -> None:
    pooled = sample(
        "return x.flatten(2).mean(-1)", {"x": X}, {"out": "N C"}, *SIZES[1:], constraints=("x.ndim >= 3",)
    )  # fmt: skip
    assert not failures(pooled, thorough=False, most=2)


def test_a_gradient_that_takes_another_form_with_more_dimensions_is_refused() -> None:
    """What is written of a gradient counts from the end, which moves with the number of dimensions behind a name."""
    scaled = sample(
        "return torch.tanh(x * weight.reshape(-1, *([1] * (x.ndim - 2))))",
        {"x": X, "weight": "C"},
        {"out": X},
        SIZES[1],
    )
    spec = replace(scaled.spec(), backward=True)
    (part,) = backward(spec, trace(spec)[0]).parts[:1]
    with pytest.raises(SpecError, match=r"with \.\.\. as 2 dimensions: the reference fails"):
        trace(part.spec, derived=True)
