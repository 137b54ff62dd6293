"""warp_stage: how many warps share a program's work, and how deep its loads are pipelined."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.reach import Reach, reached
from kernelgen.strategies.searching import Search

NAME = "warp_stage"


def search(context: Context) -> Search:
    """Numbers of warps and stages around the current ones."""
    return reached(context, Reach(NAME))


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    effects = []
    for name, more, fewer in (
        ("num_warps", "more warps hide more latency with fewer elements a thread",
         "fewer warps give each thread wider accesses and more registers"),
        ("num_stages", "more stages keep more loads in flight ahead of their use", "fewer stages need less memory"),
    ):  # fmt: skip
        old, new = before.get(name), after.get(name)
        if isinstance(old, int) and isinstance(new, int) and old != new:
            effects.append(more if new > old else fewer)
    return "; ".join([changes(before, after), *effects])
