"""One round's search: the candidates of one strategy, and the best of them composed into one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from kernelgen.diagnose import geomean
from kernelgen.evaluate import Candidate
from kernelgen.journal import Journal, source_hash
from kernelgen.optimization.decide import verdict
from kernelgen.optimization.state import State, serving, table_from_json, table_to_json
from kernelgen.outcomes import Evaluation, Status, evaluation_from_json
from kernelgen.plan import Plan
from kernelgen.spec.model import Case
from kernelgen.strategies import Compiler, Proposal
from kernelgen.strategies.context import Table

WHOLE = -1
"""The row of a candidate that is another table."""


@dataclass(frozen=True)
class Tried:
    """A candidate with what it was meant to be and what became of it."""

    proposal: Proposal
    candidate: Candidate
    evaluation: Evaluation

    @property
    def score(self) -> float | None:
        """Geometric mean of current over new on the cases it is for; None where it cannot be compared."""
        timings = {t.case: t for t in self.evaluation.speedups("current")}
        skipped = {label for label, _ in self.evaluation.left_out}
        labels = [case.label for case in self.candidate.cases if case.label not in skipped]
        if self.evaluation.status is not Status.OK or not labels or not all(label in timings for label in labels):
            return None
        return geomean([timings[label].speedup for label in labels])

    @property
    def slows(self) -> tuple[str, ...]:
        """The cases that it makes slower."""
        return tuple(t.case for t in self.evaluation.speedups("current") if verdict(t) == "slower")


def candidate(state: State, compiler: Compiler, proposal: Proposal) -> Candidate:
    """The proposal as source; it is meant for the cases whose schedule it changes."""
    new = state.plan.with_table(proposal.table)
    before, after = (serving(p, compiler, state.cases) for p in (state.plan, new))
    cases = tuple(c for c in state.cases if before[c.label] != after[c.label])
    return current(new, compiler, cases, WHOLE if proposal.row is None else proposal.row, proposal.what)


def current(plan: Plan, compiler: Compiler, cases: tuple[Case, ...], row: int = 0, what: str = "current") -> Candidate:
    """A plan's own kernel as a candidate."""
    source = compiler.source(plan)
    return Candidate(source, source_hash(source), row, plan.table[max(row, 0)].schedule, cases, what)


def distinct(
    state: State, compiler: Compiler, proposals: tuple[Proposal, ...], known: set[str]
) -> Iterator[tuple[Proposal, Candidate]]:
    """Proposals whose source is another than any known one; two schedules may well give the same text."""
    for proposal in proposals:
        made = candidate(state, compiler, proposal)
        if made.source_hash not in known and made.cases:
            known.add(made.source_hash)
            yield proposal, made


def winners(plan: Plan, tried: list[Tried]) -> tuple[Table, list[Tried]]:
    """The table composed of each row's best candidate, and those; the current table where nothing was faster."""
    best: dict[int | None, tuple[float, Tried]] = {}
    for one in tried:
        score = one.score
        # One that slows a case down would be turned away in the end, however fast it is for the others.
        if score is None or score <= 1 or one.slows:
            continue
        row = one.proposal.row
        # Tables may touch more cases or fewer: what counts is the effect on all of them together.
        effect = score ** len(one.candidate.cases)
        if row not in best or effect > best[row][0]:
            best[row] = (effect, one)
    whole = best.pop(None, None)
    if whole is not None and whole[0] >= prod(effect for effect, _ in best.values()):
        return whole[1].proposal.table, [whole[1]]
    table = list(plan.table)
    for row, (_, one) in best.items():
        assert row is not None
        table[row] = one.proposal.table[row]
    return tuple(table), [one for _, one in best.values()]


def store_choice(journal: Journal, head: dict[str, Any], pairs: list[tuple[Proposal, Candidate]]) -> None:
    """Make the sources durable, then record which candidates this wave tries."""
    for _, made in pairs:
        journal.store(made.source)
    rows = [
        {"hash": made.source_hash, "row": p.row, "table": table_to_json(p.table), "what": p.what, "reason": p.reason,
         "predicted_gain": p.predicted_gain, "cases": [c.label for c in made.cases]}
        for p, made in pairs
    ]  # fmt: skip
    journal.append("choice", {**head, "candidates": rows})


def load_choice(journal: Journal, plan: Plan, data: dict[str, Any]) -> list[tuple[Proposal, Candidate]]:
    """The inverse of `store_choice`: the same candidates, from the stored sources."""
    pairs = []
    for row in data["candidates"]:
        table = table_from_json(row["table"])
        proposal = Proposal(table, row["row"], row["what"], row["reason"], row["predicted_gain"])
        cases = tuple(c for c in plan.spec.performance if c.label in row["cases"])
        index = WHOLE if row["row"] is None else row["row"]
        schedule = table[max(index, 0)].schedule
        pairs.append(
            (proposal, Candidate(journal.source(row["hash"]), row["hash"], index, schedule, cases, row["what"]))
        )
    return pairs


def recorded_choice(journal: Journal, number: int, wave: int) -> dict[str, Any] | None:
    """What a wave of a round was recorded to try."""
    found = (r.data for r in journal.records("choice") if (r.data["round"], r.data["wave"]) == (number, wave))
    return next(found, None)


def evaluations(journal: Journal, number: int) -> dict[str, Evaluation]:
    """What this round's candidates already came to, by hash."""
    return {
        r.data["hash"]: evaluation_from_json(r.data["evaluation"])
        for r in journal.records("candidate")
        if r.data["round"] == number
    }
