"""The walk that most strategies share: outwards from the current schedule, along the parameters they own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest

from kernelgen.plan import Parameter, Scalar, Schedule
from kernelgen.strategies.context import Context, Proposal, changes

Step = tuple[int, Schedule]
"""How many choices away from the current schedule, and where that is."""


def walk(context: Context, strategy: str, companion: str = "") -> tuple[Proposal, ...]:
    """Legal, new schedules that differ in the strategy's parameters; rows take turns, near ones first.

    The parameters of a companion strategy may take one step along with an own parameter.
    """
    rows = [_row(context, row, strategy, companion) for row in range(len(context.plan.table))]
    turns = (p for group in zip_longest(*rows) for p in group if p is not None)
    return tuple(islice(turns, context.limit))


def fresh(context: Context, row: int, steps: Iterator[Step], strategy: str, why: str) -> Iterator[Proposal]:
    """Proposals for the steps that are legal for every case of the spec and that the run has not seen yet."""
    current = context.plan.table[row].schedule
    cases = context.bound(row)
    seen = {current}
    gain = context.diagnosis.gain(strategy)
    for distance, schedule in steps:
        if schedule in seen or context.history.knows(schedule, cases):
            continue
        seen.add(schedule)
        table = context.plan.with_schedule(row, schedule).table
        if context.refusal(table) is None:
            # A far step is a guess, a near one is not: the expectation shrinks with the distance.
            expected = 1 + (gain - 1) / distance
            yield Proposal(table, row, changes(current, schedule), why, expected)


def _row(context: Context, row: int, strategy: str, companion: str) -> Iterator[Proposal]:
    """Every new schedule of one row; nothing where no performance case could tell whether it is better."""
    cases = context.bound(row)
    if not cases:
        return
    space = context.compiler.space(context.plan, row, cases)
    own = [p for p in space if p.strategy == strategy]
    if own:
        current = context.plan.table[row].schedule
        why = "; ".join(f"{p.name}: {p.meaning}" for p in own)
        along = [p for p in space if p.strategy == companion]
        yield from fresh(context, row, _steps(current, own, along), strategy, why)


def _steps(current: Schedule, own: list[Parameter], along: list[Parameter]) -> Iterator[Step]:
    """Neighbours in each own parameter, then their other values, then pairs of parameters, nearest first."""
    singles = [(d, current.replace(**{p.name: v})) for p in own for d, v in moves(current, p)]
    yield from sorted(singles, key=lambda step: step[0])
    pairs = [
        (da + db, current.replace(**{a.name: va, b.name: vb}))
        for a in own
        for b in (*own, *along)
        if b in along or a.name < b.name
        for da, va in moves(current, a)
        # A companion only follows: far moves of it are its own strategy's business.
        for db, vb in moves(current, b)
        if b in own or db == 1
    ]
    yield from sorted(pairs, key=lambda step: step[0])


def moves(current: Schedule, parameter: Parameter) -> list[tuple[int, Scalar]]:
    """The other values of a parameter with their distance in choices from the current one."""
    here = current.get(parameter.name)
    if here is None:
        return []
    choices = parameter.choices
    if here in choices:
        at = choices.index(here)
        return [(abs(i - at), v) for i, v in enumerate(choices) if i != at]
    # A current value outside the choices (a family's own default) is equally far from all of them.
    return [(1, v) for v in choices]
