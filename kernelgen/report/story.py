"""One operator's newest run, read from its journal alone: frozen data that the page prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen import journal
from kernelgen.files import read_text
from kernelgen.journal import PACKED, Record
from kernelgen.optimization.decide import overall
from kernelgen.optimization.head import head
from kernelgen.outcomes import CaseTiming, Evaluation, Interval, Source, Status, evaluation_from_json

AGAINST = {"eager": "eager", "compile": "torch.compile"}


@dataclass(frozen=True)
class Bar:
    """A speedup with its 95 % interval; a prediction has none."""

    name: str
    """What it is over: eager, torch.compile, or best, the faster of the two."""
    speedup: float
    interval: Interval | None
    time_us: float
    """Of what it is over."""


@dataclass(frozen=True)
class CaseLine:
    """One case of the kernel that the run ended with."""

    case: str
    time_us: float
    source: Source
    share: float | None
    """Of the roofline, 0 to 1."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Point:
    """Where a case lies below the roofline."""

    case: str
    intensity: float
    """FLOP a byte."""
    rate: float
    """FLOP a second that it reaches."""
    ceiling: float
    """FLOP a second that its arithmetic could reach at most."""


@dataclass(frozen=True)
class Tried:
    """One candidate."""

    round: int
    what: str
    result: str
    """Why it has no speedup."""
    speedup: float | None
    """Over the kernel before it, geometric mean over its cases; None where it failed or was dropped."""
    registers: int | None
    occupancy: float | None


@dataclass(frozen=True)
class Error:
    """One accuracy case."""

    case: str
    passed: bool
    error: float
    eager: float
    share: float | None
    """The largest error over the bound of its element."""
    relative: float | None
    l2: float | None
    peak: int | None
    """Bytes."""
    message: str


@dataclass(frozen=True)
class Story:
    """All that the page says of an operator; of one that never ran only its name and kernel."""

    operator: str
    kernel: str
    """The text of `_triton.py` as the run left it."""
    before: str = ""
    """The text it started from."""
    run: str = ""
    state: str = ""
    """How the run ended, or where it stopped."""
    head: dict[str, Any] | None = None
    """As above the operator's log; None before round 0 was finished."""
    machine: tuple[tuple[str, str], ...] = ()
    cases: tuple[CaseLine, ...] = ()
    points: tuple[Point, ...] = ()
    bandwidth: float = 0.0
    """Bytes a second that the memory could move."""
    tried: tuple[Tried, ...] = ()
    errors: tuple[Error, ...] = ()
    command: str = ""
    """What makes the run again."""


def story(operator: str, kernel: Path, logs: Path, elsewhere: Path | None = None) -> Story:
    """The newest run of an operator; where it ran elsewhere, what its packed journals in `elsewhere` say.

    Raises JournalError where its journal is damaged before its last line.
    """
    text = read_text(kernel) or ""
    command = f"kernelgen optimize {operator}"
    folder, records = _newest(logs, elsewhere)
    if folder is None:
        return Story(operator, text, command=command, state="never optimised")
    begun = next((r.data for r in records if r.kind == "run"), None)
    if begun is None:
        return Story(operator, text, command=command, state="never optimised", run=folder.name)
    rounds = [r.data for r in records if r.kind == "round"]
    reason = next((r.data["reason"] for r in records if r.kind == "finished"), "")
    goes_on = "running now" if journal.is_locked(logs) else f"`{command}` goes on from there"
    goes_on = f"; {goes_on}" if folder.is_dir() else ""  # a packed journal is continued by nobody
    stopped = f"stopped after round {rounds[-1]['round']}" if rounds else "stopped before its baseline was known"
    kept = [data for data in rounds if data["kept"]]
    first, last = (kept[0]["hash"], kept[-1]["hash"]) if kept else ("", "")
    figures = evaluation_from_json(kept[-1]["figures"]) if kept else None
    work = rounds[0].get("work", {}) if rounds else {}
    return Story(
        operator, _source(folder, last) or text, _source(folder, first), folder.name,
        reason or f"{stopped}{goes_on}",
        head(records, reason) if rounds and "standing" in rounds[0]["entry"] else None,
        tuple((str(k), str(v)) for k, v in begun["device"].items()), _cases(figures) if figures else (),
        _points(figures, work.get("cases", {})) if figures else (), work.get("bytes_per_s", 0.0), _tried(records),
        _errors(records, last), command,
    )  # fmt: skip


