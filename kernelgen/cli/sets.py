"""`kernelgen tune NAME --configs SET`: schedules that a family names together, side by side as a table."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kernelgen.cli.names import LOGS, Quartet, root_of
from kernelgen.cli.terminal import note
from kernelgen.errors import UsageError

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.evaluate import Candidate, Crew
    from kernelgen.evaluate.kernels import KernelRow
    from kernelgen.plan import Plan, ScheduleSet
    from kernelgen.spec.model import Case

Wanted = list[tuple[str, "Candidate", "Case"]]


def cases_of(plan: Plan, named: ScheduleSet) -> list[Case]:
    """The performance cases that a set is for. Raises UsageError where there is none."""
    from kernelgen.optimization.bench import families_compiler

    compiler = families_compiler()
    found = [
        case
        for case in plan.spec.performance
        if {kind for _, kind in case.dtypes} <= set(named.dtypes)
        and all(compiler.problem_of(plan, case)[size] == value for size, value in named.sizes)
    ]
    if not found:
        of = " and ".join([*(f"{size} = {value}" for size, value in named.sizes), " or ".join(named.dtypes)])
        raise UsageError(f"these configurations are for cases of {of}, and none of the chosen cases is one")
    return found


def wanted_of_set(plan: Plan, named: ScheduleSet) -> Wanted:
    """Every schedule of a set, by its short form, with every case that the set is for. Raises UsageError where no case
    is, or a schedule is illegal."""
    from kernelgen.optimization.bench import families_compiler
    from kernelgen.optimization.search import current
    from kernelgen.strategies.short import short
    from kernelgen.strategies.space import axes_of

    compiler, found = families_compiler(), []
    for case in cases_of(plan, named):
        row = compiler.row_of(plan, case)
        axes = axes_of(compiler, plan, row, (case,))
        for schedule in named.schedules:
            label = short(schedule, axes[schedule.variant].parameters)
            if reason := compiler.legal(plan, schedule, case):
                raise UsageError(f"{label} cannot serve {case.label}: {reason}")
            found.append((label, current(plan.with_schedule(row, schedule), compiler, (case,), what=label), case))
    return found


def side_by_side(
    plan: Plan,
    name: str,
    named: ScheduleSet,
    here: Device,
    jobs: int | None,
    csv_file: Path | None,
    dry: bool,
    crew: Crew | None,
) -> tuple[int, Any]:
    """A row for each schedule of a set, measured on a GPU and predicted without one; as CSV, and as the document."""
    from kernelgen.cli.profile import write

    if here.name not in ("cuda", "cpu"):
        raise UsageError(f"--configs {name}: these configurations are for NVIDIA GPUs")
    wanted = wanted_of_set(plan, named)
    if dry:
        return 0, [{"configuration": label, "case": case.label} for label, _, case in wanted]
    rows, code = _rows(plan, wanted, here, jobs, crew)
    file = csv_file or LOGS / plan.spec.name / f"{name.replace(',', 'x')}.csv"
    write(rows, file)
    note(f"{len(rows)} rows in {file}")
    return code, [asdict(row) for row in rows]


def show(found: list[dict[str, Any]]) -> None:
    """The document for a person."""
    from kernelgen.cli.profile import table_of
    from kernelgen.evaluate.kernels import PREDICTED, KernelRow

    if found and "kernel" not in found[0]:
        print("".join(f"{one['configuration']} on {one['case']}\n" for one in found), end="")
        return
    rows = [KernelRow(**one) for one in found]
    print(table_of(rows))
    # of a call, which several kernels share: the row of their sum; predictions tell few schedules apart
    calls = [row for row in rows if row.product_tflops and row.duration_us and PREDICTED not in row.source]
    for case in dict.fromkeys(row.case for row in calls):
        _, best = min((row.duration_us or 0.0, row.configuration) for row in calls if row.case == case)
        print(f"fastest on {case}: {best}")


def _rows(plan: Plan, wanted: Wanted, here: Device, jobs: int | None, crew: Crew | None) -> tuple[list[KernelRow], int]:
    from kernelgen import generation
    from kernelgen.analysis import work
    from kernelgen.cli.profile import gathered
    from kernelgen.evaluate import evaluator
    from kernelgen.evaluate.cpu import CpuEvaluator
    from kernelgen.evaluate.cuda import CudaEvaluator

    quartet = Quartet(plan.spec.name, root_of(here) / plan.spec.folder)
    if here.measures and not quartet.file("triton").is_file():
        generation.new(plan.spec, root_of(here), chip=generation.chip_of(here))
        note(f"{plan.spec.name} had no kernel yet; generated in {quartet.folder}")
    if not here.measures:
        note(f"no GPU found: every time is predicted, for {here.facts.name}")
    with (
        TemporaryDirectory(prefix="kernelgen-") as store,
        evaluator(here, plan, quartet.folder, Path(store), partial(work, plan), jobs=jobs, crew=crew) as run,
    ):
        assert isinstance(run, CudaEvaluator | CpuEvaluator)
        return gathered(run, wanted)
