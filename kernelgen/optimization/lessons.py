"""What a round taught, in sentences for the log: what was faster, why the rest was not, what to try next."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.diagnose import Diagnosis, Seen
from kernelgen.optimization.decide import gain, percent
from kernelgen.optimization.outcome import Outcome
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State
from kernelgen.outcomes import StaticFacts, Status
from kernelgen.schedule.problem import limits_text
from kernelgen.strategies.context import Table

MENTIONED = 3
"""Failures that a section spells out; the table has the others."""


def failed(before: State, seen: tuple[Seen, ...], tried: list[Tried], outcome: Outcome) -> list[str]:
    """What did not work, with what the compiler or the clock says of it: the best of the slow, each kind of failure."""
    lines = []
    if outcome.final is not None and not outcome.kept:
        lines.append(f"{names(before.plan.table, tried, outcome)}: {outcome.why}")
    slow = [one for one in tried if one.evaluation.status is Status.OK and one.score is not None and one.score <= 1]
    for one in sorted(slow, key=lambda one: -(one.score or 0.0))[:MENTIONED]:
        if why := _measured_reason(one, seen):
            lines.append(f"{where(before.plan.table, one.proposal.row)}{one.proposal.what}: {one.score:.3f}x, {why}")
    kinds: dict[Status, list[Tried]] = {}
    for one in tried:
        if one.evaluation.status is not Status.OK:
            kinds.setdefault(one.evaluation.status, []).append(one)
    for status, several in kinds.items():
        more = f", and {len(several) - 1} more like it" if len(several) > 1 else ""
        lines.append(f"{several[0].proposal.what}: {status}: {several[0].evaluation.message}{more}")
    return lines


def _measured_reason(one: Tried, seen: tuple[Seen, ...]) -> str:
    """What differs from the current kernel where a candidate lost most; empty where nothing that was read does."""
    timing = min(one.evaluation.speedups("current"), key=lambda t: t.speedup)
    new = [facts for label, facts in one.evaluation.facts if label == timing.case]
    old = next((list(s.facts) for s in seen if s.timing.case == timing.case), [])
    found = differences(old, new)
    return f"at worst {timing.speedup:.3f}x on {timing.case}: {found}" if found else ""


def differences(old: Sequence[StaticFacts], new: Sequence[StaticFacts]) -> str:
    """What the compiler says differently of two kernels' launches, such as `registers 64 -> 128`."""
    if not old or not new:
        return ""
    if len(old) != len(new):
        return f"{len(old)} -> {len(new)} kernels a call"
    found: list[str] = []
    for a, b in zip(old, new, strict=True):
        pairs = [
            ("occupancy limit", percent(a.occupancy), percent(b.occupancy)),
            ("registers", str(a.registers), str(b.registers)),
            ("spills", f"{a.spill_bytes} B", f"{b.spill_bytes} B"),
            ("waves", f"{a.waves:.2f}", f"{b.waves:.2f}"),
            ("widest load", f"{a.load_bytes} B", f"{b.load_bytes} B"),
            ("widest store", f"{a.store_bytes} B", f"{b.store_bytes} B"),
        ]
        found += [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]
    return ", ".join(dict.fromkeys(found))


def upcoming(state: State, diagnosis: Diagnosis, strategy: str, tried: list[Tried], outcome: Outcome) -> list[str]:
    """Where the next round would look."""
    done = set() if outcome.kept else state.tried | {strategy}
    left = [a for a in diagnosis.ranked if a.strategy not in done and a.strategy != strategy]
    lines = [f"{a.strategy} (at most {gain(a.gain)})" for a in left[:2]]
    split = [one for one in tried if (one.score or 0) > 1 and one.slows]
    if split and not outcome.kept and "dynamic_shape" not in done:
        lines.insert(0, "dynamic_shape: some candidates were faster for some sizes and slower for others")
    if outcome.kept and strategy != "dynamic_shape":
        lines.append(f"{strategy}: search again around the new kernel")
    return lines or ["nothing: every strategy of the spec was tried on this kernel"]


def where(table: Table, row: int | None) -> str:
    """The sizes that a row of a table serves, to stand before its change: `up to 32 KiB: `; empty where it is all."""
    if row is None or len(table) == 1 or row >= len(table):
        return ""
    if table[row].upto:
        return f"up to {limits_text(table[row])}: "
    before = table[row - 1]
    return f"above {limits_text(before)}: " if len(before.upto) == 1 else "other sizes: "


def names(before: Table, tried: list[Tried], outcome: Outcome) -> str:
    """The changes that the round proposed, in a few words."""
    table = outcome.proposed

    def is_part(one: Tried) -> bool:
        row, own = one.proposal.row, one.proposal.table
        if own == table:
            return True
        return row is not None and row < len(table) and own[row] == table[row] != before[min(row, len(before) - 1)]

    found = [where(before, one.proposal.row) + one.proposal.what for one in tried if is_part(one)]
    return "; ".join(dict.fromkeys(found)) or "the winners together"
