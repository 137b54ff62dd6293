"""What a sum in float32 is off by where its terms are added one after the other, as a program does that walks a row.

That a result moves by an ulp says nothing of a sum whose terms cancel, and moving every term says too little: numbers
in half precision less their mean are all cut off at the same place, so that every addition rounds alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_LANES = 16
"""Of a program's block, at least: so many sums are added up side by side."""
_STEPS = 256
"""Terms that are added in one lane, at most."""
_SUMMING = frozenset(["sum", "mean"])


def error(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> torch.Tensor | None:
    """What the float64 result of an operation may be off by in one order of its terms; None for another operation than
    a sum or a mean of float64, and where lanes have single terms. 0 where that is not finite."""
    if func.overloadpacket.__name__ not in _SUMMING or args[0].dtype != torch.float64:
        return None
    terms, dims = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    axes = [dims] if isinstance(dims, int) else list(dims or range(terms.ndim))
    count = math.prod(terms.shape[d] for d in axes)
    steps = min(-(-count // _LANES), _STEPS)
    if steps < 2 or result.dtype != torch.float64:
        return None
    rows = terms.movedim(axes, list(range(-len(axes), 0))).reshape(-1, count).float()
    lanes = torch.nn.functional.pad(rows, (0, -count % steps)).view(len(rows), steps, -(-count // steps))
    total = lanes[:, 0]
    for step in range(1, steps):
        total = total + lanes[:, step]
    off = total.sum(1, dtype=torch.float64) - lanes.sum((1, 2), dtype=torch.float64)
    off = torch.where(off.isfinite(), off, 0).reshape(result.shape)
    return off / count if func.overloadpacket.__name__ == "mean" else off
