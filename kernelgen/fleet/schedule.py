"""Which worker works on which operator: events in, actions out; no clock, no files, no processes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from kernelgen.fleet.model import (
    Action,
    Assignment,
    Begin,
    Event,
    Failed,
    Finished,
    Interrupted,
    Job,
    Joined,
    Kind,
    Lost,
    Outcome,
    Progressed,
    Refuse,
    SetAside,
    Stop,
    Worker,
)

FAILURES = 3
"""Failures of one operator, without a finished round between them, after which it is set aside; and failures of one
worker, with no command that ended between them, after which the worker is."""

Key = tuple[str, Kind]
"""An operator on a kind of device."""


class Schedule:
    """The state of a run over operators.

    A run is of one kind of device, that of the first worker: others are refused by name. With `each`, every kind
    has all operators for itself.
    """

    def __init__(self, jobs: Sequence[Job], each: bool = False, finished: Sequence[Outcome] = ()) -> None:
        self.jobs, self.each = tuple(jobs), each
        self.workers: dict[str, Worker] = {}
        self.running: dict[int, Assignment] = {}
        self.done: dict[Key, Outcome] = {(one.operator, one.kind): one for one in finished}
        self.aside: dict[Key, tuple[str, ...]] = {}
        self.interrupted = False
        self._queues: dict[Kind, deque[Job]] = {}
        self._failed: dict[Key, list[tuple[str, str]]] = {}
        self._in_a_row: Counter[str] = Counter()
        self._attempts = 0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of device of this run."""
        return tuple(self._queues)

    @property
    def waiting(self) -> int:
        """Operators in the queue; before the first worker all of them."""
        return sum(map(len, self._queues.values())) if self._queues else len(self.jobs)

    @property
    def drained(self) -> bool:
        """Nothing runs, and nothing is left that may be begun."""
        return not self.running and (self.interrupted or not self.waiting)

    @property
    def stuck(self) -> bool:
        """Work is left and no worker for it."""
        usable = any(self._queues[worker.kind] for worker in self.workers.values())
        return not self.drained and not self.running and not usable

    def handle(self, event: Event) -> tuple[Action, ...]:
        """What is to be done now that this happened. What an attempt says that runs no longer changes nothing."""
        if isinstance(event, Joined):
            found = self._joined(event.worker)
        elif isinstance(event, Lost):
            found = self._lost(event.worker, event.why)
        elif isinstance(event, Interrupted):
            self.interrupted = True
            found = [Stop(attempt) for attempt in self.running]
        elif event.attempt not in self.running:
            found = []
        elif isinstance(event, Progressed):
            self._failed.pop(_key(self.running[event.attempt]), None)
            found = []
        elif isinstance(event, Finished):
            assignment = self.running.pop(event.attempt)
            self.done[_key(assignment)] = event.outcome
            self._in_a_row.pop(assignment.worker.name, None)
            found = []
        else:
            found = self._failure(event)
        return (*found, *self._fill())

    def _joined(self, worker: Worker) -> list[Action]:
        if worker.kind not in self._queues:
            if self._queues and not self.each:
                return [Refuse(worker.name, f"unlike the others: {self.kinds[0].differences(worker.kind)}")]
            if not self.each:  # what another kind of device came to is not of this run
                self.done = {key: outcome for key, outcome in self.done.items() if key[1] == worker.kind}
            left = [job for job in self.jobs if (job.operator, worker.kind) not in self.done]
            self._queues[worker.kind] = deque(left)
        self.workers[worker.name] = worker
        return []

    def _lost(self, name: str, why: str) -> list[Action]:
        self.workers.pop(name, None)
        self._in_a_row.pop(name, None)
        gone = [one for one in self.running.values() if one.worker.name == name]
        return [action for one in gone for action in self._back(one, why)]

    def _failure(self, event: Failed) -> list[Action]:
        assignment = self.running[event.attempt]
        name = assignment.worker.name
        found = self._back(assignment, event.why)
        self._in_a_row[name] += 1
        if self._in_a_row[name] >= FAILURES:
            found.append(Refuse(name, f"{FAILURES} commands in a row failed on it, the last one: {event.why}"))
            self.workers.pop(name, None)
        return found

    def _back(self, assignment: Assignment, why: str) -> list[Action]:
        """An operator goes back to the head of the queue, or is set aside."""
        del self.running[assignment.attempt]
        key = _key(assignment)
        failed = self._failed.setdefault(key, [])
        if not self.interrupted:
            failed.append((assignment.worker.name, why))
        if len(failed) < FAILURES:
            self._queues[assignment.worker.kind].appendleft(assignment.job)
            return []
        self.aside[key] = tuple(f"{worker}: {why}" for worker, why in failed)
        return [SetAside(assignment.job.operator, self.aside[key])]

    def _fill(self) -> list[Action]:
        """Give every worker that has nothing to do the first job that is for it."""
        if self.interrupted:
            return []
        found: list[Action] = []
        busy = {one.worker.name for one in self.running.values()}
        folders = {one.job.folder for one in self.running.values()} - {""}
        for worker in self.workers.values():
            if worker.name in busy:
                continue
            job = self._next(worker, folders)
            if job is None:
                continue
            self._queues[worker.kind].remove(job)
            self._attempts += 1
            assignment = Assignment(self._attempts, job, worker)
            self.running[assignment.attempt] = assignment
            folders |= {job.folder} - {""}
            found.append(Begin(assignment))
        return found

    def _next(self, worker: Worker, folders: set[str]) -> Job | None:
        """The first job whose folder is free; one that failed here only where no other worker is left to try it."""
        others = {one.name for one in self.workers.values() if one.kind == worker.kind}
        for job in self._queues[worker.kind]:
            tried = {name for name, _ in self._failed.get((job.operator, worker.kind), ())}
            if job.folder not in folders and (worker.name not in tried or not others - tried):
                return job
        return None


def _key(assignment: Assignment) -> Key:
    return assignment.job.operator, assignment.worker.kind
