"""What a journal says has happened so far: a pure fold over its records, so a resumed run knows what the first did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernelgen.journal import Record
from kernelgen.outcomes import Evaluation, Status, evaluation_from_json
from kernelgen.plan import Plan, Schedule, TableRow
from kernelgen.spec.model import Case
from kernelgen.strategies import Compiler, History, Observation
from kernelgen.strategies.context import Table


@dataclass(frozen=True)
class State:
    """A run after its records so far."""

    plan: Plan
    """With the current table."""
    hash: str
    """Of the current `_triton.py`."""
    past: frozenset[str] = frozenset()
    """Hashes of every `_triton.py` that was current in this run."""
    rounds: int = -1
    """The last finished round; 0 is the starting kernel, -1: not even that."""
    kept: int = 0
    tried: frozenset[str] = frozenset()
    """Strategies that failed to improve the current kernel."""
    history: History = field(default_factory=History)
    level: Mapping[str, float] = field(default_factory=dict)
    """By case label: time of the run's first kernel over the current one's."""
    figures: Evaluation | None = None
    """The current kernel against eager and compile."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """The performance cases that can be compared here: what does not fit the device was left out at the start."""
        timed = {t.case for t in self.figures.timings} if self.figures else set()
        return tuple(case for case in self.plan.spec.performance if case.label in timed)


def fold(plan: Plan, compiler: Compiler, records: Iterable[Record]) -> State:
    """The state of a run; `plan` gives everything but the table, which the first record has."""
    state = State(plan, "")
    for record in records:
        step = _STEPS.get(record.kind)
        if step is not None:
            state = step(state, compiler, record.data)
    return state


def table_to_json(table: Table) -> list[dict[str, Any]]:
    return [row.to_json() for row in table]


def table_from_json(data: list[dict[str, Any]]) -> Table:
    return tuple(TableRow.from_json(row) for row in data)


def serving(plan: Plan, compiler: Compiler, cases: tuple[Case, ...]) -> dict[str, Schedule]:
    """The schedule that serves each case, by label."""
    return {case.label: plan.table[compiler.row_of(plan, case)].schedule for case in cases}


def _run(state: State, compiler: Compiler, data: dict[str, Any]) -> State:
    plan = state.plan.with_table(table_from_json(data["table"]))
    level = {case.label: 1.0 for case in plan.spec.performance}
    seen = tuple(Observation(s, case, 1.0) for case, s in serving(plan, compiler, plan.spec.performance).items())
    return replace(
        state, plan=plan, hash=data["hash"], past=frozenset({data["hash"]}), level=level, history=History(seen)
    )


def _tried(state: State, compiler: Compiler, data: dict[str, Any]) -> State:
    """A candidate was searched, or a winner measured again: what it was on each case, or that it failed."""
    evaluation = evaluation_from_json(data["evaluation"])
    changed = [case for case in state.plan.spec.performance if case.label in data["cases"]]
    table = state.plan.with_table(table_from_json(data["table"]))
    schedules = serving(table, compiler, tuple(changed))
    if evaluation.status is not Status.OK:
        lost = tuple((schedules[case.label], case.label) for case in changed)
        return replace(state, history=replace(state.history, failed=state.history.failed + lost))
    seen = tuple(
        Observation(schedules[t.case], t.case, t.speedup * state.level[t.case])
        for t in evaluation.speedups("current")
        if t.case in schedules
    )
    return replace(state, history=replace(state.history, seen=state.history.seen + seen))


def _figures(state: State, compiler: Compiler, data: dict[str, Any]) -> State:
    return replace(state, figures=evaluation_from_json(data["figures"]))


def _round(state: State, compiler: Compiler, data: dict[str, Any]) -> State:
    if data["round"] == 0:
        return replace(_figures(state, compiler, data), rounds=0)
    if not data["kept"]:
        return replace(state, rounds=data["round"], tried=state.tried | {data["strategy"]})
    gains = data["gains"]
    return replace(
        _figures(state, compiler, data),
        plan=state.plan.with_table(table_from_json(data["table"])),
        hash=data["hash"],
        past=state.past | {data["hash"]},
        rounds=data["round"],
        kept=state.kept + 1,
        tried=frozenset(),
        level={case: level * gains.get(case, 1.0) for case, level in state.level.items()},
    )


_STEPS = {"run": _run, "candidate": _tried, "final": _tried, "verify": _tried, "round": _round}
"""Records of any other kind change nothing that a later round needs."""
