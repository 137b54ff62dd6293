"""A reference whose steps overflow where float32 does, for an oracle that has no such limit: PyTorch and kernels go on
with infinity there, and 1 / sqrt of it is 0."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .eager import EagerMode
from .model import Function
from .oracle import STEPWISE, steps

_MOST = torch.finfo(torch.float32).max


class _InRange(EagerMode):  # type: ignore[no-untyped-call]
    """Makes every float64 result of a step infinite that float32 does not have, also where torch takes several in one;
    and a mean of which the sum is."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in STEPWISE:
            with self:
                return steps().get(func, func)(*args, **(kwargs or {}))
        given = [a for a in args if isinstance(a, torch.Tensor)]
        memory = {a.untyped_storage().data_ptr() for a in given}

        def limited(x: torch.Tensor) -> torch.Tensor:
            if x.dtype != torch.float64 or x.untyped_storage().data_ptr() in memory:
                return x
            terms = given[0].numel() / max(x.numel(), 1) if func.overloadpacket is torch.ops.aten.mean else 1.0
            return torch.where(x.abs() * terms > _MOST, x * torch.inf, x)

        return tree_map_only(torch.Tensor, limited, func(*args, **(kwargs or {})))


def in_range(function: Function) -> Function:
    """The function, whose float64 results are infinite beyond float32 at every step."""

    def limited(*arguments: torch.Tensor) -> Any:
        with _InRange():  # type: ignore[no-untyped-call]
            return function(*arguments)

    return limited
