"""tune: the whole space of a row's schedules, every variant with every value, searched as `kernelgen.search` does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from kernelgen.errors import UsageError
from kernelgen.plan import Schedule
from kernelgen.search.explore import BATCH, Explorer
from kernelgen.strategies.context import Context, Proposal, changes
from kernelgen.strategies.short import ladder, meets, parse, restriction, short
from kernelgen.strategies.space import Space, axes_of, space_of

NAME = "tune"
SEARCHED, EVERY, LADDER = "tune", "all", "prog"
"""Sets of schedules by name: what the search chooses, all that are legal, and one axis after the other."""

ASKED_FOR = 1.02
"""The least gain that is taken to be expected of schedules that a person names."""


def propose(context: Context) -> tuple[Proposal, ...]:
    """The first batch of every row."""
    return Tuner(context).propose(context)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)}; found by a search of the whole space"


class Row:
    """The search of one row."""

    def __init__(self, context: Context, row: int) -> None:
        cases = context.bound(row)
        self.row = row
        self.cases = frozenset(case.label for case in cases)
        whole = space_of(context.compiler, context.plan, row, cases)
        self.listed = listed(context, row, whole)
        self.space = _searched(whole, context.tuning.configs) if self.listed is None else whole
        self.place = {schedule: i for i, schedule in enumerate(self.space.schedules)}
        self._left = iter(self.listed or ())
        known = [self.place[s] for s in context.tuning.remembered if s in self.place]
        first = tuple(dict.fromkeys([*self.space.starts[:1], *known, *self.space.starts]))
        self._explorer = Explorer(self.space.points(), row, first) if self.listed is None else None

    def next(self, context: Context, count: int) -> list[Schedule]:
        """Legal schedules that nobody tried, at most so many."""
        if self._explorer is None:
            return list(islice((s for s in self._left if self._refusal(context, s) is None), count))
        self._tell(context, self._explorer)
        found: list[Schedule] = []
        while len(found) < count and (batch := self._explorer.ask(count - len(found))):
            for point in batch:
                schedule = self.space.schedules[point]
                if self._refusal(context, schedule) is None:
                    found.append(schedule)
                else:
                    self._explorer.tell(point, None)
        return found

    def _refusal(self, context: Context, schedule: Schedule) -> str | None:
        current = context.plan.table[self.row].schedule
        if schedule == current:
            return "is the current one"
        return context.refusal(context.plan.with_schedule(self.row, schedule).table)

    def _tell(self, context: Context, explorer: Explorer) -> None:
        """What the run has seen since: times relative to the kernel it started from, geometric means over the cases."""
        for schedule, gains in context.history.gains().items():
            own = [gain for case, gain in gains.items() if case in self.cases]
            if own and schedule in self.place:
                explorer.tell(self.place[schedule], math.exp(-math.fsum(map(math.log, own)) / len(own)))
        for schedule, case in context.history.failed:
            if case in self.cases and schedule in self.place:
                explorer.tell(self.place[schedule], None)


class Tuner:
    """The searches of all rows that a performance case judges."""

    def __init__(self, context: Context) -> None:
        bound = range(len(context.plan.table))
        self.rows = [Row(context, row) for row in bound if context.bound(row)]

    def propose(self, context: Context) -> tuple[Proposal, ...]:
        """The next batch of every row; the history of the context says what became of the last ones."""
        share = max(min(BATCH, context.limit // max(len(self.rows), 1)), 1)
        return tuple(p for row in self.rows for p in _proposals(context, row, row.next(context, share)))


def _proposals(context: Context, row: Row, schedules: Iterable[Schedule]) -> Iterator[Proposal]:
    for schedule in schedules:
        table = context.plan.with_schedule(row.row, schedule).table
        what = short(schedule, row.space.axes[schedule.variant].parameters)
        gain = context.diagnosis.gain(NAME)
        # who asks for certain schedules wants to see them, whatever is expected of them
        gain = gain if context.tuning.configs == SEARCHED else max(gain, ASKED_FOR)
        yield Proposal(table, row.row, what, "searched", gain)


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
    rows = [row for row in range(len(context.plan.table)) if context.bound(row)]
    mistakes: list[UsageError] = []
    for row in rows:
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
