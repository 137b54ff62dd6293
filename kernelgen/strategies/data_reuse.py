"""data_reuse: how long what was fetched once is kept for those who need it again."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies._walk import walk
from kernelgen.strategies.context import Context, Proposal, changes

NAME = "data_reuse"


def propose(context: Context) -> tuple[Proposal, ...]:
    """Other amounts of reuse than the current one."""
    return walk(context, NAME, companion="warp_stage")


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; what is shared between rows or programs is fetched more or less often"
