"""Layers of models, of many products: where they are cut, what lies in memory between the parts, and that they agree
with torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from references import FLOATS, Sample, load, plan_of, sample

from kernelgen import frontend, render
from kernelgen.families.attention import NAME as ATTENTION
from kernelgen.plan import Plan, StepsPlan
from kernelgen.spec.model import Case

LLAMA = """\
b, s, d = x.shape
h = F.rms_norm(x, (d,), norm1)
q = F.linear(h, wq).view(b, s, 4, 16).transpose(1, 2)
k = F.linear(h, wk).view(b, s, 2, 16).transpose(1, 2)
v = F.linear(h, wv).view(b, s, 2, 16).transpose(1, 2)
q = q * cos + torch.cat((-q[..., 8:], q[..., :8]), -1) * sin
k = k * cos + torch.cat((-k[..., 8:], k[..., :8]), -1) * sin
k = k[:, :, None].expand(b, 2, 2, s, 16).reshape(b, 4, s, 16)
v = v[:, :, None].expand(b, 2, 2, s, 16).reshape(b, 4, s, 16)
scores = (q @ k.transpose(2, 3) / 4.0).masked_fill(torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1), -1e4)
o = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, s, 64)
x = x + F.linear(o, wo)
h = F.rms_norm(x, (d,), norm2)
return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)"""
OF_LLAMA = {
    "x": "B S D", "norm1": "D", "wq": "64 D", "wk": "32 D", "wv": "32 D", "cos": "S 16", "sin": "S 16", "wo": "D 64",
    "norm2": "D", "gate": "E D", "up": "E D", "down": "D E",
}  # fmt: skip
BERT = """\
b, s, d = x.shape
q = F.linear(x, wq, bq).view(b, s, 4, 16).transpose(1, 2)
k = F.linear(x, wk, bk).view(b, s, 4, 16).transpose(1, 2)
v = F.linear(x, wv, bv).view(b, s, 4, 16).transpose(1, 2)
scores = (q @ k.transpose(-1, -2) / 4.0).masked_fill(~mask[:, None, None, :], -1e4)
o = (torch.softmax(scores, -1) @ v).permute(0, 2, 1, 3).reshape(b, s, 64)
h = F.layer_norm(F.linear(o, wo, bo) + x, (d,), norm1, shift1)
return F.layer_norm(F.linear(F.gelu(F.linear(h, w1, b1)), w2, b2) + h, (d,), norm2, shift2)"""
OF_BERT = {
    "x": "B S 64", "mask": "B S: bool", "wq": "64 64", "bq": "64", "wk": "64 64", "bk": "64", "wv": "64 64", "bv": "64",
    "wo": "64 64", "bo": "64", "norm1": "64", "shift1": "64", "w1": "E 64", "b1": "E", "w2": "64 E", "b2": "64",
    "norm2": "64", "shift2": "64",
}  # fmt: skip
RESNET = """\
y = F.batch_norm(F.conv2d(x, w1, padding=1), mean1, var1, scale1, shift1)
y = F.batch_norm(F.conv2d(y.relu(), w2, padding=1), mean2, var2, scale2, shift2)
return (y + x).relu()"""
OF_RESNET = {"x": "B C H W", "w1": "K C 3 3", "w2": "C K 3 3"} | {
    f"{name}{i}": size for i, size in ((1, "K"), (2, "C")) for name in ("mean", "var", "scale", "shift")
}
LAYERS: dict[str, tuple[Sample, list[tuple[str, str]]]] = {
    "llama": (
        sample(LLAMA, OF_LLAMA, {"out": "B S D"}, {"B": 2, "S": 9, "D": 24, "E": 40}),
        [
            ("reduction", "mean_square"), ("matmul", "q"), ("matmul", "k v"), ("pointwise", "k_2"),
            ("attention", "o"), ("matmul", "x_2"), ("reduction", "h"), ("matmul", "intermediate"), ("matmul", "out"),
        ],
    ),
    "bert": (
        sample(BERT, OF_BERT, {"out": "B S 64"}, {"B": 2, "S": 9, "E": 40}),
        [("matmul", "q k v"), ("attention", "o"), ("matmul", "h"), ("matmul", "intermediate"), ("matmul", "out")],
    ),
    "resnet": (
        sample(RESNET, OF_RESNET, {"out": "B C H W"}, {"B": 2, "C": 5, "K": 7, "H": 6, "W": 9}),
        [("convolution", "intermediate"), ("convolution", "out")],
    ),
}  # fmt: skip


@cache
def plan_of_layer(name: str) -> Plan:
    return plan_of(LAYERS[name][0].spec())


@pytest.mark.parametrize("name", LAYERS)
def test_every_part_of_a_layer_is_a_family_s(name: str) -> None:
    plan = plan_of_layer(name)
    assert isinstance(plan, StepsPlan)
    assert not plan.calls
    assert [(k.family, " ".join(t.name for t in k.spec.outputs)) for k in plan.kernels] == LAYERS[name][1]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layers_agree_with_torch(name: str, dtype: str) -> None:
    found = LAYERS[name][0]
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for t in found.inputs:
        shape = [int(dict(found.sizes[0]).get(str(size), size)) for size in t.shape]  # type: ignore[arg-type]
        values = torch.randn(shape, generator=generator)
        values = values.abs() + 0.5 if "var" in t.name else values / 8 if len(shape) == 2 else values
        tensors.append((values > -0.1) if t.dtype == "bool" else values.to(getattr(torch, dtype)))
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(found.source(), scope)
    exact = scope["op"](*(x.double() if x.is_floating_point() else x for x in tensors))
    error, eager = ((y.double() - exact).abs().max() for y in (wrapper_of(name)(*tensors), scope["op"](*tensors)))
    assert error <= 2 * eager + 1e-6 * exact.abs().max()


@cache
def wrapper_of(name: str) -> Callable[..., torch.Tensor]:
    wrapper: Callable[..., torch.Tensor] = load(render.triton_source(plan_of_layer(name))).op
    return wrapper


def test_products_lie_in_memory_as_torch_has_them_and_as_they_are_read() -> None:
    left = {t.name: (t.dtype, t.shape) for k in plan_of_layer("llama").kernels for t in k.spec.outputs}
    assert left["q"] == ("T", ("B", 4, "S", 16))
    assert left["o"] == ("T", ("B", "S", 64))
    assert left["x_2"] == ("T", ("B", "S", "D"))
    assert left["mean_square"][0] == "float32"


def timed(lines: str, inputs: dict[str, str], outputs: dict[str, str], **sizes: Any) -> Any:
    found = sample(lines, inputs, outputs, sizes)
    case = Case(tuple(sizes.items()), (("T", FLOATS[0]),))
    return plan_of(replace(found.spec(), performance=(case,)))


NORMED = "h = F.rms_norm(x, (x.shape[-1],), g)\nreturn F.linear(h, w)"


@pytest.mark.parametrize(("columns", "left"), [(64, "mean_square"), (16384, "h")])
def test_what_many_tiles_would_compute_is_computed_once(columns: int, left: str) -> None:
    plan = timed(NORMED, {"x": "M K", "g": "K", "w": "N K"}, {"out": "M N"}, M=4096, K=4096, N=columns)
    assert [t.name for k in plan.kernels for t in k.spec.outputs] == [left, "out"]


@pytest.mark.parametrize("length", [64, 8192])
def test_rotated_keys_are_a_kernel_of_their_own_and_rotated_queries_are_not(length: int) -> None:
    plan = timed(LLAMA, OF_LLAMA, {"out": "B S D"}, B=2, S=length, D=128, E=256)
    assert isinstance(plan, StepsPlan)
    assert [[t.name for t in k.spec.outputs] for k in plan.kernels if k.family == "pointwise"] == [["k_2"]]
    assert sum(k.family == ATTENTION for k in plan.kernels) == 1


def test_a_model_of_many_layers_is_cut_a_part_at_a_time() -> None:
    layers = 9
    lines = [f"x = F.layer_norm(F.linear(x, w{i}) + x, (64,))" for i in range(layers)]
    inputs = {"x": "B 64"} | {f"w{i}": "64 64" for i in range(layers)}
    plan = plan_of(sample("\n".join([*lines, "return x"]), inputs, {"out": "B 64"}).spec())
    assert [k.family for k in plan.kernels] == ["matmul"] * layers
    assert not plan.calls


POOLED = """\
y = F.max_pool2d(F.batch_norm(F.conv2d(x, w1, padding=1), None, None, training=True).relu(), 3, stride=2, padding=1)
return y + F.conv2d(y, w2, padding=1)"""


def test_what_follows_from_sums_is_computed_behind_them_where_it_is_left_for_two() -> None:
    plan = plan_of(sample(POOLED, {"x": "B C 9 9", "w1": "K C 3 3", "w2": "K K 3 3"}, {"out": "B K 5 5"}).spec())
    assert [k.family for k in plan.kernels] == ["convolution", "reduction", "pointwise", "convolution"]


SHUFFLED = """\
b, c, h, w = x.shape
y = F.batch_norm(F.conv2d(x, w1, padding=1, groups=12), None, None, training=True)
y = y.view(b, 3, 4, h, w).transpose(1, 2).reshape(b, 12, h, w)
return F.conv2d(y, w2, groups=3)"""


def test_shuffled_channels_are_written_by_a_kernel_of_their_own() -> None:
    inputs = {"x": "B 12 H W", "w1": "12 1 3 3", "w2": "24 4 1 1"}
    plan = plan_of(sample(SHUFFLED, inputs, {"out": "B 24 H W"}).spec())
    assert not plan.calls
    written = [(k.family, k.spec.outputs[-1].shape) for k in plan.kernels]
    assert ("pointwise", ("B", 12, "H", "W")) in written  # in the order in which the second convolution reads them
    assert written[-1] == ("convolution", ("B", 24, "H", "W"))


WIDE = """\
y = F.batch_norm(F.conv2d(x, w1, stride=2, padding=2, groups=12), None, None, training=True)
return F.batch_norm(F.conv2d(y, w2), None, None, training=True)"""


def test_windows_are_written_before_sums_where_two_kernels_would_compute_them() -> None:
    inputs = {"x": "B 12 H W", "w1": "12 1 5 5", "w2": "24 12 1 1"}
    outputs = {"out": "B 24 (H-1)//2+1 (W-1)//2+1"}
    plan = plan_of(sample(WIDE, inputs, outputs).spec())
    assert not plan.calls
    assert len(plan.kernels) <= 6, [(k.family, k.spec.outputs[-1].name) for k in plan.kernels]


def test_a_convolution_of_one_channel_that_torch_computes_leaves_what_follows_a_kernel() -> None:
    lines = "return F.conv2d(F.conv2d(x, w1, stride=2, padding=2).relu(), w2, padding=2)"
    inputs = {"x": "B 1 H W", "w1": "6 1 5 5", "w2": "8 6 5 5"}
    spec = sample(lines, inputs, {"out": "B 8 (H-1)//2+1 (W-1)//2+1"}).spec()
    called = r"convolved = torch\.nn\.functional\.conv2d\(\s*x\.detach\(\)"
    assert re.search(called, render.triton_source(plan_of(spec)))


def test_layers_that_leave_one_element_of_small_sizes_are_traced_at_larger_ones() -> None:
    lines = "return F.conv2d(F.avg_pool2d(x, 32), w, padding=1)"
    constraints = ("x.shape[2] >= 32", "x.shape[3] >= 32")
    found = sample(
        lines, {"x": "B C H W", "w": "K C 3 3"}, {"out": "B K (H-32)//32+1 (W-32)//32+1"}, constraints=constraints
    )
    graph, _ = frontend.trace(found.spec(), derived=True)
    assert graph.outputs
