"""One round: profile, diagnose, choose, search, settle, commit; then the kernel's file and the log.

The `round` record is the commit point. Before it, every step is looked up in the journal first and done only
where it is missing; after it, everything that follows can be done again from the record alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from kernelgen import generation, log
from kernelgen.diagnose import Advice, Diagnosis, Seen, diagnose, focus
from kernelgen.evaluate import Failed
from kernelgen.files import read_text, write_atomic
from kernelgen.optimization import authored, search, tuning
from kernelgen.optimization.bench import Bench
from kernelgen.optimization.decide import MARGIN, NOTHING_LEFT
from kernelgen.optimization.entries import round_entry, start_entry
from kernelgen.optimization.head import head
from kernelgen.optimization.model import RoundResult
from kernelgen.optimization.outcome import figures, gains, incumbent, settle, times
from kernelgen.optimization.search import Tried
from kernelgen.optimization.state import State, fold, table_from_json, table_to_json
from kernelgen.outcomes import Counters, StaticFacts, Status, evaluation_from_json, to_json
from kernelgen.strategies import Proposal, adopt, strategies

ADOPTED_WHY = "a person edited the kernel"
FEW = 2
"""With so many candidates a strategy is taken to realise half of what it promises."""

Choice = tuple[Advice, tuple[Proposal, ...]]


def begin(bench: Bench, state: State) -> None:
    """Round 0: verify the kernel the run starts from and set it against both baselines."""
    began = time.monotonic()
    bench.reporter.round_started(0, "start", "PyTorch", 0)
    bench.evaluator.expect(bench.cases, counters=_counts(bench))
    start = search.current(state.plan, bench.compiler, bench.cases)
    bench.journal.store(start.source)
    checked = bench.once("start", 0, lambda: {"evaluation": to_json(bench.evaluator.verify(start, recall=True))})
    verified = evaluation_from_json(checked["evaluation"])
    known = figures(bench, start, bench.cases) if verified.status is Status.OK else verified
    bench.once("isolation", 0, lambda: {"lines": _isolation(bench)})
    entry = start_entry(bench, state, verified, known, time.monotonic() - began)
    data = {
        "round": 0, "kept": True, "strategy": "start", "hash": start.source_hash, "figures": to_json(known),
        "table": table_to_json(state.plan.table), "current": table_to_json(state.plan.table), "entry": entry,
        "work": _work(bench),
    }  # fmt: skip
    publish(bench, bench.journal.append("round", {**data, "device_state": bench.device.state()}).data)


def _work(bench: Bench) -> dict[str, Any]:
    """The roofline of the cases: bytes, operations and the least time of these, and the memory's peak."""
    facts = bench.device.facts
    found = {case.label: bench.evaluator.work(case) for case in bench.cases}
    cases = {
        label: {"bytes": w.bytes_read + w.bytes_written, "flops": w.all_flops, "seconds": w.arithmetic_seconds(facts)}
        for label, w in found.items()
    }
    return {"cases": cases, "bytes_per_s": facts.dram_bytes_per_s}


def _isolation(bench: Bench) -> list[str]:
    try:
        return list(bench.evaluator.isolation())
    except Failed as failure:
        return [f"missing: the worker did not say: {failure.message}"]


def play(bench: Bench, state: State) -> str | None:
    """The next round; returns why there is none, or None when it was played."""
    began = time.monotonic()
    number = state.rounds + 1
    seen = _seen(bench, state, number)
    diagnosis = diagnose(seen, bench.device.facts, bench.plan.spec.optimization_strategies, bench.options.measured)
    choice = _choose(bench, state, diagnosis, number)
    if choice is None:
        return NOTHING_LEFT
    advice, first = choice
    bench.reporter.round_started(number, advice.strategy, diagnosis.bottleneck, len(first))
    tried = _search(bench, state, diagnosis, advice, first)
    outcome = settle(bench, state, tried)
    entry = round_entry(bench, state, seen, diagnosis, advice, tried, outcome, time.monotonic() - began)
    data: dict[str, Any] = {
        "round": number, "kept": outcome.kept, "strategy": advice.strategy, "hash": outcome.hash,
        "table": table_to_json(outcome.proposed), "gains": gains(outcome), "entry": entry,
        "current": table_to_json(outcome.proposed if outcome.kept else state.plan.table),
        "figures": to_json(outcome.figures) if outcome.kept else None, "bottleneck": diagnosis.bottleneck,
    }  # fmt: skip
    publish(bench, bench.journal.append("round", {**data, "device_state": bench.device.state()}).data)
    return None


