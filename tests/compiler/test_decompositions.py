"""Operations without a rule of their own come to what torch decomposes them into; several indices, diagonals, pools."""

from __future__ import annotations

import pytest
import torch
from references import failures, load, plan_of, sample

from kernelgen import render
from kernelgen.families.helpers import LIBRARY
from kernelgen.judge.interpreter import as_on_a_gpu

TAKEN = {
    "diff": ("return torch.diff(x)", {"x": "A 7"}, {"out": "A 6"}),
    "addr": ("return torch.addr(x, a, b, beta=0.5)", {"x": "A B", "a": "A", "b": "B"}, {"out": "A B"}),
    "cross": ("return torch.linalg.cross(x, y)", {"x": "A 3", "y": "A 3"}, {"out": "A 3"}),
    "shuffle": ("return F.channel_shuffle(x, 2)", {"x": "A 6 B B"}, {"out": "A 6 B B"}),
    "entropy": ("return torch.special.entr(x)", {"x": "A B"}, {"out": "A B"}),
    "kron": ("return torch.kron(x, y)", {"x": "4 5", "y": "2 3"}, {"out": "8 15"}),
    "bilinear": (
        "return F.interpolate(x, (9, 5), mode='bilinear', align_corners=True)", {"x": "A B 6 7"}, {"out": "A B 9 5"},
    ),
    "moments": ("v, m = torch.var_mean(x, -1, correction=0)\nreturn v, m", {"x": "A B"}, {"v": "A", "m": "A"}),
    "norm": ("return x / x.norm(3, -1, keepdim=True).clamp(min=1e-3)", {"x": "A B"}, {"out": "A B"}),
    "two indices": ("return x[i, j] * 2", {"x": "A B", "i": "D: int64 < A", "j": "D: int64 < B"}, {"out": "D"}),
    "indices apart": (
        "return x[i, :, j]", {"x": "A B C", "i": "D: int64 < A", "j": "D: int64 < C"}, {"out": "D B"},
    ),
    "diagonal": ("return torch.diagonal(x)", {"x": "5 5"}, {"out": "5"}),
    "diagonal of planes": ("return x.diagonal(1, 1, 2).sum(-1)", {"x": "A 5 6"}, {"out": "A"}),
    "trace": ("return torch.trace(x)", {"x": "A A"}, {"out": ""}),
    "windows": ("return x.unfold(-1, 3, 2).amax(-1)", {"x": "A 9"}, {"out": "A 4"}),
    "rounded up": ("return F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)", {"x": "A B 8 8"}, {"out": "A B 5 5"}),
    "without its padding": (
        "return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)", {"x": "A B 8 8"}, {"out": "A B 4 4"},
    ),
    "places": ("v, i = F.max_pool1d(x, 2, return_indices=True)\nreturn v, i", {"x": "A 6"}, {"v": "A 3", "i": "A 3: int64"}),
    "adaptive": ("return F.adaptive_avg_pool2d(x, (2, 4))", {"x": "A B 8 8"}, {"out": "A B 2 4"}),
    "all of a plane": ("return F.adaptive_avg_pool2d(x, 1) * 2", {"x": "A B H W"}, {"out": "A B 1 1"}),
    "distances": ("return torch.cdist(x.float(), y.float())", {"x": "A C", "y": "B C"}, {"out": "A B: float32"}),
    "rotary": (
        "a = torch.view_as_complex(torch.stack((x[..., ::2], x[..., 1::2]), -1).float())\nb = torch.view_as_complex(torch.stack(y.unbind(-1), -1))\n"
        "return torch.view_as_real(a * b[:, None]).flatten(2).type_as(x)",
        {"x": "A B 8", "y": "A 4 2: float32"}, {"out": "A B 8"},
    ),
    "complex numbers": (
        "a = torch.view_as_complex(torch.stack(x.float().unbind(-1), -1))\nb = torch.polar(y, y)\na = 2 - a.conj() * b + a.flip(-1) - y\n"
        "return torch.view_as_real(y * a), torch.abs(a[0]) + a.real[0]",
        {"x": "A B 2", "y": "A B: float32"}, {"out": "A B 2: float32", "size": "B: float32"},
    ),
    "across rows": ("v, i = x.topk(2, dim=0)\nreturn v, i", {"x": "9 B"}, {"v": "2 B", "i": "2 B: int64"}),
    "shared steps": (
        "\n".join(["y = torch.sin(x)", *["y = y * y + y"] * 30, "return y.sin()"]), {"x": "A"}, {"out": "A"},
    ),
}  # fmt: skip
"""References, with inputs and outputs."""
SIZES = {"A": 5, "B": 6, "C": 4, "D": 37, "H": 5, "W": 7}


