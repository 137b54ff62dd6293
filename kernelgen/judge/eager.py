"""What looks on while a reference runs eagerly."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode under which nothing is compiled.

    torch keeps its compiler out of every other mode's frames, for which the first operation imports it: two seconds in
    each of the processes that judge one case.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class InOrder(TorchFunctionMode):
    """Under which results are the same wherever they are computed: what torch selects in any order (`topk` with
    sorted=False) is sorted, and attention without heads or keys, where torch 2.11 divides by zero or gives None, is
    computed by its formula."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.topk, torch.Tensor.topk):
            return func(*args[:4], **{**(kwargs or {}), "sorted": True})
        if func is torch.nn.functional.scaled_dot_product_attention and not all(x.numel() for x in args[:3]):
            shape = (*args[0].shape[:-1], args[2].shape[-1])
            if 0 in shape:
                return args[0].new_empty(shape)
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
