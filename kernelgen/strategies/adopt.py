"""adopt: a kernel that a person edited, judged and timed like any other candidate."""

from __future__ import annotations

from kernelgen import custom
from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal

NAME = "adopt"


def search(context: Context) -> None:
    """Nothing goes on from what is proposed."""


def propose(context: Context) -> tuple[Proposal, ...]:
    """The edited kernel; nothing without one."""
    if not context.adopted:
        return ()
    table = custom.adopted_table(context.plan.spec, context.adopted)
    return (Proposal(table, None, "edited by hand", "a person edited it", 1.0),)


def explain(before: Schedule, after: Schedule) -> str:
    return "a kernel that a person edited takes the place of the current one for all sizes"
