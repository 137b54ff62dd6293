"""`kernelgen tune`: the fastest configuration of a kernel; or the search itself, judged on recorded spaces."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelgen.cli import fleet
from kernelgen.cli.names import Quartet, meant_specs, root_of
from kernelgen.cli.new import load
from kernelgen.cli.optimize import Dtypes, Fresh, Jobs, MaxMinutes, begun, chosen, each_of, played, show_result
from kernelgen.cli.terminal import (
    Arch,
    DeviceName,
    DryRun,
    Force,
    Json,
    NamesOrSpecs,
    Only,
    Skip,
    emit,
    note,
    table,
)
from kernelgen.errors import NoDeviceError, UsageError, WrongOrSlowError
from kernelgen.outcomes import to_json
from kernelgen.settings import Settings, checked, resolve, whole
from kernelgen.spec.model import CUSTOM

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.evaluate import Crew
    from kernelgen.optimization import Options
    from kernelgen.plan import Plan
    from kernelgen.spec.model import Case, OperatorSpec
    from kernelgen.strategies import Context, Tuning
    from kernelgen.strategies.searching import Row

INTERRUPTED = 130

Replay = Annotated[
    list[Path] | None,
    typer.Option("--replay", metavar="FILE|FOLDER", help="Evaluate the search on recorded spaces; no device needed."),
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="N", help="With --replay: runs per space (default 20).")]
Configs = Annotated[
    str | None,
    typer.Option(
        "--configs",
        metavar="tune|all|prog|SHORT|AXIS=VALUE,..|all,AXIS=VALUE,..|SET",
        envvar="KERNELS",
        show_envvar=False,
        help="What to measure. tune: what the search chooses (default); all: every legal configuration; prog: one axis "
        "at a time, from the plainest configuration to the current one; SHORT: one configuration by its short form; "
        "AXIS=VALUE,..: only configurations with these values; SET: a named set of the family, as a table. "
        "Environment variable: KERNELS.",
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="Where to write the table of a set; default: logs/NAME/SET.csv."),
]
Effort = Annotated[
    str,
    typer.Option(
        "--effort",
        metavar="none|quick|full",
        help="How many configurations to measure: up to 12, 100 or 300 per schedule.",
    ),
]

SEEDS = 20
RECORDED = ("*.csv", "*.csv.gz")
EFFORTS = {"none": (12, 0), "quick": (100, 3), "full": (300, 8)}
"""Evaluations of a row of the schedule table, and batches without a gain after which it ends."""


def tune(
    names: NamesOrSpecs = None,
    configs: Configs = None,
    effort: Effort = "quick",
    device: DeviceName = None,
    arch: Arch = None,
    dtype: Dtypes = None,
    only: Only = None,
    skip: Skip = None,
    max_minutes: MaxMinutes = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    gpus: fleet.Gpus = None,
    workers: fleet.Workers = None,
    ray: fleet.Ray = None,
    each_device: fleet.EachDevice = False,
    resume: fleet.Resume = False,
    csv_file: Csv = None,
    force: Force = False,
    dry_run: DryRun = False,
    replay: Replay = None,
    seeds: Seeds = None,
    json: Json = False,
) -> int:
    """Search for the fastest configuration of a kernel.

    The search covers every legal configuration of every variant. The winner is timed again, verified, and kept only if
    it is faster with 95 % confidence. Ctrl-C stops the search and keeps the best so far. --dry-run prints the search
    space. --replay evaluates the search itself on recorded spaces: CSV files with one column per axis and a column
    time_ms.
    """
    given = dict(locals())
    where = fleet.asked(gpus, workers, ray, each_device, resume)
    if replay:
        if names:
            raise UsageError("--replay takes no NAME: it runs the search on recorded spaces")
        return replayed(replay, seeds, jobs, json)
    if seeds is not None:
        raise UsageError("--seeds needs --replay, whose runs it counts")
    if not names:
        raise UsageError("tune needs a NAME, or --replay to evaluate the search on recorded spaces")
    settings = resolve({"device": device, "arch": arch, "max_minutes": max_minutes, "jobs": jobs})
    evaluations, patience = _effort(effort)
    if where is not None and not dry_run:
        from kernelgen.cli.fleet_run import tune_side_by_side

        return tune_side_by_side("tune", names, given, where, settings)
    from kernelgen.devices import find
    from kernelgen.strategies import Tuning as Wanted

    asked = _Asked(
        settings, find(settings.device, settings.arch), tuple(dtype or ()), tuple(only or ()), tuple(skip or ()), force,
        fresh, dry_run, json, Wanted(configs or "tune", evaluations, patience), configs, csv_file,
    )  # fmt: skip
    return each_of(meant_specs(names, False, root_of(asked.device)), lambda name: _one(name, asked), json)


@dataclass(frozen=True)
class _Asked:
    """What the options say of every operator."""

    settings: Settings
    device: Device
    dtypes: tuple[str, ...]
    only: tuple[str, ...]
    skip: tuple[str, ...]
    force: bool
    fresh: bool
    dry_run: bool
    json: bool
    tuning: Tuning
    configs: str | None
    """As they were asked for."""
    csv_file: Path | None


def _one(name: str, asked: _Asked) -> tuple[int, Any]:
    """Search one operator's space, and print what was found or return it as the document."""
    from kernelgen.optimization import Options as Given

    here, written = asked.device, load(name)
    if written.family == CUSTOM:
        raise UsageError(
            f"{written.name}: its kernel was written by a language model and has no configurations to search"
        )
    cases = chosen(written, list(asked.dtypes), list(asked.only), list(asked.skip))
    limit = asked.settings.max_minutes
    options = Given(root_of(here), rounds=1, max_minutes=limit, force=asked.force, fresh=asked.fresh)
    quartet = Quartet(written.name, options.operators / written.folder)
    if asked.dry_run:
        return _searched(written, cases, asked, options, None)
    with begun(here, quartet, options, written) as crew:
        return _searched(written, cases, asked, options, crew)


