"""dynamic_shape: which sizes get which schedule, decided from everything this run has seen so far.

Nothing new is searched here: the best table over the schedules already seen is found by dynamic programming
over the cases in ascending order of size, and each line of it must earn its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from kernelgen.plan import Schedule, TableRow
from kernelgen.strategies.context import Context, Proposal, Table, changes

NAME = "dynamic_shape"

WORTH = math.log(1.01)
"""A further line is worth it where one schedule for all would lose more than 1 % in some case."""
MAX_ROWS = 4
"""A longer table would be fitted to the cases that happen to be listed rather than to sizes."""
KEEP = 3
"""Schedules tried for one line of the table: the best seen, and the next in case it does not repeat."""


@dataclass(frozen=True)
class Group:
    """Cases of one size: no table can tell them apart."""

    key: int
    cases: tuple[str, ...]


def propose(context: Context) -> tuple[Proposal, ...]:
    """Tables of one to four lines that would have been faster than the current one; the best first."""
    groups = _groups(context)
    gains = _usable(context)
    now = _current(context, gains)
    found: dict[Table, float] = {}
    for rows in range(1, min(MAX_ROWS, len(groups)) + 1):
        for rank in range(KEEP):
            split = _best_split(groups, gains, rows, rank)
            if split is not None:
                found.setdefault(_table(context, groups, split[1]), split[0])
    proposals = []
    for table, total in found.items():
        # A shorter table that is nearly as good is the better one: every line more must be worth it.
        if any(len(t) < len(table) and total <= s + (len(table) - len(t)) * WORTH for t, s in found.items()):
            continue
        gain = math.exp((total - now) / len(context.cases))
        extra = max(0, len(table) - len(context.plan.table))
        if table != context.plan.table and total - now > extra * WORTH and context.refusal(table) is None:
            proposals.append(Proposal(table, None, describe(context, table), _reason(table), gain))
    return tuple(sorted(proposals, key=lambda p: -p.predicted_gain))[: context.limit]


def explain(before: Schedule, after: Schedule) -> str:
    return f"{changes(before, after)} for the sizes that were faster with it"


def describe(context: Context, table: Table) -> str:
    """A table in a few words: what each of its lines changes for the sizes it serves."""
    plan = context.plan.with_table(table)
    parts = []
    for index, row in enumerate(table):
        served = [case for case in context.cases if context.compiler.row_of(plan, case) == index]
        olds = {context.plan.table[context.compiler.row_of(context.plan, case)].schedule for case in served}
        effect = " / ".join(sorted({changes(old, row.schedule) for old in olds})) or "no case"
        limit = (
            "all sizes" if len(table) == 1 else "above" if row.max_bytes is None else f"up to {_bytes(row.max_bytes)}"
        )
        parts.append(f"{limit}: {effect}")
    return "; ".join(parts)


def _reason(table: Table) -> str:
    if len(table) == 1:
        return "one schedule was as fast for every size seen"
    return "no single schedule was the fastest for every size seen"


def _groups(context: Context) -> list[Group]:
    by_key: dict[int, list[str]] = {}
    for case in context.cases:
        by_key.setdefault(context.compiler.key_bytes(context.plan, case), []).append(case.label)
    return [Group(key, tuple(labels)) for key, labels in sorted(by_key.items())]


def _usable(context: Context) -> dict[Schedule, dict[str, float]]:
    """The logarithm of each schedule's gain by case, without those that failed a case."""
    failed = {(schedule, case) for schedule, case in context.history.failed}
    return {
        schedule: {case: math.log(gain) for case, gain in cases.items() if (schedule, case) not in failed and gain > 0}
        for schedule, cases in context.history.gains().items()
    }


def _current(context: Context, gains: dict[Schedule, dict[str, float]]) -> float:
    """The current table's summed logarithmic gain over the kernel the run started from."""
    total = 0.0
    for case in context.cases:
        schedule = context.plan.table[context.compiler.row_of(context.plan, case)].schedule
        total += gains.get(schedule, {}).get(case.label, 0.0)
    return total


def _best_split(
    groups: list[Group], gains: dict[Schedule, dict[str, float]], rows: int, rank: int
) -> tuple[float, tuple[tuple[int, Schedule], ...]] | None:
    """The best way to cut the groups into `rows` segments: its sum, and each segment's end and schedule.

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

    return best(0, rows)


def _table(context: Context, groups: list[Group], segments: tuple[tuple[int, Schedule], ...]) -> Table:
    """The segments as a table, neighbours of one schedule joined.

    Lines for sizes below the smallest case or above the largest stay: nothing here says how fast they are.
    """
    now = context.plan.table
    bound = [context.compiler.row_of(context.plan, case) for case in context.cases]
    rows = list(now[: min(bound)])
    for end, schedule in segments:
        limit = now[max(bound)].max_bytes if end == len(groups) else boundary(groups[end - 1].key, groups[end].key)
        rows.append(TableRow(limit, schedule))
    rows += now[max(bound) + 1 :]
    return tuple(
        r for r, after in zip(rows, [*rows[1:], None], strict=True) if after is None or after.schedule != r.schedule
    )


def boundary(below: int, above: int) -> int:
    """Where to cut between two sizes: their geometric mean, or the power of two nearest to it if it lies between."""
    middle = math.isqrt(below * above)
    power = 1 << round(math.log2(middle)) if middle else 0
    return power if below <= power < above else max(below, middle)


def _bytes(count: int) -> str:
    """A size for people: `2 MiB`, `768 B`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"
