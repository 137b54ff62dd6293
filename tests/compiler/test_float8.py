"""Casts to float8 of values that may not fit: as the installed torch has them, and as torch before 2.12 had."""

from __future__ import annotations

import math

import pytest
import torch
import triton.language as tl
from references import DEVICE, failures, load, plan_of, sample

from kernelgen import render
from kernelgen.judge import oracle

MAX, TIE = 448.0, 464.0
VALUES = [1.0, MAX, 449.0, TIE, 464.1, 480.0, 1e5, 3.4e38, math.inf, math.nan]
CAST = sample(
    "return (x.float() * 3).to(torch.float8_e4m3fn)", {"x": "M N"}, {"out": "M N: float8_e4m3fn"},
    {"M": 3, "N": 37}, {"M": 1, "N": 1},
)  # fmt: skip
AGAIN = sample(
    "scale = x.float().abs().amax(-1, keepdim=True) / 600\nreturn (x / scale).to(torch.float8_e4m3fn).to(x.dtype)",
    {"x": "M N"}, {"out": "M N"}, {"M": 3, "N": 37}, {"M": 1, "N": 1},
)  # fmt: skip


@pytest.mark.parametrize("found", [CAST, AGAIN], ids=["stored", "and read again"])
def test_a_cast_gives_what_torch_gives(found) -> None:
    assert not failures(found, thorough=False, most=3)


@pytest.mark.parametrize("saturates", [True, False])
def test_beyond_the_largest_float8_is_what_the_installed_torch_makes_of_it(saturates) -> None:
    found = sample("return x.to(torch.float8_e4m3fn)", {"x": "N"}, {"out": "N: float8_e4m3fn"})
    module = load(render.triton_source(plan_of(found.spec())))
    assert (torch.tensor(1e3).to(torch.float8_e4m3fn).float().item() == MAX) == module._FLOAT8_SATURATES.value
    module._FLOAT8_SATURATES = tl.constexpr(saturates)
    x = torch.tensor([*VALUES, *(-v for v in VALUES)]).to(DEVICE)
    wanted = torch.where(x.abs() > TIE, x * math.nan, x.clamp(-MAX, MAX)) if not saturates else x.clamp(-MAX, MAX)
    if saturates == (torch.tensor(1e3).to(torch.float8_e4m3fn).float().item() == MAX):
        torch.testing.assert_close(x.to(torch.float8_e4m3fn).float(), wanted, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(module.op(x).float(), wanted, equal_nan=True, rtol=0, atol=0)


def test_values_that_are_clamped_need_no_care() -> None:
    found = sample("return x.clamp(-448, 448).to(torch.float8_e4m3fn)", {"x": "N"}, {"out": "N: float8_e4m3fn"})
    assert "float8_range" not in render.triton_source(plan_of(found.spec()))


def test_the_oracle_casts_as_torch_does_and_rounds_nothing() -> None:
    x = torch.tensor([*VALUES, 0.3])
    casts = [
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: x.to(dtype=torch.float8_e4m3fn),
        lambda x: x.type(torch.float8_e4m3fn),
    ]
    for cast in casts:
        (result,) = oracle.in_float64(cast, [x])
        wanted = torch.where(x.abs() > MAX, x.to(torch.float8_e4m3fn).double(), x.double())
        torch.testing.assert_close(result, wanted, equal_nan=True, rtol=0, atol=0)
