"""On an NVIDIA GPU: every time is measured there, by the judge, in the one worker that owns the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from kernelgen.analysis import floor_us
from kernelgen.devices import Device, alone, beside
from kernelgen.devices.cpu import cores
from kernelgen.errors import NoDeviceError
from kernelgen.evaluate import kernels, profile
from kernelgen.evaluate.base import OPPONENTS, Evaluator, failed
from kernelgen.evaluate.candidate import Candidate
from kernelgen.evaluate.candidate import keep as kept
from kernelgen.evaluate.compiling import Compiled, facts_of
from kernelgen.evaluate.crew import Crew
from kernelgen.evaluate.kernels import Call, Launches, Told
from kernelgen.outcomes import CaseTiming, Counters, Evaluation, Interval, StaticFacts, Status
from kernelgen.search.racing import STAGES
from kernelgen.spec.model import Case
from kernelgen.worker.client import Failed, Worker

MOST_CHECKERS, CORES_EACH = 3, 4
"""Processes that verify beside the runner, and the cores that one of them should find: each keeps one busy."""
HEAVY = 2**26
"""A case with a tensor of more elements is judged when no other is: its oracle takes gigabytes."""
HOPELESS = 1.5
"""A candidate this many times slower than the current kernel on one case is not raced on the others."""
TOGETHER = 20
"""Calls of one ncu: what it has counted of them is lost where it is interrupted."""
COMPARE_CAP_S = 5.0
"""Seconds after which a comparison adds no more blocks; kernels below a millisecond need far less."""

Answer = dict[str, Any]
Left = tuple[str, str]


def heats(lead: float) -> list[tuple[int, float]]:
    """Repetitions after which a candidate that is so many times slower than the current kernel is given up: the rule
    of `search.racing`, which counts from the fastest so far."""
    return [(repetitions, within / lead) for repetitions, within in STAGES[:-1]]


class _Waiting:
    """Numbers, each for one of several threads, as soon as there is one; none after the end."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers, self._lock, self._ended = numbers, threading.Lock(), False

    def next(self) -> int | None:
        with self._lock:
            number = None if self._ended else next(self._numbers, None)
        return None if self._ended else number  # it may have ended meanwhile

    def end(self) -> None:
        self._ended = True


