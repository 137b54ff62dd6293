"""The journal of a run over operators: what it is about, its workers, and what every operator came to."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelgen import journal
from kernelgen.fleet.model import Job, Kind, Outcome, Worker
from kernelgen.journal import Journal

FOLDER = ".fleet"
"""Below the folder of the operators' runs; no operator can be called so."""


class FleetRecord:
    """An open journal; `outcomes` are those of the interrupted run that is gone on with."""

    def __init__(self, opened: Journal, outcomes: tuple[Outcome, ...], resumed: bool) -> None:
        self.folder, self.outcomes, self.resumed = opened.folder, outcomes, resumed
        self._journal = opened

    @classmethod
    def open(cls, logs: Path, jobs: tuple[Job, ...], fresh: bool) -> FleetRecord:
        """Go on with the newest interrupted run of these jobs, or begin one."""
        key = _key(jobs)
        found = None if fresh else resumable(logs, jobs)
        opened = Journal.open(found or logs / FOLDER / journal.run_name(key))
        if found is None:
            opened.append("run", {"key": key, "jobs": [[job.operator, *job.arguments] for job in jobs]})
        return cls(opened, tuple(_outcome(r.data) for r in opened.records("outcome")), found is not None)

    def joined(self, worker: Worker) -> None:
        self._journal.append("worker", asdict(worker))

    def happened(self, kind: str, **data: object) -> None:
        """Something else: lost, failed, aside."""
        self._journal.append(kind, data)

    def outcome(self, outcome: Outcome) -> None:
        self._journal.append("outcome", asdict(outcome))

    def close(self, finished: bool) -> None:
        """`finished`: nothing is left to go on with."""
        if finished:
            self._journal.append("finished", {})
        self._journal.close()


def resumable(logs: Path, jobs: tuple[Job, ...]) -> Path | None:
    """The newest interrupted run of these jobs."""
    return journal.unfinished(logs / FOLDER, _key(jobs))


def _key(jobs: tuple[Job, ...]) -> str:
    return journal.resume_key(jobs=[(job.operator, job.arguments) for job in jobs])


def _outcome(data: dict[str, Any]) -> Outcome:
    found = data["kind"]
    kind = Kind(found["device"], tuple((name, value) for name, value in found["versions"]))
    return Outcome(**{**data, "kind": kind})


def ended(outcome: Outcome, logs: Path | None) -> bool:
    """Whether an outcome holds after its machine died: of one that says success, the operator's run is at its end."""
    if logs is None or outcome.code:
        return True
    found = journal.runs(logs)
    return bool(found) and any(record.kind == "finished" for record in journal.read(found[-1]))
