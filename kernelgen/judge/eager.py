"""What looks on while a reference runs eagerly."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


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
    sorted=False) is sorted, and attention without heads or keys, which divides by zero on a GPU, or gives None (torch
    2.11), is what it is on a CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.topk, torch.Tensor.topk):
            return func(*args[:4], **{**(kwargs or {}), "sorted": True})
        if func is torch.nn.functional.scaled_dot_product_attention and not all(x.numel() for x in args[:3]):
            there = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs or {}))
            return func(*there[0], **there[1]).to(args[0].device)
        return func(*args, **(kwargs or {}))
