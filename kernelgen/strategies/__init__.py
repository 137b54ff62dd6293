"""The strategies, one module each, found by file name: NAME, propose(context) and explain(before, after).

A new strategy is a new module here, and its name in `STRATEGIES` of `spec/model.py`, from which a spec chooses.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Protocol, cast

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Compiler, Context, History, Observation, Proposal

__all__ = ["Compiler", "Context", "History", "Observation", "Proposal", "Strategy", "strategies"]


class Strategy(Protocol):
    """What a module here offers."""

    NAME: str

    def propose(self, context: Context) -> tuple[Proposal, ...]:
        """New, legal candidates, the most promising first; empty where there is nothing left to try."""

    def explain(self, before: Schedule, after: Schedule) -> str:
        """One sentence for the log: what the change does to the kernel."""


@cache
def strategies() -> Mapping[str, Strategy]:
    """Every strategy by name."""
    modules = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
        if not info.name.startswith("_")
    ]
    found = [cast(Strategy, module) for module in modules if hasattr(module, "propose")]
    return {strategy.NAME: strategy for strategy in found}
