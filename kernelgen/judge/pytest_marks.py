"""Lets a generated file be a script and a pytest module without importing pytest, which users need not have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .model import Case

F = TypeVar("F", bound=Callable[..., Any])


def each(cases: Sequence[Case], *, gpu: bool = False) -> Callable[[F], F]:
    """Run the test once for every case, with the mark `gpu` if asked for; changes nothing outside pytest."""
    pytest: Any = sys.modules.get("pytest")

    def decorate(test: F) -> F:
        if pytest is None:
            return test
        marked = pytest.mark.parametrize("case", cases, ids=str)(test)
        return pytest.mark.gpu(marked) if gpu else marked  # type: ignore[no-any-return]

    return decorate
