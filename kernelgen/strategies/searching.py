"""The search that strategies share: rows of a table, each with its space, its legality and what the run has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, zip_longest

from kernelgen.plan import Schedule
from kernelgen.search.explore import BATCH, START, Explorer
from kernelgen.search.racing import STAGES
from kernelgen.strategies.context import Context, Proposal
from kernelgen.strategies.space import Space

HOPELESS = STAGES[0][1]
"""What is so many times slower on one case is not measured on the others."""


class Row:
    """The search of one row of the table: what to measure next, and why other schedules are left out."""

    def __init__(
        self,
        context: Context,
        row: int,
        space: Space,
        first: Sequence[Schedule] = (),
        listed: Sequence[Schedule] | None = None,
        each: bool = False,
        least: int = START,
    ) -> None:
        """`first`: measured before the search chooses, with what is drawn `least` in all; `listed`: these alone are
        measured, and nothing is searched; `each`: every second batch looks for what is fastest on one of the cases,
        which take turns, for a table of them.
        """
        self.row = row
        self.cases = frozenset(case.label for case in context.bound(row))
        self.space = space
        self.listed = listed
        self.refused: dict[Schedule, str] = {}
        """Legal for the cases, and not for what else the row serves."""
        self._bound = context.bound(row)
        self._aims = cycle([case for one in self._bound for case in (None, one.label)] if each else [None])
        self._place = {schedule: i for i, schedule in enumerate(space.schedules)}
        self._left = iter(listed or ())
        known = tuple(dict.fromkeys(self._place[schedule] for schedule in first if schedule in self._place))
        self._explorer = Explorer(space.points(), row, known, least) if listed is None else None

    def next(self, context: Context, count: int) -> list[Schedule]:
        """Legal schedules that nobody tried, at most so many."""
        if self._explorer is None:
            return list(islice((s for s in self._left if self._serves(context, s)), count))
        self._tell(context, self._explorer, next(self._aims) if len(self._bound) > 1 else None)
        found: list[Schedule] = []
        while len(found) < count and (batch := self._explorer.ask(count - len(found))):
            for point in batch:
                if self._serves(context, self.space.schedules[point]):
                    found.append(self.space.schedules[point])
                elif self.space.schedules[point] in self.refused:
                    self._explorer.tell(point, None)
        return found

    def _serves(self, context: Context, schedule: Schedule) -> bool:
        if schedule == context.plan.table[self.row].schedule:
            return False
        reason = context.refusal(context.plan.with_schedule(self.row, schedule).table)
        if reason is not None:
            self.refused[schedule] = reason
        return reason is None

    def _tell(self, context: Context, explorer: Explorer, aim: str | None) -> None:
        """What the run has seen: times relative to the kernel it started from, of one case or, of all, their means."""
        for schedule, gains in context.history.gains().items():
            own = {case: gain for case, gain in gains.items() if case in self.cases} if schedule in self._place else {}
            if own and (len(own) == len(self.cases) or min(own.values()) * HOPELESS < 1):
                counted = [own[aim]] if aim in own else list(own.values())
                explorer.tell(self._place[schedule], math.exp(-math.fsum(map(math.log, counted)) / len(counted)))
        for schedule, case in context.history.failed:
            if case in self.cases and schedule in self._place:
                explorer.tell(self._place[schedule], None)


class Search:
    """The searches of all rows that a performance case judges; rows take turns."""

    def __init__(
        self,
        rows: Sequence[Row],
        propose: Callable[[Context, Row, Schedule], Proposal],
        first: int = BATCH,
        later: int = BATCH,
    ) -> None:
        """`first`, `later`: how many a row has in the first batch, and in those after it."""
        self.rows = rows
        self._propose = propose
        self._share = first
        self._later = later

    def propose(self, context: Context) -> tuple[Proposal, ...]:
        """The next batch of every row; the history of the context says what became of the last ones."""
        share = max(min(self._share, context.limit // max(len(self.rows), 1)), 1)
        self._share = self._later
        rows = [[(row, schedule) for schedule in row.next(context, share)] for row in self.rows]
        return tuple(self._turns(context, rows))

    def _turns(self, context: Context, rows: Sequence[Sequence[tuple[Row, Schedule]]]) -> Iterator[Proposal]:
        for turn in zip_longest(*rows):
            yield from (self._propose(context, *one) for one in turn if one is not None)


def bound_rows(context: Context) -> list[int]:
    """The rows that some performance case can judge."""
    return [row for row in range(len(context.plan.table)) if context.bound(row)]
