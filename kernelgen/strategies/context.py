"""What a strategy is given and what it hands back: plain frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

from kernelgen.diagnose import Diagnosis
from kernelgen.plan import Parameter, Plan, Scalar, Schedule, TableRow
from kernelgen.schedule.problem import Problem, row_of
from kernelgen.spec.model import Case

Table = tuple[TableRow, ...]

HUGE = 1 << 40
"""A limit that stands for "any size": more bytes than a device holds."""
LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Compiler:
    """The compiler's functions that rounds and strategies use (see `kernelgen.families` and `kernelgen.render`)."""

    space: Callable[[Plan, int, tuple[Case, ...]], tuple[Parameter, ...]]
    variants: Callable[[Plan, tuple[Case, ...]], tuple[Schedule, ...]]
    legal: Callable[[Plan, Schedule, Case], str | None]
    problem_of: Callable[[Plan, Case], Problem]
    source: Callable[[Plan], str]
    """The text of `_triton.py`."""
    legality: Callable[[Plan, tuple[Case, ...]], Callable[[Schedule], str | None]] | None = None
    """`legal` for many schedules of the same cases, where that can be answered faster than one by one."""

    def refusals(self, plan: Plan, cases: tuple[Case, ...]) -> Callable[[Schedule], str | None]:
        """Why a schedule cannot serve all the cases; None if it can."""
        if self.legality is not None:
            return self.legality(plan, cases)
        return lambda schedule: next(filter(None, (self.legal(plan, schedule, case) for case in cases)), None)

    def row_of(self, plan: Plan, case: Case) -> int:
        """The row of a plan's table that serves a case."""
        return row_of(plan.table, self.problem_of(plan, case))


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
class Tuning:
    """How far a search of whole spaces goes."""

    configs: str = "tune"
    """Which schedules: `tune`, `all`, `prog`, a short form, or AXIS=VALUE,… (see `strategies.tune`)."""
    evaluations: int = 100
    """Of one row, at most."""
    patience: int = 3
    """Batches without a gain of 1 % after which it ends."""
    remembered: tuple[Schedule, ...] = ()
    """What was fastest on problems like these, measured early."""


class Author(Protocol):
    """Who writes whole kernels."""

    def propose(self, context: Context) -> tuple[Proposal, ...]:
        """New kernels; what came to nothing is in the journal."""


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
    author: Author | None = None
    """A language model, where one was asked for."""
    tuning: Tuning = Tuning()
    adopted: str = ""
    """A `_triton.py` that a person edited."""

    def bound(self, row: int) -> tuple[Case, ...]:
        """The performance cases that a row of the current table serves."""
        return tuple(c for c in self.cases if self.compiler.row_of(self.plan, c) == row)

    def refusal(self, table: Table) -> str | None:
        """Why this table could not serve what its lines promise; None: it can.

        Each line must suit its performance cases, and the largest size that it is used for today: a schedule that
        holds a row in registers must not become the last line, and none may serve less than the current table does.
        """
        plan = self.plan.with_table(table)
        for case in self.cases:
            line = table[self.compiler.row_of(plan, case)]
            sizes = self.compiler.problem_of(plan, case).names
            for one in (case, *(self._largest(case, name, line.limit(name)) for name in sizes)):
                if reason := self.compiler.legal(plan, line.schedule, one):
                    return f"{one.label}: {reason}"
        return None

    def _largest(self, case: Case, name: str, limit: int | None) -> Case:
        """The case with a named size grown to the limit of a line, or as far as the current table can serve it."""
        factor = (HUGE if limit is None else limit) // max(self.size(case, name), 1)
        while factor > 1:
            one = self._grown(case, name, factor)
            line = self.plan.table[self.compiler.row_of(self.plan, one)]
            if self.compiler.legal(self.plan, line.schedule, one) is None:
                return one
            factor //= 2
        return case

    def size(self, case: Case, name: str) -> int:
        """A named size of a case."""
        return self.compiler.problem_of(self.plan, case)[name]

    def _grown(self, case: Case, name: str, factor: int) -> Case:
        """The case with one of its sizes times a factor, so that a named size grows; the case itself where none does
        that."""
        before = self.size(case, name)
        for index, (atom, value) in enumerate(case.sizes):
            grown = (value[0] * factor, *value[1:]) if isinstance(value, tuple) and value else value
            grown = grown * factor if isinstance(grown, int) else grown
            sizes = (*case.sizes[:index], (atom, grown), *case.sizes[index + 1 :])
            one = replace(case, sizes=sizes, label=f"{case.label}, grown to the line's end")
            if self.size(one, name) > before:
                return one
        return case


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
    both = [name for name in new if name in old and old[name] != new[name]]
    parts = [f"{name} {_shown(old[name])} -> {_shown(new[name])}" for name in both]
    if before.variant != after.variant:
        parts = [f"variant {before.variant} -> {after.variant}", *parts]
        parts += [f"{name} = {_shown(value)}" for name, value in new.items() if name not in old]
    return ", ".join(parts) or "no change"


def _shown(value: Scalar) -> Scalar:
    """A value for people; a whole kernel by its hash."""
    return value if len(str(value)) <= LONGEST_SHOWN else sha256(str(value).encode()).hexdigest()[:8]
