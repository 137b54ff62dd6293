"""What storing tensors between kernels and calls of torch's does to a result that is exact otherwise.

An operator with calls of torch's (products of matrices, convolutions, attention) writes what a call reads, and the call
writes what it computes, in the dtype of the operator: that rounding is no fault of the kernels around it. The oracle is
computed once more with these values rounded, and what its result then differs by is accepted like PyTorch's own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .eager import EagerMode

CALLS = frozenset(["mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "linear", "convolution"])
"""What calls of torch's in generated wrappers arrive as at the dispatcher; attention beside these."""
_TF32_BITS = 13
"""Bits of a float32's mantissa that the matrix units leave out."""


class Stored(EagerMode):
    """Rounds what calls read and return to a dtype; what lies in the inputs' memory is of that dtype already.

    A convolution of float32 on a GPU may leave out bits of all that it reads (TF32), a product of matrices where it was
    told to.
    """

    def __init__(self, dtype: torch.dtype, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype
        self._inputs = {x.untyped_storage().data_ptr() for x in inputs}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        if name not in CALLS and not name.startswith("scaled_dot_product"):
            return func(*args, **(kwargs or {}))
        short = self._dtype == torch.float32 and _in_tf32(name)
        args, kwargs = tree_map_only(torch.Tensor, lambda x: self._read(x, short), (args, kwargs or {}))
        return tree_map_only(torch.Tensor, self._rounded, func(*args, **kwargs))

    def _read(self, x: torch.Tensor, short: bool) -> torch.Tensor:
        if x.dtype != torch.float64:
            return x
        if x.untyped_storage().data_ptr() not in self._inputs:
            x = self._rounded(x)
        return tf32(x) if short and x.device.type == "cuda" else x

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._dtype).double() if x.dtype == torch.float64 else x


def _in_tf32(name: str) -> bool:
    return bool(torch.backends.cudnn.allow_tf32 if name == "convolution" else torch.backends.cuda.matmul.allow_tf32)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Numbers in float64 as the matrix units read float32: 10 bits of the mantissa, rounded to nearest."""
    bits = x.float().view(torch.int32).add(2 ** (_TF32_BITS - 1)).bitwise_and(-(2**_TF32_BITS))
    return bits.view(torch.float32).double()
