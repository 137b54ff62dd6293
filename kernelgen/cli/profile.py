"""`kernelgen profile`: what each kernel of an operator does on the GPU, configuration by configuration."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.names import Quartet, root_of
from kernelgen.cli.new import load
from kernelgen.cli.optimize import Dtypes, Jobs, chosen
from kernelgen.cli.terminal import DeviceName, Json, NameOrSpec, Only, Skip, emit, note, table
from kernelgen.cli.tune import INTERRUPTED, context_of
from kernelgen.errors import NoDeviceError, UsageError
from kernelgen.settings import resolve
from kernelgen.spec.model import CUSTOM

if TYPE_CHECKING:
    from kernelgen.evaluate import Candidate
    from kernelgen.evaluate.cpu import CpuEvaluator
    from kernelgen.evaluate.cuda import CudaEvaluator
    from kernelgen.evaluate.kernels import KernelRow
    from kernelgen.spec.model import Case
    from kernelgen.strategies import Context

Configs = Annotated[
    str | None,
    typer.Option(
        "--configs",
        metavar="all|prog|SHORT|AXIS=VALUE,..|SET",
        envvar="KERNELS",
        show_envvar=False,
        help="Configurations to profile; default: the current one. Environment variable: KERNELS.",
    ),
]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Also write the rows to this file.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="FOLDER", help="Keep ncu's reports (.ncu-rep) in this folder.")
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Write a Chrome trace of one call of the first case."),
]

MOST = 200
"""Configurations and cases of one call: a profiler needs seconds for each."""


def profile(
    name: NameOrSpec,
    configs: Configs = None,
    csv_file: Csv = None,
    keep: Keep = None,
    trace: Trace = None,
    dtype: Dtypes = None,
    only: Only = None,
    skip: Skip = None,
    device: DeviceName = None,
    jobs: Jobs = None,
    json: Json = False,
) -> int:
    """Profile each kernel of an operator on the GPU.

    One row per configuration and kernel. The figures are counters read by ncu. If ncu is missing or may not read
    counters, they are derived from the measured time, the bytes and the compiled kernel, and the row says `derived`.
    """
    from kernelgen import generation
    from kernelgen.cli.sets import wanted_of_set
    from kernelgen.devices import find
    from kernelgen.families import sets as sets_of
    from kernelgen.strategies import Tuning

    settings = resolve({"device": device, "jobs": jobs})
    here, written = find(settings.device), load(name)
    if written.family == CUSTOM:
        raise UsageError(f"{written.name}: its kernel was written by a language model and has no configurations")
    cases = chosen(written, dtype or [], only or [], skip or [])
    root = root_of(here)
    plan = generation.plan_of(written, root, generation.chip_of(here))
    plan = replace(plan, spec=replace(written, performance=cases))
    named = sets_of(plan).get(configs or "")
    wanted = wanted_of_set(plan, named) if named else wanted_of(context_of(plan, Tuning(configs or "tune")))
    if not here.measures or here.name != "cuda":
        raise NoDeviceError("profile needs an NVIDIA GPU, and none was found; `kernelgen analyze` predicts without one")
    quartet = Quartet(written.name, root / written.folder)
    if not quartet.file("triton").is_file():
        generation.new(written, root, chip=generation.chip_of(here))
        note(f"{written.name} had no kernel yet; generated in {quartet.folder}")
    from kernelgen.analysis import work
    from kernelgen.evaluate import evaluator
    from kernelgen.evaluate.cuda import CudaEvaluator

    with (
        TemporaryDirectory(prefix="kernelgen-") as store,
        evaluator(here, plan, quartet.folder, Path(store), partial(work, plan), jobs=settings.jobs) as run,
    ):
        assert isinstance(run, CudaEvaluator)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        rows, code = gathered(run, wanted, keep.resolve() if keep else None)
        if trace is not None and not code:
            _traced(run, wanted[0], trace.resolve())
    if csv_file is not None:
        write(rows, csv_file)
    emit([asdict(row) for row in rows]) if json else print(table_of(rows))
    return code


def wanted_of(context: Context) -> list[tuple[str, Candidate, Case]]:
    """Every configuration that was asked for, with every case that its row of the table serves; the current one where
    none was. Raises UsageError for too many."""
    from kernelgen.optimization.search import current
    from kernelgen.strategies.short import short
    from kernelgen.strategies.tune import SEARCHED, search

    found = []
    for row in search(context).rows:
        schedules = row.space.schedules if row.listed is None else row.listed
        if context.tuning.configs == SEARCHED:
            schedules = (context.plan.table[row.row].schedule,)
        for schedule in schedules:
            label = short(schedule, row.space.axes[schedule.variant].parameters)
            plan = context.plan.with_schedule(row.row, schedule)
            found += [(label, plan, case) for case in context.bound(row.row)]
    if len(found) > MOST:
        raise UsageError(f"{len(found)} configurations and cases are too many to profile: at most {MOST}; narrow them")
    return [(label, current(plan, context.compiler, (case,), what=label), case) for label, plan, case in found]


def gathered(
    run: CudaEvaluator | CpuEvaluator, wanted: Sequence[tuple[str, Candidate, Case]], keep: Path | None = None
) -> tuple[list[KernelRow], int]:
    """The rows of every configuration, or those until Ctrl-C, and the exit code."""
    rows: list[KernelRow] = []
    try:
        for row in profiled(run, wanted, keep):
            rows.append(row)
    except KeyboardInterrupt:
        note(f"interrupted: {len(rows)} rows were measured")
        return rows, INTERRUPTED
    return rows, 0


def profiled(
    run: CudaEvaluator | CpuEvaluator, wanted: Sequence[tuple[str, Candidate, Case]], keep: Path | None = None
) -> Iterator[KernelRow]:
    """The rows of every configuration; what cannot be profiled is a line on stderr, and why counters were not read is
    one line in all."""
    from kernelgen.evaluate.kernels import Call
    from kernelgen.worker.client import Failed

    said = set()
    calls = [Call(candidate, case, label, _report(keep, label, case)) for label, candidate, case in wanted]
    for (label, _, case), told in zip(wanted, run.kernels(calls), strict=True):
        if isinstance(told, Failed):
            note(f"{label}, {case.label}: {told.status}: {told.message}")
            continue
        rows, why = told
        if not rows:
            note(f"{label}, {case.label}: {why}")
        elif why and why not in said:
            said.add(why)
            note(
                f"counters cannot be read: {why}; rows marked derived are computed from time, bytes and the compiled "
                "kernel"
            )
            if keep is not None:
                note(f"--keep {keep}: ncu made no report")
        yield from rows


def _report(keep: Path | None, label: str, case: Case) -> Path | None:
    return keep / f"{re.sub('[^A-Za-z0-9=]+', '-', f'{label} {case.label}').strip('-')}.ncu-rep" if keep else None


def _traced(run: CudaEvaluator, wanted: tuple[str, Candidate, Case], path: Path) -> None:
    from kernelgen.worker.client import Failed

    label, candidate, case = wanted
    try:
        why = run.trace(candidate, case, path)
    except Failed as failure:
        why = failure.message
    note(f"--trace {path}: {why}" if why else f"a trace of {label} on {case.label} is in {path}")


def write(rows: list[KernelRow], file: Path) -> None:
    """The rows as a CSV file. Raises UsageError where it cannot be written."""
    from kernelgen.evaluate.kernels import written

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(written(rows))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot write: {error.strerror}") from None


def table_of(rows: list[KernelRow]) -> str:
    """The rows for a person."""
    from kernelgen.evaluate.kernels import TITLES, shown

    return table([tuple(TITLES.values()), *map(shown, rows)])
