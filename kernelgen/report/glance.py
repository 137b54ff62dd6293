"""Every run at a glance, from its journal alone: running, stopped or finished, and how far it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kernelgen import journal
from kernelgen.errors import KernelgenError
from kernelgen.journal import FILE, Record
from kernelgen.optimization.decide import overall
from kernelgen.optimization.head import head
from kernelgen.outcomes import Status, evaluation_from_json

State = Literal["running", "stopped", "finished", "damaged"]


@dataclass(frozen=True)
class Glance:
    """One run."""

    operator: str
    run: str
    state: State
    result: str
    """What it came to so far: version, speedups, targets."""
    doing: str
    """The round in progress or the last one, with its strategy; why it ended, or where it is damaged."""
    done: int = 0
    """Candidates of the round in progress that were evaluated."""
    planned: int = 0
    best: float | None = None
    """The most that a candidate of that round gained."""
    updated: str = ""
    """The journal's last record: UTC, ISO 8601."""


def glances(logs: Path) -> tuple[Glance, ...]:
    """Every run below a folder of logs: those that run first, then the newest."""
    found = []
    for folder in sorted({path.parent.parent for path in logs.glob(f"[!.]*/*/{FILE}")}):
        running = journal.is_locked(folder)
        *past, last = sorted(map(_seen, journal.runs(folder)), key=lambda one: one.updated)
        is_on = running and last.state == "stopped"
        found += [*past, replace(last, state="running") if is_on else last]
    found.sort(key=lambda one: one.updated, reverse=True)
    return tuple(sorted(found, key=lambda one: one.state != "running"))


def _seen(run: Path) -> Glance:
    file = (run / FILE).stat()
    return _glance(run, file.st_size, file.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _glance(run: Path, size: int, changed: int) -> Glance:
    """A journal only grows: one of the same size and time says the same."""
    try:
        records = journal.read(run)
    except KernelgenError as error:
        return Glance(run.parent.name, run.name, "damaged", "", str(error))
    ended = next((str(r.data["reason"]) for r in records if r.kind == "finished"), "")
    one = Glance(run.parent.name, run.name, "finished" if ended else "stopped", _result(records), ended)
    return replace(one if ended else _in_progress(records, one), updated=records[-1].time if records else "")


def _result(records: Sequence[Record]) -> str:
    """The title of the log's head; empty before round 0 is finished, and for journals of an old form."""
    played = [r.data for r in records if r.kind == "round"]
    found = head(records) if played and "standing" in played[0]["entry"] else None
    return str(found["title"]) if found else ""


def _in_progress(records: Sequence[Record], one: Glance) -> Glance:
    """The round that no `round` record ends."""
    played = max((r.data["round"] for r in records if r.kind == "round"), default=-1)
    chosen = [r.data for r in records if r.kind == "choice" and r.data["round"] == played + 1]
    if not chosen:
        return replace(one, doing=f"after round {played}" if played >= 0 else "baseline")
    tried = [r.data for r in records if r.kind == "candidate" and r.data["round"] == played + 1]
    evaluations = [evaluation_from_json(data["evaluation"]) for data in tried]
    means = [overall(e.speedups("current")) for e in evaluations if e.status is Status.OK]
    return replace(
        one,
        doing=f"round {played + 1}: {chosen[0]['advice']['strategy']}",
        done=len(tried),
        planned=sum(len(data["candidates"]) for data in chosen),
        best=max((mean.estimate for mean in means if mean), default=None),
    )
