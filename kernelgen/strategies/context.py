"""What a strategy is given and what it hands back: plain frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelgen.diagnose import Diagnosis
from kernelgen.plan import Parameter, Plan, Schedule, TableRow
from kernelgen.spec.model import Case

Table = tuple[TableRow, ...]


@dataclass(frozen=True)
class Compiler:
    """The compiler's functions that rounds and strategies use (see `kernelgen.families` and `kernelgen.render`)."""

    space: Callable[[Plan, int, tuple[Case, ...]], tuple[Parameter, ...]]
    variants: Callable[[Plan, tuple[Case, ...]], tuple[Schedule, ...]]
    legal: Callable[[Plan, Schedule, Case], str | None]
    key_bytes: Callable[[Plan, Case], int]
    row_of: Callable[[Plan, Case], int]
    source: Callable[[Plan], str]
    """The text of `_triton.py`."""


@dataclass(frozen=True)
class Observation:
    """One schedule on one case, as some round of this run saw it."""

    schedule: Schedule
    case: str
    gain: float
    """Time of the kernel the run started from over this one's; paired comparisons chained, so drift cancels."""


@dataclass(frozen=True)
class History:
    """Everything the journal knows of schedules."""

    seen: tuple[Observation, ...] = ()
    failed: tuple[tuple[Schedule, str], ...] = ()
    """A schedule and a case it could not serve: refused, wrong, crashed or too slow to finish."""

    def gains(self) -> dict[Schedule, dict[str, float]]:
        """The last observation of every schedule by case label."""
        table: dict[Schedule, dict[str, float]] = {}
        for o in self.seen:
            table.setdefault(o.schedule, {})[o.case] = o.gain
        return table

    def knows(self, schedule: Schedule, cases: tuple[Case, ...]) -> bool:
        """Whether nothing would be learnt from trying a schedule on these cases."""
        tried = self.gains().get(schedule, {})
        broken = {case for s, case in self.failed if s == schedule}
        return bool(broken & {c.label for c in cases}) or all(c.label in tried for c in cases)


@dataclass(frozen=True)
class Context:
    """What a strategy may look at."""

    plan: Plan
    """With the current table."""
    cases: tuple[Case, ...]
    """The performance cases."""
    diagnosis: Diagnosis
    history: History
    compiler: Compiler
    limit: int = 16
    """The most candidates to propose."""

    def bound(self, row: int) -> tuple[Case, ...]:
        """The performance cases that a row of the current table serves."""
        return tuple(c for c in self.cases if self.compiler.row_of(self.plan, c) == row)

    def refusal(self, table: Table) -> str | None:
        """Why some case of the spec, accuracy or performance, could not be served by this table; None: all can."""
        plan = self.plan.with_table(table)
        for case in (*self.plan.spec.accuracy, *self.cases):
            schedule = table[self.compiler.row_of(plan, case)].schedule
            if reason := self.compiler.legal(plan, schedule, case):
                return f"{case.label}: {reason}"
        return None


@dataclass(frozen=True)
class Proposal:
    """One candidate: the whole table with the change in it."""

    table: Table
    row: int | None
    """The row that it changes; None: the table itself is another one."""
    what: str
    """The change in a few words, such as `BLOCK_SIZE 1024 -> 2048`."""
    reason: str
    predicted_gain: float
    """Current time over new time, expected."""


def changes(before: Schedule, after: Schedule) -> str:
    """What differs between two schedules, such as `BLOCK_SIZE 1024 -> 2048, num_warps 4 -> 8`."""
    old, new = dict(before.values), dict(after.values)
    parts = [f"{name} {old[name]} -> {value}" for name, value in new.items() if name in old and old[name] != value]
    if before.variant != after.variant:
        parts = [f"variant {before.variant} -> {after.variant}", *parts]
        parts += [f"{name} = {value}" for name, value in new.items() if name not in old]
    return ", ".join(parts) or "no change"
