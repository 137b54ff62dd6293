"""What every evaluator does the same way: workers, compiling side by side, duplicates, verification."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from kernelgen.analysis import Work
from kernelgen.devices import Device
from kernelgen.devices.cpu import cores
from kernelgen.evaluate import remembered
from kernelgen.evaluate.candidate import Candidate, keep
from kernelgen.evaluate.compiling import Compiled, Compiler, facts_of
from kernelgen.evaluate.crew import Crew
from kernelgen.outcomes import AccuracyResult, Counters, Evaluation, StaticFacts, Status
from kernelgen.plan import Plan
from kernelgen.spec.model import Case
from kernelgen.worker.client import Failed

OPPONENTS = ("eager", "compile")
"""What is always shown; the judge also knows "max-autotune"."""
MOST_JOBS = 12
"""More compile processes than this gain nothing: a round has about that many candidates."""
SAME_CODE = "same machine code as "
"""Begins the message of a candidate that was not timed because it equals another."""

Code = tuple[tuple[str, str], ...]
"""The digests of a candidate's machine code by case label."""


@dataclass(frozen=True)
class Limits:
    """Wall time, in seconds, after which one request is killed."""

    compile_s: float = 60.0
    race_s: float = 60.0
    accuracy_s: float = 180.0
    compare_s: float = 120.0
    baseline_s: float = 300.0
    profile_s: float = 20.0
    profiled_call_s: float = 5.0
    """Each further call of one profiler."""


def default_jobs() -> int:
    """Compile processes at once: the cores this process may use, at most MOST_JOBS."""
    return min(cores(), MOST_JOBS)


