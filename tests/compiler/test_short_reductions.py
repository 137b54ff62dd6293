"""Reductions of a few elements that lie apart: written out where nothing else wants the elements, and right."""

from __future__ import annotations

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen.plan import KernelPlan

SIZES = {"B": 3, "D": 17}
X = {"x": "B 4 D"}
WRITTEN = {
    "sum": "return x.float().sum(1).to(x.dtype)",
    "mean of the first": "return x.transpose(0, 1).mean(0)",
    "greatest": "return x.amax(-2)",
    "least of a product": "return (x * 2 + 1).amin(1)",
    "variance": "return x.float().var(1).to(x.dtype)",
    "log of a sum of exponentials": "return torch.logsumexp(x.float(), 1).to(x.dtype)",
    "what is joined": "return torch.stack((x[:, 0], x[:, 1] * 2, x[:, 2])).sum(0)",
    "one after the other": "return x.reshape(x.shape[0], 2, 2, x.shape[2]).amax(1).sum(1)",
    "integers": "return (x > 0).long().sum(1).to(x.dtype)",
}
WHOLE = {
    "a softmax": ("return torch.softmax(x.float(), 1).to(x.dtype)", "B 4 D"),
    "beside the elements": ("return x.amax(1), x * 2", "B D", "B 4 D"),
    "the last dimension": ("return x.transpose(1, 2).sum(2)", "B D"),
}


def of(lines: str, out: str = "B D") -> Sample:
    return sample(lines, X, {"out": out}, SIZES, {"B": 1, "D": 1})


@pytest.mark.parametrize("name", WRITTEN)
def test_they_are_written_out_and_right(name: str) -> None:
    found = of(WRITTEN[name])
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "pointwise"
    assert failures(found, thorough=False) == []


@pytest.mark.parametrize("name", WHOLE)
def test_they_stay_whole_where_all_elements_are_wanted(name: str) -> None:
    """Each is loaded once then, and not once for every element of the result."""
    lines, *outs = WHOLE[name]
    found = sample(lines, X, dict(zip(("out", "other"), outs, strict=False)), SIZES)
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "reduction"
    assert failures(found, thorough=False) == []
