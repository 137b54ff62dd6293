"""The tables of the optimization log: every figure as text, labelled measured or predicted."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from kernelgen import __version__
from kernelgen.custom import PROPOSED
from kernelgen.diagnose import BANDWIDTH, Advice, Diagnosis, Seen, bandwidth_utilisation
from kernelgen.llm import spent
from kernelgen.log import CaseRow, TriedRow, cell
from kernelgen.optimize.bench import Bench
from kernelgen.optimize.decide import gain, overall, show, verdict
from kernelgen.optimize.outcome import Outcome, judge_targets, times
from kernelgen.optimize.search import Tried
from kernelgen.optimize.state import State
from kernelgen.outcomes import CaseTiming, Evaluation, Status
from kernelgen.spec.model import Case, Target
from kernelgen.strategies import strategies
from kernelgen.strategies.context import Table

Pair = tuple[str, str]
"""A name and a value as they are shown."""

PROPOSED_BY = "device code written by a language model, behind a wrapper of kernelgen's"


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


def summary(bench: Bench, before: State, kept: int) -> list[Pair]:
    """Version, shapes, current speedup and target."""
    aims = _aims(bench.plan.spec.target)
    current = _over_baselines(bench, before.figures) if before.figures else "see below"
    return [
        ("version", version(bench, before.kept, kept)),
        ("shapes", cell(shapes(bench.cases))),
        ("current speedup", current),
        ("target", ", ".join(aims)),
    ]


def version(bench: Bench, before: int, after: int) -> str:
    """The kernel's version, counted by what this run kept, and the run."""
    old, new = f"v{bench.ordinal}.{before}", f"v{bench.ordinal}.{after}"
    return f"{old if old == new else f'{old} -> {new}'}, run {bench.run}"


def _aims(target: Target) -> list[str]:
    aims = [f"{target.speedup:.2f}x over eager"]
    if target.bandwidth is not None:
        aims.append(f"bandwidth {target.bandwidth:.0%} of the peak")
    if target.l2_hit is not None:
        aims.append(f"L2 hit rate {target.l2_hit:.0%} where it can be read")
    return aims


def _over_baselines(bench: Bench, figures: Evaluation) -> str:
    """The mean speedup over each baseline, with its interval and the number of cases it is of."""
    known = [
        f"{show(overall(timings))} over {name} ({bench.source}, {len(timings)} cases)"
        for against, name in (("eager", "eager"), ("compile", "torch.compile"))
        if (timings := figures.speedups(against))
    ]
    return "; ".join(known) or "unknown: PyTorch was not timed"


def speedup_row(bench: Bench, figures: Evaluation) -> Pair:
    """The speedup after the round, over both baselines."""
    return ("speedup", _over_baselines(bench, figures))


def floor_rows(bench: Bench, figures: Evaluation) -> list[Pair]:
    """How near to the floor; nothing where no floor is known."""
    shares = [t.floor_us / t.time_us for t in times(figures).values() if t.floor_us]
    return [("share of the floor", f"{min(shares):.0%} to {max(shares):.0%} ({bench.source})")] if shares else []


def target_rows(bench: Bench, figures: Evaluation) -> list[Pair]:
    """Each target: reached, missed, or unknown, which no source vouches for."""
    return [
        ("target", f"{one.state}: {one.target}" + (f" ({bench.source})" if one.state != "unknown" else ""))
        for one in judge_targets(bench, figures)
    ]


def evidence_rows(bench: Bench, seen: tuple[Seen, ...], diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """The figures behind the diagnosis, each with its source."""
    rows = [("case", cell(diagnosis.case), "the one with the most to win")]
    shares = [bandwidth_utilisation(s.timing, s.work, bench.device.facts) for s in seen]
    of_all = f"; {100 * min(shares):.0f} to {100 * max(shares):.0f} % over all cases" if len(shares) > 1 else ""
    for name, value, origin in diagnosis.evidence:
        rows.append((cell(name), cell(value + (of_all if name == BANDWIDTH else "")), cell(origin)))
    rows.append(("time over what is possible, mean", f"{diagnosis.headroom:.2f}x", bench.source))
    return rows


def modification(bench: Bench, before: State, advice: Advice, tried: list[Tried], outcome: Outcome) -> list[Pair]:
    """What kind of change, why, and what it does line by line."""
    explain = strategies()[advice.strategy].explain
    structure = _restructured(bench, before, outcome)
    extent = "performance parameters, some of which change the kernel's text" if structure else "performance parameters"
    if any(row.schedule.variant == PROPOSED for row in outcome.proposed):
        extent = PROPOSED_BY
    rows = [
        ("type", f"{extent}: only `{bench.plan.spec.name}_triton.py` changes; interface and logic stay"),
        ("strategy", advice.strategy),
        ("reason", cell(advice.reason)),
        ("searched", cell("; ".join(dict.fromkeys(why for one in tried for why in one.proposal.reason.split("; "))))),
        ("predicted effect", f"{gain(advice.gain)} (predicted)"),
    ]
    if len(before.plan.table) != len(outcome.proposed):
        rows.append(("schedule table", f"{len(before.plan.table)} -> {len(outcome.proposed)} lines"))
    for index, row in enumerate(outcome.proposed):
        was = before.plan.table[min(index, len(before.plan.table) - 1)].schedule
        if was != row.schedule:
            rows.append((f"line {index + 1}", cell(explain(was, row.schedule))))
    return rows


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


def tried_row(one: Tried) -> TriedRow:
    """One candidate and what became of it."""
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
        row = {**row, "before": "unknown", "ratio": "unknown", "verdict": ""}
    extra = [f"{c.speedup:.3f}x over torch.compile" for c in compiled if c.case == t.case]
    if t.floor_us:
        extra.append(f"{t.floor_us / t.time_us:.0%} of the floor")
    return {**row, "verdict": ", ".join(filter(None, [row["verdict"], *extra]))}


def accuracy(verified: Evaluation | None) -> str:
    """What the accuracy test said."""
    if verified is None:
        return "not needed: nothing to keep"
    passed = sum(a.passed for a in verified.accuracy)
    failed = [f"{a.case}: {a.message}" for a in verified.accuracy if not a.passed]
    if verified.status is not Status.OK:
        return cell("; ".join([f"{verified.status}: {verified.message}", *failed[:2]]))
    out = f", {len(verified.left_out)} left out: {verified.left_out[0][1]}" if verified.left_out else ""
    return cell(f"passed, {passed} of {passed} cases{out}")


def _asked(bench: Bench) -> str:
    """What the round asked of a language model: the round is as many as are finished, round 0 included."""
    records = bench.journal.records()
    number = sum(r.kind == "round" for r in records)
    models = dict.fromkeys(r.data["model"] for r in records if r.kind == "asked" and r.data["round"] == number)
    return cell("; ".join([*models, spent(records, number).line()]))


def provenance(bench: Bench, before: str, after: str, seconds: float) -> list[Pair]:
    """All that is needed to judge or repeat the figures."""
    spec = bench.plan.spec
    source = before if before == after else f"{before} -> {after}"
    where = {**bench.device.describe(), "kernelgen": __version__}
    device = where.pop("device")
    return [
        ("device", cell(", ".join([device, *(f"{name} {value}" for name, value in where.items())]))),
        ("SHA-256", f"spec {spec.sha256[:16]}, {spec.name}_triton.py {source}"),
        ("seconds", f"{seconds:.1f}"),
        ("language model", _asked(bench)),
    ]
