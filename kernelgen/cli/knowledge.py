"""`kernelgen knowledge`: what runs have measured on this machine, and what that says."""

from __future__ import annotations

import gzip
import json as text_json
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli.new import load
from kernelgen.cli.optimize import Dtypes, chosen
from kernelgen.cli.terminal import Json, NameOrSpec, Only, Skip, emit, note, table
from kernelgen.errors import UsageError

if TYPE_CHECKING:
    from kernelgen.knowledge.rows import Row
    from kernelgen.knowledge.store import Store
    from kernelgen.plan import Plan, Schedule
    from kernelgen.spec.model import Case

FILE = "knowledge.sqlite"
SUGGESTED = 5
REMEMBERED, FAR = 4, 8.0
"""Configurations that memory adds to a start, and how far from the problem (`knowledge.patterns`) they may be."""

app = typer.Typer(
    help="What runs have measured, kept between them.", no_args_is_help=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Operator = Annotated[str | None, typer.Option("--operator", metavar="NAME", help="Only this operator's rows.")]
OnDevice = Annotated[str | None, typer.Option("--on", metavar="DEVICE", help="Only rows of this device, by its name.")]


def store() -> Store:
    """The one of this machine, in the cache."""
    from kernelgen.devices import cache_folder
    from kernelgen.knowledge.store import Store

    return Store(cache_folder() / FILE)


def remember(run: Path) -> None:
    """Keep what a run measured. A store that cannot be written costs a line and no result."""
    from kernelgen.knowledge.rows import of_run

    try:
        store().add(of_run(run))
    except UsageError as error:
        note(f"not remembered: {error}")


def known() -> list[Row]:
    """All rows; none, and a line, where the store cannot be read."""
    try:
        return store().rows()
    except UsageError as error:
        note(f"nothing remembered: {error}")
        return []


def remembered(plan: Plan, device: str) -> tuple[Schedule, ...]:
    """What was fastest on the problems nearest to a plan's cases that this machine knows of, the nearest first."""
    from kernelgen.knowledge.patterns import nearest

    rows, found = known(), []
    for case in plan.spec.performance:
        near = nearest(rows, plan.family, plan.spec.name, case.label, _dtypes(case), device)
        found += [(one.distance, one.row.values()) for one in near[:REMEMBERED] if one.distance <= FAR]
    return tuple(dict.fromkeys(schedule for _, schedule in sorted(found, key=lambda pair: pair[0])))[:REMEMBERED]


def _dtypes(case: Case) -> str:
    return " ".join(dict.fromkeys(kind for _, kind in case.dtypes))


@app.command(name="list")
def list_(operator: Operator = None, on: OnDevice = None, json: Json = False) -> int:
    """What is known: operators, devices, measurements, and when nothing is."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in store().rows(operator, on):
        groups.setdefault((row.operator, row.family, row.device, f"{row.torch}, {row.triton}"), []).append(row)
    found = [
        {"operator": o, "family": f, "device": d, "torch, triton": v, "runs": len({r.run for r in rows}),
         "configurations": len({r.source for r in rows}), "measurements": sum(r.time_us is not None for r in rows),
         "failed": sum(r.time_us is None for r in rows)}
        for (o, f, d, v), rows in sorted(groups.items())
    ]  # fmt: skip
    if json:
        emit({"store": str(store().path), "rows": found})
    elif found:
        print(table([tuple(found[0]), *(tuple(map(str, one.values())) for one in found)]))
    else:
        print(f"nothing is known yet ({store().path})")
    return 0


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, packed where it ends in .gz.")],
    operator: Operator = None,
    on: OnDevice = None,
) -> int:
    """Write rows to a file, one a line."""
    rows = store().rows(operator, on)
    lines = "".join(text_json.dumps(row.to_json(), sort_keys=True) + "\n" for row in rows).encode()
    try:
        file.write_bytes(gzip.compress(lines, mtime=0) if file.suffix == ".gz" else lines)
    except OSError as error:
        raise UsageError(f"{file}: cannot write: {error.strerror}") from None
    print(f"{len(rows)} rows in {file}")
    return 0


@app.command(name="import")
def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER", help="Exported files, or folders of journals.")],
) -> int:
    """Take rows from exported files and from the journals below folders; what is known already stays."""
    added = store().add([row for path in paths for row in _rows(path)])
    print(f"{added} new rows in {store().path}")
    return 0


@app.command()
def forget(
    operator: Operator = None,
    on: OnDevice = None,
    everything: Annotated[bool, typer.Option("--all", help="Every row.")] = False,
) -> int:
    """Take rows out."""
    if not (operator or on or everything):
        raise UsageError("forget what? --operator NAME, --on DEVICE or --all")
    print(f"{store().forget(operator, on)} rows forgotten")
    return 0


@app.command()
def patterns(on: OnDevice = None, json: Json = False) -> int:
    """Which strategies won how much against which bottleneck, over all rounds that are known."""
    from kernelgen.knowledge.patterns import patterns as told

    found = told(store().rows(device=on))
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


@app.command()
def suggest(
    name: NameOrSpec,
    dtype: Dtypes = None,
    only: Only = None,
    skip: Skip = None,
    on: OnDevice = None,
    json: Json = False,
) -> int:
    """The problems nearest to an operator's cases that were measured, and what was fastest there.

    Rows of another device are places to begin a search, and say nothing of how fast this one is.
    """
    from kernelgen import generation
    from kernelgen.cli.names import ROOT
    from kernelgen.knowledge.patterns import nearest

    spec = load(name)
    plan, rows = generation.plan_of(spec, ROOT), store().rows()
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
        print(f"nothing is known of {plan.family} kernels yet")
    return 0


def _here() -> str:
    from kernelgen.devices import find

    return find().facts.name


def _gain(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _rows(path: Path) -> Iterator[Row]:
    """The rows of a file, or of all journals below a folder. Raises UsageError with the line."""
    from kernelgen.journal import FILE as JOURNAL
    from kernelgen.knowledge.rows import Row, of_run

    if path.is_dir():
        for journal in sorted(path.rglob(JOURNAL)):
            yield from of_run(journal.parent)
        return
    try:
        content = path.read_bytes()
        lines = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError):
        raise UsageError(f"{path}: cannot be read: no rows, and nothing was imported") from None
    for number, line in enumerate(lines, start=1):
        try:
            data = text_json.loads(line)
            row = Row.from_json(data) if isinstance(data, dict) else None
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: no row: {error}; nothing was imported") from None
        if row is None:
            raise UsageError(f"{path}:{number}: no row; nothing was imported")
        yield row
