"""Workers of this machine: a process for every command, which sees one device alone or none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from kernelgen.fleet.checkup import device_gone
from kernelgen.fleet.model import Assignment, Ended, Failed, Joined, Lost, Message, Worker
from kernelgen.fleet.work import COMMAND, GO_ON, KILL, STOP, doubtful, perform


@dataclass(frozen=True)
class Place:
    """Where a worker of this machine works."""

    worker: Worker
    variables: Mapping[str, str]
    """Show its device alone to a process."""
    has_device: bool = False
    """Whether it has a device, which may be gone after a failure."""


class LocalExecutor:
    """A thread for every running command, which passes on what `perform` says."""

    def __init__(self, places: Sequence[Place], command: Sequence[str] = COMMAND) -> None:
        self._places = {place.worker.name: place for place in places}
        self._command = tuple(command)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wanted: dict[int, int] = {}
        self._on: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        for place in places:
            self._messages.put(Joined(place.worker))

    def message(self, timeout_s: float) -> Message | None:
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def begin(self, assignment: Assignment, inputs: tuple[tuple[str, bytes], ...]) -> None:
        self._wanted[assignment.attempt] = GO_ON
        self._on[assignment.worker.name] = assignment.attempt
        thread = threading.Thread(target=self._run, args=(assignment, inputs), daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def stop(self, attempt: int) -> None:
        self._wanted[attempt] = STOP

    def refuse(self, worker: str) -> None:
        if worker in self._on:
            self._wanted[self._on[worker]] = KILL

    def waits(self) -> bool:
        return False

    def close(self) -> None:
        self._wanted = dict.fromkeys(self._wanted, KILL)
        for thread in self._threads:
            thread.join()

    def _run(self, assignment: Assignment, inputs: tuple[tuple[str, bytes], ...]) -> None:
        attempt, place = assignment.attempt, self._places[assignment.worker.name]
        said = perform(attempt, assignment.job, inputs, place.variables, lambda: self._wanted[attempt], self._command)
        try:
            with closing(said):
                for message in said:
                    doubt = place.has_device and isinstance(message, Ended) and doubtful(message)
                    gone = device_gone(place.variables) if doubt else ""
                    self._messages.put(Lost(place.worker.name, gone) if gone else message)
        except Exception as error:
            self._messages.put(Failed(attempt, f"{type(error).__name__}: {error}"))
