"""A round put into the words of the optimization log: every figure as text, labelled measured or predicted."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from kernelgen import __version__
from kernelgen.diagnose import Advice, Diagnosis, Seen, bandwidth_utilisation
from kernelgen.log import CaseRow, Entry, TriedRow, cell
from kernelgen.optimize import lessons
from kernelgen.optimize.bench import Bench
from kernelgen.optimize.decide import gain, overall, show, targets, verdict
from kernelgen.optimize.outcome import Outcome, times
from kernelgen.optimize.search import Tried
from kernelgen.optimize.state import State
from kernelgen.outcomes import CaseTiming, Evaluation, Status
from kernelgen.spec.model import Case
from kernelgen.strategies import strategies

COLUMNS = ("current µs", "new µs", "current / new")
START_COLUMNS = ("eager µs", "kernel µs", "eager / kernel")
SHOWN = 24
"""Candidates listed in a section; the journal has all of them."""

Pair = tuple[str, str]


def start_entry(bench: Bench, state: State, verified: Evaluation, figures: Evaluation, seconds: float) -> Entry:
    """Round 0: the kernel the run starts from, against both baselines."""
    result = [*_speedups(bench, figures), *_targets(bench, figures, ())]
    result.append(("accuracy test", _accuracy(verified)))
    result += [("left out", cell(f"{case}: {why}")) for case, why in figures.left_out]
    ok = verified.status is Status.OK
    headline = "The kernel that this run starts from." if ok else "**The kernel that this run starts from is wrong.**"
    return {
        **_empty(bench, "0", "where the run starts"),
        "headline": headline,
        "summary": _summary(bench, state, state.kept),
        "cases": [_case(t, figures.speedups("compile")) for t in times(figures).values()],
        "columns": START_COLUMNS,
        "result": result,
        "provenance": _provenance(bench, state.hash, state.hash, seconds),
    }


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
    change = gain(mean.estimate ** (len(timings) / len(bench.cases))) if mean else "none"
    result: list[Pair] = [
        ("current / new", f"{show(mean)} ({bench.source})" if mean else "not compared afresh: no candidate was faster"),
        ("change over all cases", f"{change} ({bench.source})"),
        *(_speedups(bench, figures)),
        *_targets(bench, figures, seen),
        ("accuracy test", _accuracy(outcome.verified)),
        ("decision", cell(f"{fate}: {outcome.why}")),
    ]
    return {
        **_empty(bench, str(number), f"round {number} · {advice.strategy} · {fate}"),
        "headline": f"**{fate.capitalize()}.** {_headline(before, tried, outcome)}.",
        "summary": _summary(bench, before, before.kept + outcome.kept),
        "bottleneck": diagnosis.bottleneck,
        "evidence": _evidence(bench, seen, diagnosis),
        "modification": _modification(bench, before, advice, tried, outcome),
        "diff": diff(
            spec.name,
            bench.journal.source(before.hash),
            bench.compiler.source(before.plan.with_table(outcome.proposed)),
        ),
        "tried": [_tried(one) for one in _ordered(tried)[:SHOWN]],
        "cases": [_compared(t) for t in timings],
        "columns": COLUMNS,
        "result": result,
        "worked": lessons.worked(tried, outcome),
        "failed": lessons.failed(tried, outcome),
        "next": lessons.upcoming(before, diagnosis, advice.strategy, tried, outcome),
        "provenance": _provenance(bench, before.hash, outcome.hash, seconds),
    }


def end_entry(bench: Bench, state: State, reason: str) -> Entry:
    """The closing lines of a run."""
    figures = state.figures
    changes = f"{state.kept} of {max(state.rounds, 0)} rounds kept"
    result = [*_speedups(bench, figures), *_targets(bench, figures, ())] if figures else []
    return {
        **_empty(bench, "end", "the run's end"),
        "headline": f"{reason[:1].upper()}{reason[1:]}; {changes}.",
        "summary": _summary(bench, state, state.kept),
        "result": result,
    }


def _headline(before: State, tried: list[Tried], outcome: Outcome) -> str:
    """What the round came to, as one sentence."""
    if outcome.proposed == before.plan.table:
        return f"{outcome.why[:1].upper()}{outcome.why[1:]}"
    return f"{lessons.names(tried, outcome)}: {outcome.why}"


def diff(name: str, before: str, after: str) -> str:
    """The change of `_triton.py`; empty where there is none."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name}_triton.py", f"{name}_triton.py", lineterm="", n=2
    )
    return "\n".join(lines)


