"""Workers of a Ray cluster: an actor for every GPU, NPU or core, which runs what a worker of this machine runs.

Ray starts and watches processes and carries messages; which operator runs where is the scheduler's. Everything that an
actor sends is a message of `fleet.model`, so that a node needs no file of this machine's.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kernelgen.devices import Device, find
from kernelgen.errors import NoDeviceError, UsageError
from kernelgen.fleet.checkup import device_gone, kind, self_test
from kernelgen.fleet.model import Assignment, Ended, Failed, Job, Joined, Lost, Message, Shipped, Worker
from kernelgen.fleet.work import COMMAND, GO_ON, KILL, STOP, doubtful, perform

LOOK_S = 1.0
"""Between two looks at which nodes there are."""
START_S = 120.0
"""How long the first workers may take: Ray starts a process, which imports what finds its device."""
STARTS = 3
"""Actors in a row that may die before they say what they are."""
ENDS_S = 10.0
"""How long what passes on the messages of a killed actor may take to notice."""
RESOURCES = {"cuda": "GPU", "npu": "NPU", "cpu": "CPU"}
"""What Ray calls what a worker of a device takes one of."""
HOW_TO_GET_IT = "Ray is not installed: pip install 'kernelgen[ray]'"


@dataclass(frozen=True)
class Asked:
    """What is asked of every worker."""

    device: str
    """The device's name for `devices.find`."""
    arch: str | None
    jobs: int
    """Its processes that compile."""
    measures: bool
    """Whether times are taken, for which its clock is tested."""
    command: tuple[str, ...] = COMMAND


class RayWorker:
    """An actor. Ray shows it one device alone, or none, by the environment of its process."""

    def __init__(self, asked: Asked, number: int) -> None:
        self._asked, self._number = asked, number
        self._wanted: dict[int, int] = {}

    def describe(self) -> tuple[Worker, Device, str]:
        """The worker, its device, and why it may not be used; "" where it may."""
        import ray

        device = find(self._asked.device, self._asked.arch)
        word = RESOURCES[self._asked.device]
        ids = ray.get_runtime_context().get_accelerator_ids().get(word, [])
        name = f"{ray.util.get_node_ip_address()} {word.lower()} {','.join(ids) or self._number}"
        seen, why = self_test({}) if self._asked.measures and device.measures else ({}, "")
        return Worker(name, kind(device, device.cards[0] if device.cards else None), seen), device, why

    def perform(self, attempt: int, job: Job, inputs: Sequence[tuple[str, bytes]]) -> Iterator[Shipped | Ended | str]:
        """A job's messages; a text where the device is gone after a failure."""
        self._wanted[attempt] = GO_ON
        variables = {"KERNELGEN_JOBS": str(self._asked.jobs)}
        for message in perform(attempt, job, inputs, variables, lambda: self._wanted[attempt], self._asked.command):
            if isinstance(message, Ended) and doubtful(message) and self._asked.device != "cpu":
                gone = device_gone({})
                if gone:
                    yield gone
                    return
            yield message

    def want(self, attempt: int, what: int) -> None:
        """STOP or KILL what an attempt runs."""
        self._wanted[attempt] = what


