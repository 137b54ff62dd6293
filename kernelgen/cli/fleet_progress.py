"""A run over operators as it goes, on stderr: a table in a terminal, a line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.fleet.model import Assignment, Outcome, Worker
from kernelgen.fleet.record import FleetRecord
from kernelgen.journal import Record

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from kernelgen.fleet.schedule import Schedule


@dataclass
class Standing:
    """How far an operator is."""

    began: float
    worker: str
    round: int | None = None
    best: str = ""


@dataclass
class FleetProgress:
    """A `Watcher` that shows, and records what must outlive this process."""

    schedule: Schedule
    record: FleetRecord | None
    remember: Callable[[Path], None]
    """Called with every run folder of an operator that is finished."""
    ended: Callable[[str, str, str], None] = lambda name, stdout, stderr: None
    """Called with an operator's name, output and last words when its command has ended."""
    standings: dict[str, Standing] = field(default_factory=dict)
    _live: Live | None = None
    _took: list[float] = field(default_factory=list)

    def __enter__(self) -> FleetProgress:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._console = console
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=2, transient=True, get_renderable=self.table)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def joined(self, worker: Worker) -> None:
        if self.record is not None:
            self.record.joined(worker)
        self._say(f"{worker.name}: {worker.kind.device}")

    def lost(self, worker: str, why: str) -> None:
        self._happened("lost", worker=worker, why=why)
        self._say(f"{worker} is used no longer: {why}")

    def begun(self, assignment: Assignment) -> None:
        self.standings[self._name(assignment)] = Standing(time.monotonic(), assignment.worker.name)
        self._say(f"{self._name(assignment)}: begun on {assignment.worker.name}")

    def recorded(self, assignment: Assignment, record: Record) -> None:
        if record.kind != "round":
            return
        standing = self.standings[self._name(assignment)]
        standing.round, standing.best = record.data["round"], best(record)
        what = f"round {standing.round}" if standing.round else "baseline"
        self._say(f"{self._name(assignment)}: {what}: {standing.best}")

    def ending(self, assignment: Assignment, outcome: Outcome) -> None:
        if self.record is not None:
            self.record.outcome(outcome)

    def finished(self, assignment: Assignment, outcome: Outcome, runs: Sequence[Path]) -> None:
        for run in runs:
            self.remember(run)
        self.ended(assignment.job.operator, outcome.stdout, outcome.stderr)
        self._took.append(outcome.seconds)
        how = f"ended with exit code {outcome.code}" if outcome.code else "finished"
        self._say(f"{self._name(assignment)}: {how} on {outcome.worker} after {outcome.seconds:.0f} s; {self._left(1)}")

    def failed(self, assignment: Assignment, why: str) -> None:
        self._happened("failed", operator=assignment.job.operator, worker=assignment.worker.name, why=why)
        self._say(f"{self._name(assignment)}: back to the queue, failed on {assignment.worker.name}: {why}")

    def aside(self, operator: str, why: Sequence[str]) -> None:
        self._happened("aside", operator=operator, why=list(why))
        self._say(f"{operator} is set aside after {len(why)} failures, the last one on {why[-1]}")

    def looked(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def table(self) -> Table:
        """What runs now, and what is left."""
        from rich.table import Table

        found = Table("operator", "round", "best so far", "worker", "time", caption=self._left(), box=None)
        for assignment in self.schedule.running.values():
            one = self.standings.get(self._name(assignment))
            if one is not None:
                spent = f"{time.monotonic() - one.began:.0f} s"
                number = "" if one.round is None else str(one.round)
                found.add_row(self._name(assignment), number, one.best, one.worker, spent)
        return found

    def _left(self, ending: int = 0) -> str:
        """What is left, and how long that may take as far as the operators so far say."""
        done, waiting = len(self.schedule.done) + ending, self.schedule.waiting
        running = len(self.schedule.running) - ending
        left = ""
        if self._took and self.schedule.workers:
            each = sum(self._took) / len(self._took)
            seconds = each * (waiting + running / 2) / len(self.schedule.workers)
            left = f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"
        return f"{done} done, {running} running, {waiting} waiting{left}"

    def _name(self, assignment: Assignment) -> str:
        several = len(self.schedule.kinds) > 1
        return f"{assignment.job.operator} on {assignment.worker.kind.device}" if several else assignment.job.operator

    def _happened(self, kind: str, **data: object) -> None:
        if self.record is not None:
            self.record.happened(kind, **data)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)


def best(record: Record) -> str:
    """What the kernel that a round left comes to, in the words of the log."""
    now = record.data["entry"]["standing"]
    return ", ".join(filter(None, [now["speedup"], now["roofline"]]))
