"""`kernelgen knowledge`: what runs have measured on this machine, and what that says."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelgen.cli.command import Command
from kernelgen.cli.new import load
from kernelgen.cli.optimize import Dtypes, chosen
from kernelgen.cli.terminal import Json, NameOrSpec, Only, Skip, emit, note, table
from kernelgen.errors import UsageError
from kernelgen.settings import resolve

if TYPE_CHECKING:
    from kernelgen.knowledge.rows import Row
    from kernelgen.knowledge.store import Store
    from kernelgen.plan import Plan, Schedule
    from kernelgen.spec.model import Case
    from kernelgen.strategies import Tuning

FILE = "knowledge.sqlite"
SUGGESTED = 5
REMEMBERED, OF_ONE, FAR = 8, 2, 8.0
"""Configurations that memory hands to a search, how many of one problem, and how far (`knowledge.patterns`) that may be
from the plan's."""

app = typer.Typer(
    help="Show and manage what earlier runs measured.", invoke_without_command=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback()
def _help(context: typer.Context) -> None:
    """Show and manage what earlier runs measured."""
    if context.invoked_subcommand is None:
        print(context.get_help())


Operator = Annotated[str | None, typer.Option("--operator", metavar="NAME", help="Only rows of this operator.")]
OnDevice = Annotated[str | None, typer.Option("--on", metavar="DEVICE", help="Only rows measured on this device.")]


def store() -> Store:
    """The one of this machine, in the cache."""
    from kernelgen.devices import cache_folder
    from kernelgen.knowledge.store import Store

    return Store(cache_folder() / FILE)


def remember(run: Path) -> None:
    """Keep what a run measured, and its journal where the setting `journals` says so. What cannot be written costs a
    line and no result."""
    from kernelgen.knowledge.rows import of_run
    from kernelgen.knowledge.shipped import keep

    try:
        store().add(of_run(run))
    except UsageError as error:
        note(f"measurements not stored: {error}")
    try:
        if folder := resolve({}).journals:
            keep(run, Path(folder))
    except UsageError as error:
        note(f"journal not kept: {error}")


def known() -> list[Row]:
    """What kernelgen ships and what this machine remembers; a line where the store cannot be read."""
    from kernelgen.knowledge import shipped

    try:
        return [*shipped.rows(), *store().rows()]
    except UsageError as error:
        note(f"earlier measurements are not used: {error}")
        return shipped.rows()


def told(plan: Plan, device: str, tuning: Tuning) -> dict[str, Any]:
    """What memory adds to the options of a run: where to begin, and what rounds of this device came to."""
    from kernelgen.knowledge.patterns import learnt

    rows = known()
    begun = replace(tuning, remembered=remembered(rows, plan, device))
    return {"tuning": begun, "measured": learnt(row for row in rows if row.device == device)}


def remembered(rows: Sequence[Row], plan: Plan, device: str) -> tuple[Schedule, ...]:
    """What was fastest on the problems nearest to a plan's cases, the nearest first."""
    from kernelgen.knowledge.patterns import nearest

    found = []
    for case in plan.spec.performance:
        near = nearest(rows, plan.family, plan.spec.name, case.label, _dtypes(case), device)
        close = [one for one in near[:REMEMBERED] if one.distance <= FAR]
        for one in close:  # a call of torch's has no values: every search tries it first
            own = [row.values() for row in one.fastest if row.values().values]
            found += [(one.distance, schedule) for schedule in own[:OF_ONE]]
    return tuple(dict.fromkeys(schedule for _, schedule in sorted(found, key=lambda pair: pair[0])))[:REMEMBERED]


def _dtypes(case: Case) -> str:
    return " ".join(dict.fromkeys(kind for _, kind in case.dtypes))


@app.command(name="list", cls=Command)
def list_(operator: Operator = None, on: OnDevice = None, json: Json = False) -> int:
    """Show how much was measured, by operator and device."""
    from kernelgen.knowledge import shipped

    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in store().rows(operator, on):
        groups.setdefault((row.operator, row.family, row.device, f"{row.torch}, {row.triton}"), []).append(row)
    found = [
        {"operator": o, "family": f, "device": d, "torch, triton": v, "runs": len({r.run for r in rows}),
         "configurations": len({r.source for r in rows}), "measurements": sum(r.time_us is not None for r in rows),
         "failed": sum(r.time_us is None for r in rows)}
        for (o, f, d, v), rows in sorted(groups.items())
    ]  # fmt: skip
    come_along = sum(operator in (None, row.operator) for row in shipped.rows(on))
    if json:
        emit({"store": str(store().path), "rows": found, "shipped": come_along})
        return 0
    meant = "".join(f", {name}" for name in (operator, on) if name)
    if found:
        print(table([tuple(found[0]), *(tuple(map(str, one.values())) for one in found)]))
    else:
        print(f"no measurements on this machine yet{meant} ({store().path})")
    print(f"{come_along} rows come with kernelgen{meant}")
    return 0


@app.command(cls=Command)
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Output file, JSON lines; compressed if it ends in .gz.")
    ],
    operator: Operator = None,
    on: OnDevice = None,
) -> int:
    """Export measurements to a file."""
    from kernelgen.knowledge.shipped import packed

    rows = store().rows(operator, on)
    content = packed(rows)
    _write(file, content if file.suffix == ".gz" else gzip.decompress(content))
    print(f"{len(rows)} rows in {file}")
    return 0


