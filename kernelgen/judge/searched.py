"""Inputs that a reference searches, which have to rise: of edges in any order `torch.bucketize(x, edges)` names
whatever its binary search comes to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .model import Function

_SEQUENCES = {torch.searchsorted: (0, "sorted_sequence"), torch.bucketize: (1, "boundaries")}
"""The argument that is searched."""

_known: dict[Function, frozenset[int]] = {}
"""The inputs of a reference that are searched, by their number."""


class _Searches(TorchFunctionMode):
    """Remembers the memory that is searched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _SEQUENCES:
            place, name = _SEQUENCES[func]
            sequence = args[place] if len(args) > place else (kwargs or {})[name]
            self.found.add(sequence.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))


def searched(reference: Function, function: Function, draw: Callable[[], Sequence[torch.Tensor]]) -> frozenset[int]:
    """Which inputs are searched as they are given; none where the text of the reference names no search.

    `function`: the reference on copies of what it may write into. `draw`: inputs that no kernel is given."""
    if reference not in _known:
        _known[reference] = frozenset()
        written = inspect.unwrap(reference)
        named = _names(written.__code__) if isinstance(written, FunctionType) else set()
        if named & {search.__name__ for search in _SEQUENCES}:
            given = draw()
            try:
                with torch.no_grad(), _Searches() as searches:
                    function(*given)
            except (RuntimeError, ValueError, IndexError):  # which a trial will say
                del _known[reference]
                return frozenset()
            _known[reference] = frozenset(
                i for i, x in enumerate(given) if x.untyped_storage().data_ptr() in searches.found
            )
    return _known[reference]


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
