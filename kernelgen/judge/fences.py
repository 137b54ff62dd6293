"""Guard bands around what a wrapper allocates: a kernel that writes beside its output or scratch memory is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .guards import told
from .inputs import GUARD_BYTE, GUARD_BYTES

_UNFILLED = {torch.empty, torch.empty_like}
_FILLED = {torch.zeros, torch.zeros_like, torch.full, torch.full_like, torch.ones, torch.ones_like}


class Fences(TorchFunctionMode):
    """While active, torch's allocating functions hand out memory between guard bands; unfilled memory holds `byte`, or
    what a tensor of `stale` holds that has as many elements of the same dtype."""

    def __init__(self, byte: int, device: str, stale: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._byte, self._device, self._stale = byte, device, stale
        self._bands: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._spans: list[tuple[int, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _UNFILLED and func not in _FILLED:
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "meta"})
        like = args[0] if args and isinstance(args[0], torch.Tensor) else None
        device = torch.device(kwargs.get("device") or (like.device if like is not None else "cpu"))
        if device.type != self._device or not made.numel() or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        view = self._fenced(made, device)
        if func in _FILLED:
            return view.copy_(func(*args, **kwargs))
        with torch.no_grad():
            stale = [x for x in self._stale if x.numel() == view.numel() and x.dtype == view.dtype]
            return view.copy_(stale[0].reshape(view.shape)) if stale else view

    def _fenced(self, made: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Memory of the form of `made`, which is dense, aligned as an allocation of its own would be."""
        count = made.numel() * made.itemsize
        stop = GUARD_BYTES + count
        flat = torch.full((-(-(stop + GUARD_BYTES) // 8) * 8,), GUARD_BYTE, dtype=torch.uint8, device=device)
        flat[GUARD_BYTES:stop].fill_(self._byte)
        self._bands.append((flat[:GUARD_BYTES], flat[stop:]))
        self._spans.append((flat.data_ptr(), flat.data_ptr() + flat.numel()))
        return (
            flat[GUARD_BYTES:stop].view(made.dtype).as_strided(made.shape, made.stride(), GUARD_BYTES // made.itemsize)
        )

    def covers(self, tensor: torch.Tensor) -> bool:
        """The tensor lies in memory that was handed out here, so it held the poison."""
        return any(start <= tensor.data_ptr() < stop for start, stop in self._spans)

    def intact(self) -> bool:
        """Nothing was written beside any of the memory handed out."""
        return not any(told([(band != GUARD_BYTE).any() for bands in self._bands for band in bands]))
