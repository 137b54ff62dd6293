"""Processes that prepare side by side, each of which then has its turn on a device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kernelgen.importer.isolated import start_isolated

READY = "ready"
"""The stage at which a process waits for its turn: it goes on when it reads a line."""
_POLL_S = 0.05


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
    variables that show it alone; a process is given the one that the fewest have when it starts."""

    def __init__(self, each: Sequence[Mapping[str, str]] = ({},)) -> None:
        self._ended = False
        self._choosing = threading.Lock()
        self._places = [_Place(variables) for variables in each]
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: Sequence[str], answer: Path, limit_s: float, output: IO[str]) -> tuple[int | None, float]:
        """The exit code, None where it was killed at its limit, and the seconds it took, those that it waited left out.

        `answer`: the JSON file in which the process says its stage.
        """
        began = time.monotonic()
        if self._ended:
            return None, 0.0
        with self._choosing:
            place = min(self._places, key=lambda one: one.given)
            place.given += 1
        # one thread each: there are many, and torch's would fight over the cores
        process = start_isolated(command, output, {"OMP_NUM_THREADS": "1", **place.variables})
        self._running.add(process)
        try:
            return self._to_its_end(process, place.turn, answer, began, limit_s)
        finally:
            self._running.discard(process)  # its number may be another's from now on
            with self._choosing:
                place.given -= 1

    def _to_its_end(
        self, process: subprocess.Popen[bytes], turn: threading.Lock, answer: Path, began: float, limit_s: float
    ) -> tuple[int | None, float]:
        while process.poll() is None and stage(answer) != READY and time.monotonic() - began < limit_s:
            time.sleep(_POLL_S)
        used = time.monotonic() - began
        if process.poll() is None and stage(answer) != READY:
            _kill(process)
            return None, used
        if process.poll() is not None:
            _kill(process)  # what it started and left
            return process.returncode, used
        with turn:
            began = time.monotonic()
            try:
                process.communicate(b"\n", timeout=max(limit_s - used, 0.0))
            except subprocess.TimeoutExpired:
                _kill(process)
                return None, used + time.monotonic() - began
            _kill(process)  # what it started and left
            return process.returncode, used + time.monotonic() - began

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


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
