"""What a round's search came to: the winner measured afresh, verified, and kept or reverted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kernelgen.diagnose import Seen
from kernelgen.evaluate import Candidate
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import Decision, Judged, decide, targets
from kernelgen.optimization.search import Tried, current, winners
from kernelgen.optimization.state import State, serving, table_to_json
from kernelgen.outcomes import CaseTiming, Counters, Evaluation, Status, evaluation_from_json, to_json
from kernelgen.spec.model import Case
from kernelgen.strategies.context import Table


@dataclass(frozen=True)
class Outcome:
    """How a round ended."""

    kept: bool
    why: str
    proposed: Table
    """What the round would have changed the table to; the current table where no candidate was faster."""
    hash: str
    """Of the kernel that is current after the round."""
    final: Evaluation | None = None
    verified: Evaluation | None = None
    figures: Evaluation | None = None
    """The kept kernel against both baselines."""


def settle(bench: Bench, state: State, tried: list[Tried]) -> Outcome:
    """Compose the winners, compare them afresh with the current kernel, keep what is right and faster beyond doubt."""
    number = state.rounds + 1
    table, best = winners(state.plan, tried)
    if not best:
        return Outcome(False, _nothing(tried), state.plan.table, state.hash)
    whole = best[0].proposal.row is None
    new, cases = _composed(bench, state, table)
    data = bench.once(
        "final",
        number,
        lambda: _step(new, table, cases, bench.evaluator.final(new, incumbent(bench, state, cases), cases)),
    )
    final = evaluation_from_json(data["evaluation"])
    if final.status is not Status.OK:
        return Outcome(
            False, f"the winner failed when it ran again: {final.status}: {final.message}", table, state.hash, final
        )
    table, decision = _better_rows(bench, state, table, final.speedups("current"), whole)
    if not decision.keep:
        return Outcome(False, decision.why, table, state.hash, final)
    new, cases = _composed(bench, state, table)
    data = bench.once("verify", number, lambda: _step(new, table, cases, _verified(bench, new)))
    verified = evaluation_from_json(data["evaluation"])
    if verified.status is not Status.OK:
        why = f"the winner is not right: {verified.message or verified.status}"
        return Outcome(False, why, table, state.hash, final, verified)
    data = bench.once("figures", number, lambda: {"figures": to_json(_figures_after(bench, state, new, cases))})
    against = evaluation_from_json(data["figures"])
    if against.status is not Status.OK:
        why = f"the performance test failed: {against.status}: {against.message}"
        return Outcome(False, why, table, state.hash, final, verified)
    return Outcome(True, decision.why, table, new.source_hash, final, verified, against)


def incumbent(bench: Bench, state: State, cases: tuple[Case, ...]) -> Candidate:
    """The current kernel as a candidate: the very text that was stored, whatever the templates would print today."""
    schedule = state.plan.table[0].schedule
    return Candidate(bench.journal.source(state.hash), state.hash, 0, schedule, cases, "current")


def figures(bench: Bench, candidate: Candidate, cases: tuple[Case, ...]) -> Evaluation:
    """A kernel against eager and compile; where PyTorch cannot be timed, against itself, so that its time is known."""
    found = bench.evaluator.baselines(candidate, cases)
    timed = {t.case for t in found.timings} | {label for label, _ in found.left_out if found.timings}
    missing = tuple(case for case in cases if case.label not in timed)
    if not missing or found.status is not Status.OK:
        return found
    own = bench.evaluator.final(candidate, candidate, missing)
    left_out = found.left_out if found.timings else own.left_out
    return Evaluation(
        found.source_hash, own.status, own.message, own.facts, found.accuracy, (*found.timings, *own.timings), left_out,
        simulated_us=found.simulated_us,
    )  # fmt: skip


def _figures_after(bench: Bench, state: State, new: Candidate, cases: tuple[Case, ...]) -> Evaluation:
    """The figures of a kernel that differs from the current one on these cases; on the others it is the same kernel,
    and what this run measured of it holds."""
    found = figures(bench, new, cases)
    if state.figures is None or found.status is not Status.OK:
        return found
    labels = {case.label for case in cases}
    kept = [t for t in state.figures.timings if t.case not in labels]
    left = [pair for pair in state.figures.left_out if pair[0] not in labels]
    order = {case.label: n for n, case in enumerate(bench.cases)}
    timings = sorted((*kept, *found.timings), key=lambda t: order[t.case])
    return replace(found, timings=tuple(timings), left_out=(*left, *found.left_out))


def times(evaluation: Evaluation) -> dict[str, CaseTiming]:
    """One timing a case that says how long the kernel itself takes."""
    found: dict[str, CaseTiming] = {}
    for against in ("eager", "compile", "current"):
        for timing in evaluation.speedups(against):
            found.setdefault(timing.case, timing)
    return found


def judge_targets(bench: Bench, figures: Evaluation) -> tuple[Judged, ...]:
    """The spec's targets against a kernel's figures, and against its counters where this run read them."""
    known = times(figures)
    profiles = [r.data for r in bench.journal.records("profile") if r.data["counters"]]
    counted = {p["case"]: Counters.from_json(p["counters"]) for p in profiles if p["hash"] == figures.source_hash}
    seen = tuple(
        Seen(known[c.label], bench.evaluator.work(c), (), counted.get(c.label)) for c in bench.cases if c.label in known
    )
    l2_read = bench.device.measures and (not profiles or any(p["counters"]["l2_hit"] is not None for p in profiles))
    return targets(bench.plan.spec.target, figures.speedups("eager"), seen, bench.device.facts, l2_read)


def gains(outcome: Outcome) -> dict[str, float]:
    """Current over new by case, for the cases that a kept change touched."""
    return {t.case: t.speedup for t in outcome.final.speedups("current")} if outcome.kept and outcome.final else {}


def _composed(bench: Bench, state: State, table: Table) -> tuple[Candidate, tuple[Case, ...]]:
    plan = state.plan.with_table(table)
    before, after = (serving(p, bench.compiler, state.cases) for p in (state.plan, plan))
    cases = tuple(case for case in state.cases if before[case.label] != after[case.label])
    made = current(plan, bench.compiler, cases, what="the winners together")
    bench.journal.store(made.source)
    return made, cases


def _better_rows(
    bench: Bench, state: State, table: Table, timings: tuple[CaseTiming, ...], whole: bool
) -> tuple[Table, Decision]:
    """The table with only those rows changed that are better by themselves; another table is judged whole."""
    if whole or len(table) == 1:
        return table, decide(timings)
    rows = list(state.plan.table)
    kept: list[CaseTiming] = []
    for index, row in enumerate(table):
        served = {c.label for c in state.cases if bench.compiler.row_of(state.plan, c) == index}
        own = tuple(t for t in timings if t.case in served)
        if row != rows[index] and own and decide(own).keep:
            rows[index] = row
            kept.extend(own)
    return (tuple(rows), decide(tuple(kept))) if kept else (table, decide(timings))


def _verified(bench: Bench, candidate: Candidate) -> Evaluation:
    """What is known already of a candidate that was verified in the search or in an earlier run, else the accuracy test
    now."""
    known = [r.data for r in bench.journal.records("checked") if r.data["hash"] == candidate.source_hash]
    return evaluation_from_json(known[0]["evaluation"]) if known else bench.evaluator.verify(candidate, recall=True)


def _step(candidate: Candidate, table: Table, cases: tuple[Case, ...], evaluation: Evaluation) -> dict[str, Any]:
    return {
        "hash": candidate.source_hash,
        "table": table_to_json(table),
        "cases": [case.label for case in cases],
        "evaluation": to_json(evaluation),
    }


def _nothing(tried: list[Tried]) -> str:
    """Why there was no winner."""
    if not any(one.evaluation.status is Status.OK for one in tried):
        alone = tried[0].evaluation if len(tried) == 1 else None
        return f"{alone.status}: {alone.message}" if alone else "no candidate worked"
    slowed = [one for one in tried if (one.score or 0) > 1 and one.slows]
    if slowed:
        return f"what was faster in the mean was slower for {slowed[0].slows[0]}"
    return "no candidate was faster than the current kernel"
