"""Without the NPU that is meant: lowered and planned by its compiler, run on the CPU from the lowered form, predicted.

Nothing here is a measurement. What the CPU cannot run from the lowered form goes through Triton's interpreter, and its
label says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from kernelgen import ascend
from kernelgen.ascend.reading import refusal
from kernelgen.devices import NpuFacts
from kernelgen.evaluate.candidate import Candidate, keep
from kernelgen.evaluate.compiling import Compiled, Compiler
from kernelgen.evaluate.cpu import CpuEvaluator
from kernelgen.outcomes import StaticFacts, Status
from kernelgen.predict import Prediction
from kernelgen.predict_tiles import predict
from kernelgen.spec.model import Case, OperatorSpec
from kernelgen.worker import private
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.confine import Confinement
from kernelgen.worker.digest import digest

PLAN_LIMIT_S = 600.0
"""Lowering a kernel takes a second or two, and a candidate may have one for every case."""


class LoweredCompiler(Compiler):
    """Asks the Ascend compiler."""

    def __init__(self, worker: Worker, spec: OperatorSpec, facts: NpuFacts, stores: Sequence[Path]) -> None:
        super().__init__(worker, spec, facts, stores, PLAN_LIMIT_S)
        self._npu = facts

    def _ask(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Compiled]:
        path = keep(candidate, self._stores)
        request: dict[str, object] = {
            "path": str(path),
            "function": self._spec.name,
            "target": self._npu.compiler_target,
            "cases": [case_of(self._spec, case) for case in cases],
        }
        answer = self._worker.call("plan", request, self._limit_s)
        if answer["left_out"]:
            label, why = answer["left_out"][0]
            raise Failed(Status.LAUNCH_ERROR, f"{label}: {why}")
        launches = answer["launches"]
        return {
            case.label: compiled([one for label, one in launches if label == case.label], self._npu) for case in cases
        }


class LoweredEvaluator(CpuEvaluator):
    """As on the cpu device, but with the Ascend compiler and a model of its own."""

    compile_role = "lowered"
    remembers = False  # of the Ascend compiler little is known that tells one from another

    @property
    def _measured(self) -> str:
        return ""

    @classmethod
    def variables(cls) -> dict[str, str]:
        return ascend.environment()

    @classmethod
    def folders(cls) -> tuple[Path, ...]:
        return tuple(map(Path, ascend.folders()))

    def _make_compiler(self) -> Compiler:
        variables = {**private.variables(self._private), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        allowed = Confinement((str(self.quartet), str(self.stores[0])), (str(self._private),))
        self._interpreter = Worker("interpret", variables, self._private / "cwd", allowed)
        return LoweredCompiler(self._compile_worker, self.spec, self.device.npu, self.stores)

    def close(self) -> None:
        super().close()
        self._interpreter.close()

    def _candidate_args(self, candidate: Candidate) -> dict[str, object]:
        return {**super()._candidate_args(candidate), "target": self.device.npu.compiler_target}

    def _accuracy(self, candidate: Candidate, cases: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for report, case in zip(super()._accuracy(candidate, cases), cases, strict=True):
            if report["runs"]:
                yield report
                continue
            args = {key: value for key, value in self._candidate_args(candidate).items() if key != "target"}
            again = self._interpreter.call("accuracy", {**args, "case": case}, self.limits.accuracy_s)
            yield {**again, "label": f"{again['label']} (interpreter: {report['why']})"}

    def _predict(self, case: Case, compiled: Compiled) -> Prediction:
        return predict(self.work(case), compiled.facts, self.device.npu)


def case_of(spec: OperatorSpec, case: Case) -> dict[str, object]:
    """A case as workers are told of it."""
    return {"label": case.label, "inputs": [case.argument(t) for t in spec.inputs]}


def compiled(launches: Sequence[dict[str, Any]], facts: NpuFacts) -> Compiled:
    """What is known of one case's launches. Raises Failed where one can never run."""
    found, identity = [], []
    for launch in launches:
        why = refusal(launch)
        if why:
            raise Failed(Status.COMPILE_ERROR, why)
        identity += [str({key: value for key, value in launch.items() if key != "line"})]
        found.append(static_facts(launch, facts))
    return Compiled(tuple(found), digest(identity))


def static_facts(launch: dict[str, Any], facts: NpuFacts) -> StaticFacts:
    """What the compiler says of a launch, in the words that all devices share."""
    lowered, constants = launch["lowered"], launch["constants"]
    blocks = [value for name, value in constants.items() if name.startswith("BLOCK_SIZE")]
    programs, tile = prod(launch["grid"]), max(prod(blocks), 1)
    tiles = max(launch["elements"] / tile, 1.0)
    row = constants.get("BLOCK_SIZE_N", constants.get("BLOCK_SIZE", 1))
    widths = [int(kind.lstrip("*bfpiu")) // 8 or 1 for kind in launch["types"]]
    return StaticFacts(
        kernel=launch["kernel"], arch=facts.arch, grid=tuple(launch["grid"]), num_warps=1, registers=0, spill_bytes=0,
        shared_bytes=0, occupancy=min(1.0, programs / facts.vector_cores), waves=tiles / programs, load_bytes=0,
        store_bytes=0, buffer_bytes=lowered["ub_bytes"], buffer_share=lowered["ub_bytes"] / facts.ub_bytes,
        overlapped=bool(launch["options"].get("multibuffer", True)) and not lowered["multibuffer_dropped"],
        element_wise=sum(f["kind"] in ("scalar fallback", "int64") for f in lowered["findings"]), tile_elements=tile,
        row_bytes=row * max(widths, default=1),
    )  # fmt: skip