def _searched(
    written: OperatorSpec, cases: tuple[Case, ...], asked: _Asked, options: Options, crew: Crew | None
) -> tuple[int, Any]:
    from kernelgen import generation
    from kernelgen.cli.knowledge import told
    from kernelgen.cli.sets import show, side_by_side
    from kernelgen.families import sets as sets_of

    here, spec = asked.device, replace(written, performance=cases, optimization_strategies=("tune",))
    plan = replace(generation.plan_of(written, options.operators, generation.chip_of(here)), spec=spec)
    if named := sets_of(plan).get(asked.configs or ""):
        name, jobs = str(asked.configs), asked.settings.jobs
        code, document = side_by_side(plan, name, named, here, jobs, asked.csv_file, asked.dry_run, crew)
        if not asked.json:
            show(document)
        return code, document
    if asked.csv_file is not None:
        raise UsageError("--csv needs a named set, such as attention's --configs tune")
    context = context_of(plan, asked.tuning)
    if asked.dry_run:
        return 0, _announce(context, asked.json)
    if not here.measures:
        raise NoDeviceError(
            "tune needs a GPU, and none was found: --dry-run prints the search space, --replay evaluates the search"
        )
    options = replace(options, **told(plan, here.facts.name, asked.tuning))
    return _run(written, context, here, options, asked.settings.jobs, asked.json, crew)


def _run(
    written: OperatorSpec,
    context: Context,
    here: Device,
    options: Options,
    jobs: int | None,
    json: bool,
    crew: Crew | None,
) -> tuple[int, Any]:
    """Search, and print what was found; 130 where Ctrl-C ended the search."""
    from kernelgen import generation
    from kernelgen.cli.progress import TuneProgress

    plan = context.plan
    quartet = Quartet(plan.spec.name, options.operators / plan.spec.folder)
    if not quartet.file("triton").is_file():
        generation.new(written, options.operators, force=options.force, chip=generation.chip_of(here))
        note(f"{plan.spec.name} had no kernel yet; generated in {quartet.folder}")
    searches = sum(bool(context.bound(row)) for row in range(len(plan.table)))
    result = played(plan, here, options, jobs, json, TuneProgress(context.tuning.evaluations * searches), crew)
    code = INTERRUPTED if _was_stopped(result.folder) else 0 if result.works else WrongOrSlowError.exit_code
    if json:
        return code, to_json(result)
    show_result(result, quartet)
    _show_measured(result.folder)
    return code, None


def _effort(name: str) -> tuple[int, int]:
    if name not in EFFORTS:
        raise UsageError(f"--effort {name}: must be {', '.join(EFFORTS)}")
    return EFFORTS[name]


def context_of(plan: Plan, tuning: Tuning) -> Context:
    """What a search starts from. Raises UsageError for configurations that do not exist."""
    from kernelgen.diagnose import Diagnosis
    from kernelgen.optimization.bench import families_compiler
    from kernelgen.strategies import Context as Given
    from kernelgen.strategies import History
    from kernelgen.strategies.tune import check

    nothing = Diagnosis("latency", "", (), 1.0, ())
    context = Given(plan, plan.spec.performance, nothing, History(), families_compiler(), tuning=tuning)
    check(context)
    return context


