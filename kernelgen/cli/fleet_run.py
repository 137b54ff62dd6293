"""A command over operators on many workers: its jobs, its summary and its exit code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from json import loads as parse
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.cli.fleet import Fleet, settings_of, started
from kernelgen.cli.terminal import emit, note, table
from kernelgen.errors import KernelgenError, NoDeviceError, UsageError, WrongOrSlowError
from kernelgen.settings import Settings, resolve

if TYPE_CHECKING:
    from kernelgen.cli.names import Quartet
    from kernelgen.fleet.model import Executor, Job, Kind, Outcome
    from kernelgen.fleet.record import FleetRecord
    from kernelgen.fleet.schedule import Schedule

INTERRUPTED = 130
LOGS = Path("logs")


def arguments(**given: object) -> tuple[str, ...]:
    """Options as on a command line, by the names of their parameters; what was not given is left out."""
    found: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(option)
        elif isinstance(value, list | tuple):
            found += [f"{option}={one}" for one in value]
        elif value is not None and value is not False:
            found.append(f"{option}={value}")
    return tuple(found)


OWN = ("names", "every", "gpus", "workers", "ray", "each_device", "resume", "fresh", "dry_run", "replay", "seeds")
"""Parameters of a command that are not for its workers."""


def tune_side_by_side(
    command: str, names: Sequence[str] | None, given: Mapping[str, object], fleet: Fleet, settings: Settings
) -> int:
    """`optimize` or `tune` of operators on many workers; `given`: the command's parameters as they were given."""
    from kernelgen.cli.names import meant_specs, root_of

    if given.get("adopt") is not None:
        raise UsageError("--adopt works on one operator on this machine; leave out --gpus, --workers and --ray")
    every = bool(given.get("every"))
    options = arguments(**{name: value for name, value in given.items() if name not in OWN})
    with started(fleet, settings, measures=True) as (device, workers):
        root, fresh = root_of(device), bool(given["fresh"])
        made, wrong = tuning_jobs(command, meant_specs(names or [], every, root), options, root, fresh)
        for text in wrong.values():
            note(text)
        if not made:
            return WrongOrSlowError.exit_code
        if given["resume"]:
            _check_resumable(made)
        schedule = run(made, fleet, workers, record=True, fresh=fresh)
    return told(schedule, wrong, bool(given["json"]), lambda code: WrongOrSlowError.exit_code if code else 0)


def judge_side_by_side(
    command: str, quartets: Sequence[Quartet], options: Sequence[str], fleet: Fleet, settings: Settings, json: bool
) -> int:
    """`check` or `bench` of operators on many workers, each with its quartet alone."""
    from kernelgen.fleet.model import Job, Tree

    kept = settings_of(resolve({}))
    jobs = tuple(
        Job(one.name, (command, one.name, *options), settings=kept, inputs=(Tree(one.folder.as_posix(), one.folder),))
        for one in quartets
    )
    with started(fleet, settings, measures=command == "bench") as (_, workers):
        schedule = run(jobs, fleet, workers)
    return told(schedule, {}, json)


def tuning_jobs(
    command: str, names: Sequence[str], options: Sequence[str], root: Path, fresh: bool
) -> tuple[tuple[Job, ...], dict[str, str]]:
    """A job for every operator of `optimize` or `tune`, and what is wrong with the specs of others, by name."""
    from kernelgen.cli.names import generated_spec
    from kernelgen.fleet.model import Job, Tree
    from kernelgen.spec import find_spec, load_spec

    jobs: dict[str, Job] = {}
    wrong: dict[str, str] = {}
    for name in names:
        try:
            try:
                path, shipped = find_spec(name)
            except UsageError:
                found = generated_spec(name, root)
                if found is None:
                    raise
                path, shipped = found, False
            if not shipped and (path.is_absolute() or ".." in path.parts):
                raise UsageError(
                    f"{path}: the spec must be inside the current folder, because workers get only files from it"
                )
            spec = load_spec(path)
        except KernelgenError as error:
            wrong[name] = str(error)
            continue
        folder, logs = root / spec.folder, LOGS / spec.name
        own = () if shipped or path.is_relative_to(folder) else (Tree(path.as_posix(), path),)
        outputs = (Tree(folder.as_posix(), folder), Tree(logs.as_posix(), logs))
        meant = name if shipped or not own else path.as_posix()
        jobs[spec.name] = Job(
            spec.name, (command, meant, *options), folder.as_posix(), settings_of(resolve({})), (*own, *outputs),
            outputs, logs, fresh,
        )  # fmt: skip
    return tuple(jobs.values()), wrong


def run(
    jobs: tuple[Job, ...],
    fleet: Fleet,
    workers: Executor,
    *,
    record: bool = False,
    fresh: bool = False,
    ended: Callable[[str, str, str], None] = lambda name, stdout, stderr: None,
) -> Schedule:
    """Run the jobs; what came of them is in the schedule. `record`: what is finished is kept, to be gone on with.
    `ended`: told an operator's name, output and last words when its command has ended.

    Raises UsageError where nothing can be written here, NoDeviceError where no worker is left.
    """
    from kernelgen.cli.fleet_progress import FleetProgress
    from kernelgen.cli.knowledge import remember
    from kernelgen.files import check_writable
    from kernelgen.fleet.drive import drive
    from kernelgen.fleet.schedule import Schedule

    base = partial(_base, each=fleet.each)
    for folder in {tree.here.parts[0] for job in jobs for tree in job.outputs} if not fleet.each else {"."}:
        check_writable(Path(folder))
    kept = _record(jobs, fresh) if record else None
    schedule = Schedule(jobs, fleet.each, _finished(jobs, kept, base) if kept else ())
    with FleetProgress(schedule, kept, remember, ended) as progress:
        try:
            drive(schedule, workers, progress, base)
        finally:
            if kept is not None:
                kept.close(finished=not schedule.waiting and not schedule.running)
    if schedule.interrupted:
        raise _Interrupted(schedule, kept is not None)
    if schedule.waiting:
        raise NoDeviceError(
            f"no worker is left, and {schedule.waiting} operators are not finished; run the same command again to "
            "continue"
        )
    return schedule


