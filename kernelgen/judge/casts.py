"""What a reference itself rounds to: a kernel rounds where its reference casts, and the oracle does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .bounds import CAP
from .eager import EagerMode, InOrder
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
        with torch.no_grad(), InOrder(), _Casts() as casts:
            function(*inputs)
        _known[key] = frozenset(casts.found & CAP.keys())
    return _known[key]


_CALLS = frozenset(
    [
        *(torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.double),
        *(torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as),
    ]
)
"""Functions that a reference casts with."""


class _Narrowings(TorchFunctionMode):
    """Remembers of every call that may cast a tensor to which narrower float it casts one; None where it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.dtype | None] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _CALLS:
            floats = isinstance(result, torch.Tensor) and result.dtype.is_floating_point and args[0].is_floating_point()
            self.found.append(result.dtype if floats and result.dtype.itemsize < args[0].dtype.itemsize else None)
        return result


class _Narrowed(TorchFunctionMode):
    """Rounds what these calls return, float64 as it is in an oracle, to the floats that were remembered."""

    def __init__(self, found: Sequence[torch.dtype | None]) -> None:
        super().__init__()
        self._found = iter(found)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _CALLS or (dtype := next(self._found)) is None:
            return result
        with torch._C.DisableTorchFunction():  # the rounding is meant, which the oracle undoes
            return result.to(dtype).to(result.dtype)


def rounding(function: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """The function, of which casts to narrower floats round in an oracle as well. `inputs`: of their own dtypes."""
    with torch.no_grad(), InOrder(), _Narrowings() as noted:
        function(*inputs)

    def rounded(*arguments: torch.Tensor) -> Any:
        with _Narrowed(noted.found):
            return function(*arguments)

    return rounded


def decide(refs: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor]) -> bool:
    """Whether casts move a result by more than any error of PyTorch excuses, as where it is what a cast takes away:
    then they are the meaning of the reference."""
    floats = [(x, r) for x, r in zip(refs, rounded, strict=True) if x.dtype.is_floating_point and x.numel()]
    return any(_largest(r - x) > max(CAP.values()) * _largest(x) for x, r in floats)


def _largest(x: torch.Tensor) -> float:
    return float(torch.where(x.isfinite(), x, 0.0).abs().max())
