"""`kernelgen kernelbench`: how far KernelBench's problems get, unattended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli import fleet
from kernelgen.cli.fleet_run import arguments
from kernelgen.cli.importing import PRECISION
from kernelgen.cli.terminal import DeviceName, Json, emit, note, table
from kernelgen.errors import WrongOrSlowError
from kernelgen.settings import MAX_ROUNDS, among, checked, positive, resolve, whole
from kernelgen.spec.model import PRECISIONS

if TYPE_CHECKING:
    from kernelgen.kernelbench import Asked, Outcome


Dtypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="NAME|all",
        help="Verify small shapes in this dtype. Default: float32, as KernelBench; all: every dtype of the spec.",
    ),
]


Limit = Annotated[
    str,
    typer.Option("--limit-s", metavar="S", help="Time limit per problem, in seconds; times N where N share a GPU."),
]


def kernelbench(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A checkout of KernelBench, or a folder of problem files.")
    ],
    level: Annotated[str, typer.Option("--level", metavar="N", help="KernelBench level.")] = "1",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Output folder for specs, kernels and journal.")
    ] = Path("kernelbench"),
    limit_s: Limit = "60",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TEXT", help="Only the problem with this number or name.")
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            metavar="N",
            help="Problems at work in parallel; default: one per GPU. A GPU times one at a time.",
        ),
    ] = None,
    optimize: Annotated[
        str | None,
        typer.Option("--optimize", metavar="N", help="Run N rounds on each correct kernel, then time it again."),
    ] = None,
    dtype: Dtypes = None,
    precision: Annotated[str | None, typer.Option("--precision", metavar="|".join(PRECISIONS), help=PRECISION)] = None,
    again: Annotated[bool, typer.Option("--again", help="Rerun problems that the journal already has.")] = False,
    gpus: fleet.Gpus = None,
    workers: fleet.Workers = None,
    ray: fleet.Ray = None,
    device: DeviceName = None,
    json: Json = False,
) -> int:
    """Import, generate, verify and time the problems of a folder.

    An interrupted run resumes. A file runs in a process of its own with a time limit. Hidden cases get normal values
    and one other kind. Without a GPU nothing is timed, and only small shapes are verified, in Triton's interpreter.
    """
    from kernelgen import kernelbench as benchmark
    from kernelgen.devices import find

    files = benchmark.problems(folder, checked("--level", level, whole(1, 4)), only or ())
    where = fleet.asked(gpus, workers, ray, False)
    seconds = checked("--limit-s", limit_s, positive())
    asked = _asked(optimize, precision, dtype)
    if where is not None:
        from kernelgen.cli.fleet_bench import problems_side_by_side

        options = arguments(
            limit_s=seconds, optimize=asked.rounds or None, dtype=dtype, precision=asked.precision, device=device
        )
        settings = resolve({"device": device})
        return _told(problems_side_by_side(files, out, options, asked, again, where, settings, _say), json)
    here = find(resolve({"device": device}).device)
    if not here.measures and device != "cpu":
        note("no GPU found: kernels are verified at small shapes and not timed")
    each = [dict(variables) for variables in here.each] if here.measures else [{"CUDA_VISIBLE_DEVICES": ""}]
    at_once = len(each) if jobs is None else checked("--jobs", jobs, whole(1, 64))
    key = here.facts.key if here.measures else "cpu"
    return _told(benchmark.run(files, out, seconds, key, _say, asked, again, at_once, each), json)


def _asked(optimize: str | None, precision: str | None, dtype: list[str] | None) -> Asked:
    """The options that a problem's outcome depends on. Raises UsageError."""
    from kernelgen import kernelbench as benchmark

    rounds = 0 if optimize is None else checked("--optimize", optimize, whole(1, MAX_ROUNDS))
    precise = None if precision is None else checked("--precision", precision, among(PRECISIONS))
    given = [checked("--dtype", one, among((*benchmark.DTYPES, "all"))) for one in dtype or benchmark.DTYPES[:1]]
    dtypes = tuple(name for name in benchmark.DTYPES if name in given)
    return benchmark.Asked(rounds, precise, () if "all" in given else dtypes)


def _told(outcomes: list[Outcome], json: bool) -> int:
    """Print what problems came to."""
    from kernelgen import kernelbench as benchmark

    counts, figures, refused = benchmark.summary(outcomes), benchmark.figures(outcomes), benchmark.refusals(outcomes)
    if json:
        emit({"summary": counts, "figures": figures, "refusals": refused, "problems": outcomes})
    else:
        print(table([("problem", "state", "eager", "compile", ""), *map(_row, outcomes)]))
        print()
        print(table((name, str(count)) for name, count in counts.items()))
        for title, rows in (("", {n: f"{f:.2f}" for n, f in figures.items()}), ("refused because", refused)):
            if rows:
                print(f"\n{title}".rstrip(" "))
                print(table((name, str(found)) for name, found in rows.items()))
    return WrongOrSlowError.exit_code if counts["wrong"] or counts["fault"] else 0


def _say(outcome: Outcome) -> None:
    note(f"{outcome['problem']}: {outcome['state']} ({outcome['seconds']:.0f} s) {_why(outcome)}".rstrip())


def _row(outcome: Outcome) -> tuple[str, ...]:
    rows = outcome.get("performance", [])
    against = rows[0]["against"] if rows else {}
    shown = [f"{against[name]['speedup']:.2f}x" if name in against else "-" for name in ("eager", "compile")]
    return (outcome["problem"], outcome["state"], *shown, _why(outcome))


def _why(outcome: Outcome) -> str:
    """The reason of a refusal or the first failure, without the path of the file; or what KernelBench says of it."""
    from kernelgen.kernelbench import differing

    for key in ("accuracy", "accuracy_at_its_shapes"):
        if outcome.get(key, {}).get("first_failure"):
            return str(outcome[key]["first_failure"])
    failed = [f"{name}: {found['message']}" for name, found in differing(outcome).items()]
    reason = failed[0] if failed else str(outcome.get("reason", ""))
    return re.sub(r"^\S*/(?=[^/\s]+:\d+:\d+: )", "", reason)[:160]
