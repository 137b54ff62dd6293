"""The parent's side of a worker: calls with a time limit, typed failures, a fresh process after each fault."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from types import TracebackType
from typing import Any

from kernelgen.errors import NoDeviceError
from kernelgen.outcomes import Status
from kernelgen.worker.confine import WALLS, Confinement
from kernelgen.worker.process import Died, Process, environment
from kernelgen.worker.protocol import OWNERS

START_LIMIT_S = 180.0
"""Importing torch from a cold disk and making a CUDA context can take a minute."""
REASON = 500
"""Characters that are kept of what a worker said when it did not start."""
GRACE_S = 5.0
"""How much longer than the request's own limit the parent waits for a server that kills its children itself."""


class Failed(Exception):
    """A request that came to nothing, with what became of it."""

    def __init__(self, status: Status, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"{status}: {message}")


class Worker:
    """One worker of a role. It starts at the first call, and a new one takes its place after a fault.

    One that owns a device handles one request at a time; the others fork a child for each and take any number at once.
    """

    def __init__(
        self, role: str, extra_env: dict[str, str], folder: Path, confinement: Confinement | None = None
    ) -> None:
        self._role = role
        self._confinement = confinement
        self._env = environment(extra_env)
        self._folder = folder
        self._process: Process | None = None
        self._starting: Process | None = None
        """The last process that was begun; `_process` once it has proved itself."""
        self._closed = False
        self._start_lock = threading.Lock()
        self._turn = threading.Lock()
        self.replaced = 0
        """How often a fault made a fresh process necessary."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process that is running now."""
        return self._process.pid if self._process and self._process.alive else None

    def start(self) -> None:
        """Start the process now and not at the first call. Raises NoDeviceError where it cannot work."""
        self._running()

    def call(self, op: str, args: dict[str, object], limit_s: float) -> dict[str, Any]:
        """The result of one operation. Raises Failed with a typed status; the worker is fit for the next call."""
        if self._role not in OWNERS:
            return self._call(op, args, limit_s, limit_s + GRACE_S)
        with self._turn:
            return self._call(op, args, limit_s, limit_s)

    def confinement(self) -> tuple[str, ...]:
        """What the worker is held to, and what this machine could not do. Raises Failed."""
        found = self.call("confinement", {}, START_LIMIT_S)
        lines = [(key, line) for key in ("holds", "missing") for line in found.get(key, ())]
        longest = 200 + REASON
        return tuple(
            str(line)[:longest] if key == "holds" else f"missing: {str(line)[:longest]}" for key, line in lines
        )

    def close(self) -> None:
        """End the process and all its children, also one that is still starting; none is started after it."""
        self._closed = True
        if self._starting is not None:  # whoever waits for it has the lock
            self._starting.kill("closed")
        with self._start_lock:
            if self._process is not None:
                self._process.kill("closed")
                self._process = None

    def _call(self, op: str, args: dict[str, object], limit_s: float, wait_s: float) -> dict[str, Any]:
        process = self._running()
        future = process.send(op, args, limit_s)
        try:
            reply = future.result(timeout=wait_s)
        except FutureTimeout:
            self._discard(process, f"no answer within {limit_s:g} s")
            raise Failed(Status.TIMEOUT, f"not finished after {limit_s:g} s") from None
        except Died as error:
            self._discard(process, str(error))
            raise Failed(Status.CRASHED, str(error)) from None
        if reply.poisoned:
            self._discard(process, reply.message)
        if reply.status != Status.OK:
            raise Failed(reply.status, reply.message)
        return reply.result

    def _discard(self, process: Process, reason: str) -> None:
        process.kill(reason)
        with self._start_lock:
            if self._process is process:
                self._process = None
                self.replaced += 1

    def _running(self) -> Process:
        with self._start_lock:
            if self._process is not None and not self._process.alive:
                self._process.kill("gone")
                self._process = None
                self.replaced += 1
            if self._process is None:
                self._process = self._start()
            return self._process

    def _start(self) -> Process:
        """A process that has proved itself, behind as many walls as it bears; the ones it does not are said."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._proved(self._confinement)
        except NoDeviceError:
            wanted = self._confinement
            if wanted is None or not wanted.walls or wanted.refused or self._closed:
                raise
        self._confinement = self._borne(wanted)
        return self._proved(self._confinement)

    def _borne(self, wanted: Confinement) -> Confinement:
        """The walls that a process starts behind, each tried alone, and all of these together as far as that goes.

        Raises NoDeviceError where it does not start without any either.
        """
        forms = [form for wall in wanted.walls for form in WALLS[wall]]
        with ThreadPoolExecutor(len(forms) + 1, thread_name_prefix="kernelgen-probe") as pool:
            alone = {form: pool.submit(self._refusal, wanted.behind(form)) for form in forms}
            bare = self._refusal(wanted.behind())
        if bare:
            raise NoDeviceError(f"the {self._role} worker does not start: {bare}")
        refused = [(form, why) for form in forms if (why := alone[form].result())]
        fit = {wall: [form for form in WALLS[wall] if not alone[form].result()] for wall in wanted.walls}
        borne = [fit[wall][0] for wall in wanted.walls if fit[wall]]
        while borne:
            why = self._refusal(wanted.behind(*borne))
            if not why:
                break
            refused.append((borne.pop(), f"beside {' and '.join(borne)}: {why}"))
        return wanted.behind(*borne, refused=tuple(refused))

    def _refusal(self, confinement: Confinement) -> str:
        """Why a process does not start behind these walls; "" where it does. The process is not kept."""
        try:
            self._proved(confinement).kill("a probe")
        except NoDeviceError as error:
            return str(error).removeprefix(f"the {self._role} worker does not start: ")[:REASON]
        return ""

    def _proved(self, confinement: Confinement | None) -> Process:
        """A process that answers, and on a GPU computed something right. Raises NoDeviceError."""
        process = self._starting = Process(self._role, self._env, self._folder, confinement)
        try:
            if self._closed:
                raise Died("closed")
            reply = process.send("canary", {}, START_LIMIT_S).result(timeout=START_LIMIT_S)
        except (Died, FutureTimeout) as error:
            process.kill("did not start")
            why = str(error) or f"no answer{process.last_words()}"
            raise NoDeviceError(f"the {self._role} worker does not start: {why}") from None
        if reply.status != Status.OK:
            process.kill("did not start")
            raise NoDeviceError(f"the {self._role} worker does not start: {reply.message}{process.last_words()}")
        return process
