"""The rounds' side of a search: batch after batch until nothing is gained, and for `tune` a final among the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelgen.diagnose import Diagnosis
from kernelgen.optimization import search
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import MARGIN
from kernelgen.optimization.outcome import incumbent
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State, fold, table_to_json
from kernelgen.outcomes import Status, to_json
from kernelgen.strategies import Context, Proposal, Search
from kernelgen.strategies.dispatching import dispatched
from kernelgen.strategies.short import short
from kernelgen.strategies.tune import NAME, SEARCHED, is_restriction

FINALISTS = 5
"""Of a row, measured again against the current kernel in interleaved pairs before one of them is chosen."""
STOPPED = "stopped"
"""The record of a search that Ctrl-C ended."""
PATIENCE = 1
"""Batches without a gain after which a round of another strategy ends."""

Wave = Callable[[int, tuple[Proposal, ...], set[str]], list[Tried]]
"""Evaluates a wave of proposals, leaving out those whose source is known."""


def is_tuned(strategy: str) -> bool:
    """Whether a strategy's search is all there is to a run: it goes further, and Ctrl-C keeps what it found."""
    return strategy == NAME


def searched(
    bench: Bench, state: State, diagnosis: Diagnosis, strategy: str, first: tuple[Proposal, ...], going: Search,
    wave: Wave,
) -> list[Tried]:  # fmt: skip
    """Every candidate of the round. Ctrl-C ends the search of `tune`, and what was found so far is settled."""
    tried: list[Tried] = []
    if not is_tuned(strategy):
        _batches(bench, state, diagnosis, strategy, first, going, wave, tried)
        return tried
    number = state.rounds + 1
    stopped = any(r.data["round"] == number for r in bench.journal.records(STOPPED))
    try:
        if not stopped:
            _batches(bench, state, diagnosis, strategy, first, going, wave, tried)
    except KeyboardInterrupt:
        bench.journal.append(STOPPED, {"round": number, "evaluations": len(tried)})
        stopped = True
    if stopped:
        tried = _recorded(bench, state, number)
    return _final(bench, state, tried)


def _batches(
    bench: Bench, state: State, diagnosis: Diagnosis, strategy: str, first: tuple[Proposal, ...], going: Search,
    wave: Wave, tried: list[Tried],
) -> None:  # fmt: skip
    """Extends `tried` batch by batch, until nothing is gained any more or a limit is reached."""
    most, patience = _limits(bench, strategy, going)
    _record_spaces(bench, state.rounds + 1, going)
    best, idle, began, number, proposals = 1.0, 0, time.monotonic(), 1, first
    going.propose(context_of(bench, _then(bench, state, 1), diagnosis))  # gave `first`: it goes on from there
    minutes = bench.options.max_minutes
    while True:
        known = {one.candidate.source_hash for one in tried}
        fresh = wave(number, proposals, known)
        tried += fresh
        found = max([best, *(one.score or 0.0 for one in fresh)])
        idle, best = (0, found) if found > best * (1 + MARGIN) else (idle + 1, best)
        if len(tried) >= most or idle > patience or (minutes and time.monotonic() - began > 60 * minutes):
            break
        number += 1
        left = min(most - len(tried), bench.options.candidates)
        proposals = going.propose(context_of(bench, _then(bench, state, number), diagnosis, int(left)))
        if not proposals:
            break
    _record_refused(bench, state.rounds + 1, going)
    if is_tuned(strategy) and len(state.cases) > 1:
        tables = dispatched(context_of(bench, _then(bench, state, number + 1), diagnosis))
        tried += wave(number + 1, tables, {one.candidate.source_hash for one in tried})


def _then(bench: Bench, state: State, wave: int) -> State:
    """What was known when a wave of this round was chosen, so that a resumed search asks what it asked before."""
    records = bench.journal.records()
    chosen = (i for i, r in enumerate(records) if r.kind == "choice" and _is(r.data, state.rounds + 1, wave))
    return replace(fold(bench.plan, bench.compiler, records[: next(chosen, len(records))]), plan=state.plan)


