"""A small operator, its compiler and an evaluator that only computes, for tests of the rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelgen.analysis import Work
from kernelgen.devices import Device
from kernelgen.devices.facts import H200
from kernelgen.evaluate import Candidate
from kernelgen.optimization import Options, RunResult, optimize
from kernelgen.optimization.model import Reporter
from kernelgen.outcomes import (
    AccuracyResult,
    CaseTiming,
    Counters,
    Evaluation,
    Interval,
    Source,
    StaticFacts,
    Status,
)
from kernelgen.plan import KernelPlan, Parameter, Plan, Schedule, TableRow
from kernelgen.schedule.problem import Problem
from kernelgen.spec.model import STRATEGIES, Case, OperatorSpec, Place, Target, TensorSpec
from kernelgen.strategies import Compiler

START = Schedule.make("flat", BLOCK_SIZE=256, EVICT="none", REUSE=1, num_stages=1, num_warps=4)


def case(n: int) -> Case:
    return Case((("N", n),), (("T", "float32"),), f"[{n}] float32")


CASES = (case(1 << 16), case(1 << 22), case(1 << 26))


def make_plan(
    cases: tuple[Case, ...] = CASES, strategies: tuple[str, ...] = STRATEGIES, target: Target | None = None
) -> Plan:
    spec = OperatorSpec(
        name="toy", summary="A toy.", inputs=(TensorSpec("x", ("N",), "T"),), outputs=(TensorSpec("out", ("N",), "T"),),
        dtypes=(("T", ("float32",)),), constraints=(), reference="def toy(x):\n    return x + 1\n",
        reference_place=Place(1, 1), accuracy=(case(1000),), performance=cases, optimization_strategies=strategies,
        target=target or Target(), sha256="ab" * 32,
    )  # fmt: skip
    return KernelPlan(spec, "toy", None, (TableRow((), START),))


def space(plan: Plan, row: int, cases: tuple[Case, ...]) -> tuple[Parameter, ...]:
    return (
        Parameter("BLOCK_SIZE", (64, 128, 256, 512, 1024, 2048, 4096), "block_size", "constexpr", "elements a program"),
        Parameter("EVICT", ("none", "evict_first", "evict_last"), "memory_access", "constexpr", "how the L2 keeps it"),
        Parameter("REUSE", (1, 2, 4), "data_reuse", "constexpr", "blocks that share a load"),
        Parameter("num_stages", (1, 2, 3, 4), "warp_stage", "launch", "loads in flight"),
        Parameter("num_warps", (1, 2, 4, 8, 16), "warp_stage", "launch", "warps a program"),
    )


def variants(plan: Plan, cases: tuple[Case, ...]) -> tuple[Schedule, ...]:
    return (START, replace(START, variant="tiled"))


def legal(plan: Plan, schedule: Schedule, case: Case) -> str | None:
    if schedule.int("BLOCK_SIZE") < 32 * schedule.int("num_warps"):
        return "fewer elements than threads"
    return None


def problem_of(plan: Plan, case: Case) -> Problem:
    sizes = dict(case.sizes)
    found = {"row_bytes": 4 * int(case.size("N")), **({"rows": case.size("B")} if "B" in sizes else {})}
    return Problem(tuple((name, size) for name, size in found.items() if isinstance(size, int)))


def row_of(plan: Plan, case: Case) -> int:
    return COMPILER.row_of(plan, case)


def source(plan: Plan) -> str:
    rows = [f"    {json.dumps(row.to_json())}," for row in plan.table]
    return "\n".join(["# toy", "SCHEDULES = (", *rows, ")", ""])


COMPILER = Compiler(space, variants, legal, problem_of, source)


def table_of(text: str) -> tuple[TableRow, ...]:
    lines = [json.loads(line.strip().rstrip(",")) for line in text.splitlines() if line.startswith("    ")]
    return tuple(TableRow.from_json(line) for line in lines)


def microseconds(schedule: Schedule, case: Case) -> float:
    """Large sizes want large blocks; everybody wants eight warps, two stages and eviction."""
    size = case.size("N")
    assert isinstance(size, int)
    least = 2.0 + 8 * size / H200.dram_bytes_per_s * 1e6
    best = 6 + (size > 1 << 20) * 2 + (size > 1 << 24) * 3
    loss = 0.04 * abs(math.log2(schedule.int("BLOCK_SIZE")) - best)
    loss += 0.03 * abs(math.log2(schedule.int("num_warps")) - 3) + 0.03 * abs(schedule.int("num_stages") - 2)
    loss += 0.04 * (schedule["EVICT"] != "evict_first") + 0.05 * (schedule.variant == "tiled")
    return least * (1 + loss)


@dataclass
class FakeEvaluator:
    """Everything is a formula of the schedule; `twist` changes what is said of a candidate."""

    measures: bool = True
    width: float = 0.004
    """Half the width of the intervals."""
    twist: Callable[[str, Candidate, Evaluation], Evaluation] = lambda step, candidate, evaluation: evaluation
    calls: list[tuple[str, str]] = field(default_factory=list)

    def __enter__(self) -> FakeEvaluator:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def isolation(self) -> tuple[str, ...]:
        return ("nothing runs",)

    def work(self, case: Case) -> Work:
        size = case.size("N")
        assert isinstance(size, int)
        return Work(4 * size, 4 * size, size)

    def search(self, candidates: Sequence[Candidate], current: Candidate) -> Iterator[tuple[Candidate, Evaluation]]:
        for candidate in reversed(candidates):
            yield candidate, self._said("search", candidate, self._timed(candidate, current, candidate.cases))

    def final(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        return self._said("final", candidate, self._timed(candidate, current, cases))

    def verify(self, candidate: Candidate, *, recall: bool = False) -> Evaluation:
        result = AccuracyResult("[1000] float32", True, "", 0.0, 0.0)
        return self._said("verify", candidate, Evaluation(candidate.source_hash, Status.OK, accuracy=(result,)))

    def baselines(self, candidate: Candidate, cases: Sequence[Case]) -> Evaluation:
        if not self.measures:
            left_out = tuple((c.label, "no GPU") for c in cases)
            return self._said("baselines", candidate, Evaluation(candidate.source_hash, Status.OK, left_out=left_out))
        timings = []
        for one in cases:
            mine, torch = microseconds(self._schedule(candidate, one), one), microseconds(START, one)
            timings += [self._timing(one, mine, torch * 2.0, "eager"), self._timing(one, mine, torch * 1.2, "compile")]
        found = Evaluation(candidate.source_hash, Status.OK, timings=tuple(timings))
        return self._said("baselines", candidate, found)

    def expect(self, cases: Sequence[Case], *, counters: bool) -> None: ...

    def profile(self, candidate: Candidate, case: Case) -> Counters:
        self.calls.append(("profile", candidate.source_hash))
        return Counters("ncu", 0.5, 0.6, 0.2, 0.5, 0.3) if self.measures else Counters("predicted", 0.5)

    def facts(self, candidate: Candidate, cases: Sequence[Case]) -> tuple[tuple[str, StaticFacts], ...]:
        one = StaticFacts("toy_kernel", "sm_90", (512,), 4, 32, 0, 0, 0.75, 3.9, 16, 16, 1, 1)
        return tuple((c.label, one) for c in cases)

    def _said(self, step: str, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        self.calls.append((step, candidate.source_hash))
        return self.twist(step, candidate, evaluation)

    def _schedule(self, candidate: Candidate, one: Case) -> Schedule:
        table = table_of(candidate.source)
        return table[row_of(replace(make_plan(), table=table), one)].schedule

    def _timed(self, candidate: Candidate, current: Candidate, cases: Sequence[Case]) -> Evaluation:
        timings = [
            self._timing(
                c, microseconds(self._schedule(candidate, c), c), microseconds(self._schedule(current, c), c), "current"
            )
            for c in cases
        ]
        return Evaluation(candidate.source_hash, Status.OK, timings=tuple(timings))

    def _timing(self, one: Case, mine: float, other: float, against: str) -> CaseTiming:
        ratio = other / mine
        said: Source = "measured" if self.measures else "predicted"
        interval = Interval(ratio, ratio * (1 - self.width), ratio * (1 + self.width)) if self.measures else None
        floor = 8 * int(str(one.size("N"))) / H200.dram_bytes_per_s * 1e6
        return CaseTiming(one.label, said, mine, against, other, ratio, interval, floor_us=floor)


def device(measures: bool = True) -> Device:
    return Device("cuda" if measures else "cpu", measures, H200, driver="570.1", cuda="12.8")


def options(root: Path, **changes: object) -> Options:
    return replace(Options(root / "operators", root / "logs"), **changes)  # type: ignore[arg-type]


def write_kernel(root: Path, plan: Plan) -> Path:
    path = root / "operators" / "toy" / "toy_triton.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source(plan))
    return path


def run(
    root: Path,
    evaluator: FakeEvaluator | None = None,
    plan: Plan | None = None,
    reporter: Reporter | None = None,
    compiler: Compiler | None = None,
    **changes: object,
) -> RunResult:
    evaluator = evaluator or FakeEvaluator()
    return optimize(
        plan or make_plan(),
        device(evaluator.measures),
        lambda store: evaluator,  # type: ignore[arg-type,return-value]
        options(root, **changes),
        reporter,
        compiler or COMPILER,
    )
