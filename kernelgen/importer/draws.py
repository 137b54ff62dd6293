"""What range the examples' integers were drawn from: the tests of a spec must draw its indices from there too."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

ATTRIBUTE = "_kernelgen_drawn_below"


def draws() -> AbstractContextManager[Any]:
    """Within it, what `torch.randint` draws from 0 on remembers what it stays below, while it is the same object."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Draws(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            made = func(*args, **kwargs)
            if func is torch.randint:
                bounds = [a for a in args if isinstance(a, int)]
                low = kwargs.get("low", bounds[0] if len(bounds) > 1 else 0)
                high = kwargs.get("high", bounds[-1] if bounds else None)
                if low == 0 and isinstance(high, int):
                    setattr(made, ATTRIBUTE, high)
            return made

    return Draws()


def drawn_below(example: Any) -> int | None:
    """What an example stays below, if `torch.randint` drew it from 0 on."""
    return getattr(example, ATTRIBUTE, None)
