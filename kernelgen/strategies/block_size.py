"""block_size: how much of the problem one program handles."""

from __future__ import annotations

from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.reach import Reach, reached
from kernelgen.strategies.searching import Search

NAME = "block_size"


def search(context: Context) -> Search:
    """Block sizes around the current ones; a program twice as large may want more warps, so these follow."""
    return reached(context, Reach(NAME, along="warp_stage"))


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    old, new = dict(before.values), dict(after.values)
    grown = [n for n, v in new.items() if n.startswith("BLOCK") and isinstance(v, int) and v > int(old.get(n, v))]
    shrunk = [n for n, v in new.items() if n.startswith("BLOCK") and isinstance(v, int) and v < int(old.get(n, v))]
    effects = []
    if grown:
        effects.append(f"larger {' and '.join(grown)}: fewer programs, each with more bytes in flight")
    if shrunk:
        effects.append(f"smaller {' and '.join(shrunk)}: more programs, each with fewer registers")
    return "; ".join([changes(before, after), *effects])
