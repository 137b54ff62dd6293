"""What calls of torch's returned, handed out again: two calls of a kernel then differ only in what is the kernel's."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from . import guards
from .contractions import GRADIENTS, PRODUCTS
from .eager import EagerMode


class Replay(EagerMode):
    """Remembers what products, convolutions and attentions return, by the bits of what they read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[str, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.overloadpacket.__name__.strip("_"), kwargs or {}
        if name not in PRODUCTS and not name.startswith("scaled_dot_product"):
            return func(*args, **kwargs)
        given = tree_flatten((_read(args) if name == GRADIENTS else args, kwargs))[0]
        read = str((func, [guards.fingerprint(x) if isinstance(x, torch.Tensor) else x for x in given]))
        if read not in self._known:
            self._known[read] = func(*args, **kwargs)
        return tree_map_only(torch.Tensor, torch.clone, self._known[read])


def _read(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a convolution's gradients without the elements that those asked for do not depend on:
    torch.nn.grad passes memory that nobody wrote."""
    gradient, x, weight, *rest, (by_x, by_weight, _) = args
    return gradient, x if by_weight else x.shape, weight if by_x else weight.shape, *rest, by_x, by_weight
