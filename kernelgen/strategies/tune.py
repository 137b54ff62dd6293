"""tune: the whole space of a row's schedules, every variant with every value, searched as `kernelgen.search` does."""

from __future__ import annotations

from kernelgen.errors import UsageError
from kernelgen.plan import Schedule
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.searching import Row, Search, bound_rows
from kernelgen.strategies.short import ladder, meets, parse, restriction, short
from kernelgen.strategies.space import Space, axes_of, space_of

NAME = "tune"
SEARCHED, EVERY, LADDER = "tune", "all", "prog"
"""Sets of schedules by name: what the search chooses, all that are legal, and one axis after the other."""

ASKED_FOR = 1.02
"""The least gain that is taken to be expected of schedules that a person names."""


def search(context: Context) -> Search:
    """The whole space of every row."""
    return Search([_row(context, row) for row in bound_rows(context)], _proposal)


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; found by a search of the whole space"


def _row(context: Context, row: int) -> Row:
    whole = space_of(context.compiler, context.plan, row, context.bound(row))
    asked = listed(context, row, whole)
    space = whole if asked is not None else _searched(whole, context.tuning.configs)
    starts = [space.schedules[i] for i in space.starts]
    return Row(context, row, space, [*starts[:1], *context.tuning.remembered, *starts], asked, each=True)


def _proposal(context: Context, row: Row, schedule: Schedule) -> Proposal:
    table = context.plan.with_schedule(row.row, schedule).table
    what = short(schedule, row.space.axes[schedule.variant].parameters)
    gain = context.diagnosis.gain(NAME)
    # who asks for certain schedules wants to see them, whatever is expected of them
    gain = gain if context.tuning.configs == SEARCHED else max(gain, ASKED_FOR)
    return Proposal(table, row.row, what, "searched", gain)


def listed(context: Context, row: int, space: Space) -> tuple[Schedule, ...] | None:
    """The schedules that were asked for one by one; None: the search chooses among what `configs` leaves."""
    configs, current = context.tuning.configs, context.plan.table[row].schedule
    if configs == SEARCHED or is_restriction(configs):
        return None
    if configs == EVERY:
        return space.schedules
    if configs == LADDER:
        return ladder(space.axes[current.variant], current)
    try:
        return (parse(configs, space.axes),)
    except UsageError:
        return ()  # some row has it: `check` has seen to that


def is_restriction(configs: str) -> bool:
    """Whether it is AXIS=VALUE,… and no short form, whose values come after a colon."""
    return "=" in configs and ":" not in configs and "(" not in configs


def _searched(space: Space, configs: str) -> Space:
    """The part of a row's space that the search may choose from."""
    if configs == SEARCHED:
        return space
    try:
        wanted = restriction(configs, space.axes)
    except UsageError:  # another row has it: `check` has seen to that
        return space.only(lambda schedule: False)
    return space.only(lambda schedule: meets(schedule, wanted))


def check(context: Context) -> None:
    """Raise UsageError where `configs` says nothing that any row has: an axis, a value, a legal schedule."""
    configs = context.tuning.configs
    if configs in (SEARCHED, EVERY, LADDER):
        return
    mistakes: list[UsageError] = []
    for row in bound_rows(context):
        axes = axes_of(context.compiler, context.plan, row, context.bound(row))
        try:
            if is_restriction(configs):
                restriction(configs, axes)
                return
            schedule = parse(configs, axes)
            reason = context.refusal(context.plan.with_schedule(row, schedule).table)
            if reason is None:
                return
            mistakes.insert(0, UsageError(f"{configs!r}: illegal: {reason}"))
        except UsageError as mistake:
            mistakes.append(mistake)
    raise mistakes[0]
