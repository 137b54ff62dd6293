"""The strategies, one module each, which `spec/model.py` names: NAME, propose, search and explain."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Protocol, cast

from kernelgen.plan import Schedule
from kernelgen.spec.model import ON_REQUEST, STRATEGIES
from kernelgen.strategies.context import Compiler, Context, History, Observation, Proposal, Tuning
from kernelgen.strategies.searching import Search

__all__ = ["Compiler", "Context", "History", "Observation", "Proposal", "Search", "Strategy", "Tuning", "strategies"]


class Strategy(Protocol):
    """What a module here offers."""

    NAME: str

    def propose(self, context: Context) -> tuple[Proposal, ...]:
        """New, legal candidates, the most promising first; empty where there is nothing left to try."""

    def search(self, context: Context) -> Search | None:
        """The search whose first batch `propose` gives; None where nothing goes on from what is proposed."""

    def explain(self, before: Schedule, after: Schedule) -> str:
        """One sentence for the log: what the change does to the kernel."""


@cache
def strategies() -> Mapping[str, Strategy]:
    """Every strategy by name."""
    names = (*STRATEGIES, *ON_REQUEST, "adopt")
    return {name: cast(Strategy, importlib.import_module(f"{__name__}.{name}")) for name in names}
