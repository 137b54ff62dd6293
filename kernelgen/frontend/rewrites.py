"""Functions of torch that fix sizes when they are traced, written in terms of others that do not."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
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
        if func in (torch.max_pool1d, functional.max_pool1d) and not (kwargs or {}).get("return_indices"):
            return _max_pool1d(*args, **{k: v for k, v in (kwargs or {}).items() if k != "return_indices"})
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


def _max_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """As a pool over planes of one line: torch 2.13 fixes the length that it takes a window of one dimension over."""
    size, step, before, apart = (_number(v) for v in (kernel_size, stride or kernel_size, padding, dilation))
    lines = torch.max_pool2d(input.unsqueeze(-2), (1, size), (1, step), (0, before), (1, apart), ceil_mode)
    return lines.squeeze(-2)


def _number(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


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
