"""memory_access: how the bytes are moved: widths, alignment, cache and eviction hints."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.reach import Reach, reached
from kernelgen.strategies.searching import Search

NAME = "memory_access"


def search(context: Context) -> Search:
    """Other cache and access hints than the current ones."""
    return reached(context, Reach(NAME))


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; the same bytes, moved or cached in another way"
