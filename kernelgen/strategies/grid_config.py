"""grid_config: how programs are laid over the problem: the grid's shape, and the variant of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from kernelgen.plan import Schedule
from kernelgen.strategies._walk import Step, fresh, walk
from kernelgen.strategies.context import Context, Proposal, changes

NAME = "grid_config"


def propose(context: Context) -> tuple[Proposal, ...]:
    """Other variants of the kernel first, they change the most; then the grid's own parameters."""
    rows = range(len(context.plan.table))
    switched = chain.from_iterable(_variants(context, row) for row in rows)
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
    """Each other variant as its family starts it, and with the values it shares with the current schedule."""
    current = context.plan.table[row].schedule
    for start in context.compiler.variants(context.plan, context.bound(row)):
        if start.variant != current.variant:
            yield 1, start
            shared = {n: v for n, v in current.values if start.get(n) is not None}
            yield 2, start.replace(**shared)
