"""Even and odd elements of rows that are reduced: read by one load of pairs, whatever the reduction sees beyond the row."""

from __future__ import annotations

import pytest
from references import Sample, failures, plan_of, sample

from kernelgen import families, render
from kernelgen.plan import KernelPlan, TableRow

SIZES = {"B": 3, "G": 5, "D": 7}
APART = "softmax of one by the other"
"""Beyond the row the first is an infinity, and nobody looks at the second."""
HALVES = "even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)\n"
GROUPED = "even, odd = x.float().unflatten(-1, (-1, 6, 2)).unbind(-1)\n"
FORMS = {
    "greatest": (HALVES + "return torch.maximum(even.abs(), odd).amax(-1).to(x.dtype)", "B 2*D", "B"),
    "lengths over their sum": (
        HALVES + "size = torch.sqrt(even * even + odd * odd)\nreturn (size / size.sum(-1, keepdim=True)).to(x.dtype)",
        "B 2*D", "B D",
    ),
    "variance of differences": (HALVES + "return (even - odd).var(-1).to(x.dtype)", "B 2*D", "B"),
    APART: (
        HALVES + "return (torch.softmax(even, -1) * odd).to(x.dtype)", "B 2*D", "B D",
    ),
    "groups": (
        GROUPED + "top = torch.maximum(even, odd).amax(-1, keepdim=True)\nreturn (even - top).flatten(-2).to(x.dtype)",
        "B 12*G", "B 6*G",
    ),
}  # fmt: skip


def of(name: str) -> Sample:
    lines, shape, out = FORMS[name]
    sizes = {n: size for n, size in SIZES.items() if n in shape}
    return sample(
        lines, {"x": shape}, {"out": out}, sizes, dict.fromkeys(sizes, 1) | ({"D": 2} if "D" in sizes else {})
    )


@pytest.mark.parametrize("name", FORMS)
def test_they_are_loaded_together_and_right(name: str) -> None:
    found = of(name)
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    family = families.family_of(plan)
    for variant in ("row", "rows"):
        text = render.triton_source(plan.with_table((TableRow((), family.default(variant)),)))
        assert ("tl.split(tl.reshape(x_pairs" in text) == (name != APART), variant
    assert failures(found, thorough=False) == []
