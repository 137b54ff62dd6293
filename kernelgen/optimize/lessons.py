"""What a round taught, in sentences for the log: what worked, what failed and why, what to try next."""

from __future__ import annotations

from kernelgen.diagnose import Diagnosis
from kernelgen.optimize.decide import gain, overall
from kernelgen.optimize.outcome import Outcome
from kernelgen.optimize.search import Tried
from kernelgen.optimize.state import State
from kernelgen.outcomes import Status

MENTIONED = 3
"""Failed candidates that a section spells out; the table has the others."""


def worked(tried: list[Tried], outcome: Outcome) -> list[str]:
    """What was faster, kept or not."""
    if outcome.kept and outcome.final:
        mean = overall(outcome.final.speedups("current"))
        return [
            f"{names(tried, outcome)} ({gain(mean.estimate)} on the cases it changes)"
            if mean
            else names(tried, outcome)
        ]
    return []


def failed(tried: list[Tried], outcome: Outcome) -> list[str]:
    """What was not, and why."""
    lines = [] if outcome.kept else [outcome.why]
    broken = [one for one in tried if one.evaluation.status is not Status.OK]
    lines += [f"{one.proposal.what}: {one.evaluation.status}: {one.evaluation.message}" for one in broken[:MENTIONED]]
    if len(broken) > MENTIONED:
        lines.append(f"{len(broken) - MENTIONED} more candidates did not work")
    slow = [one for one in tried if one.evaluation.status is Status.OK and (one.score or 0) <= 1]
    if slow:
        lines.append(f"{len(slow)} of {len(tried)} candidates were not faster in the search")
    return lines


def upcoming(state: State, diagnosis: Diagnosis, strategy: str, tried: list[Tried], outcome: Outcome) -> list[str]:
    """Where the next round would look."""
    done = set() if outcome.kept else state.tried | {strategy}
    left = [a for a in diagnosis.ranked if a.strategy not in done and a.strategy != strategy]
    lines = [f"{a.strategy}: up to {gain(a.gain)} predicted" for a in left[:2]]
    split = [one for one in tried if (one.score or 0) > 1 and one.slows]
    if split and not outcome.kept and "dynamic_shape" not in done:
        lines.insert(0, "dynamic_shape: some candidates were faster for some sizes and slower for others")
    if outcome.kept and strategy != "dynamic_shape":
        lines.append(f"{strategy} again from the new kernel: its neighbours are others now")
    return lines or ["nothing: every strategy of the spec was tried on this kernel"]


def names(tried: list[Tried], outcome: Outcome) -> str:
    table = outcome.proposed
    names = [
        one.proposal.what
        for one in tried
        if one.proposal.table == table or (one.proposal.row is not None and one.proposal.row < len(table)
                                           and one.proposal.table[one.proposal.row] == table[one.proposal.row])
    ]  # fmt: skip
    return "; ".join(dict.fromkeys(names)) or "the winners together"
