"""What each command prints with --json, as types; `kernelgen schema COMMAND` prints their JSON Schemas.

Floats that are no numbers in the documents of `check` and `bench` are the texts nan, inf and -inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict  # pydantic brings it, and needs its TypedDict before Python 3.12

from kernelgen.doctor import Finding
from kernelgen.gate import Finding as GateFinding
from kernelgen.optimization import RunResult
from kernelgen.outcomes import AccuracyResult, CaseTiming, Interval
from kernelgen.report import Glance
from kernelgen.report.story import CaseLine, Tried
from kernelgen.verify import Verified

Number = float | str


class Mistake(TypedDict):
    """One mistake; file, line and column of a spec's."""

    kind: str
    file: str | None
    line: int | None
    column: int | None
    message: str
    hint: str | None


class Errors(TypedDict):
    """Instead of any command's document, where it was refused."""

    exit_code: int
    errors: list[Mistake]


class Agreement(TypedDict):
    item: str
    agrees: bool
    said: dict[str, str]


class New(TypedDict):
    operator: str
    folder: str
    dry_run: bool
    change: str
    written: list[str]
    unchanged: list[str]
    agreement: list[Agreement]
    verified: Verified | None
    seconds: float


class Spec(TypedDict):
    name: str
    spec: str
    state: str
    summary: str


class AccuracyCase(TypedDict):
    """A case as the accuracy test reports it; beside these its trials, and the mutants that it tells."""

    case: dict[str, Any]
    passed: bool
    message: str
    max_error: Number
    eager_error: Number
    bound_share: Number
    relative_error: Number
    l2_error: Number
    peak_bytes: int | None
    left_out: str
    run_as: str
    seed: int
    seconds: float


class Check(TypedDict):
    operator: str
    device: str
    seed: int
    exit_code: int
    remarks: list[str]
    cases: list[AccuracyCase]


class Bench(TypedDict):
    """`reason` where nothing was measured; else `device`, `geometric_means` and what `cases` compare."""

    operator: str
    measured: bool
    exit_code: int
    cases: list[dict[str, Any]]


@dataclass(frozen=True)
class Optimize(RunResult):
    """A run: its rounds, the cases of the kernel that it ended with, and every candidate."""

    cases: tuple[CaseLine, ...]
    candidates: tuple[Tried, ...]


class Compared(TypedDict):
    status: str
    message: str
    cases: list[AccuracyResult]


class Compare(TypedDict):
    a: str
    b: str
    operator: str
    same_text: bool
    source: str
    device: dict[str, str]
    accuracy: dict[str, Compared]
    cases: list[CaseTiming]
    speedup: Interval | None
    diff: list[str]


class Version(TypedDict):
    version: str
    time: str
    run: str
    said: str


class Report(TypedDict):
    file: str | None
    pictures: list[str]
    operators: list[str]
    errors: list[str]


class Gate(TypedDict):
    passed: bool
    against: str
    operators: list[GateFinding]


DOCUMENTS: dict[str, Any] = {
    "errors": Errors, "new": New, "list": list[Spec], "check": Check, "bench": Bench, "optimize": Optimize,
    "compare": Compare, "restore": list[Version], "watch": list[Glance], "report": Report, "gate": Gate,
    "doctor": list[Finding],
}  # fmt: skip
"""By command. Several operators of `check`, `bench` and `optimize` are an object of these by name."""


def document_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a command's document."""
    from pydantic import TypeAdapter

    found: dict[str, Any] = TypeAdapter(DOCUMENTS[name]).json_schema()
    return found | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"kernelgen {name} --json"}
