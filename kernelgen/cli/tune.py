"""`kernelgen tune`: the fastest configuration of a kernel; or the search itself, judged on recorded spaces."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli.terminal import Json, emit, note, table
from kernelgen.errors import UsageError
from kernelgen.settings import checked, resolve, whole

Replay = Annotated[
    list[Path] | None,
    typer.Option("--replay", metavar="FILE|FOLDER", help="Judge the search on recorded spaces; needs no device."),
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="N", help="Runs of a replay on every space.")]
Jobs = Annotated[str | None, typer.Option("--jobs", metavar="N", help="Processes; by default one a core.")]

SEEDS = 20
RECORDED = ("*.csv", "*.csv.gz")


def tune(replay: Replay = None, seeds: Seeds = None, jobs: Jobs = None, json: Json = False) -> int:
    """Judge the search on recorded spaces.

    --replay takes files with a column for every axis and one time_ms, packed or not, or folders of them.
    """
    if not replay:
        raise UsageError("--replay: which recorded space? (see kernelgen tune --help)")
    return replayed(replay, seeds, jobs, json)


def replayed(paths: list[Path], seeds: str | None, jobs: str | None, json: bool) -> int:
    """Print how good the search is on recorded spaces."""
    import os

    # matrices here are small, and every process has a core to itself
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from kernelgen.search import replay
    from kernelgen.search.recorded import read

    runs = SEEDS if seeds is None else checked("--seeds", seeds, whole(1))
    side_by_side = resolve({"jobs": jobs}).jobs or os.cpu_count() or 1
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
        f"{runs} runs a space. to 5 %, 2 %: median evaluations until a configuration is so near the best one. "
        "2 % at 100, at 5 %: runs that are within 2 % after 100 evaluations, after 5 % of the configurations. "
        "regret, repetitions: of 100 evaluations raced with single repetitions, what their choice loses, "
        "and how many of all repetitions that took."
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
