"""A round put into the sections of the optimization log; the tables of a section are made in `words`."""

from __future__ import annotations

from kernelgen.custom import is_proposed
from kernelgen.definition import step_notes
from kernelgen.diagnose import Advice, Diagnosis, Seen
from kernelgen.llm.author import refusals
from kernelgen.log import Entry, TriedRow, cell
from kernelgen.optimize import lessons
from kernelgen.optimize.bench import Bench
from kernelgen.optimize.decide import gain, overall, show
from kernelgen.optimize.outcome import Outcome, times
from kernelgen.optimize.search import Tried
from kernelgen.optimize.state import State
from kernelgen.optimize.words import (
    PROPOSED_BY,
    Pair,
    accuracy,
    best_first,
    compared,
    diff,
    evidence_rows,
    floor_rows,
    modification,
    provenance,
    speedup_row,
    started,
    summary,
    target_rows,
    tried_row,
    version,
)
from kernelgen.outcomes import Evaluation, Status
from kernelgen.spec.model import CUSTOM

COLUMNS = ("current µs", "new µs", "current / new")
START_COLUMNS = ("eager µs", "kernel µs", "eager / kernel")
SHOWN = 24
"""Candidates listed in a section; the journal has all of them."""


def start_entry(
    bench: Bench, state: State, verified: Evaluation, figures: Evaluation, seconds: float, confined: list[str]
) -> Entry:
    """Round 0: the kernel the run starts from, against both baselines."""
    result = [speedup_row(bench, figures), *target_rows(bench, figures)]
    result.append(("accuracy test", accuracy(verified)))
    parts = "torch's" if state.plan.calls else "kernels"
    result += [(parts if i == 0 else "", cell(note)) for i, note in enumerate(step_notes(state.plan))]
    if is_proposed(state.plan):
        result.append(("kernel", PROPOSED_BY + (" (family: custom)" if bench.plan.family == CUSTOM else "")))
    if not bench.device.measures:
        result.append(("every time and speedup", "predicted: a model's estimate, nothing was timed on a device"))
    result += [
        ("simulated, the speed of no NPU", f"{cell(case)}: {time:.0f} µs") for case, time in figures.simulated_us
    ]
    result += [("left out", cell(f"{case}: {why}")) for case, why in figures.left_out]
    ok = verified.status is Status.OK
    headline = "The kernel that this run starts from." if ok else "**The kernel that this run starts from is wrong.**"
    return {
        **_empty(bench, "0", "where the run starts"),
        "headline": headline,
        "summary": summary(bench, state, state.kept),
        "cases": [started(t, figures.speedups("compile")) for t in times(figures).values()],
        "columns": START_COLUMNS,
        "result": result,
        "provenance": [
            *provenance(bench, state.hash, state.hash, seconds), ("candidates run with", cell("; ".join(confined)))
        ],
    }  # fmt: skip


def round_entry(
    bench: Bench,
    before: State,
    seen: tuple[Seen, ...],
    diagnosis: Diagnosis,
    advice: Advice,
    tried: list[Tried],
    outcome: Outcome,
    seconds: float,
) -> Entry:
    """A finished round, kept or reverted."""
    assert before.figures is not None
    spec = bench.plan.spec
    number = before.rounds + 1
    fate = "kept" if outcome.kept else "reverted"
    figures = outcome.figures if outcome.kept and outcome.figures else before.figures
    timings = outcome.final.speedups("current") if outcome.final else ()
    mean = overall(timings)
    # Cases whose schedule did not change count as 1 in the mean over all of them.
    change = gain(mean.estimate ** (len(timings) / len(before.cases))) if mean else "none"
    result: list[Pair] = [
        ("current / new", f"{show(mean)} ({bench.source})" if mean else "not compared afresh: no candidate was faster"),
        ("change over all cases", f"{change} ({bench.source})"),
        speedup_row(bench, figures),
        *(floor_rows(bench, figures) if outcome.kept else ()),
        *target_rows(bench, figures),
        ("accuracy test", accuracy(outcome.verified)),
    ]
    return {
        **_empty(bench, str(number), f"round {number} · {advice.strategy} · {fate}"),
        "headline": f"**{fate.capitalize()}.** {_headline(before, tried, outcome)}.",
        "summary": summary(bench, before, before.kept + outcome.kept),
        "bottleneck": diagnosis.bottleneck,
        "evidence": evidence_rows(bench, seen, diagnosis),
        "modification": modification(bench, before, advice, tried, outcome),
        "diff": diff(
            spec.name,
            bench.journal.source(before.hash),
            bench.compiler.source(before.plan.with_table(outcome.proposed)),
        ),
        "tried": [*(tried_row(one) for one in best_first(tried)[:SHOWN]), *_refused(bench, number)],
        "cases": [compared(t) for t in timings],
        "columns": COLUMNS,
        "result": result,
        "worked": lessons.worked(tried, outcome),
        "failed": lessons.failed(tried, outcome),
        "next": lessons.upcoming(before, diagnosis, advice.strategy, tried, outcome),
        "provenance": provenance(bench, before.hash, outcome.hash, seconds),
    }


def _refused(bench: Bench, number: int) -> list[TriedRow]:
    """Answers of a language model that became no candidate, each with why."""
    return [
        {"what": "an answer of the model's", "expected": "-", "outcome": cell(f"refused: {why}")}
        for why in refusals(bench.journal, number)
    ]


def end_entry(bench: Bench, state: State, reason: str) -> Entry:
    """The closing lines of a run."""
    figures = state.figures
    changes = f"{state.kept} of {max(state.rounds, 0)} rounds kept"
    result = [("version", version(bench, state.kept, state.kept))]
    if figures:
        result += [speedup_row(bench, figures), *floor_rows(bench, figures), *target_rows(bench, figures)]
    return {
        **_empty(bench, "end", "the run's end"),
        "headline": f"{reason[:1].upper()}{reason[1:]}; {changes}.",
        "result": result,
    }


def _headline(before: State, tried: list[Tried], outcome: Outcome) -> str:
    """What the round came to, as one sentence."""
    if outcome.proposed == before.plan.table:
        return f"{outcome.why[:1].upper()}{outcome.why[1:]}"
    return f"{lessons.names(tried, outcome)}: {outcome.why}"


def _empty(bench: Bench, section: str, title: str) -> Entry:
    return {
        "operator": bench.plan.spec.name, "run": bench.run, "section": section, "title": title, "source": bench.source,
        "headline": "", "summary": [], "bottleneck": "", "evidence": [], "modification": [], "diff": "", "tried": [],
        "cases": [], "columns": COLUMNS, "result": [], "worked": [], "failed": [], "next": [], "provenance": [],
    }  # fmt: skip
