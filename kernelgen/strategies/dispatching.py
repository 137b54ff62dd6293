"""What was measured on many shapes as one table: the shortest that is nearly as fast as each shape's own best."""

from __future__ import annotations

from kernelgen.plan import Schedule, TableRow, table_row
from kernelgen.schedule.problem import limits_text, mistake
from kernelgen.search.dispatch import Line, Shape, tables
from kernelgen.strategies.context import Context, Proposal, Table, changes
from kernelgen.strategies.searching import bound_rows

SLOWER = 0.995
"""What is slower than a shape's current schedule by more than this is no candidate there: it would be turned away."""


def dispatched(context: Context) -> tuple[Proposal, ...]:
    """The table over all that was measured, as a change of the rows that the cases judge; empty where it is the current
    one, or nothing serves every case."""
    rows = bound_rows(context)
    first, last = rows[0], rows[-1]
    gains = context.history.gains()
    broken = set(context.history.failed)
    shapes = []
    for case in context.cases:
        now = gains.get(context.plan.table[context.compiler.row_of(context.plan, case)].schedule, {}).get(
            case.label, 1.0
        )
        times = {
            schedule: 1 / known[case.label]
            for schedule, known in gains.items()
            if known.get(case.label, 0.0) >= SLOWER * now and (schedule, case.label) not in broken
        }
        shapes.append(Shape(dict(context.compiler.problem_of(context.plan, case).sizes), times))
    for lines in tables(shapes):
        table = _between(context.plan.table, first, last, lines)
        if table != context.plan.table and mistake(table) is None and context.refusal(table) is None:
            return (Proposal(table, None, describe(context, table), REASON, 1.0),)
    return ()


REASON = "the fewest lines that lose at most 2 % on any shape that was measured"


def describe(context: Context, table: Table) -> str:
    """A table in a few words: what each of its lines changes for the sizes it serves."""
    plan = context.plan.with_table(table)
    parts = []
    for index, row in enumerate(table):
        served = [case for case in context.cases if context.compiler.row_of(plan, case) == index]
        olds = {context.plan.table[context.compiler.row_of(context.plan, case)].schedule for case in served}
        effect = " / ".join(sorted({changes(old, row.schedule) for old in olds})) or "no case"
        limit = "all sizes" if len(table) == 1 else f"up to {limits_text(row)}" if row.upto else "above"
        parts.append(f"{limit}: {effect}")
    return "; ".join(parts)


def _between(table: Table, first: int, last: int, lines: tuple[Line[Schedule], ...]) -> Table:
    """The table with the rows from the first to the last replaced; no new one serves more than the last did."""
    found: list[TableRow] = []
    for line in lines:
        upto = dict(table[last].upto)
        for name, limit in line.upto:
            upto[name] = min(limit, upto.get(name, limit))
        found.append(table_row(line.candidate, **upto))
    return (*table[:first], *found, *table[last + 1 :])