def publish(bench: Bench, data: dict[str, Any]) -> None:
    """What follows from a committed round: the kernel's file, its place in the manifest, the log. Twice is as once."""
    if data["kept"] and not (data["round"] == 0 and bench.is_edited_in_place):
        text = bench.journal.source(data["hash"])
        if read_text(bench.triton_file) != text:
            write_atomic(bench.triton_file, text)
        generation.record(bench.plan.with_table(table_from_json(data["current"])), bench.triton_file.parent)
    if log.update(bench.log_file, head(bench.journal.records()), [data["entry"]], bench.language):
        bench.reporter.round_ended(result_of(data))


def result_of(data: dict[str, Any]) -> RoundResult:
    """A `round` record in short."""
    headline = str(data["entry"]["headline"]).replace("*", "")
    return RoundResult(data["round"], data["strategy"], data["kept"], headline)


def _seen(bench: Bench, state: State, number: int) -> tuple[Seen, ...]:
    """All that is known of the current kernel on each case; the counters are read where there is the most to win."""
    now = incumbent(bench, state, state.cases)

    def look() -> dict[str, Any]:
        for record in bench.journal.records("profile"):
            if record.data.get("hash") == state.hash:  # a reverted round leaves the kernel that was profiled before it
                return {key: value for key, value in record.data.items() if key != "round"}
        try:
            facts = bench.evaluator.facts(now, now.cases)
        except Failed as failure:  # it ran a moment ago: the compile worker is what failed
            return {"facts": [], "counters": None, "case": "", "message": failure.message}
        if not _counts(bench):
            return {"facts": to_json(facts), "counters": None, "case": "", "hash": state.hash}
        worst = focus(_compiled(bench, state, dict_of(facts)), bench.device.facts).timing.case
        case = next(c for c in state.cases if c.label == worst)
        found = bench.evaluator.profile(now, case)
        return {"facts": to_json(facts), "counters": to_json(found), "case": worst, "hash": state.hash}

    data = bench.once("profile", number, look)
    facts = dict_of(tuple((label, StaticFacts(**{**f, "grid": tuple(f["grid"])})) for label, f in data["facts"]))
    seen = _compiled(bench, state, facts)
    counters = Counters.from_json(data["counters"]) if data["counters"] else None
    return tuple(Seen(s.timing, s.work, s.facts, counters if s.timing.case == data["case"] else None) for s in seen)


def _counts(bench: Bench) -> bool:
    """Whether something is chosen by counters."""
    return not all(map(tuning.is_tuned, bench.plan.spec.optimization_strategies))


def dict_of(facts: tuple[tuple[str, StaticFacts], ...]) -> dict[str, tuple[StaticFacts, ...]]:
    """The launches of each case by its label."""
    found: dict[str, tuple[StaticFacts, ...]] = {}
    for label, one in facts:
        found[label] = (*found.get(label, ()), one)
    return found


def _compiled(bench: Bench, state: State, facts: dict[str, tuple[StaticFacts, ...]]) -> tuple[Seen, ...]:
    assert state.figures is not None
    known = times(state.figures)
    return tuple(Seen(known[case.label], bench.evaluator.work(case), facts.get(case.label, ())) for case in state.cases)


def _choose(bench: Bench, state: State, diagnosis: Diagnosis, number: int) -> Choice | None:
    """The strategy with the largest predicted gain that still has something new to try on the current kernel."""
    recorded = search.recorded_choice(bench.journal, number, 1)
    if recorded is not None:
        pairs = search.load_choice(bench.journal, bench.plan, recorded)
        return Advice(**recorded["advice"]), tuple(proposal for proposal, _ in pairs)
    if bench.options.adopted:
        return Advice(adopt.NAME, 1.0, ADOPTED_WHY), adopt.propose(tuning.context_of(bench, state, diagnosis))
    promised: list[Choice] = []
    for advice in diagnosis.ranked:
        if advice.strategy not in strategies() or authored.is_authored(advice.strategy):
            continue
        if advice.strategy not in state.tried:
            proposals = strategies()[advice.strategy].propose(tuning.context_of(bench, state, diagnosis))
            promised.append(_of(advice, proposals))
    best_found = most_promising(promised, lambda made: _fresh(bench, state, made))
    asked = authored.advice(bench, state, diagnosis)
    if asked is not None and (best_found is None or asked.gain - 1 > promise(best_found)):
        written = authored.first(bench, tuning.context_of(bench, state, diagnosis), number)
        if written is not None:
            return asked, written
    return best_found


