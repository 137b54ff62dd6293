"""The collecting machine: takes what executors say to the scheduler, and does what it answers."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kernelgen.errors import KernelgenError
from kernelgen.fleet.files import Collector, ShipmentError, gather
from kernelgen.fleet.model import (
    Assignment,
    Begin,
    Ended,
    Event,
    Executor,
    Failed,
    Finished,
    Interrupted,
    Joined,
    Kind,
    Lost,
    Message,
    Outcome,
    Progressed,
    Refuse,
    SetAside,
    Shipment,
    Shipped,
    Stop,
    Worker,
)
from kernelgen.fleet.schedule import Schedule
from kernelgen.fleet.work import failure
from kernelgen.journal import Record

LOOK_S = 0.5
"""The longest wait for a message, after which a Ctrl-C is noticed."""
PATIENCE_S = 60.0
"""How long commands may take to end after Ctrl-C, and how long a run waits for a first or another worker."""
REFUSED = 2
"""The exit code of an operator that a mistake of the user's on the collecting machine keeps from running."""


class Watcher(Protocol):
    """Who is told how a run over operators goes."""

    def joined(self, worker: Worker) -> None: ...

    def lost(self, worker: str, why: str) -> None: ...

    def begun(self, assignment: Assignment) -> None: ...

    def recorded(self, assignment: Assignment, record: Record) -> None: ...

    def ending(self, assignment: Assignment, outcome: Outcome) -> None:
        """Before what the command wrote at its end is written here."""

    def finished(self, assignment: Assignment, outcome: Outcome, runs: Sequence[Path]) -> None: ...

    def failed(self, assignment: Assignment, why: str) -> None: ...

    def aside(self, operator: str, why: Sequence[str]) -> None: ...

    def looked(self) -> None: ...


def drive(
    schedule: Schedule, executor: Executor, watcher: Watcher, base: Callable[[Kind], Path] = lambda kind: Path()
) -> None:
    """Run until the queue is drained, no worker is left for it, or the user stops it; `schedule` has what came of it.

    `base`: where what is written on a kind of device comes to lie.

    A second Ctrl-C, or one that is not heeded for a minute, leaves what still runs for the executor's end.
    """
    driver = _Driver(schedule, executor, watcher, base)
    try:
        with _noticing() as asked:
            driver.run(asked)
    finally:
        driver.close()


