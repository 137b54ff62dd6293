"""What looks on while a reference runs eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode under which nothing is compiled.

    torch keeps its compiler out of every other mode's frames, for which the first operation imports it: two seconds in
    each of the processes that judge one case.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


IN_REGISTERS = frozenset(
    f"aten::{name}"
    for name in (
        "elu_backward", "gelu", "hardshrink_backward", "hardswish_backward", "hardtanh_backward", "logit_backward",
        "softshrink_backward",
    )
)  # fmt: skip
"""Whose loops over vector registers, on a CPU, treat NaN and infinities otherwise than those over single elements,
which take what is left over and agree with CUDA: found by trying all (torch 2.13)."""


class _Apart(EagerMode):  # type: ignore[no-untyped-call]
    """Under which these find no two elements side by side, and take them one by one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.name in IN_REGISTERS:
            args = tree_map_only(torch.Tensor, apart, args)
        return func(*args, **(kwargs or {}))


def apart(x: torch.Tensor) -> torch.Tensor:
    """The tensor, on a CPU with elements that do not lie side by side."""
    return torch.stack((x, x), -1)[..., 0] if x.device.type == "cpu" else x


class OneByOne(TorchFunctionMode):
    """Under which an element is the same wherever it lies: what a CPU's vector registers treat otherwise is taken one
    by one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.autograd.grad and func is not torch.nn.functional.gelu:
            return func(*args, **(kwargs or {}))
        with _Apart():  # type: ignore[no-untyped-call]
            return func(*args, **(kwargs or {}))


class InOrder(OneByOne):
    """Under which results are the same wherever they are computed: what torch selects in any order (`topk` with
    sorted=False) is sorted, and attention without heads or keys, where torch 2.11 divides by zero or gives None, is
    computed by its formula. Torch's fused attention and its gradient read 16 bytes at once, and where memory begins
    elsewhere the GPU stops (2.11): they get copies."""

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
        if func is torch.nn.functional.scaled_dot_product_attention:
            args, kwargs = tree_map_only(torch.Tensor, _aligned, (args, kwargs))
        if func is torch.autograd.grad:  # what has a gradient is asked for by name
            args, kwargs = tree_map_only(torch.Tensor, lambda x: x if x.requires_grad else _aligned(x), (args, kwargs))
        return super().__torch_function__(func, types, args, kwargs)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it if its memory does not begin at a multiple of 16 bytes."""
    return x if x.data_ptr() % 16 == 0 else x.clone()


_WRITES = frozenset(
    function
    for name in ("index_copy", "index_put", "scatter")
    for function in (getattr(torch, name), getattr(torch.Tensor, name), getattr(torch.Tensor, f"{name}_"))
) | {torch.Tensor.__setitem__, torch.Tensor.put_}
"""Which write elements to places that are given, and may be given twice."""


class LastWrites(TorchFunctionMode):
    """Under which the last of the elements that are written to one place stays there, as it does of torch's serial
    loops: its CUDA kernels, and those for many elements on a CPU, keep any."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        adds = kwargs.get("accumulate") or "reduce" in kwargs or any(x is True for x in args[3:])
        if func not in _WRITES or adds or not _names_places(args[1:], kwargs):
            return func(*args, **kwargs)
        with _disable_current_modes():
            return _one_by_one(func, args, kwargs)


def _names_places(*given: Any) -> bool:
    """Whether a tensor of whole numbers is among what a call is given: a slice or a mask names no place twice."""
    tensors = (x for x in tree_leaves(given) if isinstance(x, torch.Tensor))
    return any(x.dtype in (torch.int32, torch.int64) for x in tensors)


def _one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on a CPU, element after element."""
    own = args[0]
    (host, *rest), named = tree_map_only(torch.Tensor, lambda x: x.cpu(), (args, kwargs))
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        result = func(host, *rest, **named)
    finally:
        torch.use_deterministic_algorithms(was)
    if result is None or result is host:
        return own if host is own else own.copy_(host)
    return result.to(own.device)
