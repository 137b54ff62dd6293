"""Where kernels read: slices that begin before a tensor, rolls by any number, gathers and single elements beside more."""

from __future__ import annotations

from typing import Any

import pytest
from references import Sample, failures, sample

SIZES: tuple[dict[str, Any], ...] = ({"M": 9, "N": 3}, {"M": 1, "N": 2})


def moved(value: str, shape: str, columns: int = 5) -> Sample:
    return sample(f"return {value} * 2", {"x": f"M {columns}"}, {"out": shape}, *SIZES)


MOVED = {
    "x[:, -5:2]": moved("x[:, -5:2]", "M 2", columns=3),
    "x[:, -9::2]": moved("x[:, -9::2]", "M 3"),
    "x[-5:1]": sample("return x[-5:1] * 2", {"x": "2 M"}, {"out": "1 M"}, *SIZES),
    "flipped": moved("x.flip(-1)[:, -7:3]", "M 3"),
    "summed": sample("return x[:, -5:2].sum(-1)", {"x": "M 3"}, {"out": "M"}, *SIZES),
    "as many as another has": sample(
        "return torch.cat([y, y])[: x.shape[0]] + x", {"x": "M N", "y": "M N"}, {"out": "M N"}, *SIZES
    ),
    "rolled by a size": sample("return x.roll(y.shape[0], 1) * 2", {"x": "M 5", "y": "N"}, {"out": "M 5"}, *SIZES),
    "rolled by half": sample("return x.roll(x.shape[1] // 2, 1) + 1", {"x": "M N"}, {"out": "M N"}, *SIZES),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_read_is_what_torch_reads(name: str) -> None:
    assert not failures(MOVED[name], thorough=False, most=3)


SMALL: tuple[dict[str, Any], ...] = ({"N": 3, "H": 2, "D": 5, "V": 7}, {"N": 1, "H": 1, "D": 1, "V": 2})
TABLE = {"x": "N H D", "i": "N: int64 < V", "t": "V D"}


def beside(lines: str, inputs: dict[str, str], shape: str) -> Sample:
    return sample(lines, inputs, {"out": shape}, *SMALL)


BESIDE = {
    "an embedding of planes": beside("return x + F.embedding(i, t)[:, None, :]", TABLE, "N H D"),
    "indexed planes": beside("return x * t[i][:, None, :]", TABLE, "N H D"),
    "an index that was read": beside(
        "return x + F.embedding(u[i], t)[:, None, :]", {**TABLE, "u": "V: int64 < V"}, "N H D"
    ),
    "one of every plane": beside(
        "return x + y[torch.arange(x.shape[0], device=x.device), i][:, None, :]",
        {"x": "N H D", "i": "N: int64 < V", "y": "N V D"}, "N H D",
    ),
    "one element at the end": beside("return torch.cat([x, y[None]]) * 2", {"x": "D", "y": ""}, "D+1"),
    "one element around": beside("return torch.cat([y, x, y]).sum()", {"x": "D", "y": "1"}, ""),
    "one element of every row": beside("return torch.cat([x, y], 1).sum(-1)", {"x": "N D", "y": "N 1"}, "N"),
    "one element of all rows": beside(
        "return torch.softmax(torch.cat([x, y.expand(x.shape[0], 1)], 1), 1)", {"x": "N D", "y": "1"}, "N D+1"
    ),
    "one element scanned": beside("return torch.cat([y, x], 1).cumsum(1)", {"x": "N D", "y": "N 1"}, "N D+1"),
    "one element padded": beside("return F.pad(y, (0, 3), value=2.0) * x[:, :4]", {"x": "N 4", "y": "N 1"}, "N 4"),
    "a sum at the end": beside("total = x.sum()\nreturn torch.cat([x, total[None]])", {"x": "D"}, "D+1"),
    "norms of gradients": sample(
        "total = torch.stack([x.norm(), y.norm()]).norm()\nreturn x / (total + 1), y / (total + 1)",
        {"x": "N D", "y": "H D"}, {"out": "N D", "other": "H D"}, *SMALL,
    ),
    "numbers joined": beside("return torch.stack([y, z]).sum() * x", {"x": "D", "y": "", "z": ""}, "D"),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_moves_less_than_what_it_stands_beside(name: str) -> None:
    assert not failures(BESIDE[name], thorough=False, most=6)