def shapes(cases: Sequence[Case]) -> str:
    """The cases in few words: each shape with the dtypes it is tried in."""
    grouped: dict[str, list[str]] = {}
    for case in cases:
        dtype = " ".join(value for _, value in case.dtypes)
        grouped.setdefault(case.label.removesuffix(dtype).strip() or case.label, []).append(dtype)
    return "; ".join(
        f"{shape} ({', '.join(filter(None, dtypes))})" if any(dtypes) else shape for shape, dtypes in grouped.items()
    )


def _empty(bench: Bench, section: str, title: str) -> Entry:
    return {
        "operator": bench.plan.spec.name, "run": bench.run, "section": section, "title": title, "source": bench.source,
        "headline": "", "summary": [], "bottleneck": "", "evidence": [], "modification": [], "diff": "", "tried": [],
        "cases": [], "columns": COLUMNS, "result": [], "worked": [], "failed": [], "next": [], "provenance": [],
    }  # fmt: skip


def _summary(bench: Bench, before: State, kept: int) -> list[Pair]:
    old, new = f"v{bench.ordinal}.{before.kept}", f"v{bench.ordinal}.{kept}"
    target = bench.plan.spec.target
    aims = [f"{target.speedup:.2f}x over eager"]
    if target.bandwidth is not None:
        aims.append(f"bandwidth {target.bandwidth:.0%} of the peak")
    if target.l2_hit is not None:
        aims.append(f"L2 hit rate {target.l2_hit:.0%} where it can be read")
    speedup = overall(before.figures.speedups("eager")) if before.figures else None
    unknown = "unknown: PyTorch was not timed" if before.figures else "see below"
    rows = [
        ("run", bench.run),
        ("version", old if old == new else f"{old} -> {new}"),
        ("shapes", cell(shapes(bench.cases))),
        ("current speedup over eager", f"{show(speedup)} ({bench.source})" if speedup else unknown),
        ("target", ", ".join(aims)),
    ]
    if not bench.device.measures:
        rows.append(("every time and speedup here", "predicted: a model's estimate, nothing was timed on a device"))
    return rows


def _speedups(bench: Bench, figures: Evaluation) -> list[Pair]:
    rows = []
    for against in ("eager", "compile"):
        timings = figures.speedups(against)
        known = f"{show(overall(timings))} ({bench.source}, {len(timings)} cases)" if timings else "unknown"
        rows.append((f"speedup over {'torch.compile' if against == 'compile' else against}", known))
    shares = [t.floor_us / t.time_us for t in times(figures).values() if t.floor_us]
    if shares:
        rows.append(("share of the floor", f"{min(shares):.0%} to {max(shares):.0%} ({bench.source})"))
    return rows


def _targets(bench: Bench, figures: Evaluation, seen: tuple[Seen, ...]) -> list[Pair]:
    judged = targets(bench.plan.spec.target, figures.speedups("eager"), seen, bench.device.facts)
    return [("target reached", f"{'yes' if ok else 'no'}: {words} ({bench.source})") for words, ok in judged]


