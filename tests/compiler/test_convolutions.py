"""Convolutions: every variant of every form, with what stands after it, against float64."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from references import DEVICE, Sample, load, plan_of, sample, schedules
from test_matmul import check, inputs_of, laid_out

from kernelgen import families, frontend, render
from kernelgen.errors import SpecError
from kernelgen.frontend.graph import Graph
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.plan import KernelPlan, Plan, Schedule, TableRow
from kernelgen.spec.model import Case, OperatorSpec

IMAGE = {"x": "B C H W", "w": "J C 3 3", "b": "J"}
SMALL = {"B": 2, "C": 8, "H": 5, "W": 7, "J": 6}
"""Channels of which descriptors can copy runs, in float16 and float32."""
ODD = {"B": 1, "C": 19, "H": 3, "W": 4, "J": 17}


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # what is torch's call multiplies all bits


def of(lines: str, inputs: dict[str, str], out: str, *sizes: dict[str, Any], **more: Any) -> Sample:
    return sample(lines, inputs, {"out": out}, *sizes, **more)


FORMS = {
    "padding": of("return F.conv2d(x, w, padding=1)", IMAGE, "B J H W", SMALL, ODD),
    "no padding": of(
        "return F.conv2d(x, w, b)", IMAGE, "B J H-2 W-2", SMALL, ODD,
        constraints=("x.shape[2] >= 3", "x.shape[3] >= 3"),
    ),
    "bias and relu": of("return torch.relu(F.conv2d(x, w, b, padding=1))", IMAGE, "B J H W", SMALL, ODD),
    "strides": of(
        "return F.conv2d(x, w, b, stride=(2, 1), padding=1)", IMAGE, "B J (H-1)//2+1 W", SMALL, ODD
    ),
    "strides along a row": of(
        "return torch.relu(F.conv2d(x, w, b, stride=(1, 2), dilation=(2, 1), padding=(2, 1)))", IMAGE,
        "B J H (W-1)//2+1", SMALL, ODD,
    ),
    "patches": of(
        "return F.conv2d(x, w, b, stride=(3, 2)).flatten(2).transpose(1, 2)",
        {"x": "B C 3*H 2*W", "w": "J C 3 2", "b": "J"}, "B H*W J", SMALL, ODD,
    ),
    "strides of a sequence": of(
        "return F.gelu(F.conv1d(x, w, b, stride=3, padding=2))", {"x": "B C 3*L", "w": "J C 5", "b": "J"}, "B J L",
        {"B": 2, "C": 8, "L": 9, "J": 6}, {"B": 1, "C": 3, "L": 1, "J": 17},
    ),
    "dilation": of("return F.conv2d(x, w, dilation=(1, 2), padding=(1, 2))", IMAGE, "B J H W", SMALL, ODD),
    "same": of("return F.conv2d(x, w, padding='same')", {"x": "B C H W", "w": "J C 2 3"}, "B J H W", SMALL),
    "sizes that are products": of(
        "return torch.relu(F.conv2d(x, w, b, stride=(1, 2), padding=1))", {**IMAGE, "x": "B C 2*H 3*W"},
        "B J 2*H (3*W-1)//2+1", SMALL, ODD,
    ),
    "images that are windows": of(
        "return F.conv1d(x, w, b).view(-1, 4, 2, 6, 8).permute(1, 0, 2, 4, 3).relu()", {"x": "8*B 3 8", "w": "6 3 1", "b": "6"},
        "4 B 2 8 6", {"B": 2},
    ),
    "images of which two dimensions stay together": of(
        "z = F.conv1d(x, w, b, padding=1).view(2, 4, 3, 6, 8).permute(1, 2, 0, 3, 4)\nreturn torch.relu(z) * y",
        {"x": "24 3 8", "w": "6 3 3", "b": "6", "y": "4 3 2 6 8"}, "4 3 2 6 8", {},
    ),
    "one channel": of(
        "return torch.relu(F.conv2d(x, w, padding=1))", {"x": "B 1 H W", "w": "J 1 3 3"}, "B J H W",
        {"B": 2, "H": 5, "W": 9, "J": 6},
    ),
    "one tap": of("return F.conv2d(x, w, b)", {**IMAGE, "w": "J C 1 1"}, "B J H W", SMALL, ODD),
    "of a sequence": of(
        "return F.gelu(F.conv1d(x, w, b, padding='same'))", {"x": "B C L", "w": "J C 5", "b": "J"}, "B J L",
        {"B": 2, "C": 8, "L": 19, "J": 6}, {"B": 1, "C": 3, "L": 1, "J": 17},
    ),
    "of a volume": of(
        "return F.conv3d(x, w, b, padding=1)", {"x": "B C D H W", "w": "J C 3 3 3", "b": "J"}, "B J D H W",
        {**SMALL, "D": 3},
    ),
    "groups": of(
        "return F.conv2d(x, w, b, groups=3, padding=1)", {"x": "B 12 H W", "w": "6 4 3 3", "b": "6"}, "B 6 H W", SMALL
    ),
    "groups of unknown size": of(
        "return torch.relu(F.conv1d(x, w, b, groups=2, padding=1)) + r",
        {"x": "B 8 L", "w": "2*J 4 3", "b": "2*J", "r": "B 2*J L"}, "B 2*J L", {"B": 2, "L": 9, "J": 3},
    ),
    "batch norm": of(
        "return torch.relu(F.batch_norm(F.conv2d(x, w, padding=1), m, v * v + 1, g, b, False))",
        {**IMAGE, "m": "J", "v": "J", "g": "J"}, "B J H W", SMALL, ODD,
    ),
    "residual": of(
        "return torch.relu(F.conv2d(x, w, padding=1) + r)", {**IMAGE, "r": "B J H W"}, "B J H W", SMALL, ODD
    ),
    "least of the channels": of(
        "return F.conv2d(x, w, padding=1).amin(1, keepdim=True)", {"x": "B C H W", "w": "24 C 3 3"}, "B 1 H W", SMALL
    ),
    "mean of the channels": of(
        "return F.conv2d(x, w, b, padding=1).mean(1)", {"x": "B C H W", "w": "24 C 3 3", "b": "24"}, "B H W", SMALL
    ),
    "transposed": of(
        "return torch.relu(F.conv_transpose2d(x, w, stride=2, padding=1) + b)",
        {"x": "B C H W", "w": "C J 4 4", "b": "J 1 1"}, "B J 2*H 2*W", SMALL, ODD,
    ),
    "transposed by the stride": of(
        "return F.conv_transpose2d(x, w, b, stride=2)", {"x": "B C H W", "w": "C J 2 2", "b": "J"}, "B J 2*H 2*W", SMALL
    ),
    "transposed, phases of unlike taps": of(
        "return F.conv_transpose2d(x, w, b, stride=(2, 3), padding=1, output_padding=(1, 0))",
        {"x": "B C H W", "w": "C J 3 4", "b": "J"}, "B J 2*H 3*W-1", SMALL, ODD,
    ),
    "transposed without strides": of(
        "return F.conv_transpose2d(x, w, b)", {"x": "B C H W", "w": "C J 3 2", "b": "J"}, "B J H+2 W+1", SMALL, ODD
    ),
    "transposed with dilation": of(
        "return F.conv_transpose1d(x, w, stride=3, dilation=2)", {"x": "B C L", "w": "C J 4"}, "B J 3*L+4",
        {"B": 2, "C": 8, "L": 5, "J": 6}, {"B": 1, "C": 3, "L": 1, "J": 17},
    ),
    "transposed, phases that no tap reaches": of(
        "return F.gelu(F.conv_transpose1d(x, w, b, stride=2, padding=1, dilation=2))",
        {"x": "B C L", "w": "C J 3", "b": "J"}, "B J 2*L+1", {"B": 2, "C": 8, "L": 5, "J": 6},
    ),
    "transposed, fewer taps than the stride": of(
        "return F.conv_transpose2d(x, w, b, stride=(3, 2), output_padding=(2, 0))",
        {"x": "B C H W", "w": "C J 1 3", "b": "J"}, "B J 3*H 2*W+1", SMALL,
    ),
    "transposed volume in groups": of(
        "return torch.relu(F.conv_transpose3d(x, w, b, stride=(2, 1, 2), padding=1, output_padding=(1, 0, 0), groups=2)) + r",
        {"x": "B 8 D H W", "w": "8 J 3 3 4", "b": "2*J", "r": "B 2*J 2*D H 2*W"}, "B 2*J 2*D H 2*W",
        {**SMALL, "D": 3, "J": 3},
    ),
    "transposed, least of the channels": of(
        "return F.conv_transpose2d(x, w, b, stride=2).amin(1)",
        {"x": "B C H W", "w": "C 24 3 3", "b": "24"}, "B 2*H+1 2*W+1", SMALL,
    ),
}  # fmt: skip


def planned(found: Sample) -> KernelPlan:
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "convolution"
    return plan


def compiled(plan: Plan, schedule: Schedule) -> Callable[..., Any]:
    """The wrapper of one schedule; float32 is multiplied with all its bits, so that a missing product shows."""
    module = load(render.triton_source(plan.with_table((TableRow((), schedule),))))
    module.__dict__["convolution_precision"] = lambda: "ieee"
    op: Callable[..., Any] = module.op
    return op


@pytest.mark.parametrize("name", FORMS)
def test_every_variant_is_right(name: str) -> None:
    """Each schedule meets another dtype, another layout and other sizes."""
    found, plan = FORMS[name], planned(FORMS[name])
    for at, schedule in enumerate(dict.fromkeys(schedules(plan))):
        op = compiled(plan, schedule)
        for number, sizes in enumerate(found.sizes):
            dtype = ("float32", "float16")[(at + number) % 2]
            how = ("contiguous", "outermost last", "misaligned", "transposed")[(at // 2 + number) % 4]
            check(found, op, inputs_of(found, sizes, dtype, how), (schedule, sizes, dtype, how))


def test_one_channel_is_multiplied_in_half_precision_alone() -> None:
    """It is no run of what is summed, and without float32 its tiles have no parts either: rows of outputs that are
    reduced, which ask for tiles of channels, were a crash."""
    lines = "y = F.conv1d(x, w, stride=2)\nreturn y * torch.rsqrt(y.square().mean(1, keepdim=True) + 1.0)"
    sizes = {"B": 2, "L": 19}
    found = of(lines, {"x": "B 1 L", "w": "6 1 3"}, "B 6 (L-3)//2+1", sizes, constraints=("x.shape[2] >= 3",))
    found = replace(found, dtypes=(("T", ("float16",)),))
    plan = planned(found)
    for schedule in dict.fromkeys(schedules(plan)):
        given = inputs_of(found, sizes, "float16", "contiguous")
        check(found, compiled(plan, schedule), given, (schedule, sizes, "float16", "contiguous"))


@pytest.mark.parametrize(
    ("x", "w"),
    [("B 4 H W", "6 1 3 3"), ("B 4 H W", "1 4 3 3"), ("B 4 H W", "6 4 1 3"), ("B 1 H W", "6 4 3 3"),
     ("1 4 H W", "6 4 3 3"), ("B 4 1 W", "6 4 3 3"), ("B 4 H 1", "6 4 3 1")],
)  # fmt: skip
@pytest.mark.parametrize("transposed", [False, True])
def test_what_stands_for_several_is_read_as_such(x: str, w: str, transposed: bool) -> None:
    shown = (
        f"x.expand({'2' if x[0] == '1' else '-1'}, 4, {'5' if '4 1' in x else '-1'}, {'7' if x[-1] == '1' else '-1'})"
    )
    call, ends = ("F.conv_transpose2d", "4, 6") if transposed else ("F.conv2d", "6, 4")
    if transposed:
        first, second, *rest = w.split()
        w = " ".join([second, first, *rest])
    lines = f"return torch.relu({call}({shown}, w.expand({ends}, 3, 3), padding=1))"
    sizes = {"B": 2, "H": 5, "W": 7}
    result = " ".join(("2" if x[0] == "1" else "B", "6", "5" if "4 1" in x else "H", "7" if x[-1] == "1" else "W"))
    found = of(lines, {"x": x, "w": w}, result, sizes)
    module = load(render.triton_source(plan_of(found.spec())))
    module.__dict__["convolution_precision"] = lambda: "ieee"
    check(found, module.op, inputs_of(found, sizes, "float32"))


def test_channels_that_are_no_number_are_reduced_by_another_kernel() -> None:
    found = of("return F.conv2d(x, w, b, padding=1).softmax(1).amax((2, 3))", IMAGE, "B J", SMALL)
    plan = plan_of(found.spec())
    assert not isinstance(plan, KernelPlan)


@pytest.mark.parametrize("name", ["bias and relu", "padding", "transposed by the stride"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_results_lie_as_torchs_do(name: str, layout: torch.memory_format) -> None:
    found = FORMS[name]
    plan = planned(found)
    tensors = inputs_of(found, SMALL, "float32")
    tensors[0] = tensors[0].contiguous(memory_format=layout)
    for schedule in dict.fromkeys(schedules(plan)):
        out = compiled(plan, schedule)(*tensors)
        assert out.is_contiguous(memory_format=layout), schedule


CHAINS = {
    "convolutions": of(
        "y = torch.relu(F.conv2d(x, w, padding=1))\nreturn torch.relu(F.conv2d(y, v, padding=1))",
        {"x": "B 16 H W", "w": "24 16 3 3", "v": "20 24 3 3"}, "B 20 H W", SMALL,
    ),
    "the last one alone": of(
        "y = torch.relu(F.conv2d(x, w, padding=1))\nreturn F.conv2d(y, v, b)",
        {"x": "B 16 H W", "w": "24 16 3 3", "v": "20 24 1 1", "b": "20"}, "B 20 H W", SMALL,
    ),
    "a residual": of(
        "y = torch.relu(F.conv2d(x, w, padding=1))\nreturn torch.relu(F.conv2d(y, v, padding=1) + x)",
        {"x": "B 16 H W", "w": "24 16 3 3", "v": "16 24 3 3"}, "B 16 H W", SMALL,
    ),
    "windows between them": of(
        "y = F.max_pool2d(torch.relu(F.conv2d(x, w, padding=1)), 3, 2, 1) * s\nreturn torch.relu(F.conv2d(y, v, padding=1))",
        {"x": "B 16 H W", "w": "24 16 3 3", "v": "20 24 3 3", "s": "24 1 1"}, "B 20 (H-1)//2+1 (W-1)//2+1", SMALL,
    ),
    "a norm": of(
        "return F.group_norm(F.conv2d(x, w, padding=1), 4)", {"x": "B 16 H W", "w": "24 16 3 3"}, "B 24 H W", SMALL
    ),
    "a pointwise step first": of(
        "y = torch.relu(x * s)\nreturn torch.relu(F.conv2d(y, w, padding=1))",
        {"x": "B 16 H W", "s": "16 1 1", "w": "24 16 3 3"}, "B 24 H W", SMALL,
    ),
}  # fmt: skip
"""Of a convolution and other kernels, with a tensor in memory between them."""


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_chains_are_right_whichever_layout_comes_in(name: str, layout: torch.memory_format, dtype: str) -> None:
    found = CHAINS[name]
    plan = plan_of(found.spec())
    assert [step.family for step in plan.kernels if step.family == "convolution"]
    module = load(render.triton_source(plan))
    module.__dict__["convolution_precision"] = lambda: "ieee"
    tensors = inputs_of(found, SMALL, dtype)
    tensors[0] = tensors[0].contiguous(memory_format=layout)
    check(found, module.op, tensors, (name, layout, dtype))
    if name not in (
        "a norm",
        "a pointwise step first",
    ):  # whose result, or what is convolved, a kernel writes contiguous
        assert module.op(*tensors).is_contiguous(memory_format=layout)


@pytest.mark.parametrize("name", ["convolutions", "windows between them"])
def test_a_chain_of_convolutions_turns_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CHAINS[name]
    module = load(render.triton_source(plan_of(found.spec())))
    module.__dict__["convolution_precision"] = lambda: "ieee"  # rounding to TF32 copies what is turned too
    x, *rest = inputs_of(found, SMALL, "float32")
    images, turn = [], module.channels_last

    def counted(given: torch.Tensor, *parts: Any, **which: Any) -> torch.Tensor:
        turned: torch.Tensor = turn(given, *parts, **which)
        if given.shape[0] == SMALL["B"]:
            images.append(turned.data_ptr() != given.data_ptr())
        return turned

    monkeypatch.setitem(module.__dict__, "channels_last", counted)
    for layout, turns in ((torch.contiguous_format, [True, False]), (torch.channels_last, [False, False])):
        images.clear()
        out = module.op(x.contiguous(memory_format=layout), *rest)
        assert images == turns
        assert out.is_contiguous(memory_format=layout)


def test_what_torch_convolves_lies_as_it_leaves_it() -> None:
    """With strides: the pool behind it reads that as it lies, and the next convolution turns what the pool leaves."""
    lines = CHAINS["windows between them"].lines
    found = of(
        "\n".join(lines).replace("w, padding", "w, stride=2, padding"),
        {"x": "B 3 H W", "w": "24 3 3 3", "v": "20 24 3 3", "s": "24 1 1"}, "B 20 (H-1)//4+1 (W-1)//4+1", SMALL,
    )  # fmt: skip
    for sample_of, is_turned in ((found, False), (CHAINS["windows between them"], True)):
        text = render.triton_source(plan_of(sample_of.spec()))
        assert ("compute_y(product, s).movedim(-1, 1)" in text) is is_turned
    module = load(render.triton_source(plan_of(found.spec())))
    module.__dict__["convolution_precision"] = lambda: "ieee"
    check(found, module.op, inputs_of(found, SMALL, "float32"))


def test_an_input_of_channels_last_is_not_copied() -> None:
    found = FORMS["bias and relu"]
    plan = planned(found)
    schedule = next(s for s in schedules(plan) if s.variant == "boxes")
    module = load(render.triton_source(plan.with_table((TableRow((), schedule),))))
    x = laid_out(torch.randn(2, 8, 5, 7, device=DEVICE), "contiguous")
    last = x.contiguous(memory_format=torch.channels_last)
    assert module.channels_last(last).data_ptr() == last.data_ptr()
    single = torch.randn(
        1, 8, 1, 1, device=x.device
    )  # its dimensions of one have strides of 1, which a descriptor refuses
    assert module.channels_last(single).data_ptr() == single.data_ptr()
    assert module.channels_last(single).movedim(1, -1).stride() == (8, 8, 8, 1)
    turned = module.channels_last(x)
    assert turned.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(turned, x)


@pytest.mark.parametrize(
    ("lines", "inputs", "said"),
    [
        ("return F.conv2d(x, w, groups=3)", {"x": "B 8 H W", "w": "J 8 3 3"}, "divisible by 3"),
        ("return F.conv2d(x, w, padding=-1)", IMAGE, "negative padding"),
        ("return F.conv2d(x, w, dilation=0)", IMAGE, "at least 1"),
        ("return F.conv2d(x, w)", {"x": "B C 2 2", "w": "J C 3 3"}, "can't be greater than actual input size"),
        ("return F.conv_transpose2d(x, w, groups=3)", {"x": "B 8 H W", "w": "8 J 3 3"}, "divisible by 3"),
        ("return F.conv_transpose2d(x, w, padding=-1)", {"x": "B C H W", "w": "C J 3 3"}, "negative padding"),
        (
            "return F.conv_transpose2d(x, w, stride=2, output_padding=2)",
            {"x": "B C H W", "w": "C J 3 3"},
            "less than stride or dilation",
        ),
        ("return F.conv_transpose2d(x, w, padding=3)", {"x": "B C 1 1", "w": "C J 3 3"}, "too small"),
    ],
)
def test_what_torch_cannot_convolve_is_one_error(lines: str, inputs: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said) as raised:
        plan_of(of(lines, inputs, "B J H W").spec())
    assert len(raised.value.mistakes) == 1


def test_what_lies_beyond_a_window_does_not_reach_its_sum() -> None:
    """Taps are counted in blocks; beyond the last one a weight is 0, and an infinite pixel times that is NaN."""
    image = of("return F.conv2d(x, w, b, padding=1)", IMAGE, "B J H W", {"B": 1, "C": 3, "H": 6, "W": 6, "J": 4})
    plan = plan_of(image.spec())
    for schedule in [one for one in schedules(plan) if one.variant == "folded"]:
        wrapper = load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op
        x, w, b = (torch.randn(shape).to(DEVICE) for shape in ((1, 3, 6, 6), (4, 3, 3, 3), (4,)))
        x[0, 1, 5, 5] = torch.inf
        found = wrapper(x, w, b)
        assert torch.equal(found.isfinite(), torch.nn.functional.conv2d(x, w, b, padding=1).isfinite()), schedule


@pytest.mark.parametrize("turned_first", [True, False])
def test_a_table_may_call_torch_in_both_ways(turned_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the table has the input laid out as it says; before, one way was called for both."""
    found = FORMS["bias and relu"]
    plan = planned(found)
    plain = next(s for s in schedules(plan) if s.variant == "library").replace(channels_last=False)
    ways = [plain.replace(channels_last=is_turned) for is_turned in (turned_first, not turned_first)]
    table = (TableRow((("C", 8),), ways[0]), TableRow((), ways[1]))
    module = load(render.triton_source(plan.with_table(table)))
    laid: list[bool] = []
    convolved = torch.nn.functional.conv2d

    def listening(x: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        laid.append(x.is_contiguous(memory_format=torch.channels_last))
        return convolved(x, *rest, **more)

    for sizes, is_turned in ((SMALL, turned_first), (ODD, not turned_first)):
        tensors = inputs_of(found, sizes, "float32")
        with monkeypatch.context() as patch:
            # the table holds the function itself, by which the wrapper chooses
            patch.setitem(module.op.__globals__, "pick_schedule", _with(module.pick_schedule, convolved, listening))
            patch.setattr(torch.nn.functional, "conv2d", listening)
            got = module.op(*tensors)
        assert laid.pop() is is_turned
        torch.testing.assert_close(got, torch.relu(convolved(*tensors, padding=1)), atol=1e-4, rtol=1e-4)


TIMED: dict[str, tuple[Any, ...]] = {
    "few channels of halves": ("relu", "B C H W", {"C": 8}, "float16", "boxes", {"BLOCK_K": 16, "BLOCK_N": 64}),
    "three channels": ("relu", "B C H W", {"C": 3}, "float32", "boxes", {"BLOCK_K": 16, "BLOCK_M": 128, "BLOCK_H": 2}),
    "three known channels": ("relu", "B 3 H W", {}, "float32", "boxes", {"BLOCK_K": 16, "BLOCK_M": 128}),
    "eight channels": ("relu", "B C H W", {"C": 8}, "float32", "boxes", {"BLOCK_K": 32, "BLOCK_N": 64, "BLOCK_W": 64}),
    "nine channels": ("relu", "B C H W", {"C": 9}, "float32", "boxes", {"BLOCK_K": 16, "BLOCK_M": 256}),
    "a volume of three channels": ("volume", "B C D H W", {"C": 3}, "float32", "library", {"channels_last": False}),
    "a volume of few channels": ("volume", "B C D H W", {"C": 8, "J": 16}, "float32", "library", {"channels_last": True}),
    "a volume of halves": ("volume", "B C D H W", {"C": 3}, "float16", "boxes", {"BLOCK_K": 16}),
    "a volume of eight channels": ("volume", "B C D H W", {"C": 8}, "float32", "library", {"channels_last": False}),
    "a volume of eight known channels": ("volume", "B 8 D H W", {}, "float32", "library", {"channels_last": False}),
    "a volume": ("volume", "B C D H W", {"C": 9}, "float32", "boxes", {"BLOCK_K": 16}),
    "a pooled volume of eight channels": (
        "pooled", "B C D H W", {"C": 8, "J": 16}, "float32", "boxes", {"BLOCK_K": 16, "BLOCK_N": 32},
    ),
    "a pooled volume of eight channels in parts": (
        "pooled", "B C D H W", {"C": 8, "J": 64}, "float32", "boxes", {"BLOCK_K": 32, "BLOCK_N": 64},
    ),
    "a narrow volume": (
        "volume", "B C D H W", {"C": 32}, "float32", "boxes", {"BLOCK_N": 64, "num_warps": 4, "num_stages": 5},
    ),
    "a wide volume": ("volume", "B C D H W", {"C": 32, "J": 200}, "float32", "boxes", {"num_warps": 8, "num_stages": 4}),
    "phases of three channels": (
        "phases", "B C D H W", {"C": 3, "J": 16}, "float32", "boxes", {"BLOCK_N": 16, "BLOCK_D": 4, "BLOCK_W": 32},
    ),
    "phases of three known channels": ("phases", "B 3 D H W", {}, "float32", "boxes", {"BLOCK_K": 16, "BLOCK_D": 4}),
    "phases of few outputs": (
        "phases", "B C D H W", {"C": 16, "J": 32, "W": 32}, "float32", "boxes", {"BLOCK_N": 32, "BLOCK_M": 256, "BLOCK_D": 4},
    ),
    "phases of few outputs of a width that few boxes fill": (
        "phases", "B C D H W", {"C": 16, "J": 32, "W": 36}, "float32", "boxes", {"BLOCK_N": 32, "BLOCK_M": 128},
    ),
    "phases": ("phases", "B C D H W", {"C": 32}, "float32", "boxes", {"BLOCK_M": 128, "BLOCK_W": 16, "num_warps": 4}),
    "phases of halves": ("phases", "B C D H W", {"C": 32}, "float16", "boxes", {"BLOCK_M": 256, "num_warps": 8}),
    "three channels with strides": ("stride", "B 3 H W", {}, "float32", "library", {"channels_last": False}),
    "patches": ("patches", "B C 3*H 3*W", {"J": 200}, "float16", "strips", {"BLOCK_N": 128, "BLOCK_H": 16}),
    "patches as few numbers": ("patches", "B C 3*H 3*W", {}, "float16", "strips", {"BLOCK_N": 64, "BLOCK_K": 64}),
    "patches in float32": ("patches", "B C 3*H 3*W", {}, "float32", "library", {}),
    "patches of a line": ("patches of a line", "B C 3*W", {}, "float16", "strips", {"BLOCK_W": 128, "BLOCK_H": 1}),
    "thirty-two channels": ("relu", "B C H W", {"C": 32}, "float16", "boxes", {"BLOCK_K": 32}),
    "as many as known": ("relu", "B 16 H W", {}, "float32", "boxes", {"BLOCK_K": 16}),
    "many": ("relu", "B C H W", {"C": 64, "J": 200}, "float16", "boxes", {"BLOCK_K": 64, "BLOCK_N": 128}),
    "few outputs": ("relu", "B C H W", {"C": 64, "J": 20}, "float32", "boxes", {"BLOCK_N": 32}),
    "a width that few boxes of 64 fill": ("relu", "B C H W", {"W": 66}, "float32", "boxes", {"BLOCK_W": 16, "BLOCK_H": 16}),
    "a narrow image": ("relu", "B C H W", {"W": 7}, "float32", "boxes", {"BLOCK_W": 8}),
    "a bias alone": ("bias", "B C H W", {}, "float16", "boxes", {}),
    "a line": ("line", "B C W", {"W": 65536}, "float32", "boxes", {"BLOCK_W": 256, "BLOCK_H": 1}),
    "a short line": ("line", "B C W", {"W": 60}, "float32", "boxes", {"BLOCK_W": 64}),
    "nothing after it": ("alone", "B C H W", {}, "float16", "library", {"channels_last": False}),
    "nothing after it in float32": ("alone", "B C H W", {}, "float32", "boxes", {}),
}  # fmt: skip


@functools.cache
def _timed(after: str, shape: str) -> tuple[OperatorSpec, Graph]:
    """A convolution of such an input and what follows it, traced once for all sizes."""
    call = {
        "relu": "torch.relu(F.conv2d(x, w, b, padding=1))", "bias": "F.conv2d(x, w, b, padding=1)",
        "alone": "F.conv2d(x, w, padding=1)", "line": "torch.relu(F.conv1d(x, w, b, padding=1))",
        "volume": "torch.relu(F.conv3d(x, w, b, padding=1))",
        "pooled": "F.max_pool3d(torch.relu(F.conv3d(x, w, b, padding=1)), 2)",
        "phases": "torch.relu(F.conv_transpose3d(x, w, b, stride=2, padding=1))",
        "stride": "torch.relu(F.conv2d(x, w, b, stride=2, padding=1))",
        "patches": "torch.relu(F.conv2d(x, w, b, stride=3))", "patches of a line": "F.conv1d(x, w, b, stride=3)",
    }[after]  # fmt: skip
    _, channels, *space = shape.split()
    ends = f"{channels} J" if after == "phases" else f"J {channels}"
    inputs = {**IMAGE, "x": shape, "w": f"{ends}{' 3' * len(space)}"}
    if after == "alone":
        del inputs["b"]
    of_result = {"stride": "({}-1)//2+1", "phases": "2*{}-1", "pooled": "{}//2"}.get(after, "{}")
    sizes = [of_result.format(size.removeprefix("3*")) for size in space]
    spec = of(f"return {call}", inputs, f"B J {' '.join(sizes)}").spec()
    return spec, frontend.trace(spec)[0]


def test_no_row_waits_for_fewer_outputs_than_there_are() -> None:
    for outputs, limits in (("40", [None]), ("16", [None]), ("J", [16, None])):
        sizes = {"B": 64, "D": 30, "H": 30, "W": 32} | ({"J": 64} if outputs == "J" else {})
        inputs = {"x": "B 3 D H W", "w": f"3 {outputs} 3 3 3"}
        lines = "return torch.relu(F.conv_transpose3d(x, w, stride=2, padding=1))"
        found = planned(of(lines, inputs, f"B {outputs} 2*D-1 2*H-1 2*W-1", sizes))
        table = [row for row in found.table if row.limit("itemsize") is None]
        assert [row.limit("N") for row in table] == limits


@pytest.mark.parametrize("name", TIMED)
def test_a_first_schedule_is_what_its_sizes_ask_for(name: str) -> None:
    after, shape, sizes, dtype, variant, wanted = TIMED[name]
    timed = {"B": 64, "C": 64, "D": 30, "H": 126, "W": 126, "J": 64} | sizes
    case = Case(tuple(timed.items()), (("T", dtype),))
    spec, graph = _timed(after, shape)
    plan = families.lower(replace(spec, performance=(case,)), graph)
    assert isinstance(plan, KernelPlan)
    found = plan.table[families.row_of(plan, case)].schedule
    assert found.variant == variant
    assert dict(found.values) | wanted == dict(found.values)
    assert [families.unknown(row.schedule) for row in plan.table] == [None] * len(plan.table)


@pytest.mark.parametrize(
    ("after", "channels", "columns", "dtype", "refused"),
    [
        ("volume", 3, 16, "float32", {"folded", "library"}),
        ("volume", 8, 64, "float32", {"folded", "library"}),
        ("volume", 8, 32, "float32", set()),
        ("volume", 9, 64, "float32", set()),
        ("volume", 3, 16, "float16", set()),
        ("relu", 3, 64, "float32", {"folded"}),
        ("relu", 8, 64, "float32", {"folded", "library"}),
        ("phases", 3, 16, "float32", set()),
    ],
)
def test_what_torch_multiplies_in_float32_is_not_tried_in_tf32(
    after: str, channels: int, columns: int, dtype: str, refused: set[str]
) -> None:
    space = "H W" if after == "relu" else "D H W"
    spec, graph = _timed(after, f"B C {space}")
    sizes = {"B": 64, "C": channels, "D": 30, "H": 126, "W": 126, "J": columns}
    plan = families.lower(spec, graph)
    assert isinstance(plan, KernelPlan)
    refusal = families.legality(plan, (Case(tuple(sizes.items()), (("T", dtype),)),))
    turned = Schedule.make("library", channels_last=True)
    tried = [*schedules(plan), turned, turned.replace(channels_last=False)]
    found = {s for s in tried if "torch's call multiplies in float32" in (refusal(s) or "")}
    assert {s.variant for s in found} == refused
    assert turned.replace(channels_last=False) not in found


BY_DESCRIPTORS = {"boxes": ("bias and relu", {"padding": 1})}
BY_DESCRIPTORS["strips"] = ("strides along a row", {"stride": (1, 2), "dilation": (2, 1), "padding": (2, 1)})
"""Variants of a form, and how torch is called for it."""


@pytest.mark.parametrize("channels", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("variant", BY_DESCRIPTORS)
def test_float32_is_multiplied_as_torch_does_it(channels: int, layout: torch.memory_format, variant: str) -> None:
    """Where TF32 is allowed, of the nearest TF32 numbers; few channels as in float32, of three each."""
    form, how = BY_DESCRIPTORS[variant]
    found = FORMS[form]
    plan = planned(found)
    schedule = next(s for s in schedules(plan) if s.variant == variant)
    module = load(render.triton_source(plan.with_table((TableRow((), schedule),))))
    module.__dict__["convolution_precision"] = lambda: "tf32"
    x, w, b = inputs_of(found, {**SMALL, "C": channels}, "float32")
    x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
    got = module.op(x, w, b).double()
    if channels > 8:
        x, w = _to_tf32(x), _to_tf32(w)
    torch.testing.assert_close(
        got, torch.relu(torch.conv2d(x.double(), w.double(), b.double(), **how)), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("transposed", "channels", "outputs", "exact"),
    [
        (False, 3, 6, True), (False, 8, 6, False), (False, 4, 33, True), (False, 8, 33, True), (False, 9, 33, False),
        (True, 3, 6, True), (True, 8, 6, True), (True, 9, 6, False),
    ],
)  # fmt: skip
def test_few_channels_of_a_volume_are_multiplied_as_torch_does_it(
    transposed: bool, channels: int, outputs: int, exact: bool
) -> None:
    call, weight = ("conv_transpose3d", "C J 3 3 3") if transposed else ("conv3d", "J C 3 3 3")
    result = [f"2*{size}-1" if transposed else f"({size}-1)//2+1" for size in "DHW"]
    lines, inputs = f"return F.{call}(x, w, stride=2, padding=1)", {"x": "B C D H W", "w": weight}
    found = of(lines, inputs, f"B J {' '.join(result)}", {**SMALL, "D": 3})
    plan = planned(found)
    for variant in ("boxes", "gather") if transposed else ("gather",):
        schedule = next(s for s in schedules(plan) if s.variant == variant)
        module = load(render.triton_source(plan.with_table((TableRow((), schedule),))))
        module.__dict__["convolution_precision"] = lambda: "tf32"
        x, w = inputs_of(found, {**SMALL, "D": 3, "C": channels, "J": outputs}, "float32")
        got = module.op(x, w).double()
        if not exact:
            x, w = _to_tf32(x), _to_tf32(w)
        wanted = getattr(torch.nn.functional, call)(x.double(), w.double(), stride=2, padding=1)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def _to_tf32(x: torch.Tensor) -> torch.Tensor:
    """With 10 bits of the fraction, a tie away from zero."""
    fraction, exponent = torch.frexp(x.double())
    return torch.ldexp((fraction.abs() * 2**11 + 0.5).floor() * fraction.sign(), exponent - 11).float()


@pytest.mark.parametrize("channels", [3, 40])
@pytest.mark.parametrize("variant", BY_DESCRIPTORS)
def test_an_infinity_of_parts_is_one(channels: int, variant: str) -> None:
    """Times a part of 0 it would be NaN. Nor does an element count in windows that do not reach it."""
    form, how = BY_DESCRIPTORS[variant]
    found = FORMS[form]
    plan = planned(found)
    module = load(
        render.triton_source(plan.with_table((TableRow((), next(s for s in schedules(plan) if s.variant == variant)),)))
    )
    module.__dict__["convolution_precision"] = lambda: "tf32"
    x, w, b = (t.abs() + 1 for t in inputs_of(found, {**SMALL, "C": channels}, "float32"))
    x[0, 0, 1, 1], x[1, 1, 2, 2], w[0, 2, 1, 1], w[1, 1, 1, 1] = torch.inf, torch.nan, torch.inf, -torch.inf
    got, wanted = module.op(x, w, b), torch.relu(torch.conv2d(x, w, b, **how))
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.isinf(), wanted.isinf())


def test_torchs_call_leaves_its_bias_to_what_follows() -> None:
    """Torch adds it in a pass of its own over the result."""
    plan = planned(FORMS["bias and relu"])
    for schedule in (s for s in dict.fromkeys(schedules(plan)) if s.variant == "library"):
        text = render.triton_source(plan.with_table((TableRow((), schedule),)))
        (arguments,) = re.findall(r"convolved = torch\.nn\.functional\.conv2d\((.*?)\n +\)\n", text, re.S)
        assert "x.detach()" in arguments
        assert "b.detach()" not in arguments


def _with(pick: Callable[..., Any], known: object, other: object) -> Callable[..., Any]:
    """`pick`, with another function where it gives the known one."""

    def picked(*sizes: int) -> Any:
        kernel, options = pick(*sizes)
        return (other if kernel is known else kernel), options

    return picked