class Evaluator(ABC):
    """Compiles, verifies and times candidates of one operator. A context manager: leaving it ends every process."""

    measures: bool
    """False: every time is a prediction."""
    remembers = False
    """Whether a kernel that passed its accuracy test is known to have passed from run to run."""
    begins_early = False
    """Whether its processes take long to start, and may do so before it is known what they are to do."""
    compile_role = "compile"
    """The worker that compiles."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        quartet: Path,
        store: Path,
        work: Callable[[Case], Work],
        jobs: int,
        limits: Limits,
        run_role: str,
        crew: Crew | None = None,
    ) -> None:
        self.device = device
        self.spec = plan.spec
        self.quartet = quartet
        self.stores = (store,) if crew is None else (crew.store, store)
        """Where candidates are kept; workers read the first."""
        self.work = work
        self.limits = limits
        store.mkdir(parents=True, exist_ok=True)  # a worker may read what is there when it starts
        self._crew = crew or self.crew(device, (quartet, store), run_role)
        self._private = self._crew.folder
        self._compile_worker, self.runner, self.second = self._crew.compiling, self._crew.runner, self._crew.second
        self._compiler = self._make_compiler()
        self._pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="kernelgen-evaluate")

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every worker process at once; requests still open fail."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._crew.close()
        self._pool.shutdown(wait=True)

    def expect(self, cases: Sequence[Case], *, counters: bool) -> None:  # noqa: B027  where nothing takes long
        """`baselines` will be asked for on these cases, and `profile` where counters count: what takes long to start is
        started, while other things are at work."""

    def isolation(self) -> tuple[str, ...]:
        """What the process that runs candidates is held to, and what this machine cannot do. Raises Failed."""
        return self.runner.confinement()

    @classmethod
    def crew(cls, device: Device, readable: Sequence[Path], run_role: str) -> Crew:
        """The processes of an evaluator, which may read some folders."""
        return Crew((*readable, *cls.folders()), run_role, cls.compile_role, cls.variables(), dict(device.environment))

    @classmethod
    def variables(cls) -> dict[str, str]:
        """What the workers of this evaluator need in their environment."""
        return {}

    @classmethod
    def folders(cls) -> tuple[Path, ...]:
        """What they must be able to read beside the quartet and the candidates."""
        return ()

    def _make_compiler(self) -> Compiler:
        return Compiler(self._compile_worker, self.spec, self.device.gpu, self.stores, self.limits.compile_s)

    def facts(self, candidate: Candidate, cases: Sequence[Case]) -> tuple[tuple[str, StaticFacts], ...]:
        """What the compiled kernels say of themselves, by case label. Raises Failed where it does not compile."""
        return facts_of(self._compiler.compile(candidate, cases))

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Compile what will be asked for, several at once; what does not compile says so when it is asked for."""
        wait([self._pool.submit(self._compiler.compile, candidate, candidate.cases) for candidate in candidates])

    def search(self, candidates: Sequence[Candidate], current: Candidate) -> Iterator[tuple[Candidate, Evaluation]]:
        """Compile all, several at once, and time each against `current` as soon as it is compiled.

        Yields in the order of completion. A candidate whose machine code equals that of one timed before takes
        over its figures, one whose code equals the current one's has none; the message says so. What is found
        wrong is a status, never an exception.
        """
        futures: dict[Future[tuple[dict[str, Compiled], float]], Candidate] = {
            self._pool.submit(self._compile_timed, candidate): candidate for candidate in candidates
        }
        timed: dict[Code, Evaluation] = {}
        try:
            for future in as_completed(futures):
                candidate, start, compiling = futures[future], time.monotonic(), 0.0
                try:
                    compiled, compiling = future.result()
                    found = self._search_one(candidate, compiled, current, timed)
                except Failed as failure:
                    found = failed(candidate, failure)
                yield candidate, replace(found, seconds=compiling + time.monotonic() - start)
        finally:
            for future in futures:
                future.cancel()

    def _compile_timed(self, candidate: Candidate) -> tuple[dict[str, Compiled], float]:
        start = time.monotonic()
        return self._compiler.compile(candidate, candidate.cases), time.monotonic() - start

    def _search_one(
        self,
        candidate: Candidate,
        compiled: dict[str, Compiled],
        current: Candidate,
        timed: dict[Code, Evaluation],
    ) -> Evaluation:
        before = self._compiler.compile(current, candidate.cases)
        if _code(compiled) == _code(before):
            note = SAME_CODE + current.source_hash
            return Evaluation(candidate.source_hash, Status.OK, note, facts_of(compiled))
        first = timed.get(_code(compiled))
        if first is not None:
            note = SAME_CODE + first.source_hash
            return replace(first, source_hash=candidate.source_hash, message=note, facts=facts_of(compiled))
        found = self._race(candidate, compiled, current, before)
        timed[_code(compiled)] = found
        return found

    def verify(self, candidate: Candidate, *, large: bool = False, recall: bool = False) -> Evaluation:
        """The quartet's own accuracy cases, and those the judge derives from them, on the candidate.

        `large` adds one beyond 2**31 elements where the device's memory takes it: seconds, so for a winner only.
        `recall`: of a candidate that passed them all on this machine before, what was found then will do.
        """
        place = self._place(candidate) if not large else None
        if recall and place and (before := remembered.found(place)):
            return replace(before, source_hash=candidate.source_hash)
        found = self._verified(candidate, large)
        if place and found.status is Status.OK and not found.left_out:
            remembered.keep(place, found)
        return found

    def _place(self, candidate: Candidate) -> Path | None:
        test = self._test
        return remembered.place(self.device, self.spec.name, test, candidate.source) if test else None

    @cached_property
    def _test(self) -> bytes | None:
        """Of the test as it was at first: the workers, too, load it once."""
        return remembered.test_of(self.quartet, self.spec.name) if self.remembers else None

    def _verified(self, candidate: Candidate, large: bool) -> Evaluation:
        start = time.monotonic()
        try:
            cases = self.runner.call(
                "accuracy_cases", {**self._quartet_args(), "large": large}, self.limits.accuracy_s
            )["cases"]
            reports = list(self._accuracy(candidate, cases))
        except Failed as failure:
            return replace(failed(candidate, failure), seconds=time.monotonic() - start)
        results = tuple(
            AccuracyResult(
                r["label"],
                r["passed"],
                r["message"],
                r["max_error"],
                r["eager_error"],
                r["relative_error"],
                r["l2_error"],
                r["bound_share"],
                r["peak_bytes"],
            )
            for r in reports
            if not r["left_out"]
        )
        wrong = [r for r in results if not r.passed]
        message = (
            f"{wrong[0].case}: {wrong[0].message}" if wrong else "" if results else "no accuracy case could be run"
        )
        return Evaluation(
            source_hash=candidate.source_hash,
            status=Status.OK if results and not wrong else Status.INCORRECT,
            message=message,
            accuracy=results,
            left_out=tuple((r["label"], r["left_out"]) for r in reports if r["left_out"]),
            seconds=time.monotonic() - start,
        )

    def _accuracy(self, candidate: Candidate, cases: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A report a case, in order. A case that crashes or hangs raises Failed with the case's name."""
        args = self._candidate_args(candidate)
        futures = [
            (
                case["label"],
                self._pool.submit(self.runner.call, "accuracy", {**args, "case": case}, self.limits.accuracy_s),
            )
            for case in cases
        ]
        try:
            for label, future in futures:
                try:
                    yield future.result()
                except Failed as failure:
                    raise Failed(failure.status, f"{label}: {failure.message}") from None
        finally:
            for _, future in futures:
                future.cancel()

    def _quartet_args(self) -> dict[str, object]:
        return {"folder": str(self.quartet), "name": self.spec.name}

    def _candidate_args(self, candidate: Candidate) -> dict[str, object]:
        return {**self._quartet_args(), "path": str(keep(candidate, self.stores))}

    @abstractmethod
    def _race(
        self, candidate: Candidate, compiled: dict[str, Compiled], current: Candidate, before: dict[str, Compiled]
    ) -> Evaluation:
        """The candidate's times on its own cases against `current`, quickly. May raise Failed."""

    @abstractmethod
    def final(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        """The candidate against `current` with full confidence intervals (CaseTiming.against is "current")."""

    @abstractmethod
    def baselines(self, candidate: Candidate, cases: Sequence[Case], against: Sequence[str] = OPPONENTS) -> Evaluation:
        """The candidate against PyTorch (CaseTiming.against says which): eager, compile, max-autotune."""

    @abstractmethod
    def profile(self, candidate: Candidate, case: Case) -> Counters:
        """What keeps the device busy, from its counters where they can be read; never raises Failed."""


def _code(compiled: dict[str, Compiled]) -> Code:
    return tuple(sorted((label, one.digest) for label, one in compiled.items()))


def failed(candidate: Candidate, failure: Failed) -> Evaluation:
    """The evaluation of a candidate that came to nothing."""
    return Evaluation(candidate.source_hash, failure.status, failure.message)