class CudaEvaluator(Evaluator):
    """Every CaseTiming says "measured"; those of `final` and `baselines` have an interval."""

    measures = True
    remembers = True
    begins_early = True

    @classmethod
    def crew(cls, device: Device, readable: Sequence[Path], run_role: str) -> Crew:
        """Where the device is here and cores are many, with processes that verify beside the runner."""
        checkers = min(MOST_CHECKERS, cores() // CORES_EACH - 1) if device.measures and run_role == "run" else 0
        return Crew(
            (*readable, *cls.folders()), run_role, cls.compile_role, cls.variables(), dict(device.environment),
            max(checkers, 0),
        )  # fmt: skip

    @cached_property
    def _lead(self) -> dict[tuple[str, str], float]:
        """By case and current kernel: the largest speedup over it that a race has seen."""
        return {}

    @cached_property
    def _counted(self) -> dict[tuple[str, str], Counters]:
        """By case and machine code: what the GPU's counters said; a profiler takes seconds to start."""
        return {}

    _standby: profile.Standby | None = None
    _profiles = False
    """Whether counters will be asked for."""
    _ahead: Future[None] | None = None
    """torch.compile is at work on the opponents."""

    def expect(self, cases: Sequence[Case], *, counters: bool) -> None:
        beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernelgen-beside")
        self._ahead = beside.submit(self._compile_opponents, cases)
        beside.shutdown(wait=False)
        self._profiles = counters

    def _compile_opponents(self, cases: Sequence[Case]) -> None:
        """In a process of its own, which leaves them in Inductor's cache. What fails says so where it is timed."""
        with self.second:
            for case in cases:
                request = {**self._quartet_args(), "cases": [case.to_json()]}
                with suppress(Failed, NoDeviceError), beside(self.device):
                    self.second.call("compile_opponents", request, self.limits.baseline_s)

    def _stand_by(self) -> None:
        """Have a profiler make its context, where nothing is timed: while a kernel is verified."""
        if self._standby is None:
            self._standby = profile.standby(self._private / "tmp", self._crew.profile_environment)

    @contextmanager
    def _in_silence(self) -> Iterator[None]:
        """When nothing works beside the runner, which times something, and no other run does on the same device."""
        self._settle()
        with alone(self.device):
            yield

    def _settle(self) -> None:
        """Until nothing of this run works beside the runner."""
        self._crew.settle()
        if self._ahead is not None:
            self._ahead.result()
        if self._standby is not None:
            self._standby.wait(self.limits.profile_s)

    def close(self) -> None:
        if self._standby is not None:
            self._standby.close()
        super().close()

    def verify(self, candidate: Candidate, *, large: bool = False, recall: bool = False) -> Evaluation:
        self._pool.submit(self._compile_worker.start)  # while the other one makes its context
        if self._profiles:
            self._stand_by()
        return super().verify(candidate, large=large, recall=recall)

    def _accuracy(self, candidate: Candidate, cases: Sequence[dict[str, Any]]) -> Iterator[Answer]:
        """Their kernels are compiled before, several at once: hidden cases have sizes, strides and alignments of their
        own, and the processes that own the device would compile one after the other. They take a case as soon as its
        kernels are there; what does not compile says so where it is run."""
        args, others = self._candidate_args(candidate), self._crew.checkers
        compiled = {self._pool.submit(self._compile_judged, args, case): n for n, case in enumerate(cases)}
        light = [one for one, n in compiled.items() if self._elements(cases[n]) <= HEAVY]
        found: dict[int, Answer | Failed] = {}
        waiting = _Waiting(compiled[one] for one in as_completed(light))
        pool = ThreadPoolExecutor(1 + len(others), thread_name_prefix="kernelgen-check")
        try:
            wait([pool.submit(self._check, one, args, cases, waiting, found) for one in (self.runner, *others)])
        finally:  # who interrupts does not wait for the other cases
            waiting.end()
            pool.shutdown(wait=False)
        for worker in others:  # what they keep of the device's memory, the rest and what is timed may need
            with suppress(Failed, NoDeviceError):
                worker.call("release", {}, self.limits.accuracy_s)
        if any(isinstance(report, Failed) for report in found.values()):
            for one in compiled:
                one.cancel()
        else:
            wait(compiled)
            self._check(self.runner, args, cases, _Waiting(n for n in range(len(cases)) if n not in found), found)
        for n, report in sorted(found.items()):
            if isinstance(report, Failed):
                raise Failed(report.status, f"{cases[n]['label']}: {report.message}")
            yield report
        assert len(found) == len(cases), "a case was not judged"

    def _compile_judged(self, args: dict[str, object], case: dict[str, Any]) -> None:
        with suppress(Failed):
            request = {**args, "device": asdict(self.device.gpu), "case": case}
            self._compile_worker.call("compile_judged", request, self.limits.compile_s)

    def _elements(self, case: dict[str, Any]) -> int:
        """The largest of the tensors of a case."""
        sizes = Case.from_json(case)
        return max((prod(sizes.shape(t.shape)) for t in (*self.spec.inputs, *self.spec.outputs)), default=0)

    def _check(
        self, worker: Worker, args: dict[str, object], cases: Sequence[dict[str, Any]], waiting: _Waiting,
        found: dict[int, Answer | Failed],
    ) -> None:  # fmt: skip
        """Have a process judge case after case until none waits, or one has failed. One that does not start takes none,
        and what another than the runner fails at or leaves out is left to it: that others were at work, or took the
        device's memory, must decide nothing."""
        if worker is not self.runner:
            worker.start()  # NoDeviceError ends this thread
        while (n := waiting.next()) is not None:
            try:
                with beside(self.device):
                    report: Answer | Failed = worker.call(
                        "accuracy", {**args, "case": cases[n]}, self.limits.accuracy_s
                    )
            except Failed as failure:
                report = failure
            if worker is self.runner or not (isinstance(report, Failed) or report["left_out"]):
                found[n] = report
                if isinstance(report, Failed):
                    waiting.end()

    def _race(
        self, candidate: Candidate, compiled: dict[str, Compiled], current: Candidate, before: dict[str, Compiled]
    ) -> Evaluation:
        args = {**self._candidate_args(candidate), "current": str(kept(current, self.stores))}
        timings: list[CaseTiming] = []
        left_out: list[Left] = []
        for case in candidate.cases:
            if timings and timings[-1].speedup * HOPELESS < 1:
                left_out.append((case.label, f"{HOPELESS}x slower than the current kernel on {timings[-1].case}"))
                continue
            lead = self._lead.get((case.label, current.source_hash), 1.0)
            request = {**args, "case": case.to_json(), "heats": heats(lead)}
            with self._in_silence():
                answer = self.runner.call("race", request, self.limits.race_s)
            self._take(case, "current", answer, timings, left_out)
            if timings and timings[-1].case == case.label:
                self._lead[case.label, current.source_hash] = max(lead, timings[-1].speedup)
        return Evaluation(
            candidate.source_hash, Status.OK, "", facts_of(compiled), timings=tuple(timings), left_out=tuple(left_out)
        )

    def final(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        args = {**self._candidate_args(candidate), "current": str(kept(current, self.stores)), "cap_s": COMPARE_CAP_S}

        def ask() -> Iterator[tuple[Case, str, Answer]]:
            for case in cases:
                with self._in_silence():
                    answer = self.runner.call("compare", {**args, "case": case.to_json()}, self.limits.compare_s)
                yield case, "current", answer

        return self._collect(candidate, ask)

    def baselines(self, candidate: Candidate, cases: Sequence[Case], against: Sequence[str] = OPPONENTS) -> Evaluation:
        args = {**self._candidate_args(candidate), "cap_s": COMPARE_CAP_S}

        def ask() -> Iterator[tuple[Case, str, Answer]]:
            for case in cases:
                for opponent in against:
                    first = opponent == against[0]
                    request = {**args, "case": case.to_json(), "against": opponent, "check": first}
                    with self._in_silence():
                        answer = self.runner.call("baseline", request, self.limits.baseline_s)
                    yield case, opponent, answer

        return self._collect(candidate, ask)

    def profile(self, candidate: Candidate, case: Case) -> Counters:
        try:
            compiled = self._compiler.compile(candidate, [case])[case.label]
            code = case.label, compiled.digest
            if code in self._counted:
                return self._counted[code]
            request = {**self._candidate_args(candidate), "case": case.to_json()}
            self._stand_by()
            if compiled.facts and self._standby is not None:
                with alone(self.device):
                    counters = self._standby.counters(request, compiled.facts, self.limits.profile_s)
                self._standby = None
                if counters is not None:
                    self._counted[code] = counters
                    return counters
            path = str(kept(candidate, self.stores))
            with alone(self.device):
                answer = self.runner.call("race", {**request, "current": path}, self.limits.race_s)
        except Failed as failure:
            return Counters(source=f"not available: {failure.message}")
        if answer["left_out"]:
            return Counters(source=f"not available: {answer['left_out']}")
        return profile.from_time(self.work(case), answer["time_us"] * 1e-6, self.device.gpu)

    def kernels(self, calls: Sequence[Call]) -> Iterator[Told | Failed]:
        """What each kernel of the calls did, and why not ncu said so where it did not; call by call in their order.
        Calls go to one ncu together: it takes seconds to start."""
        self.ahead([call.candidate for call in calls])
        rest, by_itself = list(calls), 0
        while rest:
            together = 1 if rest[0].keep or by_itself else TOGETHER
            counted, why = self._counters_of(rest[:together])
            if not counted and together > 1:  # by itself, whatever it launches; each of them, if one does not end
                by_itself = together if why == profile.TOO_LONG else 0
                counted, why = self._counters_of(rest[:1])
            by_itself = max(by_itself - max(len(counted), 1), 0)
            for call, launches in zip(rest, counted, strict=False):
                yield kernels.of_ncu(call.case.label, call.configuration, launches, self.work(call.case)), ""
            rest = rest[len(counted) :]
            if not counted:
                yield self._derived(rest.pop(0), why)

    def _counters_of(self, calls: Sequence[Call]) -> tuple[list[Launches], str]:
        """Of calls from the first on, up to the first that does not compile."""
        told: list[tuple[dict[str, object], tuple[StaticFacts, ...]]] = []
        with suppress(Failed):  # `_derived` says so
            for call in calls:
                launches = self._compiler.compile(call.candidate, [call.case])[call.case.label].facts
                if not launches:  # a call of torch's, whose kernels nobody knows by name
                    break
                told.append(({**self._candidate_args(call.candidate), "case": call.case.to_json()}, launches))
        if not told:
            return [], profile.NO_KERNEL
        limit_s = self.limits.profile_s + self.limits.profiled_call_s * (len(told) - 1)
        with alone(self.device):
            return profile.whole_calls(told, self._crew.profile_environment, limit_s, calls[0].keep)

    def _derived(self, call: Call, why: str) -> Told | Failed:
        """The same columns from the time of a call that ncu said nothing of."""
        candidate, case = call.candidate, call.case
        try:
            launches = self._compiler.compile(candidate, [case])[case.label].facts
            request = {**self._candidate_args(candidate), "case": case.to_json()}
            request["current"] = str(kept(candidate, self.stores))
            with alone(self.device):
                answer = self.runner.call("race", request, self.limits.race_s)
        except Failed as failure:
            return failure
        if answer["left_out"]:
            return [], answer["left_out"]
        time_us, work = answer["time_us"], self.work(case)
        return kernels.derived(case.label, call.configuration, launches, time_us, work, self.device.gpu), why

    def trace(self, candidate: Candidate, case: Case, path: Path) -> str:
        """Write a Chrome trace of a call; what went wrong, empty where nothing did."""
        request = {**self._candidate_args(candidate), "case": case.to_json(), "trace": str(path)}
        said = profile.output_of(profile.once(request), self._crew.profile_environment, self.limits.profile_s)
        return "" if path.is_file() else profile.last_line(said)

    def _collect(self, candidate: Candidate, ask: Callable[[], Iterator[tuple[Case, str, Answer]]]) -> Evaluation:
        """What was measured until the end, or until something failed."""
        start = time.monotonic()
        timings: list[CaseTiming] = []
        left_out: list[Left] = []
        found = Evaluation(candidate.source_hash, Status.OK)
        try:
            for case, against, answer in ask():
                self._take(case, against, answer, timings, left_out)
        except Failed as failure:
            found = failed(candidate, failure)
        seconds = time.monotonic() - start
        return replace(found, timings=tuple(timings), left_out=tuple(left_out), seconds=seconds)

    def _take(self, case: Case, against: str, answer: Answer, timings: list[CaseTiming], left_out: list[Left]) -> None:
        if answer["left_out"]:
            left_out.append((case.label, answer["left_out"]))
            return
        interval = answer.get("interval")
        speedup = answer.get("speedup", answer["against_us"] / answer["time_us"])
        timings.append(
            CaseTiming(
                case=case.label,
                source="measured",
                time_us=answer["time_us"],
                against=against,
                against_us=answer["against_us"],
                speedup=speedup,
                interval=Interval(speedup, *interval) if interval else None,
                call_us=answer.get("call_us"),
                against_call_us=answer.get("against_call_us"),
                floor_us=floor_us(self.work(case), self.device.facts),
            )
        )
