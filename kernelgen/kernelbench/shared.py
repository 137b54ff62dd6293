"""Cases that several processes judge: forks of one that has imported what they need, and has asked for no GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelgen.files import write_atomic
from kernelgen.importer.isolated import start_forked

if TYPE_CHECKING:
    from kernelgen.judge import Case, CaseReport, Operator


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


def judged(operator: Operator, cases: Sequence[Case], device: str, seeds: int) -> Iterator[Verdict]:
    """The cases one after the other, until the device is lost."""
    from kernelgen import judge

    for case in cases:
        verdict = Verdict.of(judge.accuracy_case(operator, case, device=device, seeds=seeds))
        yield verdict
        if verdict.fatal:
            return


def begin(parts: Sequence[Callable[[], Iterable[Verdict]]], folder: Path) -> list[tuple[int, Path]]:
    """A fork for every part, by its number, and the file in which it will have left what its cases came to."""
    files = [folder / f"part_{i}.json" for i in range(len(parts))]
    return [(start_forked(_left(part, file)), file) for part, file in zip(parts, files, strict=True)]


def _left(part: Callable[[], Iterable[Verdict]], file: Path) -> Callable[[], None]:
    return lambda: write_atomic(file, json.dumps([asdict(verdict) for verdict in part()]))


def ended(begun: Sequence[tuple[int, Path]]) -> Iterator[Verdict]:
    """What all parts came to, as each ends. Raises RuntimeError where a process did not end by itself."""
    for process, file in begun:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code:
            raise RuntimeError(f"a process that judged small shapes ended with {code}")
        yield from (Verdict(**said) for said in json.loads(file.read_text("utf-8")))
