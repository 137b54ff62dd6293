"""What a rule of the ATen table gets, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelgen.frontend.build import Builder, Refused
from kernelgen.frontend.graph import Dim, Ref


@dataclass(frozen=True)
class Call:
    """One traced call: positional and keyword arguments as graph values, and what it returned."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[Dim, ...]
    dtype: str
    """The result's class: `float`, `bool` or an integer dtype."""
    torch_dtype: str
    """The result's dtype as traced."""
    shapes: tuple[tuple[Dim, ...], ...] = ()
    """The shapes of the results where there are several."""

    def get(self, index: int, name: str, default: Any = None) -> Any:
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)


class StaysCall(Refused):
    """A form of a call that has no rule; it stays a call of torch's, as an operation without one does."""


Result = Ref | tuple[Ref, ...]
Rule = Callable[[Builder, Call], Result]

__all__ = ["Call", "Refused", "Result", "Rule", "StaysCall"]