def _newest(logs: Path, elsewhere: Path | None) -> tuple[Path | None, tuple[Record, ...]]:
    """The folder of a run, which need not be there, and its records."""
    if runs := journal.runs(logs):
        return runs[-1], journal.read(runs[-1])
    packed = sorted(elsewhere.glob(f"*{PACKED}")) if elsewhere else []
    return (logs / packed[-1].name.removesuffix(PACKED), journal.read_packed(packed[-1])) if packed else (None, ())


def _source(folder: Path, name: str) -> str:
    return (read_text(folder / "candidates" / f"{name}.py") or "") if name else ""


def _cases(figures: Evaluation) -> tuple[CaseLine, ...]:
    found: dict[str, list[CaseTiming]] = {}
    for timing in figures.timings:
        found.setdefault(timing.case, []).append(timing)
    lines = []
    for case, timings in found.items():
        bars = [
            Bar(AGAINST[t.against], t.speedup, t.interval, t.against_us) for t in timings if t.against in AGAINST
        ]  # fmt: skip
        if len(bars) > 1:
            best = min(bars, key=lambda bar: bar.speedup)
            bars.append(Bar("best of both", best.speedup, best.interval, best.time_us))
        own = timings[0]
        share = own.floor_us / own.time_us if own.floor_us else None
        lines.append(CaseLine(case, own.time_us, own.source, share, tuple(bars)))
    return tuple(lines)


def _points(figures: Evaluation, work: dict[str, Any]) -> tuple[Point, ...]:
    """The cases that compute something; what only moves bytes has no place below a roofline."""
    found = {}
    for timing in figures.timings:
        one = work.get(timing.case)
        if one and one["flops"] and one["bytes"]:
            rate = one["flops"] / (timing.time_us * 1e-6)
            found[timing.case] = Point(timing.case, one["flops"] / one["bytes"], rate, one["flops"] / one["seconds"])
    return tuple(found.values())


def _tried(records: Sequence[Record]) -> tuple[Tried, ...]:
    found = []
    for data in (r.data for r in records if r.kind == "candidate"):
        evaluation = evaluation_from_json(data["evaluation"])
        timings = evaluation.speedups("current")
        mean = overall(timings) if evaluation.status is Status.OK and len(timings) == len(data["cases"]) else None
        failed = "dropped: slower at once" if evaluation.status is Status.OK else evaluation.status.value
        registers = max((one.registers for _, one in evaluation.facts), default=None)
        occupancy = min((one.occupancy for _, one in evaluation.facts), default=None)
        result = "" if mean else f"{failed}: {evaluation.message}" if evaluation.message else failed
        found.append(Tried(data["round"], data["what"], result, mean.estimate if mean else None, registers, occupancy))
    return tuple(found)


def _errors(records: Sequence[Record], kernel: str) -> tuple[Error, ...]:
    """The accuracy test of a kernel, by its hash: the last one that there is."""
    tests = [r.data["evaluation"] for r in records if r.kind in ("start", "verify", "checked")]
    own = [data for data in tests if data["source_hash"] == kernel]
    results = evaluation_from_json(own[-1]).accuracy if own else ()
    return tuple(
        Error(
            a.case,
            a.passed,
            a.max_error,
            a.eager_error,
            a.bound_share,
            a.relative_error,
            a.l2_error,
            a.peak_bytes,
            a.message,
        )
        for a in results
    )