class _Interrupted(KernelgenError):
    exit_code = INTERRUPTED

    def __init__(self, schedule: Schedule, goes_on: bool) -> None:
        left = schedule.waiting + len(schedule.running)
        then = "; run the same command again to go on" if goes_on else ""
        super().__init__(f"interrupted: {len(schedule.done)} operators finished, {left} not{then}")


def _record(jobs: tuple[Job, ...], fresh: bool) -> FleetRecord:
    from kernelgen.fleet.record import FleetRecord

    found = FleetRecord.open(LOGS, jobs, fresh)
    if found.resumed:
        note(f"resuming the interrupted run {found.folder}")
    return found


def _check_resumable(jobs: tuple[Job, ...]) -> None:
    from kernelgen.fleet.record import resumable

    if not resumable(LOGS, jobs):
        raise UsageError("--resume: logs/ has no interrupted run with these operators and options")


def _finished(jobs: tuple[Job, ...], kept: FleetRecord, base: Callable[[Kind], Path]) -> list[Outcome]:
    """What the interrupted run came to; where its machine died in the middle of an operator's end, not that one."""
    from kernelgen.fleet.record import ended

    logs = {job.operator: job.logs for job in jobs}
    found = []
    for outcome in kept.outcomes:
        where = logs[outcome.operator]
        if ended(outcome, base(outcome.kind) / where if where else None):
            found.append(outcome)
    return found


def _base(kind: Kind, each: bool) -> Path:
    """Where a kind's files lie: here; with --each-device in a folder of its own."""
    return Path(re.sub(r"\W+", "-", kind.device).strip("-").lower()) if each else Path()


def told(
    schedule: Schedule, wrong: Mapping[str, str], json: bool, own_code: Callable[[int], int] = lambda code: code
) -> int:
    """Print every operator's own output and a summary, or one document; return the exit code of all.

    `own_code`: what an operator's exit code counts as.
    """
    several = len(schedule.kinds) > 1
    outcomes = {f"{name} on {kind.device}" if several else name: one for (name, kind), one in _in_order(schedule)}
    lost = {f"{name} on {kind.device}" if several else name: why for (name, kind), why in schedule.aside.items()}
    codes = [own_code(one.code) for one in outcomes.values()]
    codes += [WrongOrSlowError.exit_code] * (len(lost) + len(wrong))
    if json:
        documents = {name: _document(one) for name, one in outcomes.items()}
        documents |= {name: {"error": "set aside", "failures": list(why)} for name, why in lost.items()}
        emit(documents | {name: {"error": why} for name, why in wrong.items()})
        return _worst(codes)
    for name, one in outcomes.items():
        print(f"{name}:\n{one.stdout}", end="", flush=True)
        if one.code and not one.stdout:
            note(_last(one.stderr))
    logs = {job.operator: job.logs for job in schedule.jobs}
    rows = [
        (name, _state(one), f"{one.seconds:.0f} s", one.worker, _best(one, logs[one.operator], schedule.each))
        for name, one in outcomes.items()
    ]
    rows += [(name, "set aside", "-", "-", why[-1]) for name, why in lost.items()]
    rows += [(name, "refused", "-", "-", _last(why)) for name, why in wrong.items()]
    print(table([("operator", "result", "time", "worker", "rounds and best, or why"), *rows]))
    return _worst(codes)


def _worst(codes: Sequence[int]) -> int:
    return WrongOrSlowError.exit_code if WrongOrSlowError.exit_code in codes else max(codes, default=0)


def _in_order(schedule: Schedule) -> list[tuple[tuple[str, Kind], Outcome]]:
    places = {job.operator: number for number, job in enumerate(schedule.jobs)}
    return sorted(schedule.done.items(), key=lambda item: (item[0][1], places[item[0][0]]))


def _document(outcome: Outcome) -> object:
    return parse(outcome.stdout) if outcome.stdout.strip() else {"error": _last(outcome.stderr)}


def _state(outcome: Outcome) -> str:
    if not outcome.code:
        return "finished"
    return f"exit code {outcome.code}" if outcome.stdout else _last(outcome.stderr)


def _best(outcome: Outcome, logs: Path | None, each: bool) -> str:
    """How many rounds its newest run has, and what the kernel then came to; empty for commands that play none."""
    from kernelgen.cli.fleet_progress import best
    from kernelgen.journal import read, runs

    found = runs(_base(outcome.kind, each) / logs) if logs else ()
    last = [record for record in read(found[-1]) if record.kind == "round"][-1:] if found else []
    if not last:
        return ""
    number = last[0].data["round"]
    return f"{number} round{'' if number == 1 else 's'}, {best(last[0])}"


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
