"""Elementary functions over all of float32 against float64, and quotients that have to be right to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import DEVICE, load, plan_of, sample

from kernelgen import render
from kernelgen.judge.interpreter import as_on_a_gpu

INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1.0, -1.0, -2.0, 3.4e38, -3.4e38, INF, -INF, NAN]

# in units of the last place; exp2 of a GPU adds 2 where it is asked for more than whole powers
FUNCTIONS: dict[str, tuple[str, Callable[..., Any], float]] = {
    "tanh": ("torch.tanh(x)", torch.tanh, 3),
    "expm1": ("torch.expm1(x)", torch.expm1, 3),
    "exp2": ("torch.exp2(x)", torch.exp2, 2),
    "log1p": ("torch.log1p(x)", torch.log1p, 2),
    "softplus": ("F.softplus(x)", lambda x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())), 6),
    "mish": ("F.mish(x)", lambda x: x * torch.tanh(x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))), 8),
    "log_sigmoid": ("F.logsigmoid(x)", lambda x: x.clamp(max=0) - torch.log1p(torch.exp(-x.abs())), 6),
}


def kernel(lines: str, inputs: dict[str, str], outputs: dict[str, str]) -> Any:
    as_on_a_gpu()
    return load(render.triton_source(plan_of(sample(lines, inputs, outputs, dtypes=()).spec()))).op


def is_denormal(x: torch.Tensor) -> torch.Tensor:
    """Numbers that tl.floor takes for zero on NVIDIA, so that it is zero below zero too."""
    return (x != 0) & (x.abs() < 2.0**-126)


def every_binade() -> torch.Tensor:
    """48 numbers of every binade of either sign, more of them where results are neither 0, 1 nor infinite."""
    fractions = torch.linspace(1, 2, 49)[:-1].repeat(254)
    numbers = torch.ldexp(fractions, torch.arange(-126, 128).repeat_interleave(48))
    dense = torch.cat([torch.linspace(0, 2, 20_001), torch.linspace(2, 105, 20_001)])
    found = torch.cat([numbers, dense])
    return torch.cat([found, -found, torch.tensor(SPECIAL)]).to(DEVICE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_elementary_function_is_right_over_all_of_float32(name: str) -> None:
    text, exact, bound = FUNCTIONS[name]
    x = every_binade()
    got, want = kernel(f"return {text}", {"x": "A: float32"}, {"out": "A: float32"})(x), exact(x.double())
    rounded = want.float()
    assert torch.equal(got.isnan(), rounded.isnan())
    known = rounded.isfinite()
    assert torch.equal(got[~known].nan_to_num(0), rounded[~known].nan_to_num(0))
    ulp = torch.exp2(torch.frexp(want).exponent - 24.0).clamp(min=2.0**-149)
    # what exp2 makes less than 2**-126 is flushed to zero, and mish multiplies it by x
    flushed = 0 if name in ("tanh", "expm1", "log1p", "exp2") else 2.0**-126 * x.double().abs().clamp(1, 200)
    error = ((got - want).abs() - flushed) / ulp
    assert float(error[known].max()) <= bound
    if name in ("tanh", "expm1", "log1p"):
        zeros = x[:0].new_tensor([0.0, -0.0])
        assert torch.equal(got[torch.isin(x, zeros)].signbit(), x[torch.isin(x, zeros)].signbit())


def test_softplus_keeps_a_low_threshold_and_takes_a_factor() -> None:
    x = every_binade()
    op = kernel("return F.softplus(x, 2.0, 3.0)", {"x": "A: float32"}, {"out": "A: float32"})
    torch.testing.assert_close(op(x), F.softplus(x.double(), 2.0, 3.0).float(), equal_nan=True)


def test_a_quotient_by_a_number_of_the_row_is_torchs_to_the_last_bit() -> None:
    torch.manual_seed(0)
    scale = torch.cat([torch.rand(50) + 0.5, torch.tensor([*SPECIAL, 3e-40, 1e-30, 2.0**-126, 2.0**127, 1 / 3])])
    levels = torch.cat([torch.arange(-300, 300) / 2, torch.tensor(SPECIAL), torch.randn(400) * 40])
    x = (levels * scale.nan_to_num(1, 1, 1)[:, None]).to(DEVICE)
    x[:, ::7] = levels[::7].to(DEVICE)
    scale = scale.to(DEVICE)
    op = kernel(
        "return (x / s[:, None]).round(), torch.floor(x / s[:, None])",
        {"x": "A B: float32", "s": "A: float32"}, {"near": "A B: float32", "below": "A B: float32"},
    )  # fmt: skip
    quotient = x / scale[:, None]
    known = ~is_denormal(quotient)
    for got, want in zip(op(x, scale), (quotient.round(), quotient.floor()), strict=True):
        torch.testing.assert_close(got[known], want[known], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("divisor", ["s[:, None]", "(s.clamp(min=1e-12) / 127)[:, None]", "t"], ids=str)
def test_a_quotient_by_a_number_of_many_is_torchs_to_the_last_bit(divisor: str) -> None:
    """Of a row, of a row and never small, and of all rows."""
    torch.manual_seed(0)
    scale = torch.cat([torch.rand(20) + 0.5, torch.tensor([*SPECIAL, 3e-40, 1e-30, 2.0**127, 1 / 3])])
    x = torch.cat([torch.arange(-150, 150) / 2, torch.tensor(SPECIAL), torch.randn(200) * 40]) * scale[:1]
    x = x.expand(len(scale), -1).contiguous().to(DEVICE)
    scale = scale.to(DEVICE)
    code = f"return (x / {divisor}).clamp(-448, 448)"
    lines = f"{code.replace('return', 'y =')}\nreturn y.floor()"
    op = kernel(lines, {"x": "A B: float32", "s": "A: float32", "t": ": float32"}, {"out": "A B: float32"})
    for number in scale:
        rows = {"x": x.cpu(), "s": scale.cpu(), "t": number.cpu()}  # a GPU multiplies by the reciprocal of 127
        want = eval(code.removeprefix("return "), rows)
        got, known = op(x, scale, number).cpu(), ~is_denormal(want)
        torch.testing.assert_close(got[known], want.floor()[known], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("divisor", "lifted"),
    [
        ("s", True),
        ("s.clamp(min=1e-12) / 127", False),
        ("0.5 * (s.abs() / 448).clamp(min=1e-10)", False),
        ("s.clamp(1e-12, 4.0) * 2", False),
        ("s.clamp(min=1.0).clamp(max=1e-35)", True),
        ("s.clamp(min=1e-28) / 448", True),
        ("s.clamp(min=1.0) * -1", True),
    ],
)
def test_a_quotient_is_lifted_where_its_divisor_may_be_small(divisor: str, lifted: bool) -> None:
    lines = f"return (x / ({divisor})[:, None]).round()"
    spec = sample(lines, {"x": "A B: float32", "s": "A: float32"}, {"out": "A B: float32"}, dtypes=()).spec()
    assert ("def _lifted_quotient" in render.triton_source(plan_of(spec))) == lifted


@pytest.mark.parametrize("size", [7, 64, 9000])
def test_the_largest_size_of_a_row_keeps_nan_and_its_sign_is_none(size: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, size)
    for row, (at, special) in enumerate(
        (a, s) for a in (0, size // 2, size - 1) for s in (NAN, -NAN, -INF, INF, -1e-45)
    ):
        x[row, at] = special
    x[30] = 0.0
    x[31] = -0.0
    x = x.to(DEVICE)
    op = kernel("return x.abs().amax(-1)", {"x": "A B: float32"}, {"out": "A: float32"})
    torch.testing.assert_close(op(x), x.abs().amax(-1), rtol=0, atol=0, equal_nan=True)
    op = kernel("return (2 * x).abs().amax()", {"x": "A B: float32"}, {"out": ": float32"})
    torch.testing.assert_close(op(x[30:]), (2 * x[30:]).abs().amax(), rtol=0, atol=0)
    assert op(x).isnan()


def test_two_bounds_of_a_value_are_one_clamp_that_keeps_nan() -> None:
    x = torch.tensor([*SPECIAL, -447.9, 448.5, 1e9, -1e9]).to(DEVICE)
    code = "return x.clamp(-448, 448), x.clamp(max=2).clamp(min=-1), (x + 1).clamp(3, 3), x.clamp(2, 1)"
    op = kernel(code, {"x": "A: float32"}, dict.fromkeys("abcd", "A: float32"))
    want = eval(code.removeprefix("return "), {"x": x})
    for got, expected in zip(op(x), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_levels_are_rounded_and_clamped_as_torch_does() -> None:
    x = torch.cat([torch.arange(-300, 300) / 2, torch.tensor([1e9, -1e9, 4194304.5, INF, -INF])]).to(DEVICE)
    op = kernel(
        "return x.round().clamp(-128, 127).to(torch.int8), x.round().clamp(max=7).clamp(min=-8).int()",
        {"x": "A: float32"}, {"a": "A: int8", "b": "A: int32"},
    )  # fmt: skip
    a, b = op(x)
    assert torch.equal(a, x.round().clamp(-128, 127).to(torch.int8))
    assert torch.equal(b, x.round().clamp(-8, 7).int())
