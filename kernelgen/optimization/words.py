"""The tables of the optimization log: every figure as text, labelled measured or predicted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from kernelgen import __version__
from kernelgen.custom import ADOPTED, PROPOSED
from kernelgen.diagnose import BANDWIDTH, Advice, Diagnosis, Seen, bandwidth_utilisation
from kernelgen.llm import spent
from kernelgen.log import CaseRow, Standing, TriedRow, cell
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import gain, overall, percent, show, verdict
from kernelgen.optimization.lessons import where
from kernelgen.optimization.outcome import Outcome, judge_targets, times
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State, serving
from kernelgen.outcomes import CaseTiming, Evaluation, Status
from kernelgen.plan import Plan
from kernelgen.spec.model import Case, Target
from kernelgen.strategies import strategies
from kernelgen.strategies.context import Table

Pair = tuple[str, str]
"""A name and a value as they are shown."""

WRITTEN_BY = {
    PROPOSED: "device code written by a language model, behind a wrapper of kernelgen's",
    ADOPTED: "a kernel that a person edited",
}
"""Of schedules that no family made."""


def diff(name: str, before: str, after: str) -> str:
    """The change of `_triton.py`; empty where there is none."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name}_triton.py", f"{name}_triton.py", lineterm="", n=2
    )
    return "\n".join(lines)


DTYPES = re.compile(r"(?: (?:float|bfloat|u?int|bool)\w*)+$")
"""At the end of a case's label: the dtypes it is tried in."""


def shapes(cases: Sequence[Case]) -> str:
    """The cases in few words: each shape with the dtypes it is tried in."""
    return shapes_of([case.label for case in cases])


def shapes_of(labels: Sequence[str]) -> str:
    """The same of cases' labels."""
    grouped: dict[str, list[str]] = {}
    for label in labels:
        found = DTYPES.search(label)
        shape = label[: found.start()] if found else label
        grouped.setdefault(shape or label, []).append(found.group().strip() if found and shape else "")
    return "; ".join(
        f"{shape} ({', '.join(filter(None, dtypes))})" if any(dtypes) else shape for shape, dtypes in grouped.items()
    )


def version(bench: Bench, kept: int) -> str:
    """The kernel's version: the how many-th run of the operator, and what this run kept so far."""
    return f"v{bench.ordinal}.{kept}"


def aims(target: Target) -> str:
    """What the spec asks for."""
    found = [f"{target.speedup:.2f}x over eager"]
    if target.bandwidth is not None:
        found.append(f"{percent(target.bandwidth)} of peak bandwidth")
    if target.l2_hit is not None:
        found.append(f"L2 hit rate {percent(target.l2_hit)} where it can be read")
    return ", ".join(found)


def speedups(bench: Bench, figures: Evaluation) -> str:
    """The mean speedup over each baseline with its interval; over fewer cases than there are, how many."""
    known = []
    for against, name in (("eager", "eager"), ("compile", "torch.compile")):
        if timings := figures.speedups(against):
            few = f" ({len(timings)} of {len(bench.cases)} cases)" if len(timings) < len(bench.cases) else ""
            known.append(f"{show(overall(timings))} over {name}{few}")
    why = "PyTorch was not timed" if bench.device.measures else "no GPU"
    return ", ".join(known) or f"speedup not measured ({why})"


def roofline(bench: Bench, figures: Evaluation) -> str:
    """The share of the roofline over the cases; empty where no floor is known."""
    shares = [t.floor_us / t.time_us for t in times(figures).values() if t.floor_us]
    if not shares:
        return ""
    least, most = percent(min(shares)), percent(max(shares))
    return f"{most if least == most else f'{least[:-2]} to {most}'} of roofline ({bench.source})"


def standing(bench: Bench, plan: Plan, kept: int, figures: Evaluation) -> Standing:
    """The kernel that is current after a round."""
    served = serving(plan, bench.compiler, bench.cases)
    return {
        "version": version(bench, kept),
        "speedup": speedups(bench, figures),
        "roofline": roofline(bench, figures),
        "targets": [(one.target, one.state) for one in judge_targets(bench, figures)],
        "schedules": {case: schedule.to_json() for case, schedule in served.items()},
    }


def how(source: str) -> str:
    """What stands behind a figure that nobody measured."""
    return f" ({source})" if source == "predicted" else ""


def targets_text(targets: Sequence[Pair], source: str) -> str:
    """Whether the targets are met, with what is missed or cannot be said."""
    states = {state for _, state in targets}
    if states == {"reached"}:
        return f"targets met{how(source)}"
    missed = [words.partition(":")[0] for words, state in targets if state == "missed"]
    if missed:
        return f"target missed{how(source)}: {', '.join(missed)}"
    met = sum(state == "reached" for _, state in targets)
    if not met:
        return "targets not measured"
    return f"{met} of {len(targets)} targets met{how(source)}, the rest not measured"


