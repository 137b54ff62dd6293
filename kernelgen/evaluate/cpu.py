"""Without a GPU: verified in the interpreter, compiled for a named GPU, predicted. Nothing here is a measurement."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

from kernelgen.analysis import floor_us
from kernelgen.devices import DeviceFacts, ceilings
from kernelgen.evaluate import kernels
from kernelgen.evaluate.base import OPPONENTS, Evaluator, failed
from kernelgen.evaluate.candidate import Candidate
from kernelgen.evaluate.compiling import Compiled, facts_of
from kernelgen.evaluate.kernels import Call, Told
from kernelgen.outcomes import CaseTiming, Counters, Evaluation, Status
from kernelgen.predict import Prediction, predict
from kernelgen.spec.model import Case
from kernelgen.worker.client import Failed

SOURCE: Literal["predicted"] = "predicted"


class CpuEvaluator(Evaluator):
    """Every CaseTiming says "predicted" and has no interval."""

    measures = False
    remembers = True

    @cached_property
    def _ceilings(self) -> tuple[DeviceFacts, str]:
        """What predictions take the device for: the table's estimates give way to what was measured here."""
        return ceilings.applied(self.device.gpu)

    @property
    def _measured(self) -> str:
        """Where the ceilings are from that predictions use, in words; empty where these are estimates."""
        return self._ceilings[1]

    @property
    def predicts_from(self) -> str:
        """Whose ceilings the predictions use, in words."""
        return f"predicted, {self._measured or 'ceilings estimated'}"

    def _race(
        self, candidate: Candidate, compiled: dict[str, Compiled], current: Candidate, before: dict[str, Compiled]
    ) -> Evaluation:
        timings = self._timings(candidate.cases, compiled, before)
        return Evaluation(candidate.source_hash, Status.OK, facts=facts_of(compiled), timings=timings)

    def final(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        start = time.monotonic()
        try:
            compiled = self._compiler.compile(candidate, cases)
            timings = self._timings(cases, compiled, self._compiler.compile(current, cases))
        except Failed as failure:
            return failed(candidate, failure)
        seconds = time.monotonic() - start
        return Evaluation(candidate.source_hash, Status.OK, facts=facts_of(compiled), timings=timings, seconds=seconds)

    def baselines(self, candidate: Candidate, cases: Sequence[Case], against: Sequence[str] = OPPONENTS) -> Evaluation:
        """PyTorch's own kernels are not predicted: no timings, and the message says so."""
        left_out = tuple((case.label, "no GPU: PyTorch is not timed and not predicted") for case in cases)
        return Evaluation(candidate.source_hash, Status.OK, "not measured: no GPU", left_out=left_out)

    def profile(self, candidate: Candidate, case: Case) -> Counters:
        try:
            compiled = self._compiler.compile(candidate, [case])
        except Failed:
            return Counters(source=SOURCE)
        predicted = self._predict(case, compiled[case.label])
        work, facts = self.work(case), self.device.facts
        moved = work.bytes_read + work.bytes_written
        occupancies = [one.occupancy for one in compiled[case.label].facts]
        return Counters(
            source=self.predicts_from if self._measured else SOURCE,
            dram_utilisation=moved / (predicted.seconds * facts.dram_bytes_per_s),
            achieved_occupancy=min(occupancies, default=None),
            sm_utilisation=work.arithmetic_seconds(facts) / predicted.seconds,
        )

    def kernels(self, calls: Sequence[Call]) -> Iterator[Told | Failed]:
        """What the compiled kernels and a prediction say of each kernel of the calls; nothing counts."""
        self.ahead([call.candidate for call in calls])
        for call in calls:
            case, work = call.case, self.work(call.case)
            try:
                compiled = self._compiler.compile(call.candidate, [case])[case.label]
            except Failed as failure:
                yield failure
                continue
            time_us = self._predict(case, compiled).seconds * 1e6
            found = kernels.derived(
                case.label, call.configuration, compiled.facts, time_us, work, self.device.gpu, kernels.PREDICTED
            )
            yield found, ""

    def _timings(
        self, cases: Sequence[Case], new: dict[str, Compiled], old: dict[str, Compiled]
    ) -> tuple[CaseTiming, ...]:
        return tuple(self._timing(case, new[case.label], old[case.label]) for case in cases)

    def _timing(self, case: Case, new: Compiled, old: Compiled) -> CaseTiming:
        new_us, old_us = (self._predict(case, one).seconds * 1e6 for one in (new, old))
        return CaseTiming(
            case=case.label,
            source=SOURCE,
            time_us=new_us,
            against="current",
            against_us=old_us,
            speedup=old_us / new_us,
            interval=None,
            floor_us=floor_us(self.work(case), self.device.facts),
        )

    def _predict(self, case: Case, compiled: Compiled) -> Prediction:
        return predict(self.work(case), compiled.facts, self._ceilings[0])
