"""Forks of one process that prepare side by side, each of which then has its turn on a device."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn

from kernelgen.importer.isolated import end_with, with_this_package
from kernelgen.lifeline import heed_interrupts

READY = "ready"
"""The stage at which a process waits for its turn: it goes on when something comes in."""
_POLL_S = 0.05
_FORKED = multiprocessing.get_context("forkserver")
_ASKED = threading.Lock()
"""Held by who starts a process or asks how one ended: starting one asks of all of them, and of two threads that ask of
the same one at once one reads its exit code and the other 255."""

Work = Callable[..., None]
"""What a process does, given its arguments and where it hears that it is its turn."""


@dataclass
class _Place:
    """A device."""

    variables: Mapping[str, str]
    """That show it alone."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    given: int = 0
    """To so many processes that run."""


class Turns:
    """A process that is ready gets its turn on its device when no other has it there. `each`: for every device, the
    variables that show it alone; a process is given the one that the fewest have when it starts. `imported`: a module
    that the process which starts forks imports, if it does not run yet. Made in the thread that outlives all others:
    that process ends with it."""

    def __init__(self, each: Sequence[Mapping[str, str]] = ({},), imported: str = "") -> None:
        self._ended = False
        self._choosing = threading.Lock()
        self._places = [_Place(variables) for variables in each]
        self._running: set[ForkServerProcess] = set()
        _FORKED.set_forkserver_preload(["kernelgen.kernelbench.server", *([imported] if imported else [])])
        forkserver.ensure_running()

    def run(
        self, work: Work, arguments: Sequence[Any], answer: Path, limit_s: float, log: Path
    ) -> tuple[int | None, float]:
        """The exit code, None where it was killed at its limit, and the seconds it took, those that it waited left out.

        `answer`: the JSON file in which the process says its stage; `log`: the file to which its output is added.
        Raises RuntimeError where no process can be started.
        """
        with self._choosing:
            place = min(self._places, key=lambda one: one.given)
            place.given += 1
        hears, go = _FORKED.Pipe(duplex=False)
        environment = with_this_package({**os.environ, **place.variables})
        process = _FORKED.Process(target=_forked, args=(work, arguments, hears, environment, log))
        try:
            if not self._start(process):
                return None, 0.0
            hears.close()
            return self._to_its_end(process, go, place.turn, answer, limit_s)
        finally:
            self._running.discard(process)  # its number may be another's from now on
            hears.close()
            go.close()
            with self._choosing:
                place.given -= 1

    def _start(self, process: ForkServerProcess) -> bool:
        """Whether a process was started: none is after the end."""
        with _ASKED:
            if self._ended:
                return False
            try:
                process.start()
            except (EOFError, OSError) as error:
                raise RuntimeError("the process that starts problems has ended: start the command again") from error
            self._running.add(process)
        if self._ended:  # meanwhile: the first start waits for seconds of imports
            _kill(process)
            return False
        return True

    def _to_its_end(
        self, process: ForkServerProcess, go: Connection, turn: threading.Lock, answer: Path, limit_s: float
    ) -> tuple[int | None, float]:
        began = time.monotonic()
        while stage(answer) != READY and time.monotonic() - began < limit_s:
            if wait([process.sentinel], _POLL_S):
                break
        used = time.monotonic() - began
        if stage(answer) == READY and not wait([process.sentinel], 0):
            with turn:
                began = time.monotonic()
                with suppress(BrokenPipeError):  # it has just ended
                    go.send(None)
                wait([process.sentinel], max(limit_s - used, 0.0))
                used += time.monotonic() - began
                return _ended(process), used  # before another has its turn
        return _ended(process), used

    def end(self) -> None:
        """Kill what still runs, with all that it started, and begin nothing any more."""
        self._ended = True
        for process in tuple(self._running):
            _kill(process)


def said(answer: Path) -> dict[str, Any]:
    """What a process has said so far. Somebody's file runs in it: what is no answer of ours counts as none."""
    try:
        found = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("stage"), str) else {}


def stage(answer: Path) -> str:
    """What a process has said that it is doing; "" before it says anything."""
    return str(said(answer).get("stage", ""))


def _forked(
    work: Work, arguments: Sequence[Any], hears: Connection, environment: Mapping[str, str], log: Path
) -> NoReturn:
    """Do some work and end without what is done at exit: torch.compile's workers take seconds to be ended one by one,
    and end with the session."""

    def begin() -> None:
        heed_interrupts()  # which the process that starts forks ignores
        # what libraries make from here on is nothing that it should clean up after
        multiprocessing.set_start_method("fork", force=True)
        os.environ.clear()
        os.environ.update(environment)
        with log.open("a", encoding="utf-8") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        work(*arguments, hears)

    end_with(begin, os.getppid())  # the process that starts forks, which ends with the command


def _ended(process: ForkServerProcess) -> int | None:
    """The exit code of a process, None where it is still at work; then it is killed. What it started ends with it."""
    with _ASKED:
        code = process.exitcode
    _kill(process)
    return code


def _kill(process: ForkServerProcess) -> None:
    with _ASKED:
        if process.pid is not None:
            with suppress(ProcessLookupError):  # all have ended, or it has no session of its own yet
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    wait([process.sentinel])
    with _ASKED:
        process.join()
