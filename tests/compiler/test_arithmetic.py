"""Elementary operations against torch: special values of one and two operands, integers of every dtype, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from references import DEVICE, failures, sample
from test_backward import check
from test_elementary import INF, NAN, SPECIAL, every_binade, kernel

from kernelgen import frontend
from kernelgen.backward import backward
from kernelgen.errors import UnsupportedError

NUMBERS = [0.1, -0.1, 0.3, 0.5, -0.5, 0.7, 1.5, -1.5, 2.0, 2.5, -2.5, 3.0, -3.0, 5.0, 7.3, 60.0, -88.0, 89.0, 1e9, -3e9]
ULPS = {
    "torch.asin(x)": 3, "torch.acos(x)": 3, "torch.atan(x)": 4, "torch.sinh(x)": 9, "torch.cosh(x)": 9,
    "torch.asinh(x)": 3, "torch.acosh(x)": 3, "torch.atanh(x)": 4, "torch.erfc(x)": 11, "torch.log10(x)": 4,
    "x ** 1.5": 5, "x ** -0.75": 5, "x ** 2.5": 5, "2 ** x": 5, "10 ** x": 8, "(-2.0) ** x": 6,
}  # fmt: skip
"""The most units in the last place by which one is off, over all of float32; exp2 of a GPU has its share of 2."""
ONE = [
    "torch.sign(x)", "torch.isfinite(x)", "torch.isposinf(x)", "torch.isneginf(x)", "torch.signbit(x)",
    "torch.nan_to_num(x, 1.0, 5.0, -3.0)", "x % 3", "x % 0.1", "x % -2.5", "5.0 % x", "torch.fmod(x, 0.7)",
    "torch.fmod(x, -3)", "x // 3", "x // -2.5", "2 // x", "torch.div(x, 0.3, rounding_mode='trunc')", "x ** 0", "x ** 10",
    "torch.copysign(x, -1.0)", "torch.copysign(x, -0.0)", "torch.sinc(x)", "torch.frac(x)", "torch.logit(x, 0.1)",
    "torch.logit(x)", "torch.xlogy(x, 2.5)", "torch.round(x, decimals=2)", "torch.round(x, decimals=-1)",
    "F.celu(x, 0.5)", "F.softshrink(x, 0.5)", "F.hardshrink(x, 0.5)", "F.threshold(x, 0.1, 20.0)", "F.rrelu(x)",
    "F.dropout(x, 0.5, False)", "torch.deg2rad(x)", "torch.tan(x)", "torch.special.logit(x)", "torch.arctan(x)",
    "(x.abs() + 0.5) ** 1.5",  # of which ptxas takes `>= 0` for true, of NaN too
]  # fmt: skip
TWO = [
    "x % y", "torch.fmod(x, y)", "x // y", "torch.div(x, y, rounding_mode='floor')",
    "torch.div(x, y, rounding_mode='trunc')", "torch.pow(x, y)", "torch.lerp(x, 2 * x, y)", "torch.logaddexp(x, y)",
    "torch.logaddexp2(x, y)", "torch.atan2(x, y)", "torch.hypot(x, y)", "torch.copysign(x, y)", "torch.fmax(x, y)",
    "torch.fmin(x, y)", "torch.isclose(x, y)", "torch.isclose(x, y, 0.1, 0.0, True)", "torch.heaviside(x, y)",
    "torch.xlogy(x, y)",
]  # fmt: skip
SIGNED = ("copysign", "atan", "fmod", "%", "//", "asin", "sinh", "pow")
"""Operations of which the sign of a zero is known."""
INTEGERS = [
    "x % 3", "x % 8", "x % y", "17 % y", "x // 3", "x // 4", "x // y", "17 // y", "torch.fmod(x, 3)", "torch.fmod(x, y)",
    "torch.div(x, 3, rounding_mode='floor')", "torch.div(x, y, rounding_mode='trunc')", "x << 2", "x >> 2", "x << z",
    "x >> z", "1 << z", "x << 70", "x >> 70", "torch.bitwise_right_shift(x, z)", "x ** 0", "x ** 3", "2 ** z.abs()",
    "x.sign()", "x.isfinite()", "x.nan_to_num()", "x.signbit()", "torch.heaviside(x, y)", "torch.fmax(x, y)",
    "x & y", "x | 4", "torch.isclose(x, y)", "torch.copysign(x, y)", "x % 2.5", "torch.atan2(x, y)",
]  # fmt: skip


def run(code: str, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a kernel gives and what torch gives, on the CPU."""
    used = {name: x for name, x in inputs.items() if name in code.replace("xlogy", "").replace("copysign", "")}
    want: torch.Tensor = eval(code, {"torch": torch, "F": F}, used)
    if want.is_floating_point() and any(name in code for name in ("%", "//", "fmod")):
        # element by element, by C's fmod: that of torch's vectors is NaN for some denormals
        rows = zip(*(x.split(1) for x in used.values()), strict=True)
        want = torch.cat([eval(code, {"torch": torch}, dict(zip(used, row, strict=True))) for row in rows])
    declared = {name: f"A: {str(x.dtype)[6:]}" for name, x in used.items()}
    op = kernel(f"return {code}", declared, {"out": f"A: {str(want.dtype)[6:]}"})
    return op(*(x.to(DEVICE) for x in used.values())).cpu(), want


