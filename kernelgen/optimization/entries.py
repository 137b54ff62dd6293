"""A round put into the sections of the optimization log; the tables of a section are made in `words`."""

from __future__ import annotations

from kernelgen.definition import step_notes
from kernelgen.diagnose import Advice, Diagnosis, Seen
from kernelgen.llm.author import refusals
from kernelgen.log import Entry, TriedRow, cell
from kernelgen.optimization import lessons
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import gain, overall, show
from kernelgen.optimization.outcome import Outcome, times
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State
from kernelgen.optimization.words import (
    WRITTEN_BY,
    Pair,
    accuracy,
    aims,
    best_first,
    change_type,
    changed,
    compared,
    diff,
    evidence_rows,
    how,
    machine,
    made,
    roofline,
    shapes,
    speedups,
    standing,
    started,
    targets_text,
    tried_row,
    version,
)
from kernelgen.outcomes import Evaluation, Status
from kernelgen.spec.model import CUSTOM
from kernelgen.strategies import adopt

SHOWN = 6
"""Candidates listed in a section; the journal has all of them."""
DIFF_LINES = 16
"""Of a diff, in a section; the journal has both kernels whole."""


def start_entry(bench: Bench, state: State, verified: Evaluation, figures: Evaluation, seconds: float) -> Entry:
    """Round 0: the kernel the run starts from, against both baselines."""
    spec = bench.plan.spec
    ok = verified.status is Status.OK
    now = standing(bench, state.plan, state.kept, figures)
    points: list[Pair] = [
        ("Machine", cell(machine(bench))),
        ("Shapes", cell(shapes(bench.cases))),
        ("Target", f"{aims(spec.target)}; {targets_text(now['targets'], bench.source)}"),
        ("Accuracy", accuracy(verified)),
    ]
    notes = "; ".join(step_notes(state.plan))
    points += [("torch's part" if state.plan.calls else "Kernels", cell(notes))] if notes else []
    if whose := WRITTEN_BY.get(state.plan.table[0].schedule.variant):
        points.append(("Kernel", whose + (" (family: custom)" if bench.plan.family == CUSTOM else "")))
    points += [
        ("Simulated, the speed of no NPU", f"{cell(case)}: {time:.0f} µs") for case, time in figures.simulated_us
    ]
    if bench.device.measures:
        points += [("Left out", cell(f"{case}: {why}")) for case, why in figures.left_out]
    said = "; ".join(filter(None, [speedups(bench, figures), roofline(bench, figures)]))
    headline = (
        f"Baseline: {said}; {accuracy(verified)}." if ok else "**The kernel that this run starts from is wrong.**"
    )
    return {
        **_empty(bench, "0", f"baseline · {version(bench, state.kept)}"),
        "headline": headline,
        "row": {
            "strategy": "–", "change": "baseline", "previous": "–", "result": accuracy(verified) if ok else "wrong"
        },
        "standing": now,
        "points": points,
        "cases": [started(t, figures.speedups("compile")) for t in times(figures).values()],
        "columns": ("eager µs", f"kernel µs{how(bench.source)}", "speedup"),
        "made": made(bench, state.hash, state.hash, seconds),
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
    """A finished round, kept or not."""
    assert before.figures is not None
    number = before.rounds + 1
    figures = outcome.figures if outcome.kept and outcome.figures else before.figures
    timings = outcome.final.speedups("current") if outcome.final else ()
    mean = overall(timings)
    kept = before.kept + outcome.kept
    plan = before.plan.with_table(outcome.proposed) if outcome.kept else before.plan
    now = standing(bench, plan, kept, figures)
    fate = "kept" if outcome.kept else "no change"
    old, new = version(bench, before.kept), version(bench, kept)
    title = f"round {number} · {advice.strategy} · {fate} · {f'{old} -> {new}' if outcome.kept else old}"
    profile = evidence_rows(bench, seen, diagnosis)
    shown = _shown_before(bench, profile)
    tried_rows = [tried_row(before.plan.table, one) for one in best_first(tried)[:SHOWN]]
    change = cell(lessons.names(before.plan.table, tried, outcome)) if outcome.proposed != before.plan.table else ""
    return {
        **_empty(bench, str(number), title),
        "headline": _headline(change, tried, outcome),
        "row": {
            "strategy": advice.strategy,
            "change": change if outcome.kept else _count(tried),
            "previous": show(mean) if mean else "–",
            "result": fate,
        },
        "standing": now,
        "points": _points(bench, before, diagnosis, advice, tried, outcome, shown, now["targets"]),
        "profile": [] if shown else profile,
        "diff": _diff(bench, before, outcome),
        "cases": [compared(t) for t in timings],
        "tried": [*tried_rows, *_refused(bench, number)],
        "tried_title": _count(tried) + (f", the first {SHOWN}" if len(tried) > SHOWN else ""),
        "failed": [cell(line) for line in lessons.failed(before, seen, tried, outcome)],
        "next": lessons.upcoming(before, diagnosis, advice.strategy, tried, outcome),
        "made": made(bench, before.hash, outcome.hash, seconds),
    }


def end_entry(bench: Bench, state: State, reason: str) -> Entry:
    """The closing line of a run; the head says what it came to."""
    return {
        **_empty(bench, "end", f"end of run · {version(bench, state.kept)}"),
        "headline": f"{reason[:1].upper()}{reason[1:]}, {improved(state.kept)}.",
        "made": f"<sub>run {bench.run}</sub>",
    }


def improved(kept: int) -> str:
    """How many rounds changed the kernel."""
    return f"{kept} kept" if kept else "no improvement"


def _points(
    bench: Bench,
    before: State,
    diagnosis: Diagnosis,
    advice: Advice,
    tried: list[Tried],
    outcome: Outcome,
    shown: str,
    targets: list[Pair],
) -> list[Pair]:
    """Problem, idea and expected effect, and what was changed with what came of it."""
    why, _, idea = advice.reason.partition("; ")
    profile = f"; profile as in round {shown}" if shown else ""
    searched = "; ".join(dict.fromkeys(part for one in tried for part in one.proposal.reason.split("; ")))
    points = [
        ("Problem", cell(f"{diagnosis.bottleneck} on {diagnosis.case}: {why}{profile}")),
        ("Idea", cell(f"{idea or why}. Searched: {searched}" if searched else idea or why)),
        ("Expected", "not predicted" if advice.strategy == adopt.NAME else f"at most {gain(advice.gain)} (predicted)"),
    ]
    points += [("Earlier rounds", cell(advice.known))] if advice.known else []
    if outcome.kept:
        assert outcome.figures is not None
        points += [
            ("Change", f"{changed(before, advice, outcome)} ({change_type(bench, before, outcome)})"),
            ("Result", f"{speedups(bench, outcome.figures)}; {roofline(bench, outcome.figures)}; "
                       f"{targets_text(targets, bench.source)}"),
        ]  # fmt: skip
    if outcome.verified is not None:
        points.append(("Accuracy", accuracy(outcome.verified)))
    return points


def _shown_before(bench: Bench, profile: list[tuple[str, str, str]]) -> str:
    """The round of this run whose section has this very profile; empty where none has."""
    rows = [list(row) for row in profile]
    found = (r.data for r in bench.journal.records("round") if r.data["entry"]["profile"] == rows)
    return next((str(data["round"]) for data in found), "")


def _diff(bench: Bench, before: State, outcome: Outcome) -> str:
    """The change of the kernel's text; nothing where the text stays."""
    if not outcome.kept:
        return ""
    texts = bench.journal.source(before.hash), bench.journal.source(outcome.hash)
    lines = diff(bench.plan.spec.name, *texts).split("\n")
    if len(lines) <= DIFF_LINES:
        return "\n".join(lines)
    rest = f"# {len(lines) - DIFF_LINES} more lines; both kernels are in the run's candidates/, by their hashes below"
    return "\n".join([*lines[:DIFF_LINES], rest])


def _refused(bench: Bench, number: int) -> list[TriedRow]:
    """Answers of a language model that became no candidate, each with why."""
    return [
        {"what": "an answer of the model's", "expected": "-", "outcome": cell(f"refused: {why}")}
        for why in refusals(bench.journal, number)
    ]


def _headline(change: str, tried: list[Tried], outcome: Outcome) -> str:
    """What the round came to, as one sentence."""
    if outcome.kept:
        return f"**Kept:** {change}: {outcome.why}."
    tried_text = f"{len(tried)} tried" if outcome.final else _count(tried)
    return f"**No change:** {tried_text}; {outcome.why}."


def _count(tried: list[Tried]) -> str:
    """How many candidates, and how far the best got."""
    scores = [one.score for one in tried if one.score is not None]
    return f"{len(tried)} tried" + (f", best {max(scores):.3f}x" if scores else "")


def _empty(bench: Bench, section: str, title: str) -> Entry:
    said = how(bench.source)
    return {
        "operator": bench.plan.spec.name, "run": bench.run, "section": section, "title": title, "source": bench.source,
        "headline": "", "row": None, "standing": None, "points": [], "profile": [], "diff": "", "cases": [],
        "columns": (f"previous µs{said}", f"new µs{said}", f"speedup{said}"),
        "tried": [], "tried_title": "", "failed": [], "next": [], "made": "",
    }  # fmt: skip
