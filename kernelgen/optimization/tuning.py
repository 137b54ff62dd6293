"""The rounds' side of the strategy `tune`: batch after batch until nothing is gained, and a final among the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kernelgen.diagnose import Diagnosis
from kernelgen.optimization import search
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import MARGIN
from kernelgen.optimization.outcome import incumbent
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State, fold, table_to_json
from kernelgen.outcomes import Status, to_json
from kernelgen.strategies import Context, Proposal
from kernelgen.strategies.tune import NAME, SEARCHED, Tuner, is_restriction

FINALISTS = 5
"""Of a row, measured again against the current kernel in interleaved pairs before one of them is chosen."""
STOPPED = "stopped"
"""The record of a search that Ctrl-C ended."""

Wave = Callable[[int, tuple[Proposal, ...], set[str]], list[Tried]]
"""Evaluates a wave of proposals, leaving out those whose source is known."""


def is_tuned(strategy: str) -> bool:
    return strategy == NAME


def searched(bench: Bench, state: State, diagnosis: Diagnosis, first: tuple[Proposal, ...], wave: Wave) -> list[Tried]:
    """Every candidate of the round. Ctrl-C ends the search, and what was found so far is settled."""
    tried: list[Tried] = []
    number = state.rounds + 1
    stopped = any(r.data["round"] == number for r in bench.journal.records(STOPPED))
    try:
        if not stopped:
            _batches(bench, state, diagnosis, first, wave, tried)
    except KeyboardInterrupt:
        bench.journal.append(STOPPED, {"round": number, "evaluations": len(tried)})
        stopped = True
    if stopped:
        tried = _recorded(bench, state, number)
    return _final(bench, state, tried)


def _batches(
    bench: Bench, state: State, diagnosis: Diagnosis, first: tuple[Proposal, ...], wave: Wave, tried: list[Tried]
) -> None:
    """Extends `tried` batch by batch, until nothing is gained any more or a limit is reached."""
    tuning, limits = bench.options.tuning, bench.options
    tuner = Tuner(context_of(bench, state, diagnosis))
    _record_spaces(bench, state.rounds + 1, tuner)
    best, idle, began, number, proposals = 1.0, 0, time.monotonic(), 1, first
    while True:
        known = {one.candidate.source_hash for one in tried}
        fresh = wave(number, proposals, known)
        tried += fresh
        found = max([best, *(one.score or 0.0 for one in fresh)])
        idle, best = (0, found) if found > best * (1 + MARGIN) else (idle + 1, best)
        rows = len({one.proposal.row for one in tried}) or 1
        searching = tuning.configs == SEARCHED or is_restriction(tuning.configs)
        over = limits.max_minutes is not None and time.monotonic() - began > 60 * limits.max_minutes
        if over or (searching and (idle > tuning.patience or len(tried) >= tuning.evaluations * rows)):
            return
        number += 1
        proposals = ()
        if search.recorded_choice(bench.journal, state.rounds + 1, number) is None:
            now = replace(fold(bench.plan, bench.compiler, bench.journal.records()), plan=state.plan)
            context = context_of(bench, now, diagnosis)
            proposals = tuner.propose(context)
            if not proposals:
                return


def _record_spaces(bench: Bench, number: int, tuner: Tuner) -> None:
    """What every row may become, and why what was left out was."""

    def spaces() -> dict[str, object]:
        return {
            "rows": [
                {"row": r.row, "legal": len(r.space.schedules), "sampled": r.space.sampled,
                 "pruned": [list(one) for one in r.space.pruned]}
                for r in tuner.rows
            ]
        }  # fmt: skip

    bench.once("space", number, spaces)


def context_of(bench: Bench, state: State, diagnosis: Diagnosis) -> Context:
    return Context(
        state.plan, state.cases, diagnosis, state.history, bench.compiler, bench.options.candidates,
        tuning=bench.options.tuning,
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
