"""Pools of what a convolution computes, in its kernel: every variant of every form, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import Sample, load, plan_of, sample, schedules
from test_convolutions import compiled, planned
from test_matmul import check, inputs_of

from kernelgen import families, render
from kernelgen.families.kernel import body_of
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.plan import KernelPlan, TableRow

IMAGE = {"x": "B C H W", "w": "J C 3 3", "b": "J"}
TWICE = {**IMAGE, "x": "B C 2*H 2*W"}
EVEN = {"B": 2, "C": 8, "H": 6, "W": 10, "J": 6}
HALF = {"B": 2, "C": 8, "H": 3, "W": 2, "J": 6}
ODD = {"B": 3, "C": 19, "H": 5, "W": 7, "J": 17}


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # what is torch's call multiplies all bits


def of(lines: str, inputs: dict[str, str], out: str, *sizes: dict[str, Any]) -> Sample:
    return sample(lines, inputs, {"out": out}, *sizes)


FORMS = {
    "the greatest": of(
        "return F.max_pool2d(torch.relu(F.conv2d(x, w, b, padding=1)), 2)", IMAGE, "B J H//2 W//2", EVEN, ODD
    ),
    "the mean, and what follows": of(
        "return torch.sigmoid(F.avg_pool2d(F.conv2d(x, w, padding=1) * s, 2) + b) * r",
        {**TWICE, "b": "J 1 1", "s": "J 1 1", "r": "B J H W"}, "B J H W", HALF,
    ),
    "wide windows": of(
        "return F.max_pool2d(F.conv2d(x, w, b, padding=1), (2, 4))", {**IMAGE, "x": "B C 2*H 4*W"}, "B J H W", HALF
    ),
    "along one side": of(
        "return F.avg_pool2d(F.conv2d(x, w, b, padding=1), (1, 2))", IMAGE, "B J H W//2", EVEN
    ),
    "of a sequence": of(
        "return F.avg_pool1d(F.conv1d(x, w, b, padding=1), 2)", {"x": "B C L", "w": "J C 3", "b": "J"}, "B J L//2",
        {"B": 2, "C": 8, "L": 11, "J": 6},
    ),
    "of a volume": of(
        "return F.max_pool3d(F.conv3d(x, w, b, padding=1), 2).clamp(0, 1)",
        {"x": "B C D H W", "w": "J C 3 3 3", "b": "J"}, "B J D//2 H//2 W//2", {**HALF, "H": 5, "W": 4, "D": 2},
    ),
    "and all channels": of(
        "y = F.conv2d(x, w, b, padding=1).softmax(1)\nreturn F.max_pool2d(y, 2).sum(1, keepdim=True)",
        {"x": "B C H W", "w": "24 C 3 3", "b": "24"}, "B 1 H//2 W//2", EVEN,
    ),
}  # fmt: skip
APART = {
    "windows of nine": ("F.max_pool2d(y, 3)", "B C 3*H 3*W", "B J H W"),
    "windows that overlap": ("F.max_pool2d(y, 3, 2, 1)", "B C H W", "B J (H-1)//2+1 (W-1)//2+1"),
    "windows of more pixels than a box has": ("F.avg_pool2d(y, (1, 16))", "B C H 16*W", "B J H W"),
    "what torch convolves": ("F.max_pool2d(y, 2)", "B C 12 9", "B J 3 2"),
    "pixels that are used too": ("F.max_pool2d(y, 2) + y.mean((2, 3), keepdim=True)", "B C H W", "B J H//2 W//2"),
}
LEFT_OUT = {
    "a row of a window": ("2, BLOCK_W // 2", "1, BLOCK_W // 2"),
    "where pixels begin": ("first_w // 2 +", "first_w +"),
    "half of a window": ("_nan_max(groups, axis=1)", "tl.min(groups, axis=1)"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_variant_is_right(name: str) -> None:
    found, plan = FORMS[name], planned(FORMS[name])
    for at, schedule in enumerate(dict.fromkeys(schedules(plan))):
        op = compiled(plan, schedule)
        for number, sizes in enumerate(found.sizes):
            dtype = ("float32", "float16")[(at + number) % 2]
            how = ("contiguous", "outermost last", "misaligned")[(at // 2 + number) % 3]
            check(found, op, inputs_of(found, sizes, dtype, how), (schedule, sizes, dtype, how))


@pytest.mark.parametrize("name", APART)
def test_other_pools_are_kernels_of_their_own(name: str) -> None:
    line, x, out = APART[name]
    stride = 2 if name == "what torch convolves" else 1
    lines = f"y = F.conv2d(x, w, b, padding=1, stride={stride})\nreturn {line}"
    found = of(lines, {**IMAGE, "x": x}, out, EVEN)
    plan = plan_of(found.spec())
    assert not isinstance(plan, KernelPlan)
    check(found, load(render.triton_source(plan)).op, inputs_of(found, EVEN, "float32"))


REDUCED = {
    "a mean": ("x.mean(-1)", "B C H W 3"),
    "a mean in between": ("x.mean(2)", "B C 3 H W"),
    "a large pool": ("F.max_pool2d(x, 9)", "B C 9*H 9*W"),
    "a pool of a pool": ("F.max_pool2d(F.avg_pool2d(x, 5), 4)", "B C 20*H 20*W"),
}


@pytest.mark.parametrize("name", REDUCED)
def test_what_was_reduced_is_convolved_without_the_dimensions_that_were(name: str) -> None:
    read, x = REDUCED[name]
    found = of(f"return torch.relu(F.conv2d({read}, w, b, padding=1))", {**IMAGE, "x": x}, "B J H W", HALF)
    plan = plan_of(found.spec())
    check(found, load(render.triton_source(plan)).op, inputs_of(found, HALF, "float32"))


def test_a_window_that_holds_nan_leaves_nan() -> None:
    found = FORMS["the greatest"]
    tensors = inputs_of(found, EVEN, "float32")
    tensors[0][1, 2, 3, 4] = torch.nan
    wanted = torch.nn.functional.max_pool2d(torch.relu(torch.conv2d(*tensors, padding=1)), 2).isnan()
    assert wanted.any()
    assert not wanted.all()
    for schedule in dict.fromkeys(schedules(planned(found))):
        assert torch.equal(compiled(planned(found), schedule)(*tensors).isnan(), wanted), schedule


def test_boxes_are_whole_numbers_of_windows() -> None:
    plan = planned(FORMS["wide windows"])
    family, body = families.family_of(plan), body_of(plan)
    (boxes, *_) = (s for s in family.starts(body, 0, 0) if s.variant == "boxes")
    assert family.holds(body, boxes, 2) is None
    of_volume = planned(FORMS["of a volume"])
    assert all(
        family.holds(body_of(of_volume), row.schedule, 2) is None and row.schedule.int("BLOCK_D") == 2
        for row in of_volume.table
        if row.schedule.variant == "boxes"
    )
    for block in ({"BLOCK_W": 2}, {"BLOCK_H": 1}):
        assert "no whole number of windows" in str(family.holds(body, boxes.replace(**block), 2))


@pytest.mark.parametrize("part", LEFT_OUT)
def test_a_part_that_is_left_out_is_seen(part: str) -> None:
    found = FORMS["the greatest"]
    plan = planned(found)
    schedule = next(s for s in schedules(plan) if s.variant == "boxes")
    text = render.triton_source(plan.with_table((TableRow((), schedule),)))
    was, instead = LEFT_OUT[part]
    assert was in text
    module = load(text.replace(was, instead))
    module.__dict__["convolution_precision"] = lambda: "ieee"
    with pytest.raises(Exception, match=r"off by|shape"):
        check(found, module.op, inputs_of(found, EVEN, "float32"))
