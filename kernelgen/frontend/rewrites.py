"""Functions of torch that fix sizes when they are traced, written in terms of others that do not."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Rewrites(TorchFunctionMode):
    """While a reference is traced."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.take_along_dim, torch.Tensor.take_along_dim):
            return _take_along_dim(*args, **(kwargs or {}))
        if func in (torch.bincount, torch.Tensor.bincount):
            return _bincount(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    if dim is None:
        input, indices, dim = input.flatten(), indices.flatten(), 0
    dim %= input.ndim
    sizes = [(a, b) for a, b in zip(input.shape, indices.shape, strict=True)]
    source = [a if d == dim or not _is_one(a) else b for d, (a, b) in enumerate(sizes)]
    taken = [b if d == dim or not _is_one(b) else a for d, (a, b) in enumerate(sizes)]
    from_start = torch.where(indices < 0, indices + input.shape[dim], indices)  # negative ones count from the end
    return input.expand(source).gather(dim, from_start.expand(taken))


def _bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    return bincount(input, weights, minlength)


@torch.library.custom_op(
    "kernelgen_reference::bincount",
    mutates_args=(),
    schema="(Tensor x, Tensor? weights, SymInt minlength) -> Tensor",
)
def bincount(x: torch.Tensor, weights: torch.Tensor | None, minlength: int) -> torch.Tensor:
    """As many bins as a reference asks for: a trace does not know how many more torch would return."""
    return torch.bincount(x, weights, minlength)[:minlength].clone()


@bincount.register_fake
def _(x: torch.Tensor, weights: torch.Tensor | None, minlength: int) -> torch.Tensor:
    return torch.empty(minlength, dtype=torch.int64, device=x.device)


def _is_one(size: Any) -> bool:
    """Whether a traced size is declared as 1."""
    return isinstance(size, int) and size == 1