def _is(data: dict[str, Any], number: int, wave: int) -> bool:
    return (data["round"], data["wave"]) == (number, wave)


def _limits(bench: Bench, strategy: str, going: Search) -> tuple[float, float]:
    """How many candidates a round has, and batches without a gain after which it ends."""
    tuning = bench.options.tuning
    if not is_tuned(strategy):
        return bench.options.candidates, PATIENCE
    if tuning.configs == SEARCHED or is_restriction(tuning.configs):
        return tuning.evaluations * len(going.rows), tuning.patience
    return float("inf"), float("inf")  # what was asked for one by one is measured to the last


def _record_spaces(bench: Bench, number: int, going: Search) -> None:
    """What every row may become, and why what was left out was."""

    def spaces() -> dict[str, object]:
        return {
            "rows": [
                {"row": r.row, "legal": len(r.space.schedules), "sampled": r.space.sampled,
                 "pruned": [list(one) for one in r.space.pruned]}
                for r in going.rows
            ]
        }  # fmt: skip

    bench.once("space", number, spaces)


def _record_refused(bench: Bench, number: int, going: Search) -> None:
    """What the search chose and a row could not promise its largest sizes, each with the reason."""

    def refused() -> dict[str, Any]:
        return {
            "rows": [
                {"row": r.row, "what": short(schedule, r.space.axes[schedule.variant].parameters), "reason": reason}
                for r in going.rows
                for schedule, reason in r.refused.items()
            ]
        }

    bench.once("pruned", number, refused)


def context_of(bench: Bench, state: State, diagnosis: Diagnosis, limit: int | None = None) -> Context:
    """What a strategy may look at; `limit` candidates, or as many as a round has."""
    return Context(
        state.plan, state.cases, diagnosis, state.history, bench.compiler, limit or bench.options.candidates,
        bench.author, bench.options.tuning, bench.options.adopted,
    )  # fmt: skip


def _recorded(bench: Bench, state: State, number: int) -> list[Tried]:
    """What the journal has of a round."""
    done = search.evaluations(bench.journal, number)
    choices = [r.data for r in bench.journal.records("choice") if r.data["round"] == number]
    pairs = [pair for data in choices for pair in search.load_choice(bench.journal, state.plan, data)]
    return [Tried(proposal, made, done[made.source_hash]) for proposal, made in pairs if made.source_hash in done]


def _final(bench: Bench, state: State, tried: list[Tried]) -> list[Tried]:
    """The same, the fastest of every row measured again with intervals: the first look flatters the luckiest."""
    number = state.rounds + 1
    again = {r.data["hash"] for r in bench.journal.records("candidate") if r.data.get("again")}
    best = sorted((one for one in tried if (one.score or 0.0) > 1), key=lambda one: -(one.score or 0.0))
    rows: dict[int | None, int] = {}
    measured: dict[str, Tried] = {}
    for one in best:
        place = rows.setdefault(one.proposal.row, 0)
        if place >= FINALISTS or one.candidate.source_hash in again:
            continue
        rows[one.proposal.row] += 1
        cases = one.candidate.cases
        evaluation = bench.evaluator.final(one.candidate, incumbent(bench, state, cases), cases)
        data = {
            "round": number, "wave": 0, "again": True, "hash": one.candidate.source_hash,
            "table": table_to_json(one.proposal.table), "what": one.proposal.what,
            "cases": [case.label for case in cases], "evaluation": to_json(evaluation),
        }  # fmt: skip
        bench.journal.append("candidate", data)
        measured[one.candidate.source_hash] = replace(one, evaluation=evaluation)
    chosen = [measured.get(one.candidate.source_hash, one) for one in tried]
    # who was not in the final has a first look alone, which may not beat those that were looked at twice
    finals = {*again, *measured}
    return [
        one
        for one in chosen
        if one.candidate.source_hash in finals or (one.score or 0.0) <= 1 or one.evaluation.status is not Status.OK
    ]