@app.command(name="import", cls=Command)
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER", help="Exported files, or folders of journals.")],
) -> int:
    """Add measurements from files and journals.

    Reads exported files, all journals below a folder, and tables of measured schedules such as
    docs/benchmarks/small.json. Existing rows stay.
    """
    from kernelgen.knowledge.shipped import of_path

    rows = [row for path in paths for row in of_path(path)]
    if not rows:
        raise _nothing_in(paths)
    added = store().add(rows)
    print(f"{added} new rows in {store().path}")
    return 0


@app.command(cls=Command)
def rebuild(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER", help="Same as for import.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Output folder; default: kernelgen's own.")
    ] = None,
) -> int:
    """Regenerate the rows shipped with kernelgen.

    They are made from these files alone: one file per device, byte for byte the same for the same rows.
    """
    from kernelgen.knowledge import shipped

    by_device: dict[str, list[Row]] = {}
    counts = []
    for path in paths:
        found = list(shipped.of_path(path))
        counts.append(f"{len(found)} rows in {path}")
        for row in found:
            by_device.setdefault(row.device, []).append(row)
    if not by_device:
        raise _nothing_in(paths)
    print(*counts, sep="\n")
    for device, rows in by_device.items():
        file = (folder or shipped.FOLDER) / shipped.file_of(device).name
        _write(file, shipped.packed(rows))
        print(f"{len(rows)} rows of {device} in {file}")
    return 0


@app.command(cls=Command)
def forget(
    operator: Operator = None,
    on: OnDevice = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all rows.")] = False,
) -> int:
    """Delete measurements."""
    if not (operator or on or everything):
        raise UsageError("forget what? --operator NAME, --on DEVICE or --all")
    print(f"{store().forget(operator, on)} rows forgotten")
    return 0


@app.command(cls=Command)
def patterns(on: OnDevice = None, json: Json = False) -> int:
    """Show what each strategy gained, by bottleneck."""
    from kernelgen.knowledge.patterns import patterns as found_in

    found = found_in(row for row in known() if on in (None, row.device))
    if json:
        emit([asdict(one) for one in found])
        return 0
    head = ("bottleneck", "strategy", "rounds", "kept", "configurations", "median gain", "middle half", "failed")
    rows = [
        (p.bottleneck, p.strategy, str(p.rounds), str(p.kept), str(p.tried), _gain(p.gain),
         "" if p.low is None or p.high is None else f"{_gain(p.low)} to {_gain(p.high)}",
         ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in p.failed))
        for p in found
    ]  # fmt: skip
    print(table([head, *rows]) if rows else "no finished round is known yet")
    return 0


@app.command(cls=Command)
def suggest(
    name: NameOrSpec,
    dtype: Dtypes = None,
    only: Only = None,
    skip: Skip = None,
    on: OnDevice = None,
    json: Json = False,
) -> int:
    """Show what was fastest on similar problems.

    For each case of the operator: the nearest measured problems and their fastest configurations. Rows from another
    device are starting points for a search; they do not predict the speed on this one.
    """
    from kernelgen import generation
    from kernelgen.cli.names import ROOT
    from kernelgen.knowledge.patterns import nearest

    spec = load(name)
    plan, rows = generation.plan_of(spec, ROOT), known()
    device = on or _here()
    found = []
    for case in chosen(spec, dtype or [], only or [], skip or []):
        for near in nearest(rows, plan.family, spec.name, case.label, _dtypes(case), device)[:SUGGESTED]:
            found.append(
                {"case": case.label, "distance": round(near.distance, 2), "operator": near.row.operator,
                 "measured": near.row.case, "device": near.row.device, "time_us": near.row.time_us,
                 "configuration": str(near.row.values()), "run": near.row.run}
            )  # fmt: skip
    if json:
        emit(found)
    elif found:
        print(table([tuple(found[0]), *(tuple(map(str, one.values())) for one in found)]))
    else:
        print(f"no measurements of {plan.family} kernels yet")
    return 0


def _nothing_in(paths: list[Path]) -> UsageError:
    return UsageError(
        f"nothing in {', '.join(map(str, paths))} has rows of measurements: they are in files that "
        "`kernelgen knowledge export` writes, and in journals of runs that measured on a GPU"
    )


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{file}: cannot write: {error.strerror}") from None


def _here() -> str:
    from kernelgen.devices import find

    return find().facts.name


def _gain(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+.1f} %"
