"""Where two results that must agree in every bit do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_CHUNK = 2**22
"""Elements compared at once."""


def first_difference(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """The flat position of the first element with other bits; NaNs count as equal whatever their payload."""
    for start, (x, y) in enumerate(
        zip(torch.split(a.contiguous().view(-1), _CHUNK), torch.split(b.contiguous().view(-1), _CHUNK), strict=True)
    ):
        differs = _bits(x) != _bits(y)
        if x.dtype.is_floating_point:
            differs &= ~(torch.isnan(x.float()) & torch.isnan(y.float()))
        if bool(differs.any()):
            return start * _CHUNK + int(differs.to(torch.uint8).argmax())
    return None


def unravel(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of a flat position (row-major)."""
    index = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        index.append(rest)
    return tuple(reversed(index))


def _bits(x: torch.Tensor) -> torch.Tensor:
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(words[x.dtype.itemsize])
