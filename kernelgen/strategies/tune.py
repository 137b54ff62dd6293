"""tune: the whole space of a row's schedules, every variant with every value, searched as `kernelgen.search` does."""

from __future__ import annotations

from itertools import zip_longest

from kernelgen.errors import UsageError
from kernelgen.plan import Schedule
from kernelgen.search.explore import BATCH, START, WARM
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.searching import Row, Search, bound_rows
from kernelgen.strategies.short import ladder, parse, restriction, short
from kernelgen.strategies.space import Space, alike, axes_of, space_of

NAME = "tune"
SEARCHED, EVERY, LADDER = "tune", "all", "prog"
"""Sets of schedules by name: what the search chooses, all that are legal, and one axis after the other."""

ASKED_FOR = 1.02
"""The least gain that is taken to be expected of schedules that a person names."""


def search(context: Context) -> Search:
    """The whole space of every row."""
    rows = [_row(context, row) for row in bound_rows(context)]
    batch = (
        BATCH if all(row.listed is None for row in rows) else context.limit
    )  # a list has nothing to learn from batches
    return Search(rows, _proposal, batch, batch)


def propose(context: Context) -> tuple[Proposal, ...]:
    return search(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; found by a search of the whole space"


def _row(context: Context, row: int) -> Row:
    space = _space(context, row)
    asked = listed(context, row, space)
    starts = [space.schedules[i] for i in space.starts]
    known = alike(space, context.tuning.remembered)
    first = [one for pair in zip_longest(starts, known) for one in pair if one is not None]
    return Row(context, row, space, first, asked, each=True, least=WARM if known else START)


def _proposal(context: Context, row: Row, schedule: Schedule) -> Proposal:
    table = context.plan.with_schedule(row.row, schedule).table
    what = short(schedule, row.space.axes[schedule.variant].parameters)
    gain = context.diagnosis.gain(NAME)
    # who asks for certain schedules wants to see them, whatever is expected of them
    gain = gain if context.tuning.configs == SEARCHED else max(gain, ASKED_FOR)
    return Proposal(table, row.row, what, "searched", gain)


def _space(context: Context, row: int) -> Space:
    """What a row may become, as far as `configs` leaves it."""
    configs, bound = context.tuning.configs.removeprefix(f"{EVERY},"), context.bound(row)
    if not is_restriction(configs):
        return space_of(context.compiler, context.plan, row, bound)
    axes = axes_of(context.compiler, context.plan, row, bound)
    try:
        return space_of(context.compiler, context.plan, row, bound, restriction(configs, axes))
    except UsageError:  # another row has it: `check` has seen to that
        return Space(axes, (), (), (), False)


def listed(context: Context, row: int, space: Space) -> tuple[Schedule, ...] | None:
    """The schedules that were asked for one by one; None: the search chooses among the space."""
    configs, current = context.tuning.configs, context.plan.table[row].schedule
    if configs == SEARCHED or is_restriction(configs):
        return None
    if is_every(configs):
        return space.schedules
    if configs == LADDER:
        return ladder(space.axes[current.variant], current)
    try:
        return (parse(configs, space.axes),)
    except UsageError:
        return ()  # some row has it: `check` has seen to that


def is_every(configs: str) -> bool:
    """Whether it is `all`, or `all,AXIS=VALUE,…`."""
    return configs == EVERY or configs.startswith(f"{EVERY},")


def is_restriction(configs: str) -> bool:
    """Whether it is AXIS=VALUE,… and no short form, whose values come after a colon."""
    return "=" in configs and ":" not in configs and "(" not in configs and not is_every(configs)


def check(context: Context) -> None:
    """Raise UsageError where `configs` says nothing that any row has: an axis, a value, a legal schedule."""
    configs = context.tuning.configs
    if configs in (SEARCHED, EVERY, LADDER):
        return
    configs = configs.removeprefix(f"{EVERY},")
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