class _Driver:
    def __init__(self, schedule: Schedule, executor: Executor, watcher: Watcher, base: Callable[[Kind], Path]) -> None:
        self._schedule, self._executor, self._watcher, self._base = schedule, executor, watcher, base
        self._collectors: dict[int, Collector] = {}
        self._recorded: set[tuple[str, Kind]] = set()
        """Operators of which a record came, which later attempts go on with."""

    def run(self, asked: Callable[[], int]) -> None:
        alone_since = time.monotonic()
        stopped_at = 0.0
        while not self._schedule.drained:
            if asked() and not self._schedule.interrupted:
                stopped_at = time.monotonic()
                self._handle(Interrupted())
                continue
            if self._schedule.interrupted and (asked() > 1 or time.monotonic() - stopped_at > PATIENCE_S):
                return
            if not self._schedule.stuck:
                alone_since = time.monotonic()
            message = self._executor.message(LOOK_S)
            if message is not None:
                self._take(message)
            elif self._schedule.stuck and not (self._executor.waits() and time.monotonic() - alone_since < PATIENCE_S):
                return
            self._watcher.looked()

    def close(self) -> None:
        for collector in self._collectors.values():
            collector.close()

    def _take(self, message: Message) -> None:
        """An executor's message, as the event that the scheduler knows."""
        if isinstance(message, Joined):
            self._handle(message)
            if message.worker.name in self._schedule.workers:
                self._watcher.joined(message.worker)
        elif isinstance(message, Lost):
            self._watcher.lost(message.worker, message.why)
            self._handle(message)
        elif message.attempt in self._schedule.running:  # what a lost worker still says is nobody's
            self._said(message)

    def _said(self, message: Shipped | Ended | Failed) -> None:
        assignment = self._schedule.running[message.attempt]
        if isinstance(message, Shipped):
            self._collect(assignment, message.shipment)
            return
        why = message.why if isinstance(message, Failed) else failure(message)
        if isinstance(message, Ended) and not why and not (message.code == 130 and self._schedule.interrupted):
            self._end(assignment, message)
        elif not isinstance(message, Ended) or self._collect(assignment, message.last):
            self._fail(assignment, why or "interrupted")

    def _collect(self, assignment: Assignment, shipment: Shipment) -> bool:
        """Write what came; a worker that sends what it may not is used no longer."""
        try:
            records = self._collectors[assignment.attempt].write(shipment)
        except ShipmentError as error:
            name, why = assignment.worker.name, str(error)
            self._executor.refuse(name)
            self._watcher.lost(name, why)
            self._handle(Lost(name, why))
            return False
        if records:
            self._recorded.add((assignment.job.operator, assignment.worker.kind))
        for record in records:
            self._watcher.recorded(assignment, record)
        if any(record.kind == "round" for record in records):
            self._handle(Progressed(assignment.attempt))
        return True

    def _end(self, assignment: Assignment, ended: Ended) -> None:
        job, worker = assignment.job, assignment.worker
        outcome = Outcome(job.operator, worker.name, worker.kind, ended.code, ended.stdout, ended.stderr, ended.seconds)
        self._watcher.ending(assignment, outcome)
        if self._collect(assignment, ended.last):
            self._watcher.finished(assignment, outcome, self._collectors[ended.attempt].runs)
            self._handle(Finished(ended.attempt, outcome))

    def _fail(self, assignment: Assignment, why: str) -> None:
        if not self._schedule.interrupted:
            self._watcher.failed(assignment, why)
        self._handle(Failed(assignment.attempt, why))

    def _handle(self, event: Event) -> None:
        """What the scheduler wants done after an event, and after those that follow from that."""
        events = deque([event])
        while events:
            actions = self._schedule.handle(events.popleft())
            for attempt in self._collectors.keys() - self._schedule.running.keys():
                self._collectors.pop(attempt).close()  # before the operator may begin elsewhere
            for action in actions:
                if isinstance(action, Begin):
                    events.extend(self._begin(action.assignment))
                elif isinstance(action, Refuse):
                    self._executor.refuse(action.worker)
                    self._watcher.lost(action.worker, action.why)
                elif isinstance(action, Stop):
                    self._executor.stop(action.attempt)
                elif isinstance(action, SetAside):
                    self._watcher.aside(action.operator, action.why)

    def _begin(self, assignment: Assignment) -> list[Event]:
        """Start an attempt; what is wrong with an operator's files here does not keep the others from running."""
        job, worker = assignment.job, assignment.worker
        try:
            base = self._base(worker.kind)
            self._collectors[assignment.attempt] = Collector(job, base)
            inputs = gather(job, base)
        except KernelgenError as error:
            outcome = Outcome(job.operator, worker.name, worker.kind, REFUSED, "", f"error: {error}", 0.0)
            self._watcher.finished(assignment, outcome, ())
            return [Finished(assignment.attempt, outcome)]
        self._watcher.begun(assignment)
        if job.fresh and (job.operator, worker.kind) not in self._recorded:
            assignment = replace(assignment, job=replace(job, arguments=(*job.arguments, "--fresh")))
        self._executor.begin(assignment, inputs)
        return []


@contextmanager
def _noticing() -> Iterator[Callable[[], int]]:
    """Counts Ctrl-C instead of raising: what is being written is written to its end."""
    times = 0

    def count(number: int, frame: object) -> None:
        nonlocal times
        times += 1

    before = signal.signal(signal.SIGINT, count)
    try:
        yield lambda: times
    finally:
        signal.signal(signal.SIGINT, before)
