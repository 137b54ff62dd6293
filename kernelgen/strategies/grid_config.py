"""grid_config: how programs are laid over the problem: the grid's shape, and the variant of the kernel."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.reach import Reach, reached
from kernelgen.strategies.searching import Search

NAME = "grid_config"


def search(context: Context) -> Search:
    """Other variants of the kernel first, they change the most; then the grid's own parameters."""
    return reached(context, Reach(NAME, elsewhere=True))


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    if before.variant != after.variant:
        return f"{changes(before, after)}; the programs are laid over the problem in another way"
    return f"{changes(before, after)}; the same work in another grid"
