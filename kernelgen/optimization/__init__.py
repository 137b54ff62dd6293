"""The loop over rounds and nothing else."""

from __future__ import annotations

import time

from kernelgen.devices import Device
from kernelgen.journal import locked
from kernelgen.llm import Author, spent
from kernelgen.log import FILE
from kernelgen.log import update as update_log
from kernelgen.optimization import resume, rounds
from kernelgen.optimization.bench import Bench, families_compiler
from kernelgen.optimization.decide import Judged, all_reached, overall
from kernelgen.optimization.entries import end_entry
from kernelgen.optimization.head import head
from kernelgen.optimization.model import Interrupted, Options, Reporter, RoundResult, RunResult, Silent, Start
from kernelgen.optimization.outcome import judge_targets
from kernelgen.optimization.state import State, fold
from kernelgen.outcomes import Status, evaluation_from_json
from kernelgen.plan import Plan
from kernelgen.strategies import Compiler

__all__ = ["Interrupted", "Options", "Reporter", "RoundResult", "RunResult", "Silent", "Start", "optimize"]


def optimize(
    plan: Plan,
    device: Device,
    start: Start,
    options: Options,
    reporter: Reporter | None = None,
    compiler: Compiler | None = None,
) -> RunResult:
    """Make an operator's kernel faster in rounds; goes on with an unfinished run of the same key by itself.

    `plan` is the operator as generated; `start` makes the evaluator, given where candidates are stored. Raises
    HandEditedError, LockedError, and Interrupted after Ctrl-C: each leaves everything so that the next call goes on.
    """
    compiler = compiler or families_compiler()
    with locked(resume.logs_folder(plan, options)):
        journal, resumed = resume.open_run(plan, device, compiler, options)
        try:
            with start(journal.candidates) as evaluator:
                bench = Bench(
                    plan, device, evaluator, journal, compiler, options, reporter or Silent(),
                    journal.records("run")[0].data["ordinal"], resume.triton_file(plan, options),
                    resume.quartet_folder(plan, options) / FILE,
                    Author(options.client, journal, options.caps, device.facts) if options.client else None,
                )  # fmt: skip
                return _run(bench, resumed)
        finally:
            journal.close()


def _run(bench: Bench, resumed: bool) -> RunResult:
    try:
        bench.reporter.run_started(bench.journal.folder, resumed, bench.options.rounds)
        resume.restore(bench, _state(bench))
        reason = _loop(bench)
        update_log(
            bench.log_file,
            head(bench.journal.records(), reason),
            [end_entry(bench, _state(bench), reason)],
            bench.language,
        )
        bench.journal.append("finished", {"reason": reason})
        return _result(bench, resumed, reason)
    except KeyboardInterrupt:
        bench.journal.append("interrupted", {"round": _state(bench).rounds + 1})
        raise Interrupted(_result(bench, resumed, "interrupted")) from None


def _loop(bench: Bench) -> str:
    """Rounds until there is a reason to stop; returns it."""
    options = bench.options
    began = time.monotonic()
    if _state(bench).rounds < 0:
        rounds.begin(bench, _state(bench))
    while True:
        state = _state(bench)
        assert state.figures is not None
        if state.figures.status is not Status.OK:
            return f"the kernel it started from does not work: {state.figures.status}: {state.figures.message}"
        if not state.cases:
            why = next((f"{case}: {why}" for case, why in state.figures.left_out), "there is none")
            return f"no performance case could be compared ({why})"
        if options.stop_at_target and all_reached(_targets(bench, state)):
            return "the targets are met"
        if state.rounds >= options.rounds:
            return f"finished {options.rounds} round{'' if options.rounds == 1 else 's'}"
        if options.max_minutes is not None and time.monotonic() - began > 60 * options.max_minutes:
            return f"the time cap of {options.max_minutes:g} minutes is reached"
        ended = rounds.play(bench, state)
        if ended is not None:
            return ended


def _state(bench: Bench) -> State:
    return fold(bench.plan, bench.compiler, bench.journal.records())


def _targets(bench: Bench, state: State) -> tuple[Judged, ...]:
    return judge_targets(bench, state.figures) if state.figures else ()


def _result(bench: Bench, resumed: bool, reason: str) -> RunResult:
    state = _state(bench)
    played = bench.journal.records("round")
    first = evaluation_from_json(played[0].data["figures"]).speedups("eager") if played else ()
    last = state.figures.speedups("eager") if state.figures else ()
    return RunResult(
        folder=bench.journal.folder,
        source=bench.source,
        resumed=resumed,
        rounds=tuple(rounds.result_of(record.data) for record in played),
        reason=reason,
        start_speedup=overall(first),
        speedup=overall(last),
        targets=_targets(bench, state),
        model=spent(bench.journal.records()).line(),
        works=state.figures is not None and state.figures.status is Status.OK,
    )
