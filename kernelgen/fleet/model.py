"""What the scheduler, its executors and the collecting machine say to each other, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, order=True)
class Kind:
    """What must be the same of all devices whose figures stand beside each other."""

    device: str
    """The device's name, or what a machine without one says of itself."""
    versions: tuple[tuple[str, str], ...]
    """Driver, CUDA, torch, triton, Python, and the digest of kernelgen's own files."""

    def differences(self, other: Kind) -> str:
        """How `other` is another kind, in words; "" where it is not."""
        theirs = dict(other.versions)
        found = [f"{name} {theirs.get(name, 'none')} instead of {own}" for name, own in self.versions]
        named = [f"{other.device} instead of {self.device}"] if other.device != self.device else []
        return ", ".join(named + [line for line, (name, own) in zip(found, self.versions, strict=True)
                                  if theirs.get(name) != own])  # fmt: skip


@dataclass(frozen=True)
class Worker:
    """One device of one host, or a share of a host's cores: it works on one operator at a time."""

    name: str
    """Such as "gpu 0", or "10.0.0.7 gpu 0"."""
    kind: Kind
    seen: dict[str, object] = field(default_factory=dict)
    """What else it said of itself: clocks, throttling, who else uses the device, its A/A self-test."""


@dataclass(frozen=True)
class Tree:
    """Files of the collecting machine that a job may write: below `there` on the worker, below `here` on this one."""

    there: str
    here: Path
    without: str = ""
    """A file directly below it that stays where it is."""


@dataclass(frozen=True)
class Job:
    """One command about one operator."""

    operator: str
    """Its name; with `kind`, what the job is known by."""
    arguments: tuple[str, ...]
    """Of kernelgen, as on a command line."""
    folder: str = ""
    """What it writes to: of two jobs with the same folder one waits for the other."""
    settings: tuple[tuple[str, str], ...] = ()
    """Variables for its process."""
    inputs: tuple[Tree, ...] = ()
    """What is sent along: files, and folders with all that is in them."""
    outputs: tuple[Tree, ...] = ()
    """What comes back."""
    logs: Path | None = None
    """The folder of the operator's runs on the collecting machine, which is locked as long as the job runs."""
    fresh: bool = False
    """Whether a run from before is not gone on with; what this job itself has recorded is."""


@dataclass(frozen=True)
class Assignment:
    """A job on a worker. `attempt` is never given twice: what a lost worker still says is told from it."""

    attempt: int
    job: Job
    worker: Worker


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    operator: str
    worker: str
    kind: Kind
    code: int
    """Its exit code."""
    stdout: str
    stderr: str
    """The end of it."""
    seconds: float


@dataclass(frozen=True)
class Joined:
    """A worker can be given work."""

    worker: Worker


@dataclass(frozen=True)
class Lost:
    """A worker is gone, or may not be used; what it worked on goes back."""

    worker: str
    why: str


@dataclass(frozen=True)
class Progressed:
    """A round of an operator is on the collecting machine's disk."""

    attempt: int


@dataclass(frozen=True)
class Finished:
    """A command ended by itself, whatever its exit code says."""

    attempt: int
    outcome: Outcome


@dataclass(frozen=True)
class Failed:
    """A command did not come to an end of its own: killed, out of memory, the device gone, a fault."""

    attempt: int
    why: str


@dataclass(frozen=True)
class Interrupted:
    """The user wants to stop."""


Event = Joined | Lost | Progressed | Finished | Failed | Interrupted


@dataclass(frozen=True)
class Begin:
    """Give a worker its job."""

    assignment: Assignment


@dataclass(frozen=True)
class Refuse:
    """Use this worker no longer."""

    worker: str
    why: str


@dataclass(frozen=True)
class Stop:
    """Ask a command to end."""

    attempt: int


@dataclass(frozen=True)
class SetAside:
    """An operator is not tried again."""

    operator: str
    why: tuple[str, ...]


Action = Begin | Refuse | Stop | SetAside


@dataclass(frozen=True)
class Shipment:
    """Files of a job as they are now on its worker. Journals come as whole lines after those that came before."""

    files: tuple[tuple[str, bytes], ...] = ()
    """Whole files, by their path on the worker."""
    lines: tuple[tuple[str, int, bytes], ...] = ()
    """Of journals: the path, where in the file they begin, and the lines."""


@dataclass(frozen=True)
class Shipped:
    """A message of an executor: files of an attempt."""

    attempt: int
    shipment: Shipment


@dataclass(frozen=True)
class Ended:
    """A message of an executor: the command's process has ended."""

    attempt: int
    code: int
    """Negative: the signal that ended it."""
    stdout: str
    stderr: str
    seconds: float
    last: Shipment = Shipment()
    """What it wrote at its end."""


Message = Joined | Lost | Failed | Shipped | Ended


class Executor(Protocol):
    """Where commands run."""

    def message(self, timeout_s: float) -> Message | None:
        """The next thing that happened; None where nothing did."""

    def begin(self, assignment: Assignment, inputs: tuple[tuple[str, bytes], ...]) -> None:
        """Start a command on a worker that has none; `inputs`: files by their path on the worker."""

    def stop(self, attempt: int) -> None:
        """Ask a command to end, as Ctrl-C does. Messages of it still come."""

    def refuse(self, worker: str) -> None:
        """Use a worker no longer."""

    def waits(self) -> bool:
        """Whether a worker may still join."""

    def close(self) -> None:
        """End all that still runs, at once."""
