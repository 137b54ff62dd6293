"""Products of matrices: every variant of every form, with what stands before and after it, against float64."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from references import DEVICE, Sample, failures, load, plan_of, sample, schedules, tensor

from kernelgen import families, render
from kernelgen.errors import SpecError
from kernelgen.families.access import strided_access
from kernelgen.families.kernel import body_of
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.schedules import room
from kernelgen.frontend.indices import Expr
from kernelgen.judge.interpreter import as_on_a_gpu
from kernelgen.judge.oracle import as_tuple
from kernelgen.plan import KernelPlan, Plan, Schedule, StepsPlan, TableRow

INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="launches are seen in the interpreter")
FITTING = {"M": 19, "N": 40, "K": 24}
"""Sizes of which rows begin at multiples of 16 bytes, as descriptors want them; blocks have 16 of each."""
AWKWARD = {"M": 17, "N": 35, "K": 41}
WITHIN = {"float8_e4m3fn": 0.0, "float32": 8e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""What a result may be off by, as a part of the largest; a missing summand is a tenth."""


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    as_on_a_gpu()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are launched in their order."""
    from triton.runtime.interpreter import GridExecutor

    names: list[str] = []
    launch = GridExecutor.__call__

    def noted(executor: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(executor.fn.__name__)
        return launch(executor, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    return names


def product(lines: str, inputs: dict[str, str], outputs: dict[str, str] | None = None, **more: Any) -> Sample:
    return sample(lines, inputs, outputs or {"out": "M N"}, FITTING, AWKWARD, **more)


def of_sizes(lines: str, inputs: dict[str, str], out: str, **sizes: int | tuple[int, ...]) -> Sample:
    return sample(lines, inputs, {"out": out}, sizes)


TWO = {"a": "M K", "b": "K N"}
LAYER = {"x": "M K", "w": "N K", "b": "N"}
FORMS = {
    "sizes after it": product("return (a @ b) / (a.shape[0] + b.shape[1]) + a.shape[1] // 2", TWO),
    "a @ b": product("return a @ b", TWO),
    "linear": product("return F.linear(x, w, b)", LAYER),
    "linear of many dimensions": of_sizes(
        "return F.linear(x, w, b)", {**LAYER, "x": "... K"}, "... N", **{"...": (3, 2, 5), "N": 24, "K": 40}
    ),
    "addmm": product("return torch.addmm(c, a, b)", {**TWO, "c": "M N"}),
    "addmm with factors": product("return torch.addmm(c, a, b, beta=0.5, alpha=2)", {**TWO, "c": "M N"}),
    "addmm that adds nothing": product("return torch.addmm(c, a, b, beta=0)", {**TWO, "c": "M N"}),
    "addmm of a row": product("return torch.addmm(c, a, b)", {**TWO, "c": "N"}),
    "mm of transposed": product("return torch.mm(a.t(), b.t())", {"a": "K M", "b": "N K"}),
    "bmm": of_sizes("return torch.bmm(a, b)", {"a": "B M K", "b": "B K N"}, "B M N", B=3, M=17, N=24, K=40),
    "baddbmm": of_sizes(
        "return torch.baddbmm(c, a, b)", {"a": "B M K", "b": "B K N", "c": "B 1 N"}, "B M N", B=3, M=17, N=19, K=33
    ),
    "a batch of two dimensions": of_sizes(
        "return a @ b.mT", {"a": "A B M K", "b": "A B N K"}, "A B M N", A=2, B=3, M=17, N=8, K=24
    ),
    "a batch that is repeated": of_sizes(
        "return torch.matmul(a, b)", {"a": "A B M K", "b": "B K N"}, "A B M N", A=2, B=3, M=17, N=8, K=24
    ),
    "a batch by one matrix": of_sizes(
        "return torch.matmul(a, b)", {"a": "B M K", "b": "K N"}, "B M N", B=3, M=5, N=24, K=40
    ),
    "one matrix by a batch": of_sizes(
        "return torch.matmul(a, b)", {"a": "M K", "b": "B K N"}, "B M N", B=3, M=17, N=24, K=40
    ),
    "a batch of one": of_sizes("return a @ b", {"a": "1 M K", "b": "B K N"}, "B M N", B=3, M=17, N=24, K=40),
    "two batches of one": of_sizes("return a @ b", {"a": "1 1 M K", "b": "1 1 K N"}, "1 1 M N", M=17, N=24, K=40),
    "a row": of_sizes("return a @ b + c", {"a": "1 K", "b": "K N", "c": "N"}, "1 N", N=24, K=40),
    "a column": of_sizes("return torch.relu(a @ b)", {"a": "M K", "b": "K 1"}, "M 1", M=24, K=40),
    "heads side by side": of_sizes(
        "return torch.einsum('bqhd,bkhd->bhqk', q, k)", {"q": "B Q H D", "k": "B K H D"}, "B H Q K",
        B=2, Q=17, H=3, K=19, D=24,
    ),
    "einsum that turns the result": of_sizes(
        "return torch.einsum('abd,ed->eab', x, w)", {"x": "A B D", "w": "E D"}, "E A B", A=2, B=9, D=24, E=40
    ),
    "einsum over two dimensions": of_sizes(
        "return torch.einsum('mhk,nhk->mn', x, w)", {"x": "M H K", "w": "N H K"}, "M N", M=17, H=3, K=8, N=19
    ),
    "einsum that says no result": product("return torch.einsum('kn,mk', b, a)", TWO),
    "a matrix by a vector": product("return a @ v", {"a": "M K", "v": "K"}, {"out": "M"}),
    "a vector by a matrix": product("return v @ b", {"v": "K", "b": "K N"}, {"out": "N"}),
    "matrices by a vector": of_sizes("return torch.matmul(a, v)", {"a": "B M K", "v": "K"}, "B M", B=3, M=17, K=40),
    "split heads": of_sizes(
        "y = F.linear(x, w)\nreturn y.view(x.shape[0], x.shape[1], -1, 8).transpose(1, 2).contiguous()",
        {"x": "B S K", "w": "H*8 K"}, "B H S 8", B=2, S=17, H=3, K=40,
    ),
    "split into a number of heads": of_sizes(
        "return torch.sigmoid(F.linear(x, w, b)).view(*x.shape[:2], 3, 8).transpose(1, 2).contiguous()",
        {"x": "B S K", "w": "24 K", "b": "24"}, "B 3 S 8", B=2, S=17, K=40,
    ),
    "joined heads": of_sizes(
        "return F.linear(y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1), w)",
        {"y": "B H S 8", "w": "N H*8"}, "B S N", B=2, S=17, H=3, N=40,
    ),
    "windows of an image": of_sizes(
        "y = x.view(-1, 4, 2, 4, 2, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)\nreturn F.linear(y.reshape(-1, 4, x.shape[-1]), w)",
        {"x": "B 8 8 K", "w": "N K"}, "16*B 4 N", B=2, K=5, N=7,
    ),
    "transposed result": product("return (a @ b).t().contiguous()", TWO, {"out": "N M"}),
    "a matrix by itself": product("return a @ a.t()", {"a": "M K"}, {"out": "M M"}),
}  # fmt: skip
BEFORE = {
    "scaled by row and column": product(
        "return (a * r[:, None]) @ (b * c)", {**TWO, "r": "M", "c": "N"}
    ),
    "scaled along what is summed": product("return (a * s) @ b", {**TWO, "s": "K"}),
    "what is beyond the end is no zero": product("return torch.exp(a) @ torch.cos(b)", TWO),
    "and infinite": product("return (1 / a.abs()) @ torch.exp(b)", TWO),
    "cast to float32": product("return (a.float() @ b.float()).to(a.dtype)", TWO),
    "cast to float16": product(
        "return (a.half() @ b.half()).float()", {"a": "M K: float32", "b": "K N: float16"}, {"out": "M N: float32"},
        dtypes=(),
    ),
    "of small integers": product(
        "return (a @ b.to(a.dtype)) * s", {"a": "M K", "b": "K N: int8", "s": "N"}
    ),
    "two tensors summed": product("return (a + c) @ torch.relu(b)", {**TWO, "c": "M K"}),
    "before a linear layer": product("return F.linear(F.silu(x) * g, w, b)", {**LAYER, "g": "M K"}),
    "of a batch": of_sizes(
        "return torch.bmm(torch.sigmoid(a), torch.exp(b))", {"a": "B M K", "b": "B K N"}, "B M N", B=2, M=17, N=19, K=21
    ),
}  # fmt: skip
AFTER = {
    "bias and activation": product("return F.gelu(F.linear(x, w, b), approximate='tanh')", LAYER),
    "residual": product("return torch.relu(x @ w.t() + b) + r", {**LAYER, "r": "M N"}),
    "residual of another layout": product("return a @ b + r.t()", {**TWO, "r": "N M"}),
    "scale of rows and columns": product("return (a @ b) * r[:, None] * c", {**TWO, "r": "M", "c": "N"}),
    "several outputs": product(
        "y = a @ b\nreturn y, torch.relu(y), (y * 2).float()", TWO, {"y": "M N", "z": "M N", "twice": "M N: float32"}
    ),
    "an output turned, one not": product(
        "y = a @ b\nreturn y, torch.tanh(y).t().contiguous()", TWO, {"y": "M N", "z": "N M"}
    ),
    "a column is chosen": product("return torch.where(m, a @ b, -1.0)", {**TWO, "m": "N: bool"}),
    "of a batch": of_sizes(
        "return F.silu(torch.bmm(a, b) + c)", {"a": "B M K", "b": "B K N", "c": "N"}, "B M N", B=3, M=17, N=24, K=40
    ),
    "gated": product("return torch.sigmoid(x @ w.t()) * g", {**LAYER, "g": "M N"}),
}  # fmt: skip
ROWS = {"x": "M K", "w": "37 K"}
OF_ROWS = {
    "softmax": product("return torch.softmax(x @ w.t(), -1)", ROWS, {"out": "M 37"}),
    "rms_norm": product("return F.rms_norm(F.linear(x, w), (37,), g, 1e-6)", {**ROWS, "g": "37"}, {"out": "M 37"}),
    "layer_norm": product("return F.layer_norm(F.linear(x, w), (37,))", ROWS, {"out": "M 37"}),
    "logsumexp": product("return torch.logsumexp(x @ w.t(), -1)", ROWS, {"out": "M"}),
    "the largest beside all": product(
        "y = x @ w.t()\nreturn y, y.amax(-1)", ROWS, {"out": "M 37", "most": "M"}
    ),
    "a sum that is kept": product("return F.linear(x, w, b).sum(-1, keepdim=True)", {**ROWS, "b": "37"}, {"out": "M 1"}),
    "of a batch": of_sizes(
        "return torch.softmax(torch.bmm(q, k.mT) * 0.25, -1)", {"q": "B M K", "k": "B 24 K"}, "B M 24", B=3, M=17, K=16
    ),
}  # fmt: skip
SHARED = {
    "a gated layer": product("return F.silu(x @ w.t()) * (x @ u.t())", {"x": "M K", "w": "N K", "u": "N K"}),
    "one factor on the right": product("return (a @ b) * torch.sigmoid(c @ b)", {**TWO, "c": "M K"}),
    "three outputs": product(
        "return F.linear(x, q, b), F.linear(x, k), F.linear(x, v)",
        {"x": "M K", "q": "N K", "k": "N K", "v": "N K", "b": "N"}, {"y": "M N", "z": "M N", "w": "M N"},
    ),
    "computed factors": product(
        "e = torch.exp(x)\nreturn (e @ torch.cos(g)) - (e @ torch.exp(u))", {"x": "M K", "g": "K N", "u": "K N"}
    ),
    "of a batch": of_sizes(
        "return torch.bmm(a, b) * torch.bmm(a, c)", {"a": "B M K", "b": "B K N", "c": "B K N"}, "B M N", B=2, M=17, N=24, K=40
    ),
    "of a row": of_sizes("return (v @ b) * torch.tanh(v @ c)", {"v": "K", "b": "K N", "c": "K N"}, "N", K=40, N=35),
    "rows": product(
        "return torch.softmax(x @ w.t(), -1) * (x @ u.t())", {"x": "M K", "w": "37 K", "u": "37 K"}, {"out": "M 37"}
    ),
}  # fmt: skip
PACKED = {
    "eight along what is summed": of_sizes(
        "q = p[:, None, :] >> torch.arange(0, 32, 4, device=p.device)[:, None] & 15\n"
        "w = (q.reshape(s.shape[0], 32, s.shape[1]) - z[:, None, :]) * s[:, None, :]\n"
        "return x @ w.reshape(x.shape[-1], -1).to(x.dtype)",
        {"x": "M G*32", "p": "G*4 N: int32", "s": "G N", "z": "G N"}, "M N", M=17, G=3, N=40,
    ),
    "eight along columns in another order": of_sizes(
        "i = torch.arange(8, device=p.device, dtype=torch.int32)\n"
        "q = p[:, :, None] >> (i % 2 * 16 + i // 2 * 4) & 15\n"
        "w = (q.reshape(s.shape[0], 64, -1) - 8) * s[:, None, :]\n"
        "return x @ w.reshape(x.shape[-1], -1).to(x.dtype)",
        {"x": "M G*64", "p": "G*64 J: int32", "s": "G J*8"}, "M J*8", M=5, G=2, J=5,
    ),
    "two in a byte": of_sizes(
        "q = p[:, :, None] >> torch.arange(0, 8, 4, device=p.device) & 15\n"
        "w = (q.reshape(q.shape[0], -1, 32).float() - 7.5) * s[:, :, None].float()\n"
        "return F.linear(x, w.reshape(q.shape[0], -1).to(x.dtype), b)",
        {"x": "M G*32", "p": "N G*16: uint8", "s": "N G", "b": "N"}, "M N", M=17, G=3, N=35,
    ),
    "zeros packed along columns": of_sizes(
        "i = torch.arange(0, 32, 4, device=p.device)\n"
        "q = (p[:, None, :] >> i[:, None] & 15).reshape(s.shape[0], 32, -1)\n"
        "z = (o[:, :, None] >> i & 15).reshape(s.shape[0], 1, -1)\n"
        "return x @ ((q - z) * s[:, None, :]).reshape(x.shape[-1], -1).to(x.dtype)",
        {"x": "M G*32", "p": "G*4 J*8: int32", "o": "G J: int32", "s": "G J*8"}, "M J*8", M=19, G=2, J=5,
    ),
    "unpacked to a matrix, and its groups looked at after": of_sizes(
        "i = torch.arange(0, 32, 4, device=p.device)\n"
        "q = (p[:, None, :] >> i[:, None] & 15).reshape(x.shape[-1], -1)\n"
        "z = (o[:, :, None] >> i & 15).reshape(s.shape) + 1\n"
        "w = (q.reshape(s.shape[0], 32, -1) - z[:, None, :]) * s[:, None, :]\n"
        "return x @ w.reshape(x.shape[-1], -1).to(x.dtype)",
        {"x": "M G*32", "p": "G*4 J*8: int32", "o": "G J: int32", "s": "G J*8"}, "M J*8", M=19, G=2, J=5,
    ),
    "two in a byte, stacked": of_sizes(
        "q = torch.stack([(p & 15).to(torch.int8) - 8, (p >> 4).to(torch.int8) - 8], -1).reshape(p.shape[0], -1, 32)\n"
        "return F.linear(x, (q.to(x.dtype) * s[:, :, None]).reshape(p.shape[0], -1))",
        {"x": "M G*32", "p": "N G*16: uint8", "s": "N G"}, "M N", M=17, G=3, N=35,
    ),
    "groups of no power of two": of_sizes(
        "w = q.reshape(q.shape[0], -1, 24) * s[:, :, None]\nreturn F.linear(x, w.reshape(q.shape[0], -1).to(x.dtype))",
        {"x": "M G*24", "q": "N G*24: int8", "s": "N G"}, "M N", M=17, G=3, N=19,
    ),
    "groups of eight": of_sizes(
        "w = q.reshape(q.shape[0], -1, 8) * s[:, :, None]\nreturn F.linear(x, w.reshape(q.shape[0], -1).to(x.dtype))",
        {"x": "M G*8", "q": "N G*8: int8", "s": "N G"}, "M N", M=17, G=5, N=19,
    ),
    "of a row": of_sizes(
        "q = p[:, :, None] >> torch.arange(0, 32, 4, device=p.device) & 15\n"
        "return F.linear(v, (q.reshape(s.shape[0], -1, 32) * s[:, :, None]).reshape(s.shape[0], -1).to(v.dtype))",
        {"v": "G*32", "p": "N G*4: int32", "s": "N G"}, "N", N=21, G=3,
    ),
}  # fmt: skip


def scaled(lines: str, inputs: dict[str, str], *sizes: dict[str, int], out: str = "M N: bfloat16") -> Sample:
    """A product whose tensors r and c are scales."""
    found = sample(lines, inputs, {"out": out}, *sizes, dtypes=())
    return replace(found, inputs=tuple(replace(t, role="scale") if t.name in "rc" else t for t in found.inputs))


EIGHT = {"x": "M K: float8_e4m3fn", "w": "N K: float8_e4m3fn"}
OF_BLOCKS = {"x": "M G*32: float8_e4m3fn", "w": "J*32 G*32: float8_e4m3fn", "r": "M G: float32", "c": "J G: float32"}
SCALED = {
    "by row and column": scaled(
        "return ((x.float() * r) @ (w.float() * c[:, None]).T).bfloat16()", {**EIGHT, "r": "M 1: float32", "c": "N: float32"},
        {"M": 17, "N": 32, "K": 48}, AWKWARD,
    ),
    "by a number": scaled(
        "return F.linear(x.float() * r, w.float() * c).bfloat16()", {**EIGHT, "r": "1: float32", "c": ": float32"}, FITTING
    ),
    "by blocks": scaled(
        "s = c.repeat_interleave(32, 0).repeat_interleave(32, 1)\n"
        "return F.linear(x.float() * r.repeat_interleave(32, -1), w.float() * s).bfloat16()", OF_BLOCKS,
        {"M": 17, "J": 2, "G": 3}, out="M J*32: bfloat16",
    ),
    "by blocks of sizes whose names kernels have": scaled(
        "s = c.repeat_interleave(32, 0).repeat_interleave(32, 1)\n"
        "return F.linear(x.float() * r.repeat_interleave(32, -1), w.float() * s).bfloat16()",
        {"x": "M K*32: float8_e4m3fn", "w": "N*32 K*32: float8_e4m3fn", "r": "M K: float32", "c": "N K: float32"},
        {"M": 17, "N": 2, "K": 3}, out="M N*32: bfloat16",
    ),
    "by groups that are reshaped": scaled(
        "y = (x.float().reshape(x.shape[0], -1, 32) * r[:, :, None]).reshape(x.shape)\n"
        "return (y @ w.float().T).half()", {**EIGHT, "x": "M G*32: float8_e4m3fn", "w": "N G*32: float8_e4m3fn",
        "r": "M G: float32"}, {"M": 17, "N": 24, "G": 3}, out="M N: float16",
    ),
    "of a row": scaled(
        "return ((v.float() * r.repeat_interleave(32, 0)) @ (w.float() * c).T).half()",
        {"v": "G*32: float8_e4m3fn", "w": "N G*32: float8_e4m3fn", "r": "G: float32", "c": "N 1: float32"},
        {"N": 21, "G": 3}, out="N: float16",
    ),
    "of half precision": scaled(
        "return (a.float() * r) @ (b.float() * c)",
        {"a": "M K: bfloat16", "b": "K N: bfloat16", "r": "M 1: float32", "c": "N: float32"}, FITTING, AWKWARD,
        out="M N: float32",
    ),
}  # fmt: skip
EVERY = {
    **FORMS,
    **{f"before: {name}": found for name, found in BEFORE.items()},
    **{f"after: {name}": found for name, found in AFTER.items()},
    **{f"rows: {name}": found for name, found in OF_ROWS.items()},
    **{f"shared: {name}": found for name, found in SHARED.items()},
    **{f"packed: {name}": found for name, found in PACKED.items()},
    **{f"scaled: {name}": found for name, found in SCALED.items()},
}


def one_kernel(found: Sample) -> KernelPlan:
    plan = plan_of(found.spec())
    assert isinstance(plan, KernelPlan)
    assert plan.family == "matmul"
    return plan


def tables(plan: KernelPlan) -> Iterator[tuple[Schedule, Callable[..., Any]]]:
    """The wrapper of every schedule with small blocks."""
    for schedule in dict.fromkeys(schedules(plan)):
        yield schedule, load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op


def numbers(shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> torch.Tensor:
    if dtype == "bool":
        return torch.rand(shape, generator=generator).to(DEVICE) < 0.5
    if dtype in ("int32", "uint8"):  # packed
        low = -(2**31) if dtype == "int32" else 0
        return (
            torch.randint(low, low + 2**32 if low else 256, shape, generator=generator)
            .to(getattr(torch, dtype))
            .to(DEVICE)
        )
    made = torch.randn(shape, generator=generator) * (3 if dtype == "int8" else 1)
    return made.to(getattr(torch, dtype)).to(DEVICE)


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same elements, otherwise in memory."""
    match layout:
        case "transposed" if values.ndim > 1:
            return values.mT.contiguous().mT
        case "outermost last" if values.ndim > 2:
            return values.movedim(0, -1).contiguous().movedim(-1, 0)
        case "apart":
            return torch.stack([values, torch.zeros_like(values)], -1)[..., 0]
        case "misaligned":
            memory = torch.empty(values.numel() + 1, dtype=values.dtype, device=values.device)
            return memory[1:].view(values.shape).copy_(values)
    return values


