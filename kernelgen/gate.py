"""Old kernels against new ones: which are wrong, slower, faster, unchanged, or cannot be compared.

Both are loaded in one process and timed in pairs there: no stored microsecond is ever compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import quoteattr

from kernelgen.evaluate import Candidate, Evaluator
from kernelgen.journal import source_hash
from kernelgen.outcomes import CaseTiming, Status
from kernelgen.plan import Schedule
from kernelgen.spec.model import Case

MARGIN = 0.01
"""A case is called slower or faster where its whole 95 % interval is beyond this."""

SAME = "the same text"
"""Why an operator that was not run is unchanged."""

Verdict = Literal["wrong", "slower", "faster", "unchanged", "not comparable"]
BAD = ("wrong", "slower")
MOVED: tuple[Verdict, Verdict] = ("slower", "faster")


@dataclass(frozen=True)
class Change:
    """An operator's kernel as it was and as it is; a text is None where there is no such kernel."""

    operator: str
    old: str | None
    new: str | None
    same_interface: bool
    cases: tuple[Case, ...]
    schedule: Schedule | None
    """Of the new table's first row."""


@dataclass(frozen=True)
class Finding:
    """What became of one operator."""

    operator: str
    verdict: Verdict
    why: str
    timings: tuple[CaseTiming, ...] = ()
    """The new kernel against the old one, which is called current."""


Start = Callable[[Change], AbstractContextManager[Evaluator]]
"""The evaluator of a change's operator, on a device that measures."""


def examine(change: Change, start: Start, margin: float = MARGIN) -> Finding:
    """Judge one operator. A case that seems slower or faster must be so in a second measurement too."""
    name = change.operator
    if change.new is None:
        return Finding(name, "not comparable", "it is gone")
    if change.old is None:
        return Finding(name, "not comparable", "it is new")
    if not change.same_interface:
        return Finding(name, "not comparable", "its interface changed")
    if change.old == change.new:
        return Finding(name, "unchanged", SAME)
    with start(change) as evaluator:
        verified = evaluator.verify(_candidate(change, change.new))
        if verified.status is not Status.OK:
            return Finding(name, "wrong", f"{verified.status}: {verified.message}")
        return timed(change, evaluator, margin)


def timed(change: Change, evaluator: Evaluator, margin: float = MARGIN) -> Finding:
    """Judge the speed of a kernel that there was and is, and that is right."""
    assert change.old is not None
    assert change.new is not None
    name, old, new = change.operator, _candidate(change, change.old), _candidate(change, change.new)
    first = evaluator.final(new, old, change.cases)
    if first.status is not Status.OK:
        return Finding(name, "wrong", f"it failed while it was timed: {first.status}: {first.message}")
    if not first.timings:
        why = next((f"{case}: {why}" for case, why in first.left_out), "there is no performance case")
        return Finding(name, "not comparable", why)
    moved = [case for case in change.cases if _moved(_of(first.timings, case.label), margin)]
    second = evaluator.final(new, old, moved).timings if moved else ()
    again = {t.case: t for t in second}
    timings = tuple(_nearer(t, again.get(t.case)) for t in first.timings)
    verdicts = {t.case: _moved(t, margin) for t in timings}
    for verdict in MOVED:
        named = [case for case, found in verdicts.items() if found == verdict]
        if named:
            interval = next(t.interval for t in timings if t.case == named[0])
            more = f" and {len(named) - 1} more" if len(named) > 1 else ""
            return Finding(name, verdict, f"{named[0]}: {interval}{more}", timings)
    return Finding(name, "unchanged", f"within {100 * margin:g} % in {len(timings)} cases", timings)


def _candidate(change: Change, source: str) -> Candidate:
    assert change.schedule is not None
    return Candidate(source, source_hash(source), 0, change.schedule, change.cases, change.operator)


def _of(timings: Sequence[CaseTiming], case: str) -> CaseTiming | None:
    return next((t for t in timings if t.case == case), None)


def _moved(timing: CaseTiming | None, margin: float) -> Verdict | None:
    """Whether the whole interval is beyond the margin; a time without an interval says nothing."""
    if timing is None or timing.interval is None:
        return None
    if timing.interval.high < 1 - margin:
        return "slower"
    return "faster" if timing.interval.low > 1 + margin else None


def _nearer(first: CaseTiming, second: CaseTiming | None) -> CaseTiming:
    """Of two measurements the one that says less."""
    return first if second is None or abs(first.speedup - 1) <= abs(second.speedup - 1) else second


def passed(findings: Sequence[Finding]) -> bool:
    """Whether nothing is wrong or slower."""
    return not any(one.verdict in BAD for one in findings)


def markdown(findings: Sequence[Finding], against: str, device: str) -> str:
    """What a pull request shows: the verdicts, the bad ones first, and every measured case below them."""
    order = {"wrong": 0, "slower": 1, "not comparable": 2, "faster": 3, "unchanged": 4}
    ranked = sorted(findings, key=lambda one: order[one.verdict])
    counts = ", ".join(f"{n} {v}" for v in order if (n := sum(one.verdict == v for one in findings)))
    state = "passed" if passed(findings) else "failed"
    lines = [f"## kernelgen gate {state}: {counts or 'nothing to compare'}", "", f"Against {against}, on {device}.", ""]
    lines += ["| operator | verdict | |", "|---|---|---|"]
    same = [one for one in ranked if one.why == SAME]
    shown = [one for one in ranked if one.why != SAME] if len(same) > 1 else ranked
    lines += [f"| {one.operator} | {one.verdict} | {_cell(one.why)} |" for one in shown]
    if len(shown) < len(ranked):
        lines.append(f"| {len(same)} operators | unchanged | {SAME} |")
    rows = [
        f"| {one.operator} | {_cell(t.case)} | {t.against_us:.2f} | {t.time_us:.2f} | {t.interval or ''} |"
        for one in ranked
        for t in one.timings
    ]
    if rows:
        lines += ["", f"<details><summary>{len(rows)} cases</summary>", ""]
        lines += [
            "| operator | case | old µs | new µs | old / new |",
            "|---|---|---:|---:|---:|",
            *rows,
            "",
            "</details>",
        ]
    return "\n".join(lines) + "\n"


def junit(findings: Sequence[Finding]) -> str:
    """JUnit XML: a test an operator; what is not comparable is skipped."""
    bad = sum(one.verdict in BAD for one in findings)
    skipped = sum(one.verdict == "not comparable" for one in findings)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuite name="kernelgen gate" tests="{len(findings)}" failures="{bad}" errors="0" skipped="{skipped}">',
    ]
    for one in findings:
        said = quoteattr(f"{one.verdict}: {one.why}")
        inner = f"<failure message={said}/>" if one.verdict in BAD else ""
        inner = f"<skipped message={said}/>" if one.verdict == "not comparable" else inner
        lines.append(f'<testcase classname="kernelgen.gate" name={quoteattr(one.operator)}>{inner}</testcase>')
    return "\n".join([*lines, "</testsuite>"]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
