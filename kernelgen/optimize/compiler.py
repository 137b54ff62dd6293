"""The compiler's functions as the strategies see them."""

from __future__ import annotations

from kernelgen import custom
from kernelgen.plan import Parameter, Plan, Schedule, WrittenPlan
from kernelgen.schedule.problem import Problem
from kernelgen.spec.model import Case
from kernelgen.strategies import Compiler


def families_compiler() -> Compiler:
    """The real ones; a kernel that no family wrote has no parameters and serves all sizes."""
    from kernelgen import families
    from kernelgen.render import triton_source

    def space(plan: Plan, row: int, cases: tuple[Case, ...]) -> tuple[Parameter, ...]:
        proposed = plan.table[row].schedule.variant == custom.PROPOSED
        return () if isinstance(plan, WrittenPlan) or proposed else families.space(plan, row, cases)

    def legal(plan: Plan, schedule: Schedule, case: Case) -> str | None:
        if custom.is_proposed(plan) and len(plan.table) > 1:
            return "a proposed kernel serves all sizes or none"
        proposed = schedule.variant == custom.PROPOSED
        return None if isinstance(plan, WrittenPlan) or proposed else families.legal(plan, schedule, case)

    def variants(plan: Plan, cases: tuple[Case, ...]) -> tuple[Schedule, ...]:
        return () if isinstance(plan, WrittenPlan) else families.variants(plan, cases)

    def problem_of(plan: Plan, case: Case) -> Problem:
        """A kernel that no family wrote has one line, which serves all sizes."""
        return Problem() if isinstance(plan, WrittenPlan) else families.problem_of(plan, case)

    return Compiler(space, variants, legal, problem_of, triton_source)