def _evidence(bench: Bench, seen: tuple[Seen, ...], diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    rows = [("case", cell(diagnosis.case), "the one with the most to win")]
    rows += [(cell(a), cell(b), cell(c)) for a, b, c in diagnosis.evidence]
    shares = [bandwidth_utilisation(s.timing, s.work, bench.device.facts) for s in seen]
    rows.append(("bandwidth utilisation, all cases", f"{min(shares):.0%} to {max(shares):.0%}", bench.source))
    rows.append(("time over what is possible, mean", f"{diagnosis.headroom:.2f}x", bench.source))
    return rows


def _modification(bench: Bench, before: State, advice: Advice, tried: list[Tried], outcome: Outcome) -> list[Pair]:
    explain = strategies()[advice.strategy].explain
    old, new = {r.schedule.variant for r in before.plan.table}, {r.schedule.variant for r in outcome.proposed}
    extent = "performance parameters" if old == new else "performance parameters (another variant of the kernel)"
    rows = [
        ("type", f"{extent}: only `{bench.plan.spec.name}_triton.py` changes; interface and logic stay"),
        ("strategy", advice.strategy),
        ("reason", cell(advice.reason)),
        ("searched", cell("; ".join(dict.fromkeys(one.proposal.reason for one in tried)))),
        ("predicted effect", f"{gain(advice.gain)} (predicted)"),
    ]
    if len(before.plan.table) != len(outcome.proposed):
        rows.append(("schedule table", f"{len(before.plan.table)} -> {len(outcome.proposed)} lines"))
    for index, row in enumerate(outcome.proposed):
        was = before.plan.table[min(index, len(before.plan.table) - 1)].schedule
        if was != row.schedule:
            rows.append((f"line {index + 1}", cell(explain(was, row.schedule))))
    return rows


def _ordered(tried: list[Tried]) -> list[Tried]:
    return sorted(tried, key=lambda one: -(one.score or 0.0))


def _tried(one: Tried) -> TriedRow:
    score, slows = one.score, one.slows
    if one.evaluation.status is not Status.OK:
        outcome = f"{one.evaluation.status}: {one.evaluation.message}"
    elif score is None:
        outcome = "dropped: clearly slower in the first comparisons"
    else:
        outcome = f"{score:.3f}x" + (f", slower for {len(slows)} of {len(one.candidate.cases)} cases" if slows else "")
    row = f"line {one.proposal.row + 1}: " if one.proposal.row else ""
    return {
        "what": cell(row + one.proposal.what),
        "expected": gain(one.proposal.predicted_gain),
        "outcome": cell(outcome),
    }


def _compared(t: CaseTiming) -> CaseRow:
    ratio = str(t.interval) if t.interval else f"{t.speedup:.3f}x"
    return {
        "case": cell(t.case),
        "before": f"{t.against_us:.2f}",
        "after": f"{t.time_us:.2f}",
        "ratio": ratio,
        "verdict": verdict(t),
    }


def _case(t: CaseTiming, compiled: tuple[CaseTiming, ...]) -> CaseRow:
    row = _compared(t)
    if t.against == "current":  # PyTorch was not timed: the kernel's own time is all there is
        row = {**row, "before": "unknown", "ratio": "unknown", "verdict": ""}
    extra = [f"{c.speedup:.3f}x over torch.compile" for c in compiled if c.case == t.case]
    if t.floor_us:
        extra.append(f"{t.floor_us / t.time_us:.0%} of the floor")
    return {**row, "verdict": ", ".join(filter(None, [row["verdict"], *extra]))}


def _accuracy(verified: Evaluation | None) -> str:
    if verified is None:
        return "not needed: nothing to keep"
    passed = sum(a.passed for a in verified.accuracy)
    failed = [f"{a.case}: {a.message}" for a in verified.accuracy if not a.passed]
    if verified.status is not Status.OK:
        return cell("; ".join([f"{verified.status}: {verified.message}", *failed[:2]]))
    return f"passed, {passed} of {passed} cases"


def _provenance(bench: Bench, before: str, after: str, seconds: float) -> list[Pair]:
    spec = bench.plan.spec
    source = before if before == after else f"{before} -> {after}"
    described: dict[str, Any] = bench.device.describe()
    return [
        *((name, cell(str(value))) for name, value in described.items()),
        ("kernelgen", __version__),
        ("spec SHA-256", spec.sha256[:16]),
        (f"{spec.name}_triton.py SHA-256", source),
        ("seconds", f"{seconds:.1f}"),
        ("language model", "none used: 0 tokens, no cost"),
    ]
