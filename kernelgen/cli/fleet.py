"""--gpus, --workers and --ray: where the operators of a command run, and what is wrong with that."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.errors import NoDeviceError, UsageError
from kernelgen.settings import Settings, checked, whole

if TYPE_CHECKING:
    from kernelgen.devices import Device
    from kernelgen.fleet.local import Place
    from kernelgen.fleet.model import Executor

MOST = 1024
"""Workers of one machine."""

Gpus = Annotated[
    str | None,
    typer.Option("--gpus", metavar="all|0,2", help="Work on several operators in parallel, one per GPU or NPU."),
]
Workers = Annotated[
    str | None, typer.Option("--workers", metavar="N", help="Work on N operators in parallel without a GPU.")
]
Ray = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS|local", help="Use the GPUs, NPUs or cores of a Ray cluster.")
]
EachDevice = Annotated[
    bool, typer.Option("--each-device", help="Start one run per device model, each in its own folder.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted parallel run; fail if there is none.")]


@dataclass(frozen=True)
class Fleet:
    """Where operators are to run side by side."""

    gpus: str | None
    workers: int | None
    ray: str | None
    each: bool


def asked(gpus: str | None, workers: str | None, ray: str | None, each: bool, resume: bool = False) -> Fleet | None:
    """What the options say; None where the command runs by itself. Raises UsageError for what contradicts itself."""
    if gpus is None and workers is None and ray is None:
        for name, given in (("--each-device", each), ("--resume", resume)):
            if given:
                raise UsageError(f"{name} applies to parallel runs: give --gpus, --workers or --ray as well")
        return None
    if gpus is not None and ray is not None:
        raise UsageError("--gpus uses GPUs of this machine, --ray those of a cluster: give one of them")
    if gpus is not None and workers is not None:
        raise UsageError("--workers is for machines without a GPU: every GPU has one worker")
    count = None if workers is None else checked("--workers", workers, whole(1, MOST))
    if ray is not None and ray != "local":
        _address(ray)
    return Fleet(gpus, count, ray, each)


def _address(ray: str) -> None:
    """Raise UsageError for what is no HOST:PORT, or where nothing answers."""
    if ray.startswith("ray://"):
        raise UsageError(
            f"--ray {ray}: that is Ray Client's address; run kernelgen on a node and give the cluster's own, HOST:6379"
        )
    host, _, port = ray.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--ray {ray}: must be local, or HOST:PORT as `ray start --head` prints it")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"--ray {ray}: nothing answers there ({why}); `ray start --head` starts a cluster") from None


def settings_of(settings: Settings) -> tuple[tuple[str, str], ...]:
    """What is set for this machine or project, as variables for workers that have neither."""
    default = asdict(Settings())
    return tuple(
        (f"KERNELGEN_{name.upper()}", str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in asdict(settings).items()
        if value != default[name]
    )


@contextmanager
def started(fleet: Fleet, settings: Settings, measures: bool) -> Iterator[tuple[Device, Executor]]:
    """Where the operators run, and its device. `measures`: whether times are taken, for which a worker's clock is
    tested.

    Raises UsageError and NoDeviceError for what is not here.
    """
    if fleet.ray is not None:
        from kernelgen.fleet import on_ray

        found, device = on_ray.start(
            fleet.ray, settings.device, settings.arch, fleet.workers, settings.jobs, measures, fleet.each
        )
        try:
            yield device, found
        finally:
            found.close()
        return
    from kernelgen.devices import find
    from kernelgen.fleet.local import LocalExecutor

    here = find(settings.device, settings.arch)
    workers = places(fleet, here, settings.jobs)
    local = LocalExecutor(_tested(workers) if measures and here.measures else workers)
    try:
        yield here, local
    finally:
        local.close()


def places(fleet: Fleet, device: Device, jobs: int | None) -> list[Place]:
    """The workers of this machine that were asked for."""
    from kernelgen.fleet.checkup import kind
    from kernelgen.fleet.local import Place
    from kernelgen.fleet.model import Worker

    if fleet.gpus is None:
        if device.measures:
            raise UsageError(f"--workers is for machines without a GPU: {device.facts.name} is here, use --gpus all")
        count = fleet.workers or 1
        same = kind(device)
        shared = _share(count, jobs)
        return [Place(Worker(f"cpu {n}", same), shared) for n in range(count)]
    numbers = chosen(fleet.gpus, device)
    kinds = {device.cards[n].name for n in numbers}
    if len(kinds) > 1 and not fleet.each:
        said = ", ".join(f"{n} is {device.cards[n].name}" for n in numbers)
        raise UsageError(
            f"--gpus {fleet.gpus}: different devices ({said}) are not mixed in one run: choose GPUs of one model, or "
            "use --each-device"
        )
    shared = _share(len(numbers), jobs)
    word = "npu" if device.name == "npu" else "gpu"
    return [
        Place(Worker(f"{word} {n}", kind(device, device.cards[n])), {**shared, **dict(device.cards[n].variables)}, True)
        for n in numbers
    ]


def chosen(gpus: str, device: Device) -> list[int]:
    """The numbers of the devices that --gpus names."""
    numbers = [] if gpus == "all" else gpus.split(",")
    if not all(number.isdecimal() for number in numbers) or not gpus:
        raise UsageError(f"--gpus {gpus}: must be all, or numbers such as 0,2")
    if not device.cards:
        raise NoDeviceError(
            f"--gpus {gpus}: no GPU on this machine; --workers N works on the CPU, with predicted times"
        )
    found = list(dict.fromkeys(map(int, numbers))) or list(range(len(device.cards)))
    for number in found:
        if number >= len(device.cards):
            last = len(device.cards) - 1
            here = f"here are 0 to {last}" if last else "here is 0 alone"
            raise UsageError(f"--gpus {gpus}: there is no GPU {number}; {here}")
    return found


def _share(workers: int, jobs: int | None) -> dict[str, str]:
    """The compile processes of a worker, where the user does not say how many: its share of the cores."""
    from kernelgen.devices.cpu import cores

    return {} if jobs else {"KERNELGEN_JOBS": str(max(1, cores() // workers))}


def _tested(found: Sequence[Place]) -> list[Place]:
    """The places whose clocks can be believed; the others are named, with the figure. One after the other would take
    minutes: each has its device for itself."""
    from kernelgen.cli.terminal import note
    from kernelgen.fleet.checkup import self_test

    with ThreadPoolExecutor(len(found)) as pool:
        results = list(pool.map(lambda place: self_test(place.variables), found))
    for place, (seen, why) in zip(found, results, strict=True):
        place.worker.seen.update(seen)
        if why:
            note(f"{place.worker.name} is set aside: {why}")
    kept = [place for place, (_, why) in zip(found, results, strict=True) if not why]
    if not kept:
        raise NoDeviceError("no GPU is usable: see the self-tests above")
    return kept
