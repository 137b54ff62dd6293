"""`kernelgen kernelbench` on many workers: a job for every problem, one journal here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json import loads as parse
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.cli.fleet import Fleet, settings_of, started
from kernelgen.cli.fleet_run import run
from kernelgen.cli.terminal import note
from kernelgen.settings import Settings, resolve

if TYPE_CHECKING:
    from kernelgen.kernelbench import Asked, Outcome


def problems_side_by_side(
    files: Sequence[Path],
    out: Path,
    options: Sequence[str],
    asked: Asked,
    again: bool,
    fleet: Fleet,
    settings: Settings,
    say: Callable[[Outcome], None],
) -> list[Outcome]:
    """What every problem came to that was run now or before; what a worker does is `kernelbench` of one problem."""
    from kernelgen.fleet.model import Job, Tree
    from kernelgen.journal import FILE
    from kernelgen.kernelbench import Ledger

    kept = settings_of(resolve({}))
    with started(fleet, settings, measures=True) as (here, workers):
        ledger = Ledger(files, out, here.facts.key if here.measures else "cpu", again, asked)
        jobs = {
            file.stem: Job(
                file.stem, ("kernelbench", "problems", "--out=out", "--jobs=1", "--json", *options), settings=kept,
                inputs=(Tree(f"problems/{file.name}", file),), outputs=(Tree("out", out, without=FILE),),
            )
            for file in ledger.todo
        }  # fmt: skip

        def ended(name: str, stdout: str, why: str) -> None:
            last = why.strip().rpartition("\n")[2]
            found = parse(stdout)["problems"][0] if stdout.strip() else {"fault": True, "reason": last, "seconds": 0.0}
            say(ledger.add(next(file for file in ledger.todo if file.stem == name), found))

        schedule = run(tuple(jobs.values()), fleet, workers, ended=ended)
    for (name, _), why in schedule.aside.items():
        ended(name, "", f"set aside: {why[-1]}")
    if not jobs:
        note(f"{out}: the journal has all of them")
    return ledger.outcomes()