def _of(advice: Advice, proposals: tuple[Proposal, ...]) -> Choice:
    return replace(advice, gain=max((p.predicted_gain for p in proposals), default=1.0)), proposals


def _fresh(bench: Bench, state: State, choice: Choice) -> Choice:
    """Without the proposals that print a kernel which is known."""
    advice, proposals = choice
    return _of(advice, tuple(p for p, _ in search.distinct(state, bench.compiler, proposals, {state.hash})))


def most_promising(promised: list[Choice], fresh: Callable[[Choice], Choice]) -> Choice | None:
    """The choice whose fresh proposals promise the most, the first of equals; None where none promises MARGIN. Printing
    the kernels of a strategy takes half a second, so that of those which cannot promise more none is printed."""
    best: tuple[int, Choice] | None = None
    order = sorted(range(len(promised)), key=lambda i: -promise(promised[i]))
    for place in order:
        if best is not None and promise(promised[place]) < promise(best[1]):
            break
        made = fresh(promised[place])
        if made[0].gain <= 1 + MARGIN:
            continue
        if best is None or (-promise(made), place) < (-promise(best[1]), best[0]):
            best = place, made
    return best[1] if best else None


def promise(choice: Choice) -> float:
    """The predicted gain, less where there are few candidates: one throw hits less often than sixteen."""
    advice, proposals = choice
    return (advice.gain - 1) * len(proposals) / (len(proposals) + FEW)


def _search(
    bench: Bench, state: State, diagnosis: Diagnosis, advice: Advice, first: tuple[Proposal, ...]
) -> list[Tried]:
    """The first candidates, and what the strategy's search goes on to from there."""
    going = strategies()[advice.strategy].search(tuning.context_of(bench, state, diagnosis))
    if going is not None:
        wave = partial(_wave, bench, state, advice)
        return tuning.searched(bench, state, diagnosis, advice.strategy, first, going, wave)
    tried = _wave(bench, state, advice, 1, first)
    return _rewritten(bench, state, diagnosis, advice, tried) if authored.is_authored(advice.strategy) else tried


def _rewritten(bench: Bench, state: State, diagnosis: Diagnosis, advice: Advice, tried: list[Tried]) -> list[Tried]:
    """Candidates go back to their author with what became of them, until one is faster or the waves are over."""
    for wave in range(2, authored.WAVES + 1):
        if any((one.score or 0) > 1 for one in tried):
            break
        again: tuple[Proposal, ...] = ()
        if search.recorded_choice(bench.journal, state.rounds + 1, wave) is None:
            now = fold(bench.plan, bench.compiler, bench.journal.records())
            there = tuning.context_of(bench, replace(now, plan=state.plan), diagnosis)
            again = authored.again(bench, there, tried)
            if not again:
                break
        tried = tried + _wave(bench, state, advice, wave, again, {one.candidate.source_hash for one in tried})
    return tried


def _wave(
    bench: Bench,
    state: State,
    advice: Advice,
    wave: int,
    proposals: tuple[Proposal, ...],
    known: set[str] | None = None,
) -> list[Tried]:
    """Evaluate what the journal does not have yet, recording each as it completes."""
    number = state.rounds + 1
    recorded = search.recorded_choice(bench.journal, number, wave)
    if recorded is not None:
        pairs = search.load_choice(bench.journal, state.plan, recorded)
    else:
        pairs = list(search.distinct(state, bench.compiler, proposals, {state.hash, *(known or ())}))
        head = {"round": number, "wave": wave, "advice": to_json(advice)}
        search.store_choice(bench.journal, head, pairs)
    done = search.evaluations(bench.journal, number)
    waiting = {made.source_hash: (proposal, made) for proposal, made in pairs if made.source_hash not in done}
    now = incumbent(bench, state, state.cases)
    for made, evaluation in bench.evaluator.search([made for _, made in waiting.values()], now) if waiting else ():
        proposal = waiting[made.source_hash][0]
        if authored.is_authored(advice.strategy) or advice.strategy == adopt.NAME:
            evaluation = authored.checked(bench, Tried(proposal, made, evaluation))
        data = {
            "round": number, "wave": wave, "hash": made.source_hash, "table": table_to_json(proposal.table),
            "what": proposal.what, "cases": [c.label for c in made.cases], "evaluation": to_json(evaluation),
        }  # fmt: skip
        bench.journal.append("candidate", data)
        bench.reporter.candidate_done(number, proposal.what, evaluation)
        done[made.source_hash] = evaluation
    return [Tried(proposal, made, done[made.source_hash]) for proposal, made in pairs if made.source_hash in done]