class RayExecutor:
    """As many actors as the cluster has room for, now and when nodes join it."""

    def __init__(self, ray: Any, asked: Asked, most: int | None) -> None:
        self._ray, self._asked, self._most = ray, asked, most
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._starting: dict[Any, Any] = {}
        """What an actor says of itself, once it does, and the actor."""
        self._actors: dict[str, Any] = {}
        self._on: dict[int, str] = {}
        self._followers: dict[int, threading.Thread] = {}
        """What passes on the messages of attempts that are under way."""
        self._refused = 0
        """Places that are taken and not used."""
        self._died = 0
        """Actors in a row that died before they said what they are."""
        self._made = 0
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def first(self) -> list[tuple[Worker, Device]]:
        """The workers of the nodes that are there now, when they have said what they are; then others may join.

        Raises NoDeviceError where there is none.
        """
        self._make()
        found: list[tuple[Worker, Device]] = []
        until = time.monotonic() + START_S
        while self._starting and time.monotonic() < until:
            found += [pair for pair in self._ready(LOOK_S) if pair]
        if not found:
            raise NoDeviceError(self._why_none())
        self._watch.start()
        return found

    def message(self, timeout_s: float) -> Message | None:
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def begin(self, assignment: Assignment, inputs: tuple[tuple[str, bytes], ...]) -> None:
        self._on[assignment.attempt] = assignment.worker.name
        follower = threading.Thread(target=self._follow, args=(assignment, inputs), daemon=True)
        self._followers[assignment.attempt] = follower
        follower.start()

    def stop(self, attempt: int) -> None:
        self._want(attempt, STOP)

    def refuse(self, worker: str) -> None:
        with self._lock:
            actor = self._actors.pop(worker, None)
            self._refused += actor is not None
        if actor is not None:
            self._ray.kill(actor)

    def waits(self) -> bool:
        return not self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        if self._watch.is_alive():
            self._watch.join()
        for attempt in tuple(self._on):
            self._want(attempt, KILL)
        for actor in (*self._actors.values(), *self._starting.values()):
            self._ray.kill(actor)
        for follower in tuple(self._followers.values()):
            follower.join(ENDS_S)  # a call of Ray's after its shutdown would start a Ray of its own
        self._ray.shutdown()

    def _want(self, attempt: int, what: int) -> None:
        actor = self._actors.get(self._on[attempt])
        if actor is not None:
            actor.want.remote(attempt, what)

    def _follow(self, assignment: Assignment, inputs: tuple[tuple[str, bytes], ...]) -> None:
        """Pass on what an attempt says; an actor that dies is a worker that is lost."""
        attempt, name = assignment.attempt, assignment.worker.name
        actor = self._actors.get(name)
        if actor is None:
            return
        try:
            for reference in actor.perform.options(num_returns="streaming").remote(attempt, assignment.job, inputs):
                message = self._ray.get(reference)
                if isinstance(message, str):
                    self._lose(name, message)
                    return
                self._messages.put(message)
        except self._ray.exceptions.RayActorError as error:
            self._lose(name, f"its process or its node is gone ({_first_line(error)})")
        except Exception as error:
            self._messages.put(Failed(attempt, f"{type(error).__name__}: {_first_line(error)}"))
        finally:
            self._on.pop(attempt, None)
            self._followers.pop(attempt, None)

    def _lose(self, name: str, why: str) -> None:
        with self._lock:
            actor = self._actors.pop(name, None)
        if actor is not None and not self._closed.is_set():
            self._messages.put(Lost(name, why))
            with suppress(Exception):
                self._ray.kill(actor)

    def _look(self) -> None:
        """Nodes that join are used, and actors that died are replaced where their device is still there."""
        while not self._closed.wait(LOOK_S):
            with suppress(self._ray.exceptions.RayError, ConnectionError):
                self._make()
                for _ in self._ready(0):
                    pass

    def _make(self) -> None:
        """An actor for every place that has none."""
        resource = RESOURCES[self._asked.device]
        room = int(self._ray.cluster_resources().get(resource, 0))
        wanted = min(room, self._most) if self._most else room
        takes = {"num_gpus": 1} if resource == "GPU" else {"resources": {"NPU": 1}} if resource == "NPU" else {}
        with self._lock:
            while len(self._actors) + len(self._starting) + self._refused < wanted:
                # threads: one streams what its command does, others are told to end it
                options = {"num_cpus": 1, "max_concurrency": 3, "max_restarts": 0, **takes}
                actor = self._ray.remote(**options)(RayWorker).remote(self._asked, self._made)
                self._made += 1
                self._starting[actor.describe.remote()] = actor

    def _ready(self, timeout_s: float) -> Iterator[tuple[Worker, Device]]:
        """Workers that have said by now what they are."""
        done, _ = self._ray.wait(list(self._starting), timeout=timeout_s) if self._starting else ([], [])
        for reference in done:
            actor = self._starting[reference]
            try:
                worker, device, why = self._ray.get(reference)
            except self._ray.exceptions.ActorDiedError as error:
                # killed, perhaps: another takes its place, unless none ever starts
                self._died += 1
                often = self._died >= STARTS
                self._drop(reference, actor, "a worker", f"it does not start: {_first_line(error)}", for_good=often)
                continue
            except Exception as error:
                self._drop(reference, actor, "a worker", f"it does not start: {_first_line(error)}")
                continue
            if why:
                self._drop(reference, actor, worker.name, why)
                continue
            self._died = 0
            with self._lock:
                del self._starting[reference]
                self._actors[worker.name] = actor
            self._messages.put(Joined(worker))
            yield worker, device

    def _drop(self, reference: Any, actor: Any, name: str, why: str, for_good: bool = True) -> None:
        with self._lock:
            del self._starting[reference]
            self._refused += for_good
        if for_good:
            self._messages.put(Lost(name, why))
        with suppress(Exception):
            self._ray.kill(actor)

    def _why_none(self) -> str:
        said = self.message(0)
        if isinstance(said, Lost):
            return f"--ray: no worker is fit: {said.worker}: {said.why}"
        resource = RESOURCES[self._asked.device]
        if not self._made:
            return f"--ray: the cluster has no {resource}"
        return f"--ray: no worker has started after {START_S:g} s; is each {resource} of the cluster taken?"


def start(
    address: str, device: str | None, arch: str | None, most: int | None, jobs: int | None, measures: bool, each: bool
) -> tuple[RayExecutor, Device]:
    """Connect to a cluster, or start one of this machine's, and wait for its workers; the device is theirs.

    Raises UsageError where Ray is not installed or does not connect, or the devices are unlike and `each` is False.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError(f"--ray {address}: {HOW_TO_GET_IT}") from None
    how: Mapping[str, Any] = {"address": address, **({"include_dashboard": False} if address == "local" else {})}
    if address == "local" and "RAY_AUTH_MODE" not in os.environ:
        # Ray listens on every address of the machine, whatever it is told: a key of this run's keeps others out.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with _quiet():
            ray.init(log_to_driver=False, logging_level="error", **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"--ray {address}: Ray does not connect: {_first_line(error)}") from None
    room = ray.cluster_resources()
    name = device or next((name for name, resource in RESOURCES.items() if room.get(resource)), "cpu")
    if name not in RESOURCES:
        ray.shutdown()
        raise UsageError(f"--device {name}: Ray gives {', '.join(RESOURCES)}")
    cores = room.get("CPU", 1) / max(room.get(RESOURCES[name], 1), 1)
    found = RayExecutor(ray, Asked(name, arch, jobs or max(1, int(cores)), measures), most)
    try:
        first = found.first()
        _alike([worker for worker, _ in first], each)
    except BaseException:
        found.close()
        raise
    return found, first[0][1]


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing reaches stderr: of an address where no Ray is, its C++ code writes a line a second there."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _alike(workers: Sequence[Worker], each: bool) -> None:
    """Raise UsageError where workers are unlike and that was not asked for."""
    other = next((worker for worker in workers if worker.kind != workers[0].kind), None)
    if other is not None and not each:
        raise UsageError(
            f"--ray: different workers are not mixed in one run ({other.name}: "
            f"{workers[0].kind.differences(other.kind)}, as {workers[0].name} has): --each-device gives each its own"
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
