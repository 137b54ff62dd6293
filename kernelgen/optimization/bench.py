"""What every round of a run works with, and the one way steps are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelgen import custom
from kernelgen.devices import Device
from kernelgen.evaluate import Evaluator
from kernelgen.files import read_text
from kernelgen.journal import Journal
from kernelgen.language import Language
from kernelgen.llm import Author
from kernelgen.manifest import read_manifest
from kernelgen.optimization.model import Options, Reporter
from kernelgen.outcomes import Source
from kernelgen.plan import Parameter, Plan, Schedule, WrittenPlan
from kernelgen.schedule.problem import Problem
from kernelgen.spec.model import Case
from kernelgen.strategies import Compiler


@dataclass(frozen=True)
class Bench:
    """Fixed over a run. The plan's table is the one that `optimize` was called with; the state has the current one."""

    plan: Plan
    device: Device
    evaluator: Evaluator
    journal: Journal
    compiler: Compiler
    options: Options
    reporter: Reporter
    ordinal: int
    """The how many-th run of the operator this is: the first part of a version."""
    triton_file: Path
    log_file: Path
    author: Author | None = None
    """A language model that may write kernels."""

    @property
    def run(self) -> str:
        return self.journal.folder.name

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.plan.spec.performance

    @cached_property
    def language(self) -> Language:
        """Of the log."""
        found = read_manifest(self.triton_file.parent) if self.options.language is None else None
        return self.options.language or (found.language if found else "en")

    @property
    def is_edited_in_place(self) -> bool:
        """Whether the file to adopt is the kernel's own, which is left as it is until it is kept."""
        return bool(self.options.adopted) and read_text(self.triton_file) == self.options.adopted

    @property
    def source(self) -> Source:
        return "measured" if self.device.measures else "predicted"

    def once(self, kind: str, number: int, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The data of this round's record of a kind; computed and recorded only where the journal lacks it."""
        for record in self.journal.records(kind):
            if record.data["round"] == number:
                return record.data
        return self.journal.append(kind, {"round": number, **compute()}).data


def families_compiler() -> Compiler:
    """The real ones; a kernel that no family wrote has no parameters and serves all sizes."""
    from kernelgen import families
    from kernelgen.render import triton_source

    def space(plan: Plan, row: int, cases: tuple[Case, ...]) -> tuple[Parameter, ...]:
        foreign = plan.table[row].schedule.variant in custom.FOREIGN
        return () if isinstance(plan, WrittenPlan) or foreign else families.space(plan, row, cases)

    def legal(plan: Plan, schedule: Schedule, case: Case) -> str | None:
        if custom.is_foreign(plan.table) and len(plan.table) > 1:
            return "a kernel that no family wrote serves all sizes or none"
        foreign = schedule.variant in custom.FOREIGN
        return None if isinstance(plan, WrittenPlan) or foreign else families.legal(plan, schedule, case)

    def legality(plan: Plan, cases: tuple[Case, ...]) -> Callable[[Schedule], str | None]:
        return (lambda schedule: None) if isinstance(plan, WrittenPlan) else families.legality(plan, cases)

    def variants(plan: Plan, cases: tuple[Case, ...]) -> tuple[Schedule, ...]:
        return () if isinstance(plan, WrittenPlan) else families.variants(plan, cases)

    def problem_of(plan: Plan, case: Case) -> Problem:
        """A kernel that no family wrote has one line, which serves all sizes."""
        return Problem() if isinstance(plan, WrittenPlan) else families.problem_of(plan, case)

    return Compiler(space, variants, legal, problem_of, triton_source, legality)
