"""data_reuse: how long what was fetched once is kept for those who need it again."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.reach import Reach, reached
from kernelgen.strategies.searching import Search

NAME = "data_reuse"


def search(context: Context) -> Search:
    """Other amounts of reuse than the current one; warps follow."""
    return reached(context, Reach(NAME, along="warp_stage"))


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; what is shared between rows or programs is fetched more or less often"
