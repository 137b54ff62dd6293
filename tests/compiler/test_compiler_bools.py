"""Truth values and whole numbers keep torch's dtypes in Triton: what `~`, a sum or a product makes of them tells."""

from __future__ import annotations

from typing import Any

import pytest
from references import Sample, failures, sample

SIZES: tuple[dict[str, Any], ...] = ({"M": 9, "N": 5}, {"M": 3, "N": 3})
ONES = "torch.ones(x.shape[0], x.shape[1], dtype=torch.bool, device=x.device)"


def masked(test: str, out: str = "M N") -> Sample:
    """x where a test does not hold."""
    return sample(f"test = {test}\nreturn x.masked_fill(~test, -1.0)", {"x": "M N"}, {"out": out}, *SIZES)


def made(value: str, dtype: str, shape: str = "M N") -> Sample:
    return sample(f"return {value}", {"x": "M N"}, {"out": f"{shape}: {dtype}"}, *SIZES)


BOOLS = {
    "tril": masked(f"torch.tril({ONES})"),
    "triu": masked(f"torch.triu({ONES}, 1)"),
    "tril of a comparison": masked("(x > 0).tril()"),
    "repeated": made(f"~torch.tril({ONES}).repeat(2, 1)", "bool", "2*M N"),
    "stored": made(f"~torch.tril({ONES})", "bool"),
    "counted": made(f"(~torch.tril({ONES})).sum(-1)", "int64", "M"),
    "softmax": sample(
        f"keep = torch.tril({ONES})\nreturn torch.softmax(x.masked_fill(~keep, -3.0), -1)",
        {"x": "M N"}, {"out": "M N"}, *SIZES,
    ),
    "filled with a number": masked("(x > 0).masked_fill(x > 1, 0)"),
    "chosen": masked("torch.where(x > 0, True, False)"),
    "padded": made("~F.pad(x > 0, (1, 0), value=1)", "bool", "M N+1"),
    "joined with constants": made(
        "~torch.cat([x > 0, torch.ones_like(x, dtype=torch.bool)], 1)", "bool", "M 2*N"
    ),
    "constants alone": masked("~torch.zeros_like(x, dtype=torch.bool) & torch.ones_like(x, dtype=torch.bool)"),
    "constant choice": sample(
        "return torch.where(torch.ones_like(x, dtype=torch.bool), x, 5.0) * 2", {"x": "M N"}, {"out": "M N"}, *SIZES
    ),
}  # fmt: skip
WHOLE = {
    "a product beyond int32": made("torch.where(x > 0, 2**30, 1) * 8", "int64"),
    "a number beyond int32": made("torch.where(x > 0, 3000000000, -1) * 8", "int64"),
    "a size": made("torch.where(x > 0, x.shape[1], 0) * 2**30", "int64"),
    "wrapping around": made("torch.zeros_like(x, dtype=torch.int8).masked_fill(x > 0, 100) * 2", "int8"),
    "bits of uint8": made("~torch.where(x > 0, 1, 0).to(torch.uint8)", "uint8"),
    "a bool among numbers": made("torch.where(x > 0, True, 0) + ~(x > 1)", "int64"),
    "an expanded number": made("x + torch.full((1,), 5, device=x.device).expand(x.shape[1]).to(torch.int8)", "T"),
}


@pytest.mark.parametrize("name", [*BOOLS, *WHOLE])
def test_values_keep_their_dtype(name: str) -> None:
    assert not failures({**BOOLS, **WHOLE}[name], thorough=False, most=3)