LAYOUTS = ("contiguous", "transposed", "apart", "misaligned", "outermost last")


def inputs_of(found: Sample, sizes: dict[str, Any], dtype: str, layout: str = "contiguous") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(found.source()))
    made = []
    for t in found.inputs:
        shape: list[int] = []
        for size in t.shape:
            entry = sizes[size] if size == "..." else eval(str(size), {}, sizes)
            shape += entry if isinstance(entry, tuple) else [entry]
        values = numbers(tuple(shape), dtype if t.dtype == "T" else t.dtype, generator)
        made.append(laid_out(values if t.below is None else values % eval(str(t.below), {}, sizes), layout))
    return made


def exact(found: Sample, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The reference in float64; what it casts to float32 or float16 stays float64."""
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    text = re.sub(r"\.(float|half|bfloat16)\(\)", ".double()", found.source())
    exec(text, scope)
    return as_tuple(scope["op"](*(t.double() if t.is_floating_point() else t for t in tensors)))


def check(found: Sample, op: Callable[..., Any], tensors: list[torch.Tensor], said: object = "") -> None:
    wanted = exact(found, tensors)
    made = as_tuple(op(*tensors))
    assert len(made) == len(wanted)
    for one, right in zip(made, wanted, strict=True):
        assert one.shape == right.shape, said
        narrow = max((str(t.dtype) for t in (*tensors, one) if t.is_floating_point()), key=lambda d: WITHIN[d[6:]])
        largest = float(right.abs().max()) if right.numel() else 0.0
        off = float((one.double() - right).abs().max()) if right.numel() else 0.0
        assert off <= WITHIN[narrow[6:]] * largest, f"{said}: off by {off} of {largest}"


def kinds(found: Sample) -> tuple[str, ...]:
    return (*dict(found.dtypes).get("T", ("float16",)), "bfloat16")[:2]


@pytest.mark.parametrize("name", EVERY)
def test_every_variant_is_right(name: str) -> None:
    """Each schedule meets another dtype, another layout and other sizes."""
    found, at = EVERY[name], 0
    for schedule, op in tables(one_kernel(found)):
        for sizes in found.sizes:
            dtype, layout = kinds(found)[at % 2], LAYOUTS[(at // 2) % len(LAYOUTS)]
            for how in dict.fromkeys(["contiguous", layout]):
                check(found, op, inputs_of(found, sizes, dtype, how), (schedule, sizes, dtype, how))
            at += 1


def test_two_dimensions_of_a_tensor_never_share_a_stride() -> None:
    """In blocks of N and K the axes that count blocks have names of one ending, for the kernel calls its own sizes N and K."""
    runs: list[tuple[str | Expr, str, tuple[int, ...]]]
    runs = [("cols_n_size", "size", (0,)), ("ks_k_size", "size", (1,))]
    access = strided_access(tensor("c", "N K"), ((0,), (1,)), 0, runs, (0, 1), (), "c_view", in_parts=False)
    assert len({stride for _, stride in access.terms}) == 2
    assert len(dict(access.strides)) == 2


EMPTY = {
    "a @ b": {"M": 17, "N": 35, "K": 0},
    "linear": {"M": 5, "N": 8, "K": 0},
    "bmm": {"B": 3, "M": 4, "N": 5, "K": 0},
    "baddbmm": {"B": 0, "M": 4, "N": 5, "K": 6},
    "a matrix by a vector": {"M": 17, "K": 0},
    "a vector by a matrix": {"N": 0, "K": 4},
    "before: what is beyond the end is no zero": {"M": 17, "N": 0, "K": 7},
    "after: residual": {"M": 17, "N": 35, "K": 0},
    "rows: softmax": {"M": 3, "K": 0},
}


@pytest.mark.parametrize("name", EMPTY)
def test_of_nothing_a_product_is_zero_and_what_follows_is_computed(name: str) -> None:
    found = EVERY[name]
    for schedule, op in tables(one_kernel(found)):
        check(found, op, inputs_of(found, EMPTY[name], "float32"), schedule)


def of(variant: str, plan: KernelPlan) -> Callable[..., Any]:
    """The wrapper of a variant's first schedule with small blocks."""
    return next(op for schedule, op in tables(plan) if schedule.variant == variant)


@INTERPRETED
@pytest.mark.parametrize(
    ("form", "layout", "sizes", "kernel"),
    [
        ("a @ b", "contiguous", FITTING, "op_kernel"),
        ("a @ b", "contiguous", AWKWARD, "op_pointers_kernel"),
        ("a @ b", "misaligned", FITTING, "op_pointers_kernel"),
        ("a @ b", "transposed", FITTING, "op_pointers_kernel"),
        ("mm of transposed", "contiguous", {"M": 24, "N": 8, "K": 40}, "op_kernel"),
        ("linear", "contiguous", FITTING, "op_kernel"),
        ("linear", "apart", FITTING, "op_pointers_kernel"),
        ("bmm", "contiguous", {"B": 3, "M": 17, "N": 24, "K": 40}, "op_kernel"),
        ("bmm", "outermost last", {"B": 8, "M": 16, "N": 24, "K": 40}, "op_pointers_kernel"),
    ],
)
def test_tiles_are_copied_by_descriptors_where_memory_allows(
    form: str, layout: str, sizes: dict[str, int], kernel: str, launched: list[str]
) -> None:
    found = EVERY[form]
    check(found, of("boxes", one_kernel(found)), inputs_of(found, sizes, "float16", layout))
    assert launched == [kernel]


@INTERPRETED
def test_parts_are_added_by_a_second_kernel_and_what_follows_torchs_product_is_one(launched: list[str]) -> None:
    found = EVERY["after: residual"]
    plan = one_kernel(found)
    for variant in ("split", "library", "vector"):
        check(found, of(variant, plan), inputs_of(found, FITTING, "float32"))
    assert launched == ["op_kernel", "op_join_kernel", "op_after_kernel", "op_kernel"]
    whole = EVERY["linear"]
    launched.clear()
    check(whole, of("library", one_kernel(whole)), inputs_of(whole, FITTING, "float32"))
    assert not launched  # torch.addmm is all there is


@INTERPRETED
def test_factors_are_written_once_where_there_are_many_rows(launched: list[str]) -> None:
    found = EVERY["before: of small integers"]
    plan = one_kernel(found)
    few, many = (next(r.schedule.variant for r in plan.table if (r.limit("M") or m) >= m) for m in (512, 513))
    assert (few, many) == ("boxes", "written")
    a, b, s = inputs_of(found, FITTING, "float16")
    for variant, behind in (("written", "op_product_kernel"), ("library", "op_after_kernel")):
        launched.clear()
        check(found, of(variant, plan), [a, b, s])
        assert launched == ["op_kernel", behind]
    # the rows of what is written begin at multiples of 16 bytes only if K or N is one of 8, whatever those of inputs do
    launched.clear()
    wide = torch.zeros(len(b), 48, dtype=torch.int8)
    wide[:, :35] = b[:, :35]
    check(found, of("written", plan), [a, wide[:, :35], s[:35]])
    assert launched == ["op_pointers_kernel"]


def test_torchs_product_is_not_rounded_before_what_is_added_to_it() -> None:
    """A sum that is nearly nothing shows what was rounded on the way."""
    generator = torch.Generator().manual_seed(0)
    found = product("return torch.relu(torch.addmm(c, a, b))", {**TWO, "c": "M N"})
    a, b = (torch.randn(64, 64, generator=generator, dtype=torch.float64).half().to(DEVICE) for _ in range(2))
    c = -(a.double() @ b.double()).half()
    wanted = torch.relu(c.double() + a.double() @ b.double())
    got = of("library", one_kernel(found))(a, b, c)
    # on a GPU torch itself may round: then it is not rounded once more
    torchs = float((torch.addmm(c, a, b).double() - (c.double() + a.double() @ b.double())).abs().max())
    torch.testing.assert_close(got.double(), wanted, rtol=2e-3, atol=max(1e-5, torchs))


@pytest.fixture
def torch_multiplies(request: pytest.FixtureRequest) -> Iterator[str]:
    """Not by monkeypatch, which would delete what no instance has in its __dict__."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = request.param
    yield request.param
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("torch_multiplies", ["none", "ieee", "tf32"], indirect=True)
def test_float32_is_multiplied_as_torch_is_told_to(torch_multiplies: str) -> None:
    found = EVERY["a @ b"]
    op, tensors = of("tiles", one_kernel(found)), inputs_of(found, AWKWARD, "float32")
    (wanted,) = exact(found, tensors)
    off = float((op(*tensors) - wanted).abs().max() / wanted.abs().max())
    assert 1e-5 < off < 1e-2 if torch_multiplies == "tf32" else off < 1e-6


@pytest.mark.parametrize("torch_multiplies", ["tf32"], indirect=True)
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_a_spec_says_how_float32_is_multiplied(torch_multiplies: str, precision: str) -> None:
    """Whatever torch is set to; infinity and NaN are where they were, and a single product of TF32 would be seen."""
    found = product("return a @ b", TWO, dtypes=(("T", ("float32",)),))
    plan = plan_of(replace(found.spec(), precision=precision))
    text = render.triton_source(plan.with_table((TableRow((), of_variant("tiles", plan)),)))
    assert f'PRECISION="{precision}",' in text
    assert "def precision(" not in text
    assert "library" not in families.family_of(plan).variants(body_of(plan))
    tensors = inputs_of(found, AWKWARD, "float32")
    check(found, load(text).op, tensors)
    with pytest.raises(AssertionError, match="off by"):
        check(found, load(text.replace(f'"{precision}"', '"tf32"')).op, tensors)
    tensors[0][3, 5], tensors[0][4, 6] = float("inf"), float("nan")
    wanted, made = tensors[0].double() @ tensors[1].double(), load(text).op(*tensors)
    assert torch.equal(made.isnan(), wanted.isnan())
    assert torch.equal(made.isinf(), wanted.isinf())


def test_a_spec_may_ask_for_tf32_whatever_torch_is_set_to() -> None:
    found = product("return a @ b", TWO, dtypes=(("T", ("float32",)),))
    plan = plan_of(replace(found.spec(), precision="tf32"))
    op, tensors = of("tiles", plan), inputs_of(found, AWKWARD, "float32")
    (wanted,) = exact(found, tensors)
    assert 1e-5 < float((op(*tensors) - wanted).abs().max() / wanted.abs().max()) < 1e-2
    assert render._operator(plan)["as_tf32"]


def test_sums_of_float8_are_promoted_every_128_products() -> None:
    """But for those of a group that is scaled, which begin anew anyway. The judge allows what is lost until then."""
    given = {"x": "M K: float8_e4m3fn", "w": "N K: float8_e4m3fn"}
    plan = plan_of(product("return x.float() @ w.float().t()", given, {"out": "M N: float32"}, dtypes=()).spec())
    text, judged = render.triton_source(plan), render._operator(plan)
    assert 'PROMOTED=min(options["BLOCK_K"], 128),' in text
    assert text.count("max_num_imprecise_acc=PROMOTED") == text.count("tl.dot(")
    assert (judged["multiplied"], judged["as_tf32"]) == ("float32", True)
    assert "PROMOTED" not in render.triton_source(plan_of(SCALED["by blocks"].spec()))


def of_variant(variant: str, plan: KernelPlan) -> Schedule:
    return next(s for s in schedules(plan) if s.variant == variant)


def test_lines_of_several_products_have_room_for_the_tiles_of_all() -> None:
    """Four gates of one product: four tiles of weights in flight at once, of which 320 KB were asked."""
    lines = "a, b, c, d = (x @ w).chunk(4, dim=-1)\nreturn torch.sigmoid(a) * torch.tanh(b) + c * d"
    plan = plan_of(sample(lines, {"x": "M K", "w": "K 4*N"}, {"out": "M N"}, {"M": 5, "K": 8, "N": 8}).spec())
    (kernel,) = (k for k in plan.kernels if k.family == "matmul")
    body = body_of(kernel)
    assert isinstance(body, ProductBody)
    assert len(body.dots) == 4
    for row in kernel.table:
        assert room(body, row.limit("itemsize") or 4)(row.schedule) is None, row


PRECISE = {
    "no product": sample("return a * 2", {"a": "M N: float32"}, {"out": "M N: float32"}, FITTING, dtypes=()),
    "none of float32": product("return a @ b", TWO, dtypes=(("T", ("float16",)),)),
    "a convolution": sample(
        "return F.conv1d(a, b)", {"a": "B C L: float32", "b": "J C 1: float32"}, {"out": "B J L: float32"}, dtypes=()
    ),
}


@pytest.mark.parametrize("name", PRECISE)
def test_precision_is_refused_where_it_says_nothing(name: str) -> None:
    with pytest.raises(SpecError, match="precision says how kernels multiply float32 matrices"):
        plan_of(replace(PRECISE[name].spec(), precision="tf32x3"))


def test_whole_numbers_are_converted_as_they_are_multiplied() -> None:
    """Converted at once, zero beyond the end as it is, and the operand that the matrix units take from registers."""
    plan = one_kernel(EVERY["before: of small integers"])
    (swapped, *_) = (r.schedule for r in plan.table if r.schedule.variant == "boxes")
    text = render.triton_source(plan.with_table((TableRow((), swapped),)))
    assert "right = b.to(a_desc.dtype)\n        product = tl.dot(right.T, a.T, product" in text
    assert "right = tl.where(" not in text
    scaled = one_kernel(product("return a @ (b.float() * 2 + 1).to(a.dtype)", {**TWO, "b": "K N: int8"}))
    assert "right = tl.where(k_mask[:, None]," in render.triton_source(scaled)


def test_a_factor_that_another_is_computed_from_is_multiplied_in_its_dtype() -> None:
    """What computes is float32, which no product takes with float16; the interpreter takes both."""
    lines = "return torch.sigmoid((x * s[:, None]) @ w) + torch.relu(x @ w)"
    found = product(lines, {"x": "M K", "s": "M", "w": "K N"})
    op, tensors = of("tiles", one_kernel(found)), inputs_of(found, AWKWARD, "float16")
    check(found, op, tensors)
    plan = one_kernel(found)
    text = render.triton_source(plan.with_table((TableRow((), of_variant("tiles", plan)),)))
    sides = re.findall(r"tl\.dot\(\s*([^,]+),\s*([^,]+),", text)
    assert sides == [("left.to(x_ptr.dtype.element_ty)", "w"), ("x.to(x_ptr.dtype.element_ty)", "w")]


def test_products_of_one_kernel_share_its_tiles() -> None:
    """One load of the common factor a step, half of the columns each, and room counted for both."""
    plan = one_kernel(SHARED["a gated layer"])
    (halved, *_) = (s for s in families.family_of(plan).starts(body_of(plan), 0, 0) if s.variant == "boxes")
    text = render.triton_source(plan.with_table((TableRow((), halved),)))
    kernel = text.partition("x_desc")[2].partition("@triton.jit")[0]
    assert (kernel.count("x_desc.load("), kernel.count("tl.dot(")) == (1, 2)
    linear = body_of(one_kernel(FORMS["linear"]))
    (whole, *_) = (s for s in families.family_of(plan).starts(linear, 0, 0) if s.variant == "boxes")
    assert whole.int("BLOCK_N") == 2 * halved.int("BLOCK_N")
    holds = families.family_of(plan).holds
    assert holds(body_of(plan), halved, 2) is None
    assert "shared memory" in str(holds(body_of(plan), whole, 2))
    assert holds(body_of(plan), whole.replace(BLOCK_M=256), 2) == "more than 256 sums a thread"
    assert "shared memory" in str(holds(body_of(plan), halved.replace(num_stages=5), 2))


def test_words_are_loaded_once_and_unpacked_in_registers() -> None:
    """Not a load for every number of a word, nor 64 bits where 32 do; blocks are within a group, whose scale is a row."""
    for name, word in (
        ("eight along what is summed", "ks_by_8[:, None]"),
        ("eight along columns in another order", "cols_by_8[None, :]"),
    ):
        plan = one_kernel(PACKED[name])
        text = render.triton_source(plan).partition("_tiles_kernel(")[2].partition("@triton.jit")[0]
        assert f"+ {word} * stride_p" in text
        assert "p = _repeated(p, 8, " in text
        assert "k_mask" not in text
        body = text.partition("p = _repeated")[2].partition("tl.dot(")[0]
        assert "int64" not in body.replace("tl.cast(start // 32, tl.int64)", "").replace(
            "tl.cast(start // 64, tl.int64)", ""
        )
    holds = families.family_of(plan).holds
    own = [row.schedule for row in plan.table if row.schedule.variant != "library"]
    for schedule in own:
        assert holds(body_of(plan), schedule, 2) is None
        assert schedule.int("BLOCK_K") <= 64
    assert "of a group" in str(holds(body_of(plan), own[-1].replace(BLOCK_K=128), 2))


def test_scales_multiply_sums_where_they_are_declared_finite() -> None:
    """The factors are multiplied as memory holds them, and a group's sum is scaled once; else each element is."""
    found = SCALED["by blocks"]
    text = render.triton_source(one_kernel(found))
    assert "group_sum = tl.dot(x, w)" in text
    assert "out += group_sum * r[:, None] * c[None, :]" in text
    plain = replace(found, inputs=tuple(replace(t, role="data") for t in found.inputs))
    text = render.triton_source(one_kernel(plain))
    assert "group_sum" not in text
    assert "torch.matmul" not in render.triton_source(one_kernel(SCALED["of half precision"]))
    check(found, of("tiles", one_kernel(plain)), inputs_of(found, found.sizes[0], "float32"))


@pytest.mark.parametrize("name", ["a @ b", "linear", "bmm", "after: residual"])
def test_results_repeat_bit_for_bit(name: str) -> None:
    found = EVERY[name]
    op, tensors = of("split", one_kernel(found)), inputs_of(found, found.sizes[0], "float16")
    torch.testing.assert_close(op(*tensors), op(*tensors), rtol=0, atol=0)


def steps(found: Sample) -> list[str]:
    plan: Plan = plan_of(found.spec())
    assert isinstance(plan, StepsPlan)
    return [step.family if isinstance(step, KernelPlan) else step.text for step in plan.steps]


SEVERAL = {
    "pieces that are moved": (
        product("y = a @ b\nreturn y * torch.sigmoid(y.flip(-1))", TWO), ["matmul", "pointwise"],
    ),
    "rows of any length": (product("return torch.softmax(a @ b, -1)", TWO), ["matmul", "reduction"]),
    "rows too long for a tile": (
        product("return torch.softmax(a @ b, -1)", {"a": "M K", "b": "K 600"}, {"out": "M 600"}), ["matmul", "reduction"],
    ),
    "rows that are normalised first": (
        product("return F.linear(F.layer_norm(x, (x.shape[-1],)), w, b)", LAYER), ["reduction", "matmul"],
    ),
    "two products": (
        product("return torch.relu(a @ b) @ c + d", {**TWO, "c": "N 24", "d": "24"}, {"out": "M 24"}),
        ["matmul", "matmul"],
    ),
    "two products with nothing in common": (
        product("return a @ b + c @ d", {**TWO, "c": "M K", "d": "K N"}), ["matmul", "matmul"],
    ),
    "two products of other sizes": (
        product("return x @ g, x @ u", {"x": "M K", "g": "K N", "u": "K 24"}, {"y": "M N", "z": "M 24"}),
        ["matmul", "matmul"],
    ),
    "columns of the result": (product("y = a @ b\nreturn y - y.mean(0, keepdim=True)", TWO), ["matmul", "reduction"]),
    "beside a call": (
        of_sizes("return torch.relu(torch.linalg.matrix_exp(x) @ w)", {"x": "B C C", "w": "C N"}, "B C N", B=2, C=5, N=8),
        ["torch.linalg.matrix_exp({0})", "matmul"],
    ),
    "a product of two vectors": (
        of_sizes("return torch.relu(torch.outer(a, b) + (a @ c))", {"a": "M", "b": "N", "c": "M"}, "M N", M=5, N=7),
        ["torch.matmul({0}, {1})", "pointwise"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_what_no_kernel_holds_is_several(name: str) -> None:
    found, wanted = SEVERAL[name]
    assert steps(found) == wanted
    plan = plan_of(found.spec())
    for schedule in dict.fromkeys(schedules(plan)):
        op = load(render.triton_source(plan.with_table((TableRow((), schedule),)))).op
        for sizes in found.sizes:
            check(found, op, inputs_of(found, sizes, "float32"), schedule)


def test_a_tile_that_holds_whole_rows_is_not_tuned_to_hold_less() -> None:
    for found, is_free in ((OF_ROWS["softmax"], False), (FORMS["linear"], True)):
        plan = one_kernel(found)
        for row in range(len(plan.table)):
            assert plan.table[row].schedule.get("BLOCK_N", 64) >= (1 if is_free else 37)
            names = {p.name for p in families.space(plan, row, ())}
            assert ("BLOCK_N" in names) == is_free or plan.table[row].schedule.variant == "library"


def test_equal_kernels_are_printed_once() -> None:
    """Variants of one file share what they have in common, and a schedule that changes numbers alone needs no other
    kernel."""
    plan = one_kernel(EVERY["after: residual"])
    some = tuple(dict.fromkeys(schedules(plan)))
    more = tuple(s.replace(BLOCK_N=32) for s in some if s.variant == "tiles")
    rows = [TableRow((("M", i + 1),), schedule) for i, schedule in enumerate((*some, *more))]
    text = render.triton_source(plan.with_table((*rows[:-1], TableRow((), rows[-1].schedule))))
    bodies = [part.partition("(")[2] for part in text.split("@triton.jit\ndef ")[1:]]
    bodies = [body.split("\n\n\n")[0] for body in bodies]
    assert len(set(bodies)) == len(bodies)
    assert {s.variant for s in some} == {"tiles", "boxes", "split", "vector", "library"}
    assert text.count("_pointers_kernel(\n") == 0  # what the boxes fall back to is the kernel of the tiles


@pytest.mark.parametrize("returned", ["y.mT", "y.mT.contiguous()", "(y, y.mT.contiguous())", "y.flatten(1)"])
def test_results_are_contiguous(returned: str) -> None:
    shapes = {"y.mT": ["B N M"], "y.mT.contiguous()": ["B N M"], "y.flatten(1)": ["B M*N"]}
    outputs = {f"out{i}": shape for i, shape in enumerate(shapes.get(returned, ["B M N", "B N M"]))}
    found = sample(f"y = torch.bmm(a, b)\nreturn {returned}", {"a": "B M K", "b": "B K N"}, outputs,
                   {"B": 2, "M": 9, "N": 5, "K": 7})  # fmt: skip
    op = load(render.triton_source(plan_of(found.spec()))).op
    tensors = inputs_of(found, found.sizes[0], "float32")
    check(found, op, tensors)
    wanted = exact(found, tensors)
    assert all(
        one.is_contiguous() or one.stride() == right.stride()
        for one, right in zip(as_tuple(op(*tensors)), wanted, strict=True)
    )


NAMES = [
    ("M", "N", "K"), ("K", "BATCH", "parts"), ("tiles_m", "tiles_n", "part_sums"), ("rows", "cols", "ks"),
    ("product", "products", "part_sum"), ("left", "right", "tile"), ("kernel", "options", "grid"),
    ("a_ptr", "a_desc", "a"), ("BLOCK_M", "PRECISION", "NUM_PROGRAMS"), ("start", "end", "length"),
    ("row_mask", "first_row", "tile_m"), ("num_tiles", "tiles", "row"), ("x", "x_view", "stride_xm"),
    ("itemsize", "num_summed", "batch"), ("torch_matmul", "fits", "SCHEDULES_"), ("T", "tl_", "triton_"),
]  # fmt: skip
"""What wrappers and kernels of products call values of their own."""


@pytest.mark.parametrize("names", NAMES, ids="-".join)
def test_operands_may_be_called_as_kernels_call_their_own(names: tuple[str, str, str]) -> None:
    a, b, c = names
    found = product(f"return torch.relu({a} * 2 @ {b}) + {c}", {a: "B M K", b: "B K N", c: "N"}, {"out": "B M N"})
    sizes = {**FITTING, "B": 2}
    for schedule, op in tables(one_kernel(found)):
        check(found, op, inputs_of(found, sizes, "float32"), schedule)
    found = product(f"return {a} @ {b} + {c}", {a: "M K", b: "K N", c: "N"})
    for schedule, op in tables(one_kernel(found)):
        check(found, op, inputs_of(found, FITTING, "float16"), schedule)


def test_what_a_reference_rounds_before_products_in_float32_is_rounded_in_their_bounds() -> None:
    """33 + x in float16 is off by 1/64, which tanh of sums around 0 shows."""
    lines = "y = (x + 33).to(x.dtype).float() @ w\ny = torch.tanh(y) * 17\nreturn y.to(x.dtype)"
    found = sample(lines, {"x": "A 17", "w": "17 D: float32"}, {"out": "A D"}, {"A": 15, "D": 33})
    assert families.multiplied_dtype(plan_of(found.spec())) == "T"
    assert failures(found, thorough=False) == []
