"""Complex numbers as pairs of tensors: infinity and NaN are where torch's own complex numbers have them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelgen.frontend import complexes

VALUES = (0.5, -2.0, 0.0, math.inf, -math.inf, math.nan)
PARTS = torch.tensor(list(itertools.product(VALUES, repeat=4)))
REAL = torch.tensor([pair for pair in VALUES for _ in range(len(PARTS) // len(VALUES))])
OF = {
    "a + b": lambda a, b, y: a + b,
    "a - b": lambda a, b, y: a - b,
    "a * b": lambda a, b, y: a * b,
    "a + y": lambda a, b, y: a + y,
    "y + a": lambda a, b, y: torch.add(y, a),
    "a - y": lambda a, b, y: a - y,
    "y - a": lambda a, b, y: torch.sub(y, a),
    "a * y": lambda a, b, y: a * y,
    "y * a": lambda a, b, y: torch.mul(y, a),
    "2 + a": lambda a, b, y: 2 + a,
    "a + 2": lambda a, b, y: a + 2,
    "2 - a": lambda a, b, y: 2 - a,
    "a - 2": lambda a, b, y: a - 2,
    "-a": lambda a, b, y: -a,
    "a + inf": lambda a, b, y: a + math.inf,
    "inf - a": lambda a, b, y: math.inf - a,
}


@pytest.mark.parametrize("name", OF)
def test_what_is_infinite_is_as_torch_has_it(name: str) -> None:
    of: Callable[..., Any] = OF[name]
    first, second = (torch.view_as_complex(PARTS[:, at : at + 2].contiguous()) for at in (0, 2))
    wanted = torch.view_as_real(of(first, second, REAL).resolve_neg())
    pairs = (complexes.Pair(part.real.clone(), part.imag.clone()) for part in (first, second))
    found = of(*pairs, REAL)
    got = torch.stack((found.real, found.imag), -1)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