def _announce(context: Context, json: bool) -> Any:
    """The spaces, without a measurement."""
    from kernelgen.schedule.problem import limits_text
    from kernelgen.strategies.tune import search

    plan, rows = context.plan, search(context).rows
    found = []
    for one in rows:
        space = one.space
        found.append(
            {
                "row": one.row,
                "serves": limits_text(plan.table[one.row]) or "all other sizes",
                "cases": sorted(one.cases),
                "legal": len(space.schedules),
                "sampled": space.sampled,
                "pruned": dict(space.pruned),
                "first": _first(one),
            }
        )
    if json:
        return {"operator": plan.spec.name, "rows": found}
    for said, row in zip(found, rows, strict=True):
        of_more = ", drawn from more" if row.space.sampled else ""
        print(f"{plan.spec.name}, {said['serves']}: {said['legal']} configurations{of_more}; {len(row.cases)} cases")
        shown, others = row.space.pruned[:SHOWN_REASONS], row.space.pruned[SHOWN_REASONS:]
        lines = [f"{count}: {reason}" for reason, count in shown]
        lines += [f"{sum(count for _, count in others)}: for other reasons"] if others else []
        print("".join(f"  left out  {line}\n" for line in lines), end="")
        print("".join(f"  first     {text}\n" for text in _first(row)[:SHOWN_FIRST]), end="")
    return None


def _first(row: Row) -> list[str]:
    """What is measured first, in short forms."""
    from kernelgen.strategies.short import short

    space = row.space
    asked = row.listed if row.listed is not None else [space.schedules[i] for i in space.starts]
    return [short(s, space.axes[s.variant].parameters) for s in asked]


SHOWN_REASONS, SHOWN_FIRST = 5, 12


def _was_stopped(folder: Path) -> bool:
    from kernelgen.journal import read

    return any(record.kind == "stopped" for record in read(folder))


def _show_measured(folder: Path) -> None:
    """The fastest configurations of the run, and where they were measured."""
    from kernelgen.journal import read
    from kernelgen.outcomes import evaluation_from_json

    found: dict[str, list[str]] = {}
    records = [r.data for r in read(folder) if r.kind == "candidate"]
    for data in records:
        timings = evaluation_from_json(data["evaluation"]).speedups("current")
        for timing in timings:
            found[f"{data['what']}\n{timing.case}"] = [f"{timing.speedup:.3f}x", f"{timing.time_us:.2f} µs"]
    ranked = sorted(found.items(), key=lambda item: -float(item[1][0].rstrip("x")))
    head = ("against the current", "time", "case", "configuration")
    rows = [(*figures, key.partition("\n")[2], key.partition("\n")[0]) for key, figures in ranked[:SHOWN_FIRST]]
    if rows:
        print(table([head, *rows]))


def replayed(paths: list[Path], seeds: str | None, jobs: str | None, json: bool) -> int:
    """Print how good the search is on recorded spaces."""
    import os

    # matrices here are small, and every process has a core to itself
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from kernelgen.devices.cpu import cores
    from kernelgen.search import replay
    from kernelgen.search.recorded import read

    runs = SEEDS if seeds is None else checked("--seeds", seeds, whole(1))
    side_by_side = resolve({"jobs": jobs}).jobs or cores()
    spaces = [read(path) for path in files(paths)]
    found = []
    for figures in replay.replay(spaces, runs, side_by_side):
        found.append(figures)
        note(f"{len(found)} of {len(spaces)}: {figures.space}")
    at_share, at_few = replay.overall(found)
    if json:
        emit({"spaces": [asdict(f) for f in found], "close_at_share": at_share, "close_at_few": at_few})
        return 0
    head = ("space", "configurations", "to 5 %", "to 2 %", "2 % at 100", "2 % at 5 %", "regret", "repetitions")
    rows = [
        (f.space, str(f.configurations), _shown(f.to_near), _shown(f.to_close), f"{f.close_at_few:.0%}",
         f"{f.close_at_share:.0%}", f"{f.regret:.2%}", f"{f.repetitions:.0%}")
        for f in found
    ]  # fmt: skip
    rows.append(("all", str(sum(f.configurations for f in found)), "", "", f"{at_few:.0%}", f"{at_share:.0%}", "", ""))
    print(table([head, *rows]))
    print(
        f"{runs} runs per space. to 5 %, to 2 %: median number of evaluations until a configuration is within 5 or 2 % "
        "of the best. 2 % at 100, 2 % at 5 %: share of runs within 2 % after 100 evaluations, and after evaluating "
        "5 % of the configurations. regret: what is lost by choosing from 100 evaluations that were raced with single "
        "repetitions; repetitions: their number, relative to measuring each evaluation fully."
    )
    return 0


def files(paths: list[Path]) -> list[Path]:
    """The recorded spaces in files and folders. Raises UsageError for what is not there."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(p for pattern in RECORDED for p in path.glob(pattern)) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path}: holds no recorded space ({' or '.join(RECORDED)})")
        found += inside
    return found


def _shown(count: int | None) -> str:
    return "beyond" if count is None else str(count)
