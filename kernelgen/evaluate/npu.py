"""On an Ascend NPU: times by its events, what keeps it busy by its profilers, its buffers by the compiler.

Only the simulated NPU, which runs the same requests, has tested this: no real one was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelgen import ascend
from kernelgen.evaluate import npu_profile
from kernelgen.evaluate.base import OPPONENTS, failed
from kernelgen.evaluate.candidate import Candidate
from kernelgen.evaluate.compiling import Compiler
from kernelgen.evaluate.cpu import CpuEvaluator
from kernelgen.evaluate.cuda import CudaEvaluator
from kernelgen.evaluate.lowered import LoweredCompiler, LoweredEvaluator
from kernelgen.outcomes import Counters, Evaluation, Status
from kernelgen.spec.model import Case
from kernelgen.worker.client import Failed


class NpuEvaluator(CudaEvaluator):
    """Every CaseTiming says "measured". Candidates are planned by the Ascend compiler before they run."""

    compile_role = "lowered"
    remembers = False  # of the Ascend compiler little is known that tells one from another
    begins_early = False

    @classmethod
    def variables(cls) -> dict[str, str]:
        return ascend.environment()

    @classmethod
    def folders(cls) -> tuple[Path, ...]:
        return tuple(map(Path, ascend.folders()))

    def _make_compiler(self) -> Compiler:
        return LoweredCompiler(self._compile_worker, self.spec, self.device.npu, self.stores)

    def expect(self, cases: Sequence[Case], *, counters: bool) -> None:
        """Nothing: torch.compile is no opponent here, ncu no profiler, and a second process would share the NPU."""

    def baselines(self, candidate: Candidate, cases: Sequence[Case], against: Sequence[str] = OPPONENTS) -> Evaluation:
        """Against eager alone: torch.compile for an NPU is untried."""
        return super().baselines(candidate, cases, [name for name in against if name == "eager"])

    def profile(self, candidate: Candidate, case: Case) -> Counters:
        try:
            launches = self._compiler.compile(candidate, [case])[case.label].facts
            request = {**self._candidate_args(candidate), "case": case.to_json()}
            limit_s = self.limits.baseline_s
            found = npu_profile.with_msprof(request, launches, self._crew.profile_environment, limit_s, self.device.npu)
            if found is not None:
                return found
            text = self.runner.call("details", request, limit_s)["kernel_details"]
            return npu_profile.of_torch_npu(text, [one.kernel for one in launches])
        except (Failed, ValueError) as failure:
            return Counters(source=f"not available: {failure}")


class SimulatedEvaluator(LoweredEvaluator):
    """The same requests to the simulated NPU; what decides between candidates is predicted, as without an NPU."""

    def _candidate_args(self, candidate: Candidate) -> dict[str, object]:
        return CpuEvaluator._candidate_args(self, candidate)

    def _accuracy(self, candidate: Candidate, cases: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for report in CpuEvaluator._accuracy(self, candidate, cases):
            yield {**report, "label": f"{report['label']} (simulated NPU)"}

    def baselines(self, candidate: Candidate, cases: Sequence[Case], against: Sequence[str] = OPPONENTS) -> Evaluation:
        """A time by events for every case that is small enough, which is of no speed: none is in a CaseTiming."""
        times: list[tuple[str, float]] = []
        left_out: list[tuple[str, str]] = []
        for case in cases:
            request = {**self._candidate_args(candidate), "case": case.to_json()}
            try:
                answer = self.runner.call("time", request, self.limits.baseline_s)
            except Failed as failure:
                return failed(candidate, failure)
            if answer["left_out"]:
                left_out.append((case.label, answer["left_out"]))
            else:
                times.append((case.label, answer["time_us"]))
        said = "not measured: the NPU is simulated"
        return Evaluation(candidate.source_hash, Status.OK, said, left_out=tuple(left_out), simulated_us=tuple(times))
