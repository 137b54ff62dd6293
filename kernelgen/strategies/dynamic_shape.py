"""dynamic_shape: which sizes get which schedule, decided from everything this run has seen so far.

Nothing new is searched here: the best table over the schedules already seen is found by dynamic programming
over the cases in ascending order of size, and each line of it must earn its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from kernelgen.plan import Schedule, TableRow, table_row
from kernelgen.schedule.problem import is_within, mistake
from kernelgen.search.dispatch import boundary
from kernelgen.strategies.context import Context, Proposal, Table, changes
from kernelgen.strategies.dispatching import describe, dispatched

NAME = "dynamic_shape"

WORTH = math.log(1.01)
"""A further line is worth it where one schedule for all would lose more than 1 % in some case."""
MAX_ROWS = 4
"""A longer table would be fitted to the cases that happen to be listed rather than to sizes."""
KEEP = 3
"""Schedules tried for one line of the table: the best seen, and the next in case it does not repeat."""


@dataclass(frozen=True)
class Group:
    """Cases of which a named size is the same: no limit of it can tell them apart."""

    size: int
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Lines of the current table that may be cut anew, and the named size that tells the new ones apart."""

    first: int
    last: int
    key: str
    groups: tuple[Group, ...]
    """The cases that these lines serve, in ascending order of the size."""


def search(context: Context) -> None:
    """Nothing goes on from what is proposed."""


def propose(context: Context) -> tuple[Proposal, ...]:
    """Tables that would have been faster than the current one, the best first: all lines that cases judge cut anew, one
    to four of them, or a single line, by one named size."""
    gains = _usable(context)
    found: dict[Table, float] = {}
    for part in _parts(context):
        for rows in range(1, min(MAX_ROWS, len(part.groups)) + 1):
            for rank in range(KEEP):
                split = _best_split(part.groups, gains, rows, rank)
                table = _table(context, part, split) if split else ()
                if mistake(table) is None:
                    found.setdefault(table, _total(context, table, gains))
    found |= {p.table: _total(context, p.table, gains) for p in dispatched(context) if p.table not in found}
    now = _total(context, context.plan.table, gains)
    proposals = []
    for table, total in found.items():
        # A shorter table that is nearly as good is the better one: every line more must be worth it.
        if any(len(t) < len(table) and total <= s + (len(table) - len(t)) * WORTH for t, s in found.items()):
            continue
        gain = math.exp((total - now) / len(context.cases))
        extra = max(0, len(table) - len(context.plan.table))
        if table != context.plan.table and total - now > extra * WORTH and context.refusal(table) is None:
            proposals.append(Proposal(table, None, describe(context, table), _reason(table), gain))
    return _distinct(context, sorted(proposals, key=lambda p: -p.predicted_gain))[: context.limit]


def _distinct(context: Context, proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Without those that serve every case as one before does in no more lines, told apart by another size."""
    found: dict[tuple[object, ...], Proposal] = {}
    for one in proposals:
        plan = context.plan.with_table(one.table)
        served = (one.table[context.compiler.row_of(plan, case)].schedule for case in context.cases)
        found.setdefault((len(one.table), *served), one)
    return tuple(found.values())


def _parts(context: Context) -> Iterator[Part]:
    """All lines between the first and the last that serve a case, then each of them that serves several."""
    bound = [context.compiler.row_of(context.plan, case) for case in context.cases]
    problems = [context.compiler.problem_of(context.plan, case) for case in context.cases]
    first, last = min(bound), max(bound)
    spans = [(first, last), *((row, row) for row in sorted(set(bound)) if last > first)]
    for low, high in spans:
        inside = [i for i, row in enumerate(bound) if low <= row <= high]
        for key in problems[0].names:
            sizes: dict[int, list[str]] = {}
            for i in inside:
                sizes.setdefault(problems[i][key], []).append(context.cases[i].label)
            groups = tuple(Group(size, tuple(labels)) for size, labels in sorted(sizes.items()))
            if key == problems[0].names[0] or len(groups) > 1:
                yield Part(low, high, key, groups)


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)} for the sizes that were faster with it"


def _reason(table: Table) -> str:
    if len(table) == 1:
        return "one schedule was as fast for every size seen"
    return "no single schedule was the fastest for every size seen"


def _usable(context: Context) -> dict[Schedule, dict[str, float]]:
    """The logarithm of each schedule's gain by case, without those that failed a case."""
    failed = {(schedule, case) for schedule, case in context.history.failed}
    return {
        schedule: {case: math.log(gain) for case, gain in cases.items() if (schedule, case) not in failed and gain > 0}
        for schedule, cases in context.history.gains().items()
    }


def _total(context: Context, table: Table, gains: dict[Schedule, dict[str, float]]) -> float:
    """A table's summed logarithmic gain over the kernel the run started from."""
    plan = context.plan.with_table(table)
    served = ((table[context.compiler.row_of(plan, case)].schedule, case.label) for case in context.cases)
    return sum(gains.get(schedule, {}).get(label, 0.0) for schedule, label in served)


def _best_split(
    groups: tuple[Group, ...], gains: dict[Schedule, dict[str, float]], rows: int, rank: int
) -> tuple[tuple[int, Schedule], ...] | None:
    """The best way to cut the groups into `rows` segments: each segment's end and schedule.

    `rank` 0 takes the best schedule of every segment, 1 the second best where there is one, and so on.
    """

    @cache
    def segment(start: int, end: int) -> tuple[float, Schedule] | None:
        labels = [label for group in groups[start:end] for label in group.cases]
        sums = [
            (sum(known[label] for label in labels), schedule)
            for schedule, known in gains.items()
            if all(label in known for label in labels)
        ]
        sums.sort(key=lambda pair: (-pair[0], pair[1]))
        return sums[min(rank, len(sums) - 1)] if sums else None

    @cache
    def best(start: int, left: int) -> tuple[float, tuple[tuple[int, Schedule], ...]] | None:
        if left == 1:
            last = segment(start, len(groups))
            return (last[0], ((len(groups), last[1]),)) if last else None
        options = []
        for end in range(start + 1, len(groups) - left + 2):
            head, tail = segment(start, end), best(end, left - 1)
            if head and tail:
                options.append((head[0] + tail[0], ((end, head[1]), *tail[1])))
        return max(options, key=lambda option: option[0]) if options else None

    found = best(0, rows)
    return found[1] if found else None


def _table(context: Context, part: Part, segments: tuple[tuple[int, Schedule], ...]) -> Table:
    """The current table with the lines of a part replaced by segments, neighbours of one schedule joined.

    Lines before and after the part stay: nothing here says how fast they are. What the part's last line did not serve
    is served by none of the new ones either.
    """
    now = context.plan.table
    limits = dict(now[part.last].upto)
    rows = list(now[: part.first])
    for end, schedule in segments:
        upto = dict(limits)
        if end < len(part.groups):
            upto[part.key] = boundary(part.groups[end - 1].size, part.groups[end].size)
        rows.append(table_row(schedule, **upto))
    rows += now[part.last + 1 :]
    return tuple(r for r, after in zip(rows, [*rows[1:], None], strict=True) if not _joins(r, after))


def _joins(row: TableRow, after: TableRow | None) -> bool:
    """Whether the line after a line serves with the same schedule whatever that one does."""
    return after is not None and after.schedule == row.schedule and is_within(dict(row.upto), dict(after.upto))