@pytest.mark.parametrize("name", TAKEN)
def test_an_operation_by_its_parts(name: str) -> None:
    lines, inputs, outputs = TAKEN[name]
    as_on_a_gpu()
    used = " ".join([*inputs.values()])
    sizes = {size: number for size, number in SIZES.items() if size in used.replace("int", "")}
    if name == "shared steps":  # which grow without bound
        assert plan_of(sample(lines, inputs, outputs).spec())
        return
    found = failures(sample(lines, inputs, outputs, sizes), thorough=False, most=2)
    assert not found, found[0]


SPECIAL = {
    "lgamma": "torch.lgamma(x)", "erfinv": "torch.erfinv(x)", "erfcx": "torch.special.erfcx(x)",
    "ndtri": "torch.special.ndtri(x)", "nextafter": "torch.nextafter(x, x * 0)", "i0": "torch.i0(x)",
    "i1": "torch.special.i1(x)", "j0": "torch.special.bessel_j0(x)", "j1": "torch.special.bessel_j1(x)",
    "y0": "torch.special.bessel_y0(x)", "y1": "torch.special.bessel_y1(x)", "log_ndtr": "torch.special.log_ndtr(x)",
    "digamma": "torch.digamma(x)", "i0e": "torch.special.i0e(x)", "i1e": "torch.special.i1e(x)",
}  # fmt: skip


def test_special_functions_are_those_of_cuda_or_written_out() -> None:
    """The library's own are torch's in the interpreter: what is compared is which one is called, and with what."""
    as_on_a_gpu()
    names = [f"out_{name}" for name in SPECIAL]
    lines = [
        *(f"{out} = {call}" for out, call in zip(names, SPECIAL.values(), strict=True)),
        f"return {', '.join(names)}",
    ]
    found = sample("\n".join(lines), {"x": "A"}, dict.fromkeys(names, "A"), {"A": 2037}, dtypes=(("T", ("float32",)),))
    assert not failures(found, thorough=False, most=1)


def test_digamma_and_scaled_bessel_functions_are_near_torchs_in_float64() -> None:
    as_on_a_gpu()
    numbers = torch.cat([torch.linspace(-30, 200, 9999), torch.logspace(-20, 20, 999), torch.tensor([0.0, -0.0, -3.0])])
    for call in ("torch.digamma(x)", "torch.special.i0e(x)", "torch.special.i1e(x)"):
        found = sample(f"return {call}", {"x": "A: float32"}, {"out": "A: float32"}, dtypes=())
        kernel = load(render.triton_source(plan_of(found.spec()))).op
        exact = eval(call, {"torch": torch, "x": numbers.double()})
        torch.testing.assert_close(kernel(numbers).double(), exact, rtol=2e-6, atol=2e-6, equal_nan=True)


def test_a_library_of_cuda_is_imported_where_it_is_called() -> None:
    called, not_called = (
        render.triton_source(plan_of(sample(f"return torch.{f}(x)", {"x": "A"}, {"out": "A"}).spec()))
        for f in ("lgamma", "digamma")
    )
    assert LIBRARY in called
    assert LIBRARY not in not_called


KEPT = {
    "sort": ("v, i = torch.sort(x * 2, dim=-1, stable=True)\nreturn torch.tanh(v), i * 2", {"x": "A B"}, {"v": "A B", "i": "A B: int64"}),
    "search": ("return torch.searchsorted(y.cumsum(0), x.abs()) * 2", {"x": "A B", "y": "C"}, {"out": "A B: int64"}),
    "fill": ("return torch.index_fill(x, 0, i, 2.0) + 1", {"x": "A B", "i": "C: int64 < A"}, {"out": "A B"}),
    "scatter": (
        "return torch.scatter_reduce(x, 0, i, y, 'amax') + 1", {"x": "A", "i": "A: int64 < A", "y": "A"}, {"out": "A"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_an_operation_that_nothing_takes_apart_stays_torchs_call(name: str) -> None:
    lines, inputs, outputs = KEPT[name]
    as_on_a_gpu()
    sizes = {size: SIZES[size] for size in "ABC" if size in " ".join(inputs.values())}
    assert not failures(sample(lines, inputs, outputs, sizes), thorough=False, most=1)
