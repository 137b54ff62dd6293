"""Whether a reference indexes by numbers that it computes, found without computing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from . import inputs
from .eager import EagerMode
from .model import Case, Operator

_INTEGERS = (torch.int16, torch.int32, torch.int64, torch.uint8)


class _Listening(EagerMode):  # type: ignore[no-untyped-call]
    """Whether an operation that is not done element by element was given whole numbers."""

    heard = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        if torch.Tag.pointwise not in func.tags and any(x.dtype in _INTEGERS for x in given):
            self.heard = True
        return func(*args, **(kwargs or {}))


def indexes(operator: Operator, case: Case) -> bool:
    """False only where no index can come from the values of the inputs: the baseline is run on tensors without
    elements, and hands whole numbers to nothing that could index by them."""
    given = inputs.without_memory(operator, case)
    listening = _Listening()  # type: ignore[no-untyped-call]
    try:
        with torch.no_grad(), listening:
            operator.baseline(*given)
    except Exception:  # what is asked of an element, as by a check or a branch, has no answer there
        return True
    return listening.heard
