"""What overflows float32 on the way to a result: PyTorch and kernels go on with infinity there, of which 1 / sqrt is 0,
where an oracle in float64 has a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .bounds import CAP
from .eager import EagerMode
from .model import Case, Function, Operator
from .oracle import STEPWISE, Tiling, in_float64, steps

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


def _in_range(function: Function) -> Function:
    """The function, whose float64 results are infinite beyond float32 at every step."""

    def limited(*arguments: torch.Tensor) -> Any:
        with _InRange():  # type: ignore[no-untyped-call]
            return function(*arguments)

    return limited


def excused(
    operator: Operator,
    case: Case,
    arguments: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """Candidate and PyTorch with the oracle's number wherever a step overflows and they have what follows from it; None
    where that is nowhere."""
    results = [x.clone() for x in got], [x.clone() for x in eager]
    tiling, any_excused = Tiling(operator, case), False
    for box in tiling.boxes():
        cut = [tiling.cut(t, x, box) for t, x in zip(operator.inputs, arguments, strict=True)]
        right, limited = in_float64(operator.pure, cut), in_float64(_in_range(operator.pure), cut)
        for i, tensor in enumerate(operator.outputs):
            if not got[i].dtype.is_floating_point:
                continue
            overflown = right[i].isfinite() & ~torch.isclose(
                right[i], limited[i], rtol=CAP[got[i].dtype], atol=0.0, equal_nan=True
            )
            for outputs in results:
                part = tiling.cut(tensor, outputs[i], box)
                like_limited = torch.isclose(part.double(), limited[i], rtol=CAP[part.dtype], atol=0.0, equal_nan=True)
                follows = overflown & like_limited
                any_excused |= bool(follows.any())
                part.copy_(torch.where(follows, right[i].to(part.dtype), part))
    return results if any_excused else None