def same(code: str, got: torch.Tensor, want: torch.Tensor) -> None:
    if not want.is_floating_point():
        assert torch.equal(got, want)
        return
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    if any(name in code for name in SIGNED):
        zero = (want == 0) & (got == 0)
        assert torch.equal(got[zero].signbit(), want[zero].signbit())


@pytest.mark.parametrize("code", ULPS)
def test_a_function_is_right_over_all_of_float32(code: str) -> None:
    x = every_binade().cpu()
    got, known = run(code, {"x": x})
    want = eval(code, {"torch": torch}, {"x": x.double()})
    assert torch.equal(got.isnan(), want.isnan())
    infinite = got.isinf()
    assert bool(((infinite == known.isinf()) | (infinite == want.float().isinf())).all())
    ulp = torch.exp2(torch.frexp(want).exponent - 24.0).clamp(min=2.0**-149)
    normal = got.isfinite() & (want.abs() >= 2.0**-125)
    assert float(((got - want).abs() / ulp)[normal].max()) <= ULPS[code]
    assert bool((got[want.abs() < 2.0**-126].abs() <= 2.0**-125).all())


@pytest.mark.parametrize("code", ONE)
def test_an_operation_of_special_values_is_torchs(code: str) -> None:
    torch.manual_seed(0)
    near = torch.cat([torch.linspace(-20, 20, 997), torch.linspace(-1, 1, 201)])
    known = torch.tensor([*SPECIAL, 0.0, -0.0, *NUMBERS, INF, -INF, NAN])
    same(code, *run(code, {"x": torch.cat([known, near])}))


@pytest.mark.parametrize("code", TWO)
def test_an_operation_of_two_special_values_is_torchs(code: str) -> None:
    torch.manual_seed(0)
    known = torch.tensor([0.0, -0.0, 1.0, -1.0, -2.0, INF, -INF, NAN, *NUMBERS])
    x = torch.cat([known.repeat_interleave(len(known)), torch.randn(2000) * 5, torch.randn(500).mul(3).exp()])
    y = torch.cat([known.repeat(len(known)), torch.randn(2000) * 3, torch.randn(500) * 3])
    same(code, *run(code, {"x": x, "y": y}))


