"""What was computed of the same tensors before: the oracles of one case multiply the same operands again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

_KEPT = 24
"""Results, at most."""
_MOST = 2**24
"""Elements of operands and results together, at most."""

Results = tuple[torch.Tensor, ...]


class Known:
    """Results by the bits of what they were computed from. Whoever gets one writes to no tensor of it."""

    def __init__(self) -> None:
        self._kept: deque[tuple[str, Results, tuple[int, ...], Results]] = deque(maxlen=_KEPT)

    def of(self, what: str, operands: Sequence[torch.Tensor], compute: Callable[[], Results]) -> Results:
        """What `what` gives for the operands."""
        for known, given, versions, results in self._kept:
            if known == what and all(map(_is_same, given, operands, versions)):
                return results
        results = compute()
        if self._elements() + sum(x.numel() for x in (*operands, *results)) <= _MOST:
            self._kept.append((what, tuple(operands), tuple(x._version for x in operands), results))
        return results

    def _elements(self) -> int:
        return sum(x.numel() for _, operands, _, results in self._kept for x in (*operands, *results))


def _is_same(known: torch.Tensor, other: torch.Tensor, version: int) -> bool:
    """Whether two tensors agree in every bit, and the first is as it was."""
    if known._version != version or (known.shape, known.dtype) != (other.shape, other.dtype):
        return False
    return known is other or torch.equal(_bits(known), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Of dimensions with one element torch calls any stride contiguous, but takes no such last one for bytes."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
