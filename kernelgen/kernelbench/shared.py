"""Cases that several processes share: forks of one that has imported what they need, and has asked for no GPU. Some
judge them; others, which have no context on the GPU, compile what the next cases launch."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.importer.isolated import start_forked

if TYPE_CHECKING:
    from kernelgen.judge import Case, CaseReport, Operator


HIDDEN_TRIALS = 2
"""So many kinds of values a hidden case gets; one that the spec lists gets all."""
KEPT = 2**30
"""Bytes of a GPU's memory that a process may hold unused: the other problems at work there need it too."""
_POLL_S = 0.02


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    label: str
    passed: bool
    left_out: str
    message: str
    fatal: bool
    """The device is lost: no other case can be judged by the process."""

    @classmethod
    def of(cls, report: CaseReport) -> Verdict:
        return cls(report.case.label, report.passed, report.left_out, report.message, report.fatal)


class Queue:
    """The numbers of cases, each taken once by this process or a fork of it."""

    def __init__(self) -> None:
        self._next = multiprocessing.get_context("fork").Value("i", 0)

    def taken(self, count: int) -> Iterator[int]:
        """Those below a count that nobody else takes."""
        while True:
            with self._next.get_lock():
                number = self._next.value
                self._next.value += 1
            if number >= count:
                return
            yield number


def judged(operator: Operator, cases: Iterable[Case], device: str, seeds: int) -> Iterator[Verdict]:
    """The cases one after the other, until the device is lost. A hidden one gets HIDDEN_TRIALS kinds of values: normal
    ones, and others by what it is called, so that every kind meets many shapes and layouts."""
    from kernelgen import judge
    from kernelgen.judge.inputs import DISTRIBUTIONS

    normal, *others = DISTRIBUTIONS
    for case in cases:
        first = zlib.crc32(case.label.encode())
        drawn = (others[(first + n) % len(others)] for n in range(HIDDEN_TRIALS - 1))
        kinds = (normal, *drawn) if case.hidden else DISTRIBUTIONS
        least = min(seeds, len(kinds))
        with quietly(device):
            verdict = Verdict.of(judge.accuracy_case(operator, case, device=device, seeds=least, distributions=kinds))
            if device == "cuda":
                judge.device.give_back(KEPT)
        yield verdict
        if verdict.fatal:
            return


def quietly(device: str) -> AbstractContextManager[None]:
    """Work that would disturb times which others take on a GPU waits for them."""
    from kernelgen import devices

    return devices.beside(devices.find(device)) if device == "cuda" else nullcontext()


def compiled(operator: Operator, cases: Iterable[Case]) -> Iterator[Verdict]:
    """No verdict: Triton's cache holds what these cases launch where a process asks for it. What fails is compiled, and
    fails, where it is judged."""
    from kernelgen import devices
    from kernelgen.judge.inputs import without_memory
    from kernelgen.worker import ahead

    facts = devices.find("cuda").facts
    assert isinstance(facts, devices.DeviceFacts)
    ahead.compile_for(facts)
    for case in cases:
        at = operator.at(case)
        with suppress(Exception):
            ahead.record(at.kernel, without_memory(at, case))
    yield from ()


def begin(parts: Sequence[Callable[[], Iterable[Verdict]]], folder: Path) -> dict[int, Path]:
    """A fork for every part, by its number, and the file to which it adds a line for every case."""
    folder.mkdir(exist_ok=True)
    files = [folder / f"part_{i}.jsonl" for i in range(len(parts))]
    for file in files:
        file.touch()
    return {start_forked(partial(_leave, part, file)): file for part, file in zip(parts, files, strict=True)}


def _leave(part: Callable[[], Iterable[Verdict]], file: Path) -> None:
    with file.open("a", encoding="utf-8") as left:
        for verdict in part():
            left.write(json.dumps(asdict(verdict)) + "\n")
            left.flush()


def ended(begun: Mapping[int, Path]) -> Iterator[Verdict]:
    """What every case came to, as soon as a fork says so. Raises RuntimeError where one did not end by itself."""
    left = {process: file.open(encoding="utf-8") for process, file in begun.items()}
    while left:
        for process, said in tuple(left.items()):
            done, status = os.waitpid(process, os.WNOHANG)
            while (line := said.readline()).endswith("\n"):
                yield Verdict(**json.loads(line))
            said.seek(said.tell() - len(line.encode()))  # a line that is being written
            if done:
                said.close()
                del left[process]
                if code := os.waitstatus_to_exitcode(status):
                    raise RuntimeError(f"a process that judged small shapes ended with {code}")
        time.sleep(_POLL_S)


def end(begun: Iterable[int]) -> None:
    """End forks of which nothing is needed any more, however they fared."""
    for process in begun:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
