"""What a reference writes to, and what it makes itself: the kernels agree with torch."""

from __future__ import annotations

import pytest
from references import Sample, failures, sample

SIZES = ({"N": 3, "D": 21}, {"N": 1, "D": 1}, {"N": 5, "D": 40})


def of_rows(lines: str, out: str = "N D") -> Sample:
    return sample(lines, {"x": "N D", "w": "N D: float32"}, {"out": out}, *SIZES)


WRITES = {
    "operators": of_rows("y = x * w\ny -= 1\ny *= 0.5\ny /= 3\ny += w\nreturn y", "N D: float32"),
    "into a narrower dtype": of_rows("y = x * 2\ny += w\nreturn y * y"),
    "a copy": of_rows("y = x.clone().add_(w).mul_(2)\nreturn y - x"),
    "methods": of_rows("y = (x * 4).clamp_(-2, 2).relu_()\ny.masked_fill_(w > 1, -1.0).neg_()\nreturn y"),
    "functions": of_rows("y = F.relu(x - 0.5, inplace=True)\nreturn F.silu(F.hardtanh(y, inplace=True), inplace=True)"),
    "under a mask": of_rows("y = x * 2\ny[w > 0] = 3\nrows = w[:, 0] > 1\ny[rows] = 0\nreturn y"),
    "rows under a mask": of_rows("y = x * 2\ny[w[:, 0] > 0] = x[0] + 1\nreturn y"),
    "masks": of_rows("m = x > 0\nm &= w < 1\nm |= x == -1\nreturn torch.where(m, x, torch.tensor(-2.0))"),
    "through a view alone": of_rows("y = (x + 1).t().contiguous()\nrow = y[0]\nrow += 5\nreturn x + row[:, None]"),
    "over what was there": of_rows("y = torch.empty_like(x)\ny.copy_(w)\nz = torch.zeros_like(x).fill_(2)\nreturn y * z"),
    "on a diagonal": of_rows("y = x * 2\ny.fill_diagonal_(-3.0)\nreturn y + w", "N D: float32"),
    "zeroed": of_rows("y = x * 2\ny.zero_()\ny += x\nreturn y"),
    "to slices": of_rows("y = torch.zeros_like(x)\ny[:, 1:] = x[:, :-1]\ny[:1] = 7\nreturn y"),
    "to places": of_rows("y = x * 2\ny[:, 0] = w[:, -1]\ny[0] += 1\ny[..., -1].mul_(3)\nreturn y + y.sum(-1, keepdim=True)"),
    "all of what was unset": of_rows("y = torch.empty_like(x)\ny[:, :1] = x[:, :1] * 2\ny[:, 1:] = 1\nreturn y"),
    "truths a place ahead": of_rows(
        "m = x > 0\nm[..., 1:] = m[..., :-1].clone()\nm[..., 0] = False\nreturn x.masked_fill(m, -1.0)"
    ),
    "powers": of_rows("y = w.clone()\ny **= 2\nreturn y + x", "N D: float32"),
}  # fmt: skip
MADE = {
    "zeros": of_rows("y = torch.zeros(x.shape, dtype=x.dtype, device=x.device)\ny += x\nreturn y * x.new_full((1,), 3)"),
    "ones": of_rows("return x + torch.ones(x.shape[1], dtype=x.dtype, device=x.device) + x.new_ones(()) + x.new_zeros(1)"),
    "single numbers": of_rows("return x * torch.tensor(2.0) + torch.tensor(1, device=x.device) + torch.full((), 2.5)"),
    "scalar tensor": of_rows("return x.maximum(torch.scalar_tensor(0.25, dtype=x.dtype, device=x.device))"),
    "identity": of_rows("return w[:, None, :] * torch.eye(x.shape[1], device=x.device) + x[:, :, None]", "N D D: float32"),
    "at equal distances": of_rows(
        "return x[..., None] + torch.linspace(-1, 2, 7, device=x.device) * w[..., None]", "N D 7: float32"
    ),
    "a number beside integers": sample(
        "j = i * torch.tensor(100) + i.sum()\nreturn j, j > torch.tensor(3, device=i.device), j.float()", {"i": "N D: int8"},
        {"out": "N D: int8", "large": "N D: bool", "wide": "N D: float32"}, *SIZES, dtypes=(),
    ),
    "a table": of_rows("t = torch.tensor([[1.5, -2], [3, 4]], dtype=x.dtype, device=x.device)\nreturn x * t[1, 0] + t.sum()"),
    "one step": of_rows("return x * torch.linspace(3, 4, 1, device=x.device, dtype=x.dtype)"),
}  # fmt: skip
PLACES = ({"B": 3, "L": 5, "D": 17}, {"B": 1, "L": 2, "D": 3}, {"B": 4, "L": 1, "D": 1})
BOUNDS = {
    "three": of_rows("return (x * 4).clamp(-2, 2).relu()"),
    "four": of_rows("return (x * 4).clamp(-2, 2).clamp(0, 1)"),
    "six": of_rows("return (x * 4).clamp(-3, 3).clamp(-2, 1).clamp(-1, 2)"),
}
"""Bounds in a row."""
READ = {
    "the last of every row": sample(
        "last = x[torch.arange(x.shape[0], device=x.device), i]\nreturn last * 2", {"x": "B L D", "i": "B: int64 < L"},
        {"out": "B D"}, *PLACES,
    ),
    "one of every place": sample(
        "b = torch.arange(x.shape[0], device=x.device)\nl = torch.arange(x.shape[1], device=x.device)\n"
        "return x[b[:, None], l, p]", {"x": "B L D", "p": "B L: int64 < D"}, {"out": "B L"}, *PLACES,
    ),
    "along columns": sample(
        "return x[:, c, torch.arange(x.shape[2], device=x.device)]", {"x": "B L D", "c": "D: int64 < L"}, {"out": "B D"},
        *PLACES,
    ),
}  # fmt: skip
LOSSES = {
    "of every token": sample(
        "b, l, v = x.shape\nreturn F.cross_entropy(x.view(-1, v), p.view(-1), reduction='none').view(b, l)",
        {"x": "B L D", "p": "B L: int64 < D"}, {"out": "B L"}, *PLACES,
        constraints=("x.is_contiguous() and p.is_contiguous()",),
    ),
    "of every row": sample(
        "return F.nll_loss(x, t, reduction='none', ignore_index=1), F.cross_entropy(x, t, reduction='none')",
        {"x": "N D", "t": "N: int64 < D"}, {"out": "N", "other": "N"}, *SIZES,
    ),
    "weighted": sample(
        "m = F.cross_entropy(x, t, weight=w, label_smoothing=0.1, ignore_index=1)\n"
        "return m, F.cross_entropy(x, t, w, reduction='none'), F.nll_loss(x, t, weight=w, reduction='sum')",
        {"x": "N D", "w": "D", "t": "N: int64 < D"}, {"mean": "", "rows": "N", "total": ""}, *SIZES,
    ),
    "weighted and smoothed over planes": sample(
        "return F.cross_entropy(x, t, weight=w, label_smoothing=0.05, reduction='none')",
        {"x": "B D L", "w": "D", "t": "B L: int64 < D"}, {"out": "B L"}, *PLACES,
    ),
}  # fmt: skip
ALL = {**WRITES, **MADE, **BOUNDS, **READ, **LOSSES}


@pytest.mark.parametrize("name", ALL)
def test_kernels_agree_with_torch(name: str) -> None:
    assert not (said := failures(ALL[name], thorough=False, most=2)), "\n\n".join([ALL[name].source(), *said])