def evidence_rows(bench: Bench, seen: tuple[Seen, ...], diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """The figures behind the diagnosis, each with its source."""
    rows = [("case", cell(diagnosis.case), "the one with the most to win")]
    shares = [bandwidth_utilisation(s.timing, s.work, bench.device.facts) for s in seen]
    of_all = f"; {100 * min(shares):.0f} to {100 * max(shares):.0f} % over all cases" if len(shares) > 1 else ""
    for name, value, origin in diagnosis.evidence:
        rows.append((cell(name), cell(value + (of_all if name == BANDWIDTH else "")), cell(origin)))
    return rows


def change_type(bench: Bench, before: State, outcome: Outcome) -> str:
    """Which kind of change it is; performance parameters never touch the interface or what is computed."""
    if whose := WRITTEN_BY.get(outcome.proposed[0].schedule.variant):
        return whose
    more = " and the kernel's structure" if _restructured(bench, before, outcome) else ""
    return f"performance parameters{more}: only `{bench.plan.spec.name}_triton.py` changes"


def changed(before: State, advice: Advice, outcome: Outcome) -> str:
    """What the change does, row by row of the schedule table."""
    explain, old = strategies()[advice.strategy].explain, before.plan.table
    parts = [] if len(old) == len(outcome.proposed) else [f"schedule table {len(old)} -> {len(outcome.proposed)} rows"]
    for index, row in enumerate(outcome.proposed):
        was = old[min(index, len(old) - 1)].schedule
        if was != row.schedule:
            parts.append(where(outcome.proposed, index) + explain(was, row.schedule))
    return cell("; ".join(parts))


def _restructured(bench: Bench, before: State, outcome: Outcome) -> bool:
    """Whether the change touches more than numbers: the variant, or a parameter that shapes the kernel's text."""
    shaping = {
        p.name
        for plan in (before.plan, before.plan.with_table(outcome.proposed))
        for row in range(len(plan.table))
        for p in bench.compiler.space(plan, row, bench.cases)
        if p.kind == "structure"
    }

    def structures(table: Table) -> set[tuple[object, ...]]:
        return {(r.schedule.variant, *((n, v) for n, v in r.schedule.values if n in shaping)) for r in table}

    return structures(before.plan.table) != structures(outcome.proposed)


def best_first(tried: list[Tried]) -> list[Tried]:
    """Candidates in descending order of what they gained."""
    return sorted(tried, key=lambda one: -(one.score or 0.0))


def tried_row(table: Table, one: Tried) -> TriedRow:
    """One candidate and what became of it."""
    score, slows = one.score, one.slows
    if one.evaluation.status is not Status.OK:
        outcome = f"{one.evaluation.status}: {one.evaluation.message}"
    elif score is None:
        outcome = "dropped: clearly slower in the first comparisons"
    else:
        outcome = f"{score:.3f}x" + (f", slower for {len(slows)} of {len(one.candidate.cases)} cases" if slows else "")
    return {
        "what": cell(where(table, one.proposal.row) + one.proposal.what),
        "expected": f"at most {gain(one.proposal.predicted_gain)}",
        "outcome": cell(outcome),
    }


def compared(t: CaseTiming) -> CaseRow:
    """One case, current against new."""
    ratio = str(t.interval) if t.interval else f"{t.speedup:.3f}x"
    return {
        "case": cell(t.case),
        "before": f"{t.against_us:.2f}",
        "after": f"{t.time_us:.2f}",
        "ratio": ratio,
        "verdict": verdict(t),
    }


def started(t: CaseTiming, compiled: tuple[CaseTiming, ...]) -> CaseRow:
    """One case of the kernel that a run starts from, against PyTorch."""
    row = compared(t)
    if t.against == "current":  # PyTorch was not timed: the kernel's own time is all there is
        row = {**row, "before": "–", "ratio": "–", "verdict": ""}
    extra = [f"{c.speedup:.3f}x over torch.compile" for c in compiled if c.case == t.case]
    if t.floor_us:
        extra.append(f"{percent(t.floor_us / t.time_us)} of roofline")
    return {**row, "verdict": ", ".join(filter(None, [row["verdict"], *extra]))}


def accuracy(verified: Evaluation) -> str:
    """What the accuracy test said."""
    passed = sum(a.passed for a in verified.accuracy)
    failed = [f"{a.case}: {a.message}" for a in verified.accuracy if not a.passed]
    if verified.status is not Status.OK:
        return cell("; ".join([f"{verified.status}: {verified.message}", *failed[:2]]))
    out = f", {len(verified.left_out)} left out: {verified.left_out[0][1]}" if verified.left_out else ""
    when = f", {verified.message}" if verified.message else ""
    return cell(f"{passed} case{' passes' if passed == 1 else 's pass'}{out}{when}")


def _asked(bench: Bench) -> str:
    """What the round asked of a language model, empty where nothing: the round is as many as are finished."""
    records = bench.journal.records()
    number = sum(r.kind == "round" for r in records)
    models = dict.fromkeys(r.data["model"] for r in records if r.kind == "asked" and r.data["round"] == number)
    return "; ".join([*models, spent(records, number).line()]) if models else ""


def machine(bench: Bench) -> str:
    """The device and the versions of everything that made the figures."""
    where = {**bench.device.describe(), "kernelgen": __version__}
    device = where.pop("device")
    return ", ".join([device, *(f"{name} {value}" for name, value in where.items())])


def made(bench: Bench, before: str, after: str, seconds: float) -> str:
    """What is needed to repeat the round, beside the machine that the start names."""
    spec = bench.plan.spec
    source = before if before == after else f"{before} -> {after}"
    parts = [
        f"run {bench.run}", f"spec {spec.sha256[:16]}", f"{spec.name}_triton.py {source}", f"{seconds:.1f} s",
        *filter(None, [_asked(bench)]),
    ]  # fmt: skip
    return f"<sub>{cell(' · '.join(parts))}</sub>"
