"""What a reference itself rounds to: a kernel rounds where its reference casts, and the oracle does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .bounds import CAP
from .eager import EagerMode
from .model import Function


class _Casts(EagerMode):
    """Remembers the floats that wider floats are cast to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.dtype.is_floating_point:
            source = args[0].dtype
            if source.is_floating_point and result.dtype.itemsize < source.itemsize:
                self.found.add(result.dtype)
        return result


_Known = dict[tuple[Function, tuple[torch.dtype, ...]], frozenset[torch.dtype]]
_known: _Known = {}
"""The values of inputs change nothing, and a test tries several."""


def narrowed(function: Function, inputs: Sequence[torch.Tensor]) -> frozenset[torch.dtype]:
    """The dtypes of fewer bytes, among those with a cap, that a function casts floats to on the way to its results."""
    key = function, tuple(x.dtype for x in inputs)
    if key not in _known:
        with torch.no_grad(), _Casts() as casts:
            function(*inputs)
        _known[key] = frozenset(casts.found & CAP.keys())
    return _known[key]
