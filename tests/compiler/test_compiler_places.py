"""Where kernels read: slices that begin before a tensor, rolls by any number."""

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
    "rolled by a size": sample("return x.roll(y.shape[0], 1) * 2", {"x": "M 5", "y": "N"}, {"out": "M 5"}, *SIZES),
    "rolled by half": sample("return x.roll(x.shape[1] // 2, 1) + 1", {"x": "M N"}, {"out": "M N"}, *SIZES),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_read_is_what_torch_reads(name: str) -> None:
    assert not failures(MOVED[name], thorough=False, most=3)
