"""grid_config: how programs are laid over the problem: the grid's shape, and the variant of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, zip_longest

from kernelgen.plan import Schedule
from kernelgen.strategies._walk import Step, fresh, moves, walk
from kernelgen.strategies.context import Context, Proposal, changes

NAME = "grid_config"


def propose(context: Context) -> tuple[Proposal, ...]:
    """Other variants of the kernel first, they change the most; then the grid's own parameters. Rows take turns."""
    turns = zip_longest(*(_variants(context, row) for row in range(len(context.plan.table))))
    switched = (proposal for turn in turns for proposal in turn if proposal is not None)
    return tuple(islice(chain(switched, walk(context, NAME)), context.limit))


def explain(before: Schedule, after: Schedule) -> str:
    if before.variant != after.variant:
        return f"{changes(before, after)}; the programs are laid over the problem in another way"
    return f"{changes(before, after)}; the same work in another grid"


def _variants(context: Context, row: int) -> Iterator[Proposal]:
    cases = context.bound(row)
    if cases:
        why = "another variant of the kernel distributes the work differently"
        yield from fresh(context, row, _switches(context, row), NAME, why)


def _switches(context: Context, row: int) -> Iterator[Step]:
    """Where the family's variants set out, then around there, then with the values of the current schedule."""
    current = context.plan.table[row].schedule
    starts = [s for s in context.compiler.variants(context.plan, context.bound(row)) if s != current]
    yield from ((1, start) for start in starts)
    # a variant is judged unfairly by one schedule that was chosen for other rows
    near = [_near(context, row, start) for start in starts]
    yield from ((2, step) for turn in zip_longest(*near) for step in turn if step is not None)
    for start in starts:
        yield 2, start.replace(**{n: v for n, v in current.values if start.get(n) is not None})


def _near(context: Context, row: int, start: Schedule) -> Iterator[Schedule]:
    """The neighbours of a schedule in block size, warps and stages, the smaller and the larger of each."""
    there = context.plan.with_schedule(row, start)
    for parameter in context.compiler.space(there, row, context.bound(row)):
        if parameter.strategy in ("block_size", "warp_stage") and parameter.kind != "structure":
            yield from (start.replace(**{parameter.name: v}) for d, v in moves(start, parameter) if d == 1)
