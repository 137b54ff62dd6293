"""memory_access: how the bytes are moved: widths, alignment, cache and eviction hints."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies._walk import walk
from kernelgen.strategies.context import Context, Proposal, changes

NAME = "memory_access"


def propose(context: Context) -> tuple[Proposal, ...]:
    """Other cache and access hints than the current ones."""
    return walk(context, NAME)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; the same bytes, moved or cached in another way"