def any_floats(count: int) -> torch.Tensor:
    """Numbers of every exponent and either sign, infinities and NaN among them."""
    return torch.randint(-(2**31), 2**31, (count,)).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    "code", ["torch.fmod(x, y)", "x % y", "x // y", "torch.fmod(x, 3e-39)", "x % 3", "5e37 % y", "x // -0.7"]
)
def test_a_remainder_is_exact_whatever_the_quotient(code: str) -> None:
    torch.manual_seed(0)
    y = torch.randn(4000)
    near = y * torch.exp2(torch.rand(4000) * 60) * torch.randn(4000).sign()  # quotients around 2**24 as well
    hard = torch.tensor([1e16, -1e16, 3.4028235e38, 2.0**100, 1e-45, 1e30, 3e-39, 1e9, 2.0**-126])
    x = torch.cat([near, any_floats(4000), hard, hard, -hard])
    y = torch.cat([y, any_floats(4000), torch.full((9,), 3.0), hard.flip(0), torch.full((9,), 1e-45)])
    got, want = run(code, {"x": x, "y": y})
    assert torch.equal(got.isnan(), want.isnan())
    known = ~want.isnan()
    assert torch.equal(got[known].view(torch.int32), want[known].view(torch.int32))


def test_a_remainder_of_two_tensors_without_dimensions_is_torchs() -> None:
    op = kernel("return torch.fmod(x, y)", {"x": ": float32", "y": ": float32"}, {"out": ": float32"})
    for one, other in ((1e16, 3.0), (-1e30, 7.0), (0.5, 0.25), (5.0, 1e-44)):
        x, y = torch.tensor(one), torch.tensor(other)
        assert torch.equal(op(x.to(DEVICE), y.to(DEVICE)).cpu(), torch.fmod(x, y))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_are_divided_and_shifted_as_torch_does(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    numbers = torch.cat([torch.arange(-30, 31), torch.tensor([info.min, info.max, 100])]).to(dtype)
    x, y = numbers.repeat_interleave(7), torch.tensor([1, 2, 3, 5, 7, -3, -4]).to(dtype).repeat(len(numbers))
    z = torch.arange(len(x)).remainder(80).sub(5).to(dtype)
    for code in INTEGERS:
        if code == "x % 2.5" and dtype == torch.int64:
            continue  # a quotient of 2**63
        got, want = run(code, {"x": x, "y": y, "z": z})
        assert torch.allclose(got.double(), want.double(), rtol=1e-5, equal_nan=True), code


JUDGED: dict[str, tuple[dict[str, str], str]] = {
    "F.prelu(x, w)": ({"x": "A D 3", "w": "D"}, "A D 3"),
    "F.prelu(x, w) * 2": ({"x": "A D", "w": "1"}, "A D"),
    "F.poisson_nll_loss(x, y)": ({"x": "A D", "y": "A D"}, ""),
    "F.margin_ranking_loss(x, y, x.sign(), 0.2)": ({"x": "A D", "y": "A D"}, ""),
    "F.hinge_embedding_loss(x, y.sign())": ({"x": "A D", "y": "A D"}, ""),
    "F.cosine_embedding_loss(x, y, t.sign())": ({"x": "A D", "y": "A D", "t": "A"}, ""),
    "F.pairwise_distance(x, y)": ({"x": "A D", "y": "A D"}, "A"),
    "F.pairwise_distance(x, y, 1, keepdim=True)": ({"x": "A D", "y": "A D"}, "A 1"),
    "x.nanmean(-1)": ({"x": "A D"}, "A"),
    "torch.outer(x, y)": ({"x": "A", "y": "D"}, "A D"),
    "torch.movedim(x, (0, 1), (2, 0)) * 2": ({"x": "A D 3"}, "D 3 A"),
    "x.swapaxes(0, 1).ravel()": ({"x": "A D"}, "A*D"),
    "torch.flipud(x) - torch.fliplr(x)": ({"x": "A D"}, "A D"),
    "torch.rot90(x)": ({"x": "A D"}, "D A"),
    "torch.rot90(x, 2)": ({"x": "A D"}, "A D"),
    "torch.rot90(x, 3, [1, 2])": ({"x": "A D 3"}, "A 3 D"),
    "torch.hstack([x, y])": ({"x": "A D", "y": "A D"}, "A 2*D"),
    "torch.vstack([x, y])": ({"x": "A D", "y": "A D"}, "2*A D"),
    "torch.column_stack([x, x * 2])": ({"x": "A"}, "A 2"),
    "torch.pow(x.abs(), y)": ({"x": "A D", "y": "A D"}, "A D"),
    "x % 0.7": ({"x": "A D"}, "A D"),
    "torch.hypot(x, y)": ({"x": "A D", "y": "D"}, "A D"),
}


@pytest.mark.parametrize("code", JUDGED)
def test_the_judge_takes_it(code: str) -> None:
    inputs, out = JUDGED[code]
    sizes = [
        {k: v for k, v in s.items() if k in " ".join(inputs.values())} for s in ({"A": 5, "D": 7}, {"A": 1, "D": 19})
    ]
    assert not failures(sample(f"return {code}", inputs, {"out": out}, *sizes), thorough=False)


@pytest.mark.parametrize(
    "code",
    [
        "x % 3", "x % y", "torch.fmod(x, y)", "x * torch.sign(x)", "torch.nan_to_num(x, 0.0, 1.0, -1.0)",
        "x.abs() ** 1.5", "torch.pow(x.abs() + 0.1, y)", "2 ** x", "3 ** x", "torch.lerp(x, 2 * y, y)",
        "torch.logaddexp(x, y)", "torch.logaddexp2(x, y)", "torch.atan2(x, y)", "torch.hypot(x, y)",
        "torch.copysign(x, y)", "torch.fmax(x, y)", "torch.fmin(x, y)", "torch.where(torch.isclose(x, y), x, y)",
        "torch.where(torch.isfinite(x), x, y)", "torch.xlogy(x, y.abs())", "torch.sinc(x)", "x * torch.frac(x)",
        "torch.log10(x.abs() + 1)", "torch.logit(x, 0.1)", "torch.erfc(x)", "torch.asin(x / 9)", "torch.acos(x / 9)",
        "torch.atan(x)", "torch.sinh(x)", "torch.cosh(x)", "torch.tan(x / 9)", "torch.asinh(x)",
        "torch.acosh(x.abs() + 1.5)", "torch.atanh(x / 9)", "F.celu(x, 0.5)", "F.softshrink(x, 0.5)",
        "F.hardshrink(x, 0.5)", "F.threshold(x, 0.1, 20.0)", "F.poisson_nll_loss(x, y)", "F.pairwise_distance(x, y)",
    ],
    ids=str,
)  # fmt: skip
def test_a_gradient_is_torchs(code: str) -> None:
    inputs = {"x": "A D", "y": "A D"} if ", y" in code or "% y" in code else {"x": "A D"}
    shape = "" if "loss" in code else "A" if "distance" in code else "A D"
    found = sample(f"return {code}", inputs, {"out": shape}, {"A": 3, "D": 37})
    check(replace(found, dtypes=(("T", ("float32",)),)))


@pytest.mark.parametrize("code", ["torch.nan_to_num(x * 2)", "x * x.abs().clamp(min=torch.finfo(x.dtype).eps).log()"])
def test_a_gradient_knows_the_limits_of_every_dtype(code: str) -> None:
    check(sample(f"return {code}", {"x": "A D"}, {"out": "A D"}, {"A": 3, "D": 37}))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x // 3", "the gradient of floor, which is zero wherever it exists"),
        ("torch.heaviside(x, x)", "no float output depends on a float input"),
        ("F.dropout(x, 0.1)", "dropout.default, which draws from torch's generator"),
    ],
)
def test_what_has_no_gradient_is_refused(code: str, said: str) -> None:
    spec = sample(f"return {code}", {"x": "A D"}, {"out": "A D"}).spec()
    with pytest.raises(UnsupportedError) as refused:
        backward(spec, frontend.trace(spec)[0])
    assert said in str(refused.value)
