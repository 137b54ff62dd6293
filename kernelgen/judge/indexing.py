"""Whether a reference may stop a GPU by the values it is given, as by an index beyond a tensor. Needs no values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import inputs
from .eager import EagerMode
from .model import Case, Operator

_INTEGERS = (torch.int16, torch.int32, torch.int64, torch.uint8)
_CHECKED = (torch.ops.aten.masked_scatter, torch.ops.aten.binary_cross_entropy)
"""Torch checks on a GPU what they are given."""


class _Listening(EagerMode):  # type: ignore[no-untyped-call]
    """Whether an operation that is not done element by element was given whole numbers, or checks what it is given."""

    heard = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        indexes = torch.Tag.pointwise not in func.tags and any(x.dtype in _INTEGERS for x in given)
        self.heard = self.heard or indexes or func.overloadpacket in _CHECKED
        return func(*args, **(kwargs or {}))


def indexes(operator: Operator, case: Case) -> bool:
    """Whether values may stop a GPU: run on tensors without elements, the baseline hands whole numbers to an operation
    that may index by them, calls one that checks what it is given, or asks for an element."""
    given = inputs.without_memory(operator, case)
    listening = _Listening()  # type: ignore[no-untyped-call]
    try:
        with torch.no_grad(), listening:
            operator.baseline(*given)
    except Exception:  # what is asked of an element, as by a check or a branch, has no answer there
        return True
    return listening.heard
